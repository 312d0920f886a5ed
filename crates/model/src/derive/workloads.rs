//! Workloads: Pods and WorkloadEntries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::annotations::{INJECT, gets_sidecar};
use evenkeel_api::decode::Port;
use evenkeel_api::istio::{ProxyConfig, WorkloadEntry, WorkloadEntrySpec};
use evenkeel_api::kubernetes::{self, EndpointPort, EndpointSlice, PodSpec, TransportProtocol};
use evenkeel_api::remote::{self, NETWORK_LABEL};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::mutual_addresses::{MutualPorts, split, write_network};
use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::{Diagnostic, Diagnostics};

use super::objects::entry_labels;
use super::run::Run;
use super::step::{Results, ServiceKey, Step};
use super::tracking::{Cx, Fact, Tracker};
use super::{reuse_if_equal, set};
use crate::workload::{ENTRY_PREFIX, InboundPort, Pod};
use crate::{ContainerPort, EndpointAddress, Labels, Service, Snapshot, TargetPort, Workload};

/// The label, written by sidecar injection, that tells whether a sidecar accepts mutual TLS: `istio` or `disabled`.
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

/// A port to which two Services give different protocols: the overridden Service's host, the other's host, and the port
/// number.
type PortConflict = (Hostname, Hostname, u16);

/// Workloads and their indexes.
#[derive(Debug, Default)]
pub(super) struct Table {
    workloads: BTreeMap<Pod, Arc<Workload>>,
    members: HashMap<ServiceKey, BTreeSet<Pod>>,
    by_address: BTreeMap<IpAddr, BTreeSet<Pod>>,
    conflicts: BTreeMap<PortConflict, BTreeMap<Pod, Diagnostic>>,
    odds: HashMap<Pod, Vec<PortConflict>>,
    changed: BTreeSet<Pod>,
    changed_addresses: BTreeSet<IpAddr>,
    /// Ports on which addresses require mutual TLS, by network and last byte.
    mutual: HashMap<IpAddr, BTreeMap<u8, MutualPorts>>,
    changed_networks: BTreeSet<IpAddr>,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (workload, keep) = run.read(|cx, found| (workload(cx, key, found), cx.object(key).is_some()));
    run.tables.workloads.set(key, workload, run.tracker);
    keep
}

pub(super) fn conflict_step(run: &mut Run<'_>, overruled: &Hostname, first: &Hostname, port: &u16) -> bool {
    run.read(|cx, found| {
        let conflict = conflict(cx, &(overruled.clone(), first.clone(), *port));
        let keep = conflict.is_some();
        found.extend(conflict);
        keep
    })
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let mut changed = false;
        for (pod, workload) in self.changed() {
            changed |= next.workloads.set(&pod, workload);
        }
        for (address, workloads) in self.changed_addresses() {
            self.set_mutual(address, workloads.first().and_then(|workload| workload.mutual.clone()));
            set(&mut next.index.workloads, address, workloads.into_iter().collect());
        }
        for network in std::mem::take(&mut self.changed_networks) {
            let text = self.mutual.get(&network).map(|here| write_network(here.iter().map(|(last, p)| (*last, p))));
            match text {
                Some(text) => {
                    next.index.mutual.insert(network, text.into());
                }
                None => {
                    next.index.mutual.remove(&network);
                }
            }
        }
        changed
    }
}

