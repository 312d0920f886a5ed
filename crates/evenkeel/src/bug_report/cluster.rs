//! What a cluster says about the mesh in it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_admin::client::{self, Address};
use evenkeel_api::Kind;
use evenkeel_install::checks::{self, Stage};
use evenkeel_k8s::cluster::{Cluster, LogsOf, ObjectKind, Selection};
use evenkeel_local::pages;
use serde_json::Value;

use super::archive::Archive;
use super::machine;
use super::redact;
use crate::cluster::{self as commands, Target};
use crate::in_cluster;
use crate::manifests::Manifests;

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Lines of each log of the control plane's namespace.
const LINES: i64 = 10_000;
/// Lines of the log of each sidecar.
const SIDECAR_LINES: i64 = 1_000;
/// Sidecars whose logs are collected: those that are not ready come first.
const MAX_SIDECARS: usize = 40;
/// Kinds that are collected of the control plane's namespace alone.
const LOCAL: &[(&str, &str)] = &[
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("v1", "Event"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("coordination.k8s.io/v1", "Lease"),
];
/// Kinds of Kubernetes that are collected of all namespaces.
const EVERYWHERE: &[(&str, &str)] = &[
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
];

/// Adds the cluster's objects, findings, checks and logs.
pub async fn add(cluster: &Cluster, target: &Target, archive: &mut Archive) -> anyhow::Result<()> {
    let outcomes = checks::run(Stage::After, &commands::observe::picture(cluster, target, Stage::After).await);
    archive.add("checks.txt", commands::check::text(&outcomes).as_bytes())?;
    archive.add_result("cluster/version.txt", cluster.version().await.map(String::into_bytes).map_err(Into::into))?;
    let local = Selection { namespace: Some(target.namespace()), labels: "" };
    for (api_version, kind) in LOCAL {
        add_kind(cluster, ObjectKind { api_version, kind }, local, archive).await?;
    }
    for (api_version, kind) in EVERYWHERE {
        add_kind(cluster, ObjectKind { api_version, kind }, Selection::default(), archive).await?;
    }
    for kind in Kind::ALL.iter().filter(|kind| is_of_mesh(**kind)) {
        let api_version = format!("{}/{}", kind.group(), kind.versions().first().copied().unwrap_or("v1"));
        let kind = ObjectKind { api_version: &api_version, kind: kind.as_str() };
        add_kind(cluster, kind, Selection::default(), archive).await?;
    }
    add_pages(cluster, target.namespace(), archive).await?;
    add_logs(cluster, target.namespace(), archive).await
}

/// Adds the pages of the control plane's Pods.
async fn add_pages(cluster: &Cluster, namespace: &str, archive: &mut Archive) -> anyhow::Result<()> {
    let pods = ObjectKind { api_version: "v1", kind: "Pod" };
    let selection = Selection { namespace: Some(namespace), labels: in_cluster::CONTROL_PLANE };
    for pod in cluster.list(pods, selection).await.unwrap_or_default() {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let address = Address::Dialed(Arc::new(cluster.pod_port(namespace, name, pages::USUAL_PORT)));
        for (page, file) in machine::CONTROL_PLANE_PAGES {
            let content = client::page(&address, page, None, PATIENCE).await.map_err(anyhow::Error::from);
            let content = content.and_then(|page| {
                anyhow::ensure!(client::is_page(&page), "it answers {}", page.status().as_u16());
                Ok(machine::redacted(page.body()))
            });
            archive.add_result(&format!("control-plane/{name}/{file}"), content)?;
        }
    }
    Ok(())
}

/// Adds what `analyze` finds about the cluster's objects.
pub fn add_findings(target: &Target, archive: &mut Archive) -> anyhow::Result<()> {
    let findings = Manifests::of_cluster(target.options()).map(|manifests| machine::findings(&manifests).into_bytes());
    Ok(archive.add_result("findings.txt", findings)?)
}

fn is_of_mesh(kind: Kind) -> bool {
    kind.group().ends_with("istio.io") || kind.group() == "gateway.networking.k8s.io"
}

async fn add_kind(
    cluster: &Cluster,
    kind: ObjectKind<'_>,
    selection: Selection<'_>,
    archive: &mut Archive,
) -> anyhow::Result<()> {
    let listed = cluster.list(kind, selection).await.map(|mut objects| {
        objects.iter_mut().for_each(redact::object);
        Value::Array(objects)
    });
    let content = listed.map(|objects| format!("{objects:#}\n").into_bytes()).map_err(Into::into);
    Ok(archive.add_result(&format!("cluster/{}.json", kind.kind), content)?)
}

async fn add_logs(cluster: &Cluster, namespace: &str, archive: &mut Archive) -> anyhow::Result<()> {
    let pods = ObjectKind { api_version: "v1", kind: "Pod" };
    let of_control_plane = cluster.list(pods, Selection { namespace: Some(namespace), labels: "" }).await;
    for pod in of_control_plane.unwrap_or_default() {
        for container in containers(&pod) {
            add_log(cluster, Container { pod: &pod, name: &container, lines: LINES }, archive).await?;
        }
    }
    let mut injected = cluster
        .list(pods, Selection { namespace: None, labels: "security.istio.io/tlsMode" })
        .await
        .unwrap_or_default();
    injected.retain(|pod| pod.pointer("/metadata/namespace").and_then(Value::as_str) != Some(namespace));
    injected.sort_by_key(is_ready);
    if injected.len() > MAX_SIDECARS {
        archive.problems.push(format!("logs of {MAX_SIDECARS} of {} sidecars", injected.len()));
    }
    for pod in injected.iter().take(MAX_SIDECARS) {
        add_log(cluster, Container { pod, name: "istio-proxy", lines: SIDECAR_LINES }, archive).await?;
    }
    Ok(())
}

/// A container whose log is collected.
#[derive(Debug, Clone, Copy)]
struct Container<'a> {
    pod: &'a Value,
    name: &'a str,
    lines: i64,
}

async fn add_log(cluster: &Cluster, container: Container<'_>, archive: &mut Archive) -> anyhow::Result<()> {
    let Container { pod, name: container, lines } = container;
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    for previous in [false, true] {
        let log = cluster.logs(&LogsOf { namespace, pod: name, container, lines, previous }).await;
        let file = format!("logs/{namespace}/{name}.{container}{}.log", if previous { ".previous" } else { "" });
        match log {
            Ok(log) => archive.add(&file, redact::text(&log).as_bytes())?,
            // A container that was never restarted has no earlier log.
            Err(_) if previous => {}
            Err(error) => archive.problems.push(format!("{file}: {error}")),
        }
    }
    Ok(())
}

fn containers(pod: &Value) -> Vec<String> {
    let of = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let all = of("/spec/initContainers").into_iter().chain(of("/spec/containers"));
    all.filter_map(|container| container["name"].as_str().map(str::to_owned)).collect()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}
