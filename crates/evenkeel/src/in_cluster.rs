//! The programs in the Pods of a cluster, as commands ask them: through the API server's port-forward, with the user's own rights.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, bail};
use clap::Args;
use evenkeel_admin::client::Address;
use evenkeel_agent::options::ADMIN_PORT;
use evenkeel_base::replica::match_name;
use evenkeel_base::suggest::instead;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{Cluster, ClusterError, ObjectKind, Selection};
use evenkeel_local::exec::{ADMIN_VARIABLE, ReplicaInfo};
use evenkeel_local::pages;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// The container with the proxy.
const PROXY: &str = "istio-proxy";
/// Istio's variable of the proxy's container, with its ProxyConfig as JSON.
const PROXY_CONFIG: &str = "PROXY_CONFIG";
/// The label of the control plane's Pods.
pub const CONTROL_PLANE: &str = "app=istiod";
/// The label with the revision of a control plane.
const REVISION: &str = "istio.io/rev";
const POD: ObjectKind<'_> = ObjectKind { api_version: "v1", kind: "Pod" };

/// Which control plane of a cluster is meant.
#[derive(Debug, Clone, Args)]
pub struct ControlPlaneName {
    /// Namespace of the control plane in the cluster.
    #[arg(short = 'i', long, alias = "istioNamespace", value_name = "NAME", default_value = "istio-system")]
    istio_namespace: String,

    /// Revision of the control plane in the cluster [default: any].
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
}

/// The control plane in a cluster.
#[derive(Debug, Clone, Args)]
pub struct ControlPlaneChoice {
    #[command(flatten)]
    pub cluster: ClusterOptions,
    #[command(flatten)]
    pub name: ControlPlaneName,
}

impl ControlPlaneChoice {
    /// The HTTP ports of its replicas, those that are ready first.
    pub fn addresses(&self) -> anyhow::Result<Vec<Address>> {
        ClusterMesh::connect(&self.cluster)?.control_planes(&self.name)
    }
}

/// The runtime that all port-forwards of this process use.
pub fn runtime() -> anyhow::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let start = || Builder::new_multi_thread().worker_threads(1).thread_name("cluster").enable_all().build().ok();
    RUNTIME.get_or_init(start).as_ref().context("cannot start the event loop")
}

/// A Pod, as far as commands ask about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshPod {
    pub namespace: String,
    pub name: String,
    pub workload: String,
    pub labels: BTreeMap<String, String>,
    pub address: String,
    pub ready: bool,
    pub restarts: u32,
    /// The port of its proxy's pages; `None`: it has no proxy.
    pub admin_port: Option<u16>,
    /// Whether it has nothing but a proxy.
    pub is_gateway: bool,
}

/// A cluster with a mesh in it.
#[derive(Debug, Clone)]
pub struct ClusterMesh {
    cluster: Cluster,
    /// The namespace of the context.
    namespace: Arc<str>,
    /// The ports of proxies' pages that are not the usual one, by namespace and Pod.
    ports: Arc<Mutex<BTreeMap<(String, String), u16>>>,
}

impl ClusterMesh {
    /// The cluster that the user means.
    pub fn connect(options: &ClusterOptions) -> anyhow::Result<Self> {
        runtime()?.block_on(async {
            let (cluster, namespace) = (Cluster::of(options).await?, options.namespace().await?);
            Ok(Self { cluster, namespace: namespace.into(), ports: Arc::default() })
        })
    }

    /// The HTTP ports of the control plane's replicas, those that are ready first.
    pub fn control_planes(&self, wanted: &ControlPlaneName) -> anyhow::Result<Vec<Address>> {
        let pods = runtime()?.block_on(self.list_control_planes(wanted))?;
        pods.iter().map(|pod| self.address(&pod.namespace, &pod.name, pages::USUAL_PORT)).collect()
    }

    /// The HTTP port of a replica of the control plane, for tasks.
    pub async fn find_control_plane(&self, wanted: &ControlPlaneName) -> anyhow::Result<Address> {
        let pods = self.list_control_planes(wanted).await?;
        let first = pods.first().context("there is no control plane")?;
        self.address(&first.namespace, &first.name, pages::USUAL_PORT)
    }