/// The workload of a Pod or WorkloadEntry.
fn workload(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> Option<Workload> {
    let object = cx.object(id)?;
    match &object.resource {
        Resource::Pod(pod) => of_pod(cx, object, pod, found),
        Resource::WorkloadEntry(entry) => of_entry(cx, object, entry, found),
        _ => None,
    }
}

fn of_pod(cx: &Cx<'_>, object: &Object, pod: &kubernetes::Pod, found: &mut Diagnostics) -> Option<Workload> {
    let account = pod.spec.service_account();
    let addresses = pod.status.as_ref().map(|s| s.addresses()).unwrap_or_default();
    let cluster = remote::split(&object.name).0;
    let of_cluster = || cx.own_network().filter(|_| cluster.is_empty());
    let network = network(&object.labels).or_else(of_cluster).unwrap_or_default();
    let mut labels = object.labels.clone();
    cx.add_place(object, network, &mut labels);
    let mut made = Workload {
        pod: object.name.clone(),
        cluster: cluster.into(),
        is_elsewhere: !cluster.is_empty() && cx.own_network().is_some_and(|own| own != network),
        namespace: object.namespace.clone(),
        workload_name: workload_name(cx, object),
        host_name: host_name(cx, object, &pod.spec),
        addresses,
        labels,
        service_account: account.into(),
        identity: identity(cx, object, account, found)?,
        locality: locality(&object.labels),
        ready: pod.status.as_ref().is_some_and(|s| s.is_ready()),
        ends: object.ends || pod.status.as_ref().is_some_and(|s| s.has_ended()),
        has_proxy: has_proxy(cx, object, &pod.spec) && !is_router(cx, object),
        proxy_config: proxy_config(object),
        mutual: None,
        ports: container_ports(&pod.spec),
        udp_ports: udp_ports(&pod.spec),
        is_entry: false,
        named_address: None,
        node: pod.spec.node_name.as_deref().unwrap_or_default().into(),
        weight: 1,
        network: network.into(),
        named_ports: Vec::new(),
        services: services_of(cx, object, &object.labels),
        origin: object.origin.clone(),
    };
    made.named_ports = named_ports(cx, &made);
    made.mutual = cx.mutual_ports(&made.namespace, &made.labels).filter(|_| made.has_proxy);
    Some(made)
}

/// The workload of a WorkloadEntry (Istio's `ConvertWorkloadEntry`). One that its agent reports as unhealthy gets no
/// traffic.
fn of_entry(cx: &Cx<'_>, object: &Object, entry: &WorkloadEntry, found: &mut Diagnostics) -> Option<Workload> {
    let spec = &entry.spec;
    let account = spec.service_account.as_ref().map_or("default", |account| &account.0);
    let mut labels = entry_labels(object, entry);
    let services = services_of(cx, object, &labels);
    let network: Arc<str> = spec.network.as_deref().or_else(|| network(&labels)).unwrap_or_default().into();
    cx.add_place(object, &network, &mut labels);
    let address = spec.address.as_ref().and_then(|address| EndpointAddress::read(address));
    let port = |(name, number): (&String, &Port)| ContainerPort { name: Some(name.as_str().into()), number: number.0 };
    let mut made = Workload {
        pod: entry_name(&object.name),
        cluster: "".into(),
        is_elsewhere: false,
        namespace: object.namespace.clone(),
        workload_name: labels.get("app").map_or_else(|| object.name.clone(), |app| app.as_str().into()),
        host_name: None,
        addresses: spec.ip().into_iter().collect(),
        service_account: account.into(),
        identity: identity(cx, object, account, found)?,
        locality: spec.locality.as_ref().map_or_else(|| locality(&labels), |locality| locality.as_str().into()),
        ready: entry.is_healthy(&object.annotations),
        ends: object.ends,
        has_proxy: match labels.get(TLS_MODE_LABEL) {
            Some(mode) => mode == "istio",
            None => spec.takes_mtls(),
        },
        mutual: None,
        proxy_config: None,
        ports: spec.ports.iter().map(port).collect(),
        udp_ports: Vec::new(),
        is_entry: true,
        named_address: address.filter(|address| !matches!(address, EndpointAddress::Ip(_))),
        node: "".into(),
        weight: spec.weight.unwrap_or(1).max(1),
        network,
        named_ports: Vec::new(),
        services,
        origin: object.origin.clone(),
        labels,
    };
    made.named_ports = named_ports(cx, &made);
    made.mutual = cx.mutual_ports(&made.namespace, &made.labels).filter(|_| made.has_proxy);
    Some(made)
}

/// The name of a WorkloadEntry among workloads.
fn entry_name(name: &str) -> Arc<str> {
    format!("{ENTRY_PREFIX}{name}").into()
}

fn network(labels: &Labels) -> Option<&str> {
    labels.get(NETWORK_LABEL).map(String::as_str)
}

fn identity(cx: &Cx<'_>, object: &Object, account: &str, found: &mut Diagnostics) -> Option<SpiffeId> {
    match SpiffeId::new(&cx.mesh().trust_domain, &object.namespace, account) {
        Ok(identity) => Some(identity),
        Err(error) => {
            let message = format!("{object} cannot have an identity: {error}");
            let help = "check the trust domain of the mesh and the service account";
            let finding = Diagnostic::error("bad-identity", object.origin.clone(), message).with_help(help);
            found.push(finding.about(object.reference()));
            None
        }
    }
}

/// Ports on which a workload serves services that name its address. As in Istio only those of its own namespace count;
/// EndpointSlices only if no Service selects it.
fn named_ports(cx: &Cx<'_>, workload: &Workload) -> Vec<InboundPort> {
    let is_selected = workload.services.iter().any(|service| service.is_kubernetes());
    let mut found = Vec::new();
    for address in &workload.addresses {
        let is_own =
            |id: &&ObjectKey| id.namespace == workload.namespace && remote::split(&id.name).0 == &*workload.cluster;
        for id in cx.naming(*address).filter(is_own) {
            match cx.object(id).map(|object| (&object.resource, &object.labels)) {
                Some((Resource::ServiceEntry(entry), _)) => {
                    let here = entry.spec.endpoints.iter().filter(|endpoint| endpoint.ip() == Some(*address));
                    let here: Vec<&WorkloadEntrySpec> = here.collect();
                    for service in cx.services_from(id) {
                        found.extend(here.iter().flat_map(|endpoint| of_endpoint(service, endpoint)));
                    }
                }
                Some((Resource::EndpointSlice(slice), labels)) if !is_selected => {
                    found.extend(of_slice(cx, slice, labels, &workload.namespace));
                }
                _ => {}
            }
        }
    }
    found
}

fn of_endpoint<'s>(
    service: &'s Arc<Service>,
    endpoint: &'s WorkloadEntrySpec,
) -> impl Iterator<Item = InboundPort> + use<'s> {
    service.ports.iter().map(|port| {
        let own = endpoint.ports.get(&*port.name).map(|number| number.0);
        let number = own.unwrap_or(match port.target {
            TargetPort::Number(number) => number,
            TargetPort::Same | TargetPort::Name(_) => port.number,
        });
        InboundPort { port: number, protocol: port.protocol, service: Some((service.clone(), port.number)) }
    })
}

