//! Workloads: Pods.

use std::collections::{BTreeMap, BTreeSet};
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
    let selectors = Selectors::new(objects, &snapshot.services);
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
            workload_name: workload_name(object, &selectors),
            addresses: pod.status.as_ref().map(|s| s.addresses()).unwrap_or_default(),
            labels: object.labels.clone(),
            service_account: account.into(),
            identity,
            locality: locality(&object.labels),
            ready: pod.status.as_ref().is_some_and(|s| s.is_ready()),
            has_proxy: has_proxy(object, &pod.spec) && !selectors.is_router(object),
            ports: container_ports(&pod.spec),
            services: selectors.services_of(object),
            origin: object.origin.clone(),
        });
    }
    workloads.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
    note_protocol_conflicts(&workloads, diagnostics);
    workloads.into_iter().map(Arc::new).collect()
}

/// What selects Pods, by namespace.
struct Selectors<'a> {
    services: BTreeMap<&'a str, Vec<(&'a Labels, Arc<Service>)>>,
    deployments: BTreeMap<&'a str, Vec<(&'a Labels, &'a Object)>>,
    /// Of Gateways, which look in all namespaces.
    gateways: Vec<&'a Labels>,
}

impl<'a> Selectors<'a> {
    fn new(objects: &Objects<'a>, services: &[Arc<Service>]) -> Self {
        let mut by_object: BTreeMap<(&str, &str, bool), Vec<&Arc<Service>>> = BTreeMap::new();
        for service in services {
            let key = (&*service.namespace, &*service.name, service.is_kubernetes());
            by_object.entry(key).or_default().push(service);
        }
        let gateways = objects.of(Kind::Gateway).filter_map(|o| match &o.resource {
            Resource::Gateway(gateway) => Some(&gateway.spec.selector).filter(|s| !s.is_empty()),
            _ => None,
        });
        let gateways = gateways.collect();
        let mut index = Self { services: BTreeMap::new(), deployments: BTreeMap::new(), gateways };
        for object in objects.of(Kind::Service).chain(objects.of(Kind::ServiceEntry)) {
            let (selector, is_kubernetes) = match &object.resource {
                Resource::Service(service) => (Some(&service.spec.selector), true),
                Resource::ServiceEntry(entry) => (entry.spec.workload_selector.as_ref().map(|s| &s.labels), false),
                _ => continue,
            };
            // Without a selector endpoints are written down; it does not mean all Pods.
            let Some(selector) = selector.filter(|s| !s.is_empty()) else { continue };
            let built = by_object.get(&(&*object.namespace, &*object.name, is_kubernetes)).into_iter().flatten();
            let list = index.services.entry(&object.namespace).or_default();
            list.extend(built.map(|service| (selector, (*service).clone())));
        }
        for object in objects.of(Kind::Deployment) {
            if let Resource::Deployment(deployment) = &object.resource {
                let list = index.deployments.entry(&object.namespace).or_default();
                list.push((&deployment.spec.selector.match_labels, object));
            }
        }
        index.services.values_mut().for_each(|list| list.sort_by(|a, b| a.1.host.cmp(&b.1.host)));
        index
    }

    /// Whether a Pod is a router: its proxy serves what Gateways say, not mutual TLS on the ports of Services.
    fn is_router(&self, pod: &Object) -> bool {
        !pod.labels.contains_key(TLS_MODE_LABEL) && self.gateways.iter().any(|selector| selects(selector, &pod.labels))
    }

    /// The services that select a Pod, ordered by host.
    fn services_of(&self, pod: &Object) -> Vec<Arc<Service>> {
        let here = self.services.get(&*pod.namespace).into_iter().flatten();
        here.filter(|(selector, _)| selects(selector, &pod.labels)).map(|(_, service)| service.clone()).collect()
    }
}

/// Two Services that lead to one port but say different protocols: only one can be right. Detection copes with all.
fn note_protocol_conflicts(workloads: &[Workload], diagnostics: &mut Diagnostics) {
    let mut seen = BTreeSet::new();
    for workload in workloads {
        let chosen = workload.inbound_ports();
        for service in &workload.services {
            for port in &service.ports {
                let Some(number) = port.target.number_on(workload, port.number) else { continue };
                let Some(inbound) =
                    chosen.iter().find(|p| p.port == number && p.protocol != port.protocol && !p.protocol.is_auto())
                else {
                    continue;
                };
                let Some((first, _)) = inbound.service.as_ref().filter(|(first, _)| first.host != service.host) else {
                    continue;
                };
                if !seen.insert((service.host.clone(), first.host.clone(), port.number)) {
                    continue;
                }
                let message = format!(
                    "the port {number} of the Pods is `{}` by the Service {}, but `{}` by the Service {}; the former applies",
                    inbound.protocol, first.host, port.protocol, service.host
                );
                diagnostics.push(
                    Diagnostic::warning("protocol-conflict", service.origin.clone(), message)
                        .with_help("give both ports the same name prefix or `appProtocol`")
                        .with_related(first.origin.clone(), "this one applies"),
                );
            }
        }
    }
}

/// What made the Pod: its owner, a ReplicaSet's Deployment, or a Deployment that selects it.
fn workload_name(pod: &Object, selectors: &Selectors<'_>) -> Arc<str> {
    if let Some(owner) = pod.owners.first() {
        let hash = pod.labels.get("pod-template-hash");
        let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
        return match (owner.kind.as_str(), deployment) {
            ("ReplicaSet", Some(deployment)) => deployment.into(),
            _ => owner.name.as_str().into(),
        };
    }
    let mut here = selectors.deployments.get(&*pod.namespace).into_iter().flatten();
    let selecting = here.find(|(selector, _)| selects(selector, &pod.labels));
    selecting.map_or_else(|| pod.name.clone(), |(_, deployment)| deployment.name.clone())
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
