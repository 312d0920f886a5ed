//! Virtual addresses of ServiceEntries are in their statuses: stable over restarts, and the same for all replicas.

use std::net::SocketAddr;

use evenkeel_control::{ControlPlane, Options, Platform};
use evenkeel_k8s::replica::{Replica, ReplicaOptions};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use serde_json::Value;

use crate::fixture::{admin, until};
use crate::mesh::{Mesh, start};
use crate::replica::options;

fn entry(namespace: &str, name: &str, hosts: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{hosts: [{hosts}], resolution: DNS, ports: [{{number: 80, name: http, protocol: HTTP}}]}}\n---\n"
    )
}

/// The address of each host, by the status of a ServiceEntry.
fn stored(server: &ApiServer, namespace: &str, name: &str) -> Vec<[String; 2]> {
    let text = server.kubectl(&["get", "serviceentry", name, "-n", namespace, "-o", "jsonpath={.status.addresses}"]);
    let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let field = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    all.iter().map(|one| [field(one, "host"), field(one, "value")]).collect()
}

fn patch(server: &ApiServer, namespace: &str, name: &str, addresses: &[(&str, &str)]) {
    let entries: Vec<String> =
        addresses.iter().map(|(host, value)| format!(r#"{{"host":"{host}","value":"{value}"}}"#)).collect();
    let patch = format!(r#"{{"status":{{"addresses":[{}]}}}}"#, entries.join(","));
    server.kubectl(&[
        "patch",
        "serviceentry",
        name,
        "-n",
        namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ]);
}

/// The address of a host in a model.
fn address(mesh: &Mesh, host: &str) -> Option<String> {
    let service = mesh.snapshot.services_of(host).first()?;
    service.vips().next().map(|address| address.to_string())
}

/// A control plane that leads, with a state directory of its own.
struct Leader {
    _directory: tempfile::TempDir,
    replica: Replica,
    serving: tokio::task::JoinHandle<()>,
    addresses: SocketAddr,
}

impl Leader {
    async fn start(server: &ApiServer, namespace: &str) -> Self {
        let (watching, source) = start(&server.kubeconfig()).await;
        let directory = tempfile::tempdir().expect("a directory");
        let whoami = ReplicaOptions { name: "a".to_owned(), ..ReplicaOptions::from_env(|_| None, namespace) };
        let (replica, platform) = Replica::start(admin(server).await, source, &whoami);
        let options = Options { config: Vec::new(), ..options(directory.path()) };
        let plane =
            ControlPlane::start_on(&options, Platform { tokens: None, ..platform }).await.expect("a control plane");
        let addresses = plane.addresses.http;
        let serving = tokio::spawn(async move {
            let _watching = watching;
            plane.serve(std::future::pending()).await.expect("it serves");
        });
        Self { _directory: directory, replica, serving, addresses }
    }

    async fn end(self) {
        assert!(self.addresses.port() > 0);
        self.serving.abort();
        self.replica.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn addresses_are_stored_in_statuses_and_taken_from_there() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let shop = server.namespace("shop");
    server.apply(&[entry(&shop, "ab", "a.com, b.com"), entry(&shop, "c", "c.com")].concat());
    let own = [
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n",
        &format!("metadata: {{name: own, namespace: {shop}}}\n"),
        "spec: {hosts: [d.com], addresses: [10.9.9.9], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}\n",
    ];
    server.apply(&own.concat());
    // Another control plane has decided about this one.
    patch(&server, &shop, "c", &[("c.com", "240.240.77.7"), ("c.com", "2001:2::7")]);
    let leader = Leader::start(&server, &shop).await;
    until(async || stored(&server, &shop, "ab").len() == 2).await;
    let ab = stored(&server, &shop, "ab");
    assert_eq!([&ab[0][0], &ab[1][0]], ["a.com", "b.com"]);
    assert!(ab.iter().all(|one| one[1].starts_with("240.240.")) && ab[0][1] != ab[1][1], "{ab:?}");
    let conditions =
        || server.kubectl(&["get", "serviceentry", "c", "-n", &shop, "-o", "jsonpath={.status.conditions}"]);
    until(async || conditions().contains("Accepted")).await;
    let pair = |value: &str| ["c.com".to_owned(), value.to_owned()];
    assert_eq!(stored(&server, &shop, "c"), [pair("240.240.77.7"), pair("2001:2::7")], "both stay");
    assert!(stored(&server, &shop, "own").is_empty());
    // Whoever reads them later has the same addresses, whatever it would have chosen itself.
    patch(&server, &shop, "ab", &[("a.com", "240.240.1.1"), ("b.com", "240.240.1.2")]);
    let mut mesh = Mesh::start(&server.kubeconfig()).await;
    let all = ["a.com", "b.com", "c.com", "d.com"].map(|host| address(&mesh, host).unwrap_or_default());
    assert_eq!(all, ["240.240.1.1", "240.240.1.2", "240.240.77.7", "10.9.9.9"]);
    // A younger object that claims the same address gets another one, which is stored.
    server.apply(&entry(&shop, "late", "late.com"));
    until(async || !stored(&server, &shop, "late").is_empty()).await;
    patch(&server, &shop, "late", &[("late.com", "240.240.77.7")]);
    until(async || stored(&server, &shop, "late").first().is_some_and(|one| one[1] != "240.240.77.7")).await;
    assert_eq!(stored(&server, &shop, "c")[0], pair("240.240.77.7"), "the older one keeps it");
    let chosen = stored(&server, &shop, "late")[0][1].clone();
    let in_model = async {
        while address(&mesh, "late.com").as_ref() != Some(&chosen) {
            mesh.during(std::time::Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(crate::mesh::PATIENCE, in_model).await.is_ok());
    leader.end().await;
    // With nothing but the statuses, a new control plane has the same.
    let again = Mesh::start(&server.kubeconfig()).await;
    assert_eq!(address(&again, "late.com"), Some(chosen));
}