fn of_slice(cx: &Cx<'_>, slice: &EndpointSlice, labels: &Labels, namespace: &Arc<str>) -> Vec<InboundPort> {
    let Some(name) = EndpointSlice::service_name(labels) else { return Vec::new() };
    let host = Hostname::of_service(name, namespace, &cx.mesh().cluster_domain);
    let Some((_, service)) = cx.service_in(&host, namespace) else { return Vec::new() };
    let inbound = |port: &EndpointPort| {
        let name = port.name.as_ref().map_or("", |name| &name.0);
        let service_port = service.port_named(name)?;
        let owner = Some((service.clone(), service_port.number));
        Some(InboundPort { port: port.port?.0, protocol: service_port.protocol, service: owner })
    };
    slice.ports.iter().filter_map(inbound).collect()
}

/// Whether a Pod is a gateway proxy, which serves the ports of Gateways and not mutual TLS on the ports of Services.
fn is_router(cx: &Cx<'_>, pod: &Object) -> bool {
    // Gateways of the Gateway API are served by Pods that the webhook has given a gateway proxy.
    let is_injected = || {
        let templates = pod.annotations.get(TEMPLATES).map(|value| value.as_str()).unwrap_or_default();
        templates.split(',').any(|template| template.trim() == GATEWAY_TEMPLATE)
    };
    let is_selected = || !cx.selecting(Kind::Gateway, &pod.namespace, &pod.labels).is_empty();
    !pod.labels.contains_key(TLS_MODE_LABEL) && (is_injected() || is_selected())
}

/// Istio's annotation with the templates of what is injected.
const TEMPLATES: &str = "inject.istio.io/templates";
/// The template of a gateway proxy.
const GATEWAY_TEMPLATE: &str = "gateway";