    async fn list_control_planes(&self, wanted: &ControlPlaneName) -> anyhow::Result<Vec<MeshPod>> {
        let ControlPlaneName { istio_namespace: namespace, revision } = wanted;
        let labels = match revision {
            Some(revision) => format!("{CONTROL_PLANE},{REVISION}={revision}"),
            None => CONTROL_PLANE.to_owned(),
        };
        let pods = self.list(Some(namespace), &labels).await?;
        if pods.is_empty() {
            let of = revision.as_ref().map(|revision| format!(" of the revision `{revision}`")).unwrap_or_default();
            bail!(
                "no Pod of a control plane{of} runs in the namespace `{namespace}` (label {CONTROL_PLANE}); another namespace: -i NAME"
            );
        }
        Ok(pods)
    }

    /// The Pods with a proxy that a name means; all of them for the empty name.
    pub fn replicas(&self, wanted: &str, namespace: Option<&str>) -> anyhow::Result<Vec<ReplicaInfo>> {
        if wanted.is_empty() {
            return Ok(self.with_proxies(namespace)?.into_iter().map(replica).collect());
        }
        // POD.NAMESPACE, as proxies are named; but names of Pods may have dots.
        let suffix = wanted.rsplit_once('.').map(|(_, namespace)| namespace).filter(|_| namespace.is_none());
        let here = namespace.unwrap_or(&self.namespace);
        let mut known = Vec::new();
        for namespace in suffix.into_iter().chain([here]) {
            let pods = self.with_proxies(Some(namespace))?;
            let matching = |pod: &MeshPod| match_name(wanted, &pod.name, &pod.namespace, &pod.workload);
            if let Some(best) = pods.iter().filter_map(matching).max() {
                let meant = pods.into_iter().filter(|pod| matching(pod) == Some(best));
                return Ok(meant.map(replica).collect());
            }
            known.extend(pods.into_iter().map(|pod| pod.name));
        }
        let known = instead(wanted, known.iter().map(String::as_str));
        bail!(
            "no running Pod with a proxy in the namespace `{here}` is meant by `{wanted}` (another namespace: -n NAME); {known}"
        )
    }

    /// The running Pods with a proxy, those that are ready first.
    pub fn with_proxies(&self, namespace: Option<&str>) -> anyhow::Result<Vec<MeshPod>> {
        runtime()?.block_on(self.list_with_proxies(namespace))
    }

    /// Like [`Self::with_proxies`], for tasks.
    pub async fn list_with_proxies(&self, namespace: Option<&str>) -> anyhow::Result<Vec<MeshPod>> {
        let mut pods = self.list(namespace, "").await?;
        pods.retain(|pod| pod.admin_port.is_some());
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        for pod in &pods {
            let port = pod.admin_port.unwrap_or(ADMIN_PORT);
            ports.insert((pod.namespace.clone(), pod.name.clone()), port);
        }
        drop(ports);
        Ok(pods)
    }

    /// Where a Pod's proxy shows its pages.
    pub fn proxy(&self, namespace: &str, pod: &str) -> anyhow::Result<Address> {
        let key = (namespace.to_owned(), pod.to_owned());
        let port = self.ports.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        self.address(namespace, pod, port.unwrap_or(ADMIN_PORT))
    }

    /// The first of the proxies that a name means.
    pub fn first_proxy(&self, wanted: &str, namespace: Option<&str>) -> anyhow::Result<Address> {
        let replicas = self.replicas(wanted, namespace)?;
        let first = replicas.first().with_context(|| format!("{wanted} has no replica"))?;
        self.proxy(&first.namespace, &first.pod)
    }

    fn address(&self, namespace: &str, pod: &str, port: u16) -> anyhow::Result<Address> {
        let _entered = runtime()?.enter();
        Ok(Address::Dialed(Arc::new(self.cluster.pod_port(namespace, pod, port))))
    }

    /// The running Pods, those that are ready first. Who may not list them in all namespaces gets those of the context's.
    async fn list(&self, namespace: Option<&str>, labels: &str) -> anyhow::Result<Vec<MeshPod>> {
        let listed = match self.cluster.list(POD, Selection { namespace, labels }).await {
            Err(ClusterError::Refused { code: 403, .. }) if namespace.is_none() => {
                self.cluster.list(POD, Selection { namespace: Some(&self.namespace), labels }).await?
            }
            listed => listed?,
        };
        let mut pods: Vec<MeshPod> = listed.iter().filter_map(mesh_pod).collect();
        pods.sort_by(|a, b| (!a.ready, &a.namespace, &a.name).cmp(&(!b.ready, &b.namespace, &b.name)));
        Ok(pods)
    }
}

fn replica(pod: MeshPod) -> ReplicaInfo {
    ReplicaInfo { namespace: pod.namespace, workload: pod.workload, pod: pod.name, failing: Vec::new() }
}

