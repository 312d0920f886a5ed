//! Workloads: Pods.

use std::sync::Arc;

use evenkeel_api::kubernetes::PodSpec;
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::{Diagnostic, Diagnostics};

use super::Objects;
use crate::workload::selects;
use crate::{ContainerPort, Labels, Service, Snapshot, Workload};

/// Says whether a sidecar accepts mutual TLS: `istio` or `disabled`. What injection writes.
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
/// `"false"` keeps the sidecar away; both as label and as annotation.
const INJECT: &str = "sidecar.istio.io/inject";

pub(super) fn build(objects: &Objects<'_>, snapshot: &Snapshot, diagnostics: &mut Diagnostics) -> Vec<Arc<Workload>> {
    let mut workloads: Vec<Workload> = Vec::new();
    for object in objects.of(Kind::Pod) {
        let Resource::Pod(pod) = &object.resource else { continue };
        let account = pod.spec.service_account();
        let identity = match SpiffeId::new(&snapshot.mesh.trust_domain, &object.namespace, account) {
            Ok(identity) => identity,
            Err(error) => {
                let message = format!("{object} cannot have an identity: {error}");
                let help = "check the trust domain of the mesh and the Pod's service account";
                diagnostics.push(Diagnostic::error("bad-identity", object.origin.clone(), message).with_help(help));
                continue;
            }
        };
        workloads.push(Workload {
            pod: object.name.clone(),
            namespace: object.namespace.clone(),
            workload_name: workload_name(object, objects),
            addresses: pod.status.as_ref().map(|s| s.addresses()).unwrap_or_default(),
            labels: object.labels.clone(),
            service_account: account.into(),
            identity,
            locality: locality(&object.labels),
            ready: pod.status.as_ref().is_some_and(|s| s.is_ready()),
            has_proxy: has_proxy(object, &pod.spec),
            ports: container_ports(&pod.spec),
            services: services_of(object, objects, &snapshot.services),
            origin: object.origin.clone(),
        });
    }
    workloads.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
    workloads.into_iter().map(Arc::new).collect()
}

/// The services that select a Pod, in the order of the snapshot.
fn services_of(pod: &Object, objects: &Objects<'_>, services: &[Arc<Service>]) -> Vec<Arc<Service>> {
    let selecting: Vec<(&str, Kind)> = objects
        .0
        .iter()
        .filter(|o| o.namespace == pod.namespace)
        .filter_map(|o| {
            let selector = match &o.resource {
                Resource::Service(service) => &service.spec.selector,
                Resource::ServiceEntry(entry) => &entry.spec.workload_selector.as_ref()?.labels,
                _ => return None,
            };
            // A Service without a selector has endpoints of its own making, not all Pods.
            (!selector.is_empty() && selects(selector, &pod.labels)).then_some((&*o.name, o.kind()))
        })
        .collect();
    let is_kubernetes = |s: &Service| s.host.as_str().starts_with(&format!("{}.{}.svc.", s.name, s.namespace));
    let chosen = |s: &&Arc<Service>| {
        s.namespace == pod.namespace
            && selecting.iter().any(|(name, kind)| *name == &*s.name && (*kind == Kind::Service) == is_kubernetes(s))
    };
    services.iter().filter(chosen).cloned().collect()
}

/// What made the Pod: its owner, a ReplicaSet's Deployment, or a Deployment that selects it.
fn workload_name(pod: &Object, objects: &Objects<'_>) -> Arc<str> {
    if let Some(owner) = pod.owners.first() {
        let hash = pod.labels.get("pod-template-hash");
        let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
        return match (owner.kind.as_str(), deployment) {
            ("ReplicaSet", Some(deployment)) => deployment.into(),
            _ => owner.name.as_str().into(),
        };
    }
    let selecting = objects.of(Kind::Deployment).find(|o| match &o.resource {
        Resource::Deployment(d) => o.namespace == pod.namespace && selects(&d.spec.selector.match_labels, &pod.labels),
        _ => false,
    });
    selecting.map_or_else(|| pod.name.clone(), |o| o.name.clone())
}

fn has_proxy(pod: &Object, spec: &PodSpec) -> bool {
    match pod.labels.get(TLS_MODE_LABEL).map(String::as_str) {
        Some(mode) => mode == "istio",
        None => {
            let refused = pod.labels.get(INJECT).map(String::as_str) == Some("false")
                || pod.annotations.get(INJECT).is_some_and(|a| a.as_str() == "false");
            !refused && !spec.host_network
        }
    }
}

fn locality(labels: &Labels) -> Arc<str> {
    if let Some(own) = labels.get("istio-locality") {
        // Labels cannot hold slashes, so Istio writes dots.
        return own.replace('.', "/").into();
    }
    let names = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];
    let parts: Vec<&str> = names.iter().map(|n| labels.get(*n).map_or("", String::as_str)).collect();
    parts.join("/").trim_end_matches('/').into()
}

fn container_ports(spec: &PodSpec) -> Vec<ContainerPort> {
    spec.tcp_ports()
        .map(|p| ContainerPort { name: p.name.as_ref().map(|n| n.0.clone()), number: p.container_port.0 })
        .collect()
}