/// The services that select a workload, ordered by host.
fn services_of(cx: &Cx<'_>, object: &Object, labels: &Labels) -> Vec<Arc<Service>> {
    let selecting = [Kind::Service, Kind::ServiceEntry].map(|kind| cx.selecting(kind, &object.namespace, labels));
    // A Service selects the Pods of its own cluster.
    let cluster = if object.kind() == Kind::Pod { remote::split(&object.name).0 } else { "" };
    let is_own = |id: &ObjectKey| id.kind != Kind::Service || remote::split(&id.name).0 == cluster;
    let selecting = selecting.iter().flatten().filter(|(id, _)| is_own(id));
    let built = selecting.flat_map(|(id, _)| cx.services_from(id)).cloned();
    let mut services: Vec<Arc<Service>> = built.collect();
    services.retain(|service| service.alias_of.is_none());
    services.sort_by(|a, b| a.host.cmp(&b.host));
    services.dedup_by(|a, b| a.host == b.host);
    services
}

/// Finds pairs of Services that give one port different protocols, of which only one can be right. Ports with protocol
/// detection accept any.
fn conflicts(workload: &Workload) -> BTreeMap<PortConflict, Diagnostic> {
    let mut found = BTreeMap::new();
    // A single service cannot conflict.
    if workload.services.len() < 2 {
        return found;
    }
    let chosen = workload.inbound_ports();
    for service in &workload.services {
        for port in &service.ports {
            let Some(number) = workload.port_of(service, port) else { continue };
            let Some(inbound) =
                chosen.iter().find(|p| p.port == number && p.protocol != port.protocol && !p.protocol.is_auto())
            else {
                continue;
            };
            let Some((first, _)) = inbound.service.as_ref().filter(|(first, _)| first.host != service.host) else {
                continue;
            };
            found.entry((service.host.clone(), first.host.clone(), port.number)).or_insert_with(|| {
                let message = format!(
                    "port {number} of the Pods has the protocol `{}` in the Service {}, but `{}` in the Service {}; the former applies",
                    inbound.protocol, first.host, port.protocol, service.host
                );
                Diagnostic::warning("protocol-conflict", service.origin.clone(), message)
                    .with_help("give both ports the same name prefix or `appProtocol`")
                    .with_related(first.origin.clone(), "this one applies")
            });
        }
    }
    found
}

/// The finding for a conflict, from the first workload that has it.
fn conflict(cx: &Cx<'_>, odds: &PortConflict) -> Option<Diagnostic> {
    let conflicts = &cx.read(Fact::Conflict(odds.0.as_str(), odds.1.as_str(), odds.2)).workloads.conflicts;
    let finding = conflicts.get(odds)?.values().next()?.clone();
    let owner = cx.services_of(&odds.0).iter().find(|(_, service)| service.origin == finding.span);
    Some(match owner.and_then(|(id, _)| cx.object(id)) {
        Some(object) => finding.about(object.reference()),
        None => finding,
    })
}

impl Table {
    fn set(&mut self, id: &ObjectKey, new: Option<Workload>, tracker: &mut Tracker) {
        let name = if id.kind == Kind::WorkloadEntry { entry_name(&id.name) } else { id.name.clone() };
        let pod: Pod = (id.namespace.clone(), name);
        let old = self.workloads.remove(&pod);
        let new = new.map(|workload| reuse_if_equal(old.as_ref(), workload));
        let same = old.as_ref().map(Arc::as_ptr) == new.as_ref().map(Arc::as_ptr);
        if !same {
            self.set_conflicts(&pod, new.as_deref(), tracker);
            for (is_there, workload) in [(false, &old), (true, &new)] {
                workload.iter().for_each(|workload| self.index(&pod, workload, is_there));
            }
            let services = |workload: &Option<Arc<Workload>>| {
                let keys = workload.iter().flat_map(|w| &w.services).map(|s| (s.namespace.clone(), s.host.clone()));
                keys.collect::<BTreeSet<ServiceKey>>()
            };
            for (namespace, host) in services(&old).symmetric_difference(&services(&new)) {
                tracker.changed(Fact::Members(namespace, host.as_str()));
            }
            tracker.changed(Fact::Workload(&pod.0, &pod.1));
            self.changed.insert(pod.clone());
        }
        self.workloads.extend(new.map(|workload| (pod, workload)));
    }