/// Reads a Pod; `None`: it does not run.
fn mesh_pod(pod: &Value) -> Option<MeshPod> {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str);
    if text("/status/phase") != Some("Running") || pod.pointer("/metadata/deletionTimestamp").is_some() {
        return None;
    }
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let labels = pod.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let labels: BTreeMap<String, String> =
        labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    let name = text("/metadata/name")?;
    let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    let restarts = list("/status/containerStatuses").iter().filter_map(|one| one["restartCount"].as_u64()).sum::<u64>();
    // A native sidecar is an init container.
    let mut containers = list("/spec/containers").iter().chain(list("/spec/initContainers"));
    Some(MeshPod {
        namespace: text("/metadata/namespace")?.to_owned(),
        name: name.to_owned(),
        workload: workload(pod, &labels).unwrap_or(name).to_owned(),
        address: text("/status/podIP").unwrap_or_default().to_owned(),
        ready: list("/status/conditions").iter().any(is_ready),
        restarts: u32::try_from(restarts).unwrap_or(u32::MAX),
        admin_port: containers.find(|container| container["name"] == PROXY).map(admin_port),
        is_gateway: list("/spec/containers").iter().all(|container| container["name"] == PROXY),
        labels,
    })
}

/// The name of what has created a Pod: of the Deployment, where a ReplicaSet has.
fn workload<'a>(pod: &'a Value, labels: &BTreeMap<String, String>) -> Option<&'a str> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let name = owner["name"].as_str()?;
    let hash = labels.get("pod-template-hash").filter(|_| owner["kind"] == "ReplicaSet");
    Some(hash.and_then(|hash| name.strip_suffix(hash.as_str())?.strip_suffix('-')).unwrap_or(name))
}

/// The port of a proxy's pages, by its container's variables.
fn admin_port(container: &Value) -> u16 {
    let variables = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    let value = |name: &str| variables.iter().find(|one| one["name"] == name)?["value"].as_str();
    let own =
        value(ADMIN_VARIABLE).and_then(|address| address.parse::<SocketAddr>().ok()).map(|address| address.port());
    let of_istio = || {
        let config: Value = serde_json::from_str(value(PROXY_CONFIG)?).ok()?;
        u16::try_from(config["proxyAdminPort"].as_u64()?).ok()
    };
    own.or_else(of_istio).unwrap_or(ADMIN_PORT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_pods_only_what_runs_counts_with_its_workload_and_its_proxys_port() {
        let check = |change: Value, expected: Option<(&str, Option<u16>, bool)>| {
            let mut pod = json!({
                "metadata": {"name": "web-5d-x", "namespace": "shop", "labels": {"pod-template-hash": "5d"}},
                "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            });
            for (pointer, value) in change.as_object().expect("an object") {
                let (parent, name) = pointer.rsplit_once('/').expect("a path");
                pod.pointer_mut(parent).expect("it is there")[name] = value.clone();
            }
            let found = mesh_pod(&pod);
            let found = found.as_ref().map(|pod| (pod.workload.as_str(), pod.admin_port, pod.ready));
            assert_eq!(found, expected, "{change}");
        };
        let usual = Some(15000);
        check(json!({}), Some(("web-5d-x", usual, true)));
        let owner = |kind: &str, name: &str| json!([{"kind": kind, "name": name, "controller": true}]);
        check(json!({"/metadata/ownerReferences": owner("ReplicaSet", "web-5d")}), Some(("web", usual, true)));
        check(json!({"/metadata/ownerReferences": owner("StatefulSet", "db")}), Some(("db", usual, true)));
        check(json!({"/status/phase": "Pending"}), None);
        check(json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}), None);
        check(json!({"/status/conditions": []}), Some(("web-5d-x", usual, false)));
        check(json!({"/spec/containers": [{"name": "app"}]}), Some(("web-5d-x", None, true)));
        let env = |name: &str, value: &str| json!([{"name": "istio-proxy", "env": [{"name": name, "value": value}]}]);
        check(json!({"/spec/initContainers": env("A", "b"), "/spec/containers": []}), Some(("web-5d-x", usual, true)));
        let config = r#"{"proxyAdminPort":15555}"#;
        check(json!({"/spec/containers": env("PROXY_CONFIG", config)}), Some(("web-5d-x", Some(15555), true)));
        check(json!({"/spec/containers": env("EVENKEEL_ADMIN", "127.0.0.1:1")}), Some(("web-5d-x", Some(1), true)));
        check(json!({"/spec/containers": env("PROXY_CONFIG", "{")}), Some(("web-5d-x", usual, true)));
    }
}
