//! A real Kubernetes API server with its etcd, on loopback: the mesh is written through it, and the control plane watches it.
//!
//! There is no controller and no kubelet. The lab writes EndpointSlices itself, as Kubernetes' controllers would.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{Cluster, ClusterError, ObjectKind, Selection};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::error::LabError;
use crate::mesh::{self, NAMESPACE};
use crate::process::{Program, free_ports};

/// How long the API server may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How often that is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Addresses of Services: the largest range that the API server allows.
const SERVICE_RANGE: &str = "--service-cluster-ip-range=10.32.0.0/12";

/// The processes. They end with this value.
#[derive(Debug)]
pub struct ApiServer {
    // The server ends before its etcd.
    server: Program,
    _etcd: Program,
    options: ClusterOptions,
    cluster: Cluster,
}

impl ApiServer {
    /// Starts `etcd` and `kube-apiserver` of a directory, with their data in `folder`, and waits until they are ready.
    ///
    /// # Errors
    /// A program cannot be started, or ends; with the end of its log.
    pub async fn start(programs: &Path, folder: &Path) -> Result<Self, LabError> {
        let [etcd_at, etcd_peer, address] = free_ports()?;
        let etcd = Program::start("etcd", etcd(programs, folder, [etcd_at, etcd_peer]), &folder.join("etcd.log"))?;
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(LabError::io(format!("writing {}", path.display())))?;
            Ok(path)
        };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| LabError::Usage(error.to_string()))?;
        write("accounts.pem", key.serialize_pem())?;
        write("accounts-public.pem", key.public_key_pem())?;
        let token = hex(&key.public_key_raw()[..32]);
        write("tokens.csv", format!("{token},lab,lab,\"system:masters\"\n"))?;
        let command = api_server(programs, folder, address, etcd_at);
        let mut server = Program::start("API server", command, &folder.join("api-server.log"))?;
        let kubeconfig = write("kubeconfig", kubeconfig(folder, address, &token))?;
        let options = ClusterOptions { kubeconfig: Some(kubeconfig), context: None };
        let begin = Instant::now();
        let cluster = loop {
            // Its certificate is there when it listens.
            if let Ok(cluster) = Cluster::of(&options).await
                && cluster.page("/readyz").await.is_ok()
            {
                break cluster;
            }
            server.check()?;
            if begin.elapsed() > START_LIMIT {
                return Err(server.failure(format!("is not ready after {START_LIMIT:?}")));
            }
            tokio::time::sleep(POLL).await;
        };
        Ok(Self { server, _etcd: etcd, options, cluster })
    }

    /// With what others reach it, as an administrator.
    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Stores the definitions of Istio's and the Gateway API's kinds, and the mesh's namespaces, and waits until all are served.
    ///
    /// # Errors
    /// The program does not print the definitions, or the API server refuses them.
    pub async fn prepare(&self, program: &Path) -> Result<(), LabError> {
        let output = Command::new(program).arg("crds").output();
        let output = output.map_err(LabError::io(format!("starting {} crds", program.display())))?;
        let mut objects = mesh::objects(&String::from_utf8_lossy(&output.stdout))?;
        if objects.is_empty() {
            return Err(LabError::Usage(format!(
                "{} crds: {}",
                program.display(),
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        let namespace = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        objects.extend(["istio-system", NAMESPACE].map(namespace));
        let refused = |error: ClusterError| LabError::Usage(error.to_string());
        for object in &objects {
            self.cluster.store(object, "evenkeel-lab").await.map_err(refused)?;
        }
        let begin = Instant::now();
        while !self.serves(&objects).await? {
            if begin.elapsed() > START_LIMIT {
                return Err(self.server.failure("does not serve Istio's kinds"));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Whether the custom kinds among these objects are served.
    async fn serves(&self, objects: &[Value]) -> Result<bool, LabError> {
        let kind = ObjectKind { api_version: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition" };
        let all = self.cluster.list(kind, Selection::default()).await;
        let all = all.map_err(|error| LabError::Usage(error.to_string()))?;
        let is_established = |object: &&Value| {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
            conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Established" && one["status"] == "True"))
        };
        let wanted = objects.iter().filter(|object| object["kind"] == kind.kind).count();
        Ok(all.iter().filter(is_established).count() >= wanted)
    }

    /// Returns an error if it has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        self.server.check()
    }

    /// How many list requests it has answered since its start, by resource.
    pub async fn lists(&self) -> Result<BTreeMap<String, f64>, LabError> {
        let metrics = self.cluster.page("/metrics").await.map_err(|error| LabError::Usage(error.to_string()))?;
        Ok(lists_in(&metrics))
    }
}

fn etcd(programs: &Path, folder: &Path, [client, peer]: [SocketAddr; 2]) -> Command {
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = Command::new(programs.join("etcd"));
    command.arg("--data-dir").arg(folder.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    // What is lost with the machine is a measurement; without it, writes wait for the disk.
    command.args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"]);
    command
}

fn api_server(programs: &Path, folder: &Path, address: SocketAddr, etcd: SocketAddr) -> Command {
    let mut command = Command::new(programs.join("kube-apiserver"));
    command.arg(format!("--etcd-servers=http://{etcd}"));
    command.arg(format!("--bind-address={}", address.ip()));
    command.arg(format!("--advertise-address={}", address.ip()));
    command.arg(format!("--secure-port={}", address.port()));
    command.arg("--cert-dir").arg(folder.join("certificates"));
    command.arg("--service-account-signing-key-file").arg(folder.join("accounts.pem"));
    command.arg("--service-account-key-file").arg(folder.join("accounts-public.pem"));
    command.arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local");
    command.arg("--token-auth-file").arg(folder.join("tokens.csv"));
    // It would write its loopback address into the Service `kubernetes`, which is refused.
    command.args(["--endpoint-reconciler-type=none", "--authorization-mode=RBAC", SERVICE_RANGE]);
    // Priorities are for those who share it.
    command.args([
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        "--enable-priority-and-fairness=false",
    ]);
    command
}

fn kubeconfig(folder: &Path, address: SocketAddr, token: &str) -> String {
    // The API server makes a certificate for itself, with its authority after it.
    let root = folder.join("certificates/apiserver.crt").display().to_string();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
         clusters: [{{name: lab, cluster: {{server: \"https://{address}\", certificate-authority: {root}}}}}]\n\
         users: [{{name: lab, user: {{token: {token}}}}}]\n\
         contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n"
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `apiserver_request_total` of list requests, by resource.
fn lists_in(metrics: &str) -> BTreeMap<String, f64> {
    let mut lists = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| Some(line.split_once(&format!("{name}=\""))?.1.split('"').next()?.to_owned());
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        if label("verb").as_deref() == Some("LIST")
            && let (Some(resource), Some(value)) = (label("resource"), value)
        {
            *lists.entry(resource).or_default() += value;
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_by_resource() {
        let metrics = "# TYPE apiserver_request_total counter\n\
             apiserver_request_total{code=\"200\",resource=\"pods\",verb=\"LIST\"} 3\n\
             apiserver_request_total{code=\"200\",resource=\"pods\",verb=\"WATCH\"} 5\n\
             apiserver_request_total{code=\"410\",resource=\"pods\",verb=\"LIST\"} 2\n\
             apiserver_request_total{code=\"200\",resource=\"nodes\",verb=\"LIST\"} 1\n";
        assert_eq!(lists_in(metrics), BTreeMap::from([("nodes".to_owned(), 1.0), ("pods".to_owned(), 5.0)]));
    }
}