    fn index(&mut self, pod: &Pod, workload: &Workload, is_there: bool) {
        for service in &workload.services {
            let key = (service.namespace.clone(), service.host.clone());
            let members = self.members.entry(key.clone()).or_default();
            put(members, pod, is_there);
            if members.is_empty() {
                self.members.remove(&key);
            }
        }
        for address in workload.addresses.iter().filter(|_| !workload.is_elsewhere) {
            let pods = self.by_address.entry(*address).or_default();
            put(pods, pod, is_there);
            if pods.is_empty() {
                self.by_address.remove(address);
            }
            self.changed_addresses.insert(*address);
        }
    }

    fn set_mutual(&mut self, address: IpAddr, ports: Option<MutualPorts>) {
        let (network, last) = split(address);
        let here = self.mutual.entry(network).or_default();
        if here.get(&last) == ports.as_ref() {
            if here.is_empty() {
                self.mutual.remove(&network);
            }
            return;
        }
        match ports {
            Some(ports) => {
                here.insert(last, ports);
            }
            None => {
                here.remove(&last);
            }
        }
        if here.is_empty() {
            self.mutual.remove(&network);
        }
        self.changed_networks.insert(network);
    }

    fn set_conflicts(&mut self, pod: &Pod, workload: Option<&Workload>, tracker: &mut Tracker) {
        let new = workload.map(conflicts).unwrap_or_default();
        let old = self.odds.remove(pod).unwrap_or_default();
        let touched: BTreeSet<PortConflict> = old.iter().chain(new.keys()).cloned().collect();
        for odds in &old {
            if let Some(said) = self.conflicts.get_mut(odds) {
                said.remove(pod);
            }
        }
        if !new.is_empty() {
            self.odds.insert(pod.clone(), new.keys().cloned().collect());
        }
        for (odds, finding) in new {
            self.conflicts.entry(odds).or_default().insert(pod.clone(), finding);
        }
        for odds in touched {
            if self.conflicts.get(&odds).is_some_and(BTreeMap::is_empty) {
                self.conflicts.remove(&odds);
            }
            tracker.changed(Fact::Conflict(odds.0.as_str(), odds.1.as_str(), odds.2));
            tracker.want(Step::Conflict(odds.0, odds.1, odds.2));
        }
    }

    /// The Pods whose workloads have changed, with the present ones.
    fn changed(&mut self) -> impl Iterator<Item = (Pod, Option<Arc<Workload>>)> + use<'_> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|pod| {
            let workload = self.workloads.get(&pod).cloned();
            (pod, workload)
        })
    }

    /// The addresses whose workloads have changed, with the present ones.
    fn changed_addresses(&mut self) -> Vec<(IpAddr, Vec<Arc<Workload>>)> {
        let changed = std::mem::take(&mut self.changed_addresses);
        let at = |address: &IpAddr| {
            let pods = self.by_address.get(address).into_iter().flatten();
            pods.filter_map(|pod| self.workloads.get(pod)).cloned().collect()
        };
        changed.into_iter().map(|address| (address, at(&address))).collect()
    }
}

fn put(pods: &mut BTreeSet<Pod>, pod: &Pod, is_there: bool) {
    if is_there {
        pods.insert(pod.clone());
    } else {
        pods.remove(pod);
    }
}

impl<'t> Cx<'t> {
    /// The workload of a Pod.
    pub(super) fn workload(&self, namespace: &str, pod: &str) -> Option<&'t Arc<Workload>> {
        let workloads = &self.read(Fact::Workload(namespace, pod)).workloads.workloads;
        workloads.get(&(namespace.into(), pod.into()))
    }

    /// The workloads of a service, by Pod.
    pub(super) fn members(&self, service: &Service) -> impl Iterator<Item = &'t Arc<Workload>> {
        let members = &self.read(Fact::Members(&service.namespace, service.host.as_str())).workloads.members;
        let pods = members.get(&(service.namespace.clone(), service.host.clone())).into_iter().flatten();
        pods.filter_map(|(namespace, pod)| self.workload(namespace, pod))
    }
}

