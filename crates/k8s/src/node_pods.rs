//! The Pods of one node, for the agent that looks after their capture rules, and what it does to them: Events, labels, deletion. Also
//! the node's taint.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::reason::reason;

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an Event's message, in bytes (Kubernetes' own limit).
const MAX_MESSAGE_BYTES: usize = 1024;
/// The container of the sidecar.
const SIDECAR: &str = "istio-proxy";
/// Exit status of an init container that has found no rules, as in Istio.
const NO_RULES: i32 = 126;

/// Names of the init containers whose arguments are the rules.
#[derive(Debug, Clone, Copy)]
pub struct RuleContainers {
    /// That of Pods whose rules a CNI plugin loads.
    pub verifies: &'static str,
    /// That of Pods which load their rules themselves.
    pub loads: &'static str,
}

/// A Pod of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The arguments of the init container with its rules.
    pub arguments: Vec<String>,
    /// Name servers that it has beside those of the cluster.
    pub name_servers: Vec<IpAddr>,
    /// Whether that container loads the rules itself.
    pub loads_itself: bool,
    /// How far it is.
    pub stage: PodStage,
    /// Whether its sidecar takes connections.
    pub is_sidecar_ready: bool,
}

/// How far a Pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodStage {
    /// The init container has found no rules, and is started again.
    Waiting,
    /// It has found none, and the Pod has failed for good.
    Failed,
    /// The init container has succeeded.
    Running,
    /// It has not run yet, or the Pod has ended.
    Other,
}

/// Why something about a Pod or a Node was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the API server: {0}")]
pub struct NodeError(String);

/// The Pods of a node, followed by a watch.
pub struct NodePods {
    client: Client,
    containers: RuleContainers,
    store: Store<Pod>,
}

impl std::fmt::Debug for NodePods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodePods").field("containers", &self.containers).finish_non_exhaustive()
    }
}

impl NodePods {
    /// Follows the Pods of a node from now on. Only inside of an event loop.
    pub fn follow(client: Client, node: &str, containers: RuleContainers) -> Self {
        let (store, writer) = reflector::store();
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let pods: Api<Pod> = Api::all(client.clone());
        // What no decision reads takes memory for nothing.
        let watched = watcher(pods, config).modify(|pod| pod.metadata.managed_fields = None).default_backoff();
        let followed = reflector::reflector(writer, watched).for_each(|event| async move {
            if let Err(error) = event {
                tracing::warn!(%error, "the Pods of this node cannot be followed now");
            }
        });
        tokio::spawn(followed);
        Self { client, containers, store }
    }

    /// The Pods of the mesh on the node.
    pub fn of_mesh(&self) -> Vec<MeshPod> {
        self.store.state().iter().filter_map(|pod: &Arc<Pod>| mesh_pod(pod, self.containers)).collect()
    }

    /// Writes an Event about a Pod. `is_warning`: of the type Warning, else Normal.
    pub async fn report(&self, pod: &MeshPod, event: &PodEvent<'_>) -> Result<(), NodeError> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &pod.namespace);
        limited(events.create(&PostParams::default(), &event_of(pod, event))).await.map(drop)
    }

    /// Puts a label on a Pod.
    pub async fn label(&self, pod: &MeshPod, key: &str, value: &str) -> Result<(), NodeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid, "labels": {key: value}}}));
        limited(pods.patch(&pod.name, &PatchParams::default(), &patch)).await.map(drop)
    }

    /// Deletes a Pod, and not another one of its name.
    pub async fn delete(&self, pod: &MeshPod) -> Result<(), NodeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        limited(pods.delete(&pod.name, &parameters)).await.map(drop)
    }
}

/// An Event.
#[derive(Debug, Clone, Copy)]
pub struct PodEvent<'a> {
    /// Whether it is of the type Warning, else Normal.
    pub is_warning: bool,
    /// The reason, such as `OutsideMesh`.
    pub reason: &'a str,
    /// The message.
    pub message: &'a str,
    /// Who writes it.
    pub component: &'a str,
}

/// Removes a taint from a node; returns whether it had it.
pub async fn remove_taint(client: &Client, node: &str, key: &str) -> Result<bool, NodeError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let found = limited(nodes.get(node)).await?;
    let taints = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
    if !taints.iter().any(|taint| taint.key == key) {
        return Ok(false);
    }
    let others: Vec<_> = taints.iter().filter(|taint| taint.key != key).collect();
    // With the version, a taint that another program adds or removes meanwhile is not lost: the call fails, and is tried again.
    let version = found.metadata.resource_version;
    let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": {"taints": others}}));
    limited(nodes.patch(node, &PatchParams::default(), &patch)).await.map(|_| true)
}

async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, NodeError> {
    match tokio::time::timeout(TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| NodeError(reason(&error))),
        Err(_) => Err(NodeError(format!("no response within {} s", TIMEOUT.as_secs()))),
    }
}

