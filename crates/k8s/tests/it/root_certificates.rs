//! Each namespace that the mesh reads has the mesh's roots, whoever deletes or changes them.

use evenkeel_control::MeshRoots;
use evenkeel_k8s::lease::{Candidate, LeaseTimes};
use evenkeel_k8s::root_certificates::{NAME, RootCertificates};
use evenkeel_testkit::kubernetes::ApiServer;
use tokio::sync::watch;

use crate::fixture::{admin, until};

const CONFIG_MAP: &str = "istio-ca-root-cert";

/// The roots that a namespace has; empty: none.
fn held(server: &ApiServer, namespace: &str) -> String {
    let template = r"jsonpath={.items[0].data.root-cert\.pem}";
    let selected = format!("--field-selector=metadata.name={CONFIG_MAP}");
    let name = server.kubectl(&["get", "configmap", "-n", namespace, &selected, "-o", "name"]);
    if name.trim().is_empty() {
        return String::new();
    }
    server.kubectl(&["get", "configmap", "-n", namespace, &selected, "-o", template])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_have_the_roots_of_the_mesh() {
    let server = ApiServer::start();
    let [a, b, system] = ["a", "b", "system"].map(|name| server.namespace(name));
    let roots = |pem: &str, namespaces: &[&str]| MeshRoots {
        pem: pem.into(),
        namespaces: namespaces.iter().map(|name| (*name).into()).collect(),
    };
    let (published, follow) = watch::channel(MeshRoots::default());
    let client = admin(&server).await;
    let candidate = Candidate::new(client.clone(), &system, NAME, "first", LeaseTimes::default());
    let writer = tokio::spawn(RootCertificates::new(client, follow, candidate.leadership()).run());
    let leading = tokio::spawn(candidate.run(std::future::pending()));

    published.send_replace(roots("one", &[&a, "kube-system", "kube-public"]));
    until(async || held(&server, &a) == "one").await;
    assert_eq!([held(&server, &b), held(&server, "kube-system")], ["", ""], "only those that are selected");
    let label = server.kubectl(&[
        "get",
        "configmap",
        CONFIG_MAP,
        "-n",
        &a,
        "-o",
        r"jsonpath={.metadata.labels.istio\.io/config}",
    ]);
    assert_eq!(label, "true", "as istiod labels it");
    published.send_replace(roots("two", &[&a, &b]));
    until(async || held(&server, &a) == "two" && held(&server, &b) == "two").await;
    server.kubectl(&["delete", "configmap", CONFIG_MAP, "-n", &a]);
    until(async || held(&server, &a) == "two").await;
    server.kubectl(&["patch", "configmap", CONFIG_MAP, "-n", &b, "-p", r#"{"data":{"root-cert.pem":"other"}}"#]);
    until(async || held(&server, &b) == "two").await;
    writer.abort();
    leading.abort();
}