/// The name of the workload that owns the Pod: its owner, the Deployment of its ReplicaSet, or a Deployment that
/// selects it.
fn workload_name(cx: &Cx<'_>, pod: &Object) -> Arc<str> {
    if let Some(owner) = pod.owners.first() {
        let hash = pod.labels.get("pod-template-hash");
        let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
        return match (owner.kind.as_str(), deployment) {
            ("ReplicaSet", Some(deployment)) => deployment.into(),
            _ => owner.name.as_str().into(),
        };
    }
    let kinds = [Kind::Deployment, Kind::StatefulSet, Kind::DaemonSet];
    let mut selecting = kinds.into_iter().flat_map(|kind| cx.selecting(kind, &pod.namespace, &pod.labels));
    selecting.next().map_or_else(|| remote::split(&pod.name).1.into(), |(_, workload)| workload.name.clone())
}

/// The host name in the Pod, otherwise in its owner's template. Pods of a StatefulSet use their own name.
fn host_name(cx: &Cx<'_>, pod: &Object, spec: &PodSpec) -> Option<(Arc<str>, Arc<str>)> {
    let written = |spec: &PodSpec| Some((spec.hostname.as_ref()?.0.clone(), spec.subdomain.as_ref()?.0.clone()));
    let of_template = || {
        let kinds = [Kind::Deployment, Kind::StatefulSet];
        let mut selecting = kinds.into_iter().flat_map(|kind| cx.selecting(kind, &pod.namespace, &pod.labels));
        selecting.find_map(|(_, object)| match &object.resource {
            Resource::Deployment(set) => written(&set.spec.template.spec),
            Resource::StatefulSet(set) => {
                let service = set.spec.service_name.as_deref().filter(|name| !name.is_empty())?;
                let number = pod.name.strip_prefix(&*object.name)?.strip_prefix('-')?;
                let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                is_numbered.then(|| (pod.name.clone(), service.into()))
            }
            _ => None,
        })
    };
    written(spec).or_else(of_template)
}

/// The settings of its annotations.
fn proxy_config(pod: &Object) -> Option<Arc<ProxyConfig>> {
    ProxyConfig::of_pod(&pod.annotations).map(Arc::new)
}

fn has_proxy(cx: &Cx<'_>, pod: &Object, spec: &PodSpec) -> bool {
    match pod.labels.get(TLS_MODE_LABEL).map(String::as_str) {
        Some(mode) => mode == "istio",
        None => {
            let none = Labels::new();
            let namespace = cx.namespace_labels(&pod.namespace).unwrap_or(&none);
            let annotation = pod.annotations.get(INJECT).map(|value| value.as_str());
            gets_sidecar(&pod.labels, annotation, namespace) && spec.shares_host_network().is_none()
        }
    }
}

/// The labels with a whole locality; the first that is given counts, before those of the parts.
const LOCALITY_LABELS: [&str; 2] = ["topology.istio.io/locality", "istio-locality"];

/// `region/zone/subzone` from labels; may be empty.
pub(super) fn locality(labels: &Labels) -> Arc<str> {
    if let Some(own) = LOCALITY_LABELS.iter().find_map(|name| labels.get(*name)) {
        // Labels cannot contain slashes, so Istio writes dots.
        return own.replace('.', "/").into();
    }
    let names = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];
    let parts: Vec<&str> = names.iter().map(|n| labels.get(*n).map_or("", String::as_str)).collect();
    parts.join("/").trim_end_matches('/').into()
}

fn container_ports(spec: &PodSpec) -> Vec<ContainerPort> {
    spec.tcp_ports().map(container_port).collect()
}

fn udp_ports(spec: &PodSpec) -> Vec<ContainerPort> {
    let all = spec.containers.iter().flat_map(|container| &container.ports);
    all.filter(|port| port.protocol == Some(TransportProtocol::Udp)).map(container_port).collect()
}

fn container_port(written: &kubernetes::ContainerPort) -> ContainerPort {
    ContainerPort { name: written.name.as_ref().map(|name| name.0.clone()), number: written.container_port.0 }
}