/// A Pod as far as it is of the mesh; `None`: it is not.
fn mesh_pod(pod: &Pod, containers: RuleContainers) -> Option<MeshPod> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    if spec.host_network == Some(true) {
        return None;
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let named = |name: &str| init.iter().find(|container| container.name == name);
    let (rules, loads_itself) = match named(containers.verifies) {
        Some(rules) => (rules, false),
        None => (named(containers.loads)?, true),
    };
    let addresses = status.pod_ips.as_deref().unwrap_or_default().iter().filter_map(|ip| ip.ip.parse().ok());
    let servers = spec.dns_config.as_ref().and_then(|config| config.nameservers.as_deref()).unwrap_or_default();
    let statuses = [&status.init_container_statuses, &status.container_statuses];
    let statuses: BTreeMap<&str, &ContainerStatus> =
        statuses.into_iter().flatten().flatten().map(|status| (status.name.as_str(), status)).collect();
    let has_ended = pod.metadata.deletion_timestamp.is_some() || status.phase.as_deref() == Some("Succeeded");
    let stage = match statuses.get(rules.name.as_str()) {
        _ if has_ended => PodStage::Other,
        Some(found) => stage(found, status.phase.as_deref() == Some("Failed")),
        None => PodStage::Other,
    };
    Some(MeshPod {
        namespace: pod.metadata.namespace.clone()?,
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
        addresses: addresses.collect(),
        arguments: rules.args.clone().unwrap_or_default(),
        name_servers: servers.iter().filter_map(|server| server.parse().ok()).collect(),
        loads_itself,
        stage,
        is_sidecar_ready: statuses.get(SIDECAR).is_some_and(|status| status.ready && status.started != Some(false)),
    })
}

/// How far a Pod is, by the state of the init container with its rules.
fn stage(container: &ContainerStatus, has_failed: bool) -> PodStage {
    let exit = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        state.and_then(|state| state.terminated.as_ref()).map(|terminated| terminated.exit_code)
    };
    let (now, before) = (exit(container.state.as_ref()), exit(container.last_state.as_ref()));
    match now.or(before) {
        Some(NO_RULES) if has_failed => PodStage::Failed,
        Some(NO_RULES) => PodStage::Waiting,
        Some(0) if now.is_some() && !has_failed => PodStage::Running,
        _ => PodStage::Other,
    }
}

fn event_of(pod: &MeshPod, event: &PodEvent<'_>) -> Event {
    let now = Time(Timestamp::now());
    let message = event.message;
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", pod.name)),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(event.reason.to_owned()),
        message: Some(message.get(..message.floor_char_boundary(MAX_MESSAGE_BYTES)).unwrap_or_default().to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        source: Some(EventSource { component: Some(event.component.to_owned()), host: None }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERS: RuleContainers = RuleContainers { verifies: "istio-validation", loads: "istio-init" };

    fn pod(init: &str, init_state: serde_json::Value, phase: &str) -> Pod {
        let mut status = json!({"name": init, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        status.as_object_mut().expect("an object").extend(init_state.as_object().expect("an object").clone());
        let value = json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "1"},
            "spec": {"containers": [{"name": "web"}], "initContainers": [{"name": init, "args": ["istio-iptables"]}]},
            "status": {"phase": phase, "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "initContainerStatuses": [status]},
        });
        serde_json::from_value(value).expect("a Pod")
    }

    #[test]
    fn the_stage_of_a_pod_is_that_of_its_init_container() {
        let terminated = |code: i32| json!({"terminated": {"exitCode": code}});
        let check = |state: serde_json::Value, phase: &str, expected: PodStage| {
            let found = mesh_pod(&pod("istio-validation", state.clone(), phase), CONTAINERS).expect("of the mesh");
            assert_eq!(found.stage, expected, "{state} {phase}");
            assert!(!found.loads_itself);
            assert_eq!(found.addresses.len(), 2);
        };
        check(json!({"state": terminated(126)}), "Pending", PodStage::Waiting);
        check(json!({"state": {"waiting": {}}, "lastState": terminated(126)}), "Pending", PodStage::Waiting);
        check(json!({"state": {"running": {}}, "lastState": terminated(126)}), "Pending", PodStage::Waiting);
        check(json!({"state": terminated(126)}), "Failed", PodStage::Failed);
        check(json!({"state": terminated(0)}), "Running", PodStage::Running);
        check(json!({"state": terminated(0), "lastState": terminated(126)}), "Running", PodStage::Running);
        check(json!({"state": terminated(0)}), "Succeeded", PodStage::Other);
        check(json!({"state": terminated(1)}), "Pending", PodStage::Other);
        check(json!({"state": {"waiting": {}}}), "Pending", PodStage::Other);
    }

    #[test]
    fn pods_without_rules_are_not_of_the_mesh() {
        let state = || json!({"state": {"waiting": {}}});
        assert!(mesh_pod(&pod("setup", state(), "Pending"), CONTAINERS).is_none());
        assert!(mesh_pod(&pod("istio-init", state(), "Pending"), CONTAINERS).is_some_and(|pod| pod.loads_itself));
        let mut of_node = pod("istio-init", state(), "Pending");
        of_node.spec.as_mut().expect("a specification").host_network = Some(true);
        assert!(mesh_pod(&of_node, CONTAINERS).is_none());
    }
}
