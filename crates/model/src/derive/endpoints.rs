//! Endpoints: Pods that a Service selects, and those in ServiceEntries and EndpointSlices.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_api::istio::WorkloadEntrySpec;
use evenkeel_api::kubernetes::{EndpointConditions, EndpointSlice, ServiceSpec, SliceEndpoint};
use evenkeel_api::remote::{self, NETWORK_LABEL};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::{Diagnostic, Diagnostics};
use imbl::OrdMap;

use super::reuse_if_equal;
use super::run::Run;
use super::step::{Results, ServiceKey};
use super::tracking::Cx;
use super::workloads;
use crate::service::{EndpointsByPort, TransportPort};
use crate::{
    Endpoint, EndpointAddress, Labels, MtlsMode, Resolution, Service, ServicePort, Snapshot, TargetPort, Workload,
};

/// Endpoints by service.
#[derive(Debug, Default)]
pub(super) struct Table {
    endpoints: OrdMap<ServiceKey, Arc<EndpointsByPort>>,
}

pub(super) fn service_step(run: &mut Run<'_>, service: &ServiceKey) -> bool {
    let (endpoints, keep) = run.read(|cx, _| (endpoints(cx, service), cx.service_in(&service.1, &service.0).is_some()));
    run.tables.endpoints.set(service, endpoints);
    keep
}

pub(super) fn slice_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    run.read(|cx, found| {
        note_slice(cx, key, found);
        cx.object(key).is_some()
    })
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let changed = !self.endpoints.ptr_eq(&next.endpoints);
        if changed {
            next.endpoints = self.endpoints.clone();
        }
        changed
    }
}

/// The endpoints of a service.
fn endpoints(cx: &Cx<'_>, (namespace, host): &ServiceKey) -> Option<EndpointsByPort> {
    let (_, service) = cx.service_in(host, namespace)?;
    // Hosts that are resolved when they are called have no endpoints; Istio ignores configured ones.
    if matches!(service.resolution, Resolution::Alias | Resolution::DynamicDns) {
        return None;
    }
    let spec = spec_of(cx, service);
    let mut by_port = EndpointsByPort::default();
    let not_ready_too = service.is_kubernetes() && spec.is_some_and(|spec| spec.publish_not_ready_addresses);
    for workload in cx.members(service) {
        of_workload(cx, workload, service, not_ready_too, &mut by_port);
    }
    if let Some(name) = slices_name(cx, service) {
        let mut places = Places::default();
        for object in cx.slices(namespace, &name) {
            of_slice(cx, object, service, not_ready_too, &mut by_port, &mut places);
        }
    }
    for (part, described) in cx.parts_of(service) {
        let Some(object) = cx.object(part) else { continue };
        let Resource::ServiceEntry(entry) = &object.resource else { continue };
        for written in &entry.spec.endpoints {
            of_entry(cx, object, written, service, described, &mut by_port);
        }
    }
    let resolves = matches!(service.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    // An entry that selects workloads has no others, even if its selector has no labels, and selects none.
    let selects = |part: &ObjectKey| match cx.object(part).map(|object| &object.resource) {
        Some(Resource::ServiceEntry(entry)) => entry.spec.workload_selector.is_some(),
        _ => false,
    };
    if resolves && by_port.values().all(Vec::is_empty) && !cx.parts_of(service).any(|(part, _)| selects(part)) {
        of_name(service, &service.host, &mut by_port);
    }
    (!by_port.is_empty()).then_some(by_port)
}

/// Reports an EndpointSlice that has no effect.
fn note_slice(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) {
    let Some(object) = cx.object(id) else { return };
    let Some(name) = EndpointSlice::service_name(&object.labels) else {
        let message = format!("{object} names no Service, so nothing uses it");
        let help = "add the label `kubernetes.io/service-name: NAME`";
        let finding = Diagnostic::warning("selects-nothing", object.origin.clone(), message);
        found.push(finding.with_help(help).about(object.reference()));
        return;
    };
    let host = Hostname::of_service(name, &object.namespace, &cx.mesh().cluster_domain);
    let Some((_, service)) = cx.service_in(&host, &object.namespace) else {
        let message = format!("{object} belongs to the Service `{name}`, which does not exist in this namespace");
        let finding = Diagnostic::warning("missing-service", object.origin.clone(), message);
        found.push(finding.with_help("add the Service").about(object.reference()));
        return;
    };
    if service.resolution == Resolution::Alias {
        let message = format!("{object} is ignored: the Service `{name}` is another name of a host");
        let help = "remove the EndpointSlice, or the Service's `type: ExternalName`";
        let finding = Diagnostic::info("no-effect", object.origin.clone(), message);
        found.push(finding.with_help(help).about(object.reference()));
    }
}

impl Table {
    fn set(&mut self, key: &ServiceKey, new: Option<EndpointsByPort>) {
        let old = self.endpoints.get(key);
        match (old, new) {
            (Some(old), Some(new)) if **old == new => {}
            (old, Some(new)) => {
                let new = reuse_if_equal(old, new);
                self.endpoints.insert(key.clone(), new);
            }
            (Some(_), None) => {
                self.endpoints.remove(key);
            }
            (None, None) => {}
        }
    }
}

/// The Service of this name as written.
fn spec_of<'t>(cx: &Cx<'t>, service: &Service) -> Option<&'t ServiceSpec> {
    let name = remote::name_in(&service.cluster, &service.name).into();
    let id = ObjectKey { kind: Kind::Service, namespace: service.namespace.clone(), name };
    match &cx.object(&id)?.resource {
        Resource::Service(service) => Some(&service.spec),
        _ => None,
    }
}

/// The Service name that EndpointSlices use for a service; hosts of ServiceEntries may have the form of a Service's
/// host.
fn slices_name(cx: &Cx<'_>, service: &Service) -> Option<Arc<str>> {
    let suffix = format!(".{}.svc.{}", service.namespace, cx.mesh().cluster_domain);
    service.host.as_str().strip_suffix(&suffix).map(Arc::from)
}

fn of_workload(
    cx: &Cx<'_>,
    workload: &Workload,
    service: &Service,
    not_ready_too: bool,
    by_port: &mut EndpointsByPort,
) {
    let Some(address) = workload.endpoint_address() else { return };
    // EDS accepts only addresses, and clients of headless services need one.
    let needs_ip = matches!(service.resolution, Resolution::Static | Resolution::Passthrough);
    if needs_ip && matches!(address, EndpointAddress::Name(_)) {
        return;
    }
    let is_here = |subdomain: &Arc<str>| {
        service.headless && *subdomain == service.name && workload.namespace == service.namespace
    };
    let host_name = workload.host_name.as_ref().filter(|(_, subdomain)| is_here(subdomain)).map(|(name, _)| name);
    for service_port in &service.ports {
        let Some(port) = workload.port_of(service, service_port) else { continue };
        let mode = cx.mtls_mode(&workload.namespace, &workload.labels, port);
        by_port.get_or_default(TransportPort::of(service_port)).push(Endpoint {
            address: address.clone(),
            port,
            // The condition of a Pod that is being deleted stays `Ready` until its containers have ended.
            ready: workload.ready && !workload.ends || not_ready_too,
            draining: workload.ready && workload.ends && !not_ready_too,
            failing: !(workload.ready || not_ready_too || workload.ends),
            node: workload.node.clone(),
            host_name: host_name.cloned(),
            labels: workload.labels.clone(),
            workload_name: workload.workload_name.clone(),
            namespace: workload.namespace.clone(),
            identity: workload.has_proxy.then(|| workload.identity.clone()),
            locality: workload.locality.clone(),
            cluster: workload.cluster.clone(),
            network: workload.network.clone(),
            weight: workload.weight,
            mtls: workload.has_proxy && mode != MtlsMode::Disable,
        });
    }
}

/// Returns an endpoint of which only the address is known.
fn bare(service: &Service, address: EndpointAddress, port: u16) -> Endpoint {
    Endpoint {
        address,
        port,
        ready: true,
        draining: false,
        failing: false,
        node: "".into(),
        host_name: None,
        labels: Labels::new(),
        workload_name: service.name.clone(),
        namespace: service.namespace.clone(),
        identity: None,
        locality: "".into(),
        cluster: "".into(),
        network: "".into(),
        weight: 1,
        mtls: false,
    }
}

fn target_number(port: &ServicePort) -> u16 {
    match port.target {
        TargetPort::Number(number) => number,
        TargetPort::Same | TargetPort::Name(_) => port.number,
    }
}

fn of_name(service: &Service, name: &Hostname, by_port: &mut EndpointsByPort) {
    for port in &service.ports {
        let endpoint = bare(service, EndpointAddress::Name(name.clone()), target_number(port));
        by_port.get_or_default(TransportPort::of(port)).push(endpoint);
    }
}

/// An endpoint written in a ServiceEntry, for the ports that this entry describes.
fn of_entry(
    cx: &Cx<'_>,
    object: &Object,
    written: &WorkloadEntrySpec,
    service: &Service,
    described: &Service,
    by_port: &mut EndpointsByPort,
) {
    let Some(address) = written.address.as_ref().and_then(|a| EndpointAddress::read(a)) else { return };
    let account = written.service_account.as_ref();
    let identity = account.and_then(|a| SpiffeId::new(&cx.mesh().trust_domain, &service.namespace, &a.0).ok());
    let locality = written.locality.clone().unwrap_or_else(|| workloads::locality(&written.labels).to_string());
    let network: Arc<str> = written.network.as_deref().unwrap_or_default().into();
    let mut labels = written.labels.clone();
    cx.add_place(object, &network, &mut labels);
    for service_port in &service.ports {
        let Some(own) = described.ports.iter().find(|port| port.name == service_port.name) else { continue };
        let port = match address {
            EndpointAddress::Unix(_) => 0,
            _ => written.ports.get(&*own.name).map_or_else(|| target_number(own), |port| port.0),
        };
        let mtls = written.takes_mtls() && cx.mtls_mode(&service.namespace, &written.labels, port) != MtlsMode::Disable;
        by_port.get_or_default(TransportPort::of(service_port)).push(Endpoint {
            labels: labels.clone(),
            identity: identity.clone(),
            locality: locality.as_str().into(),
            network: network.clone(),
            weight: written.weight.unwrap_or(1).max(1),
            mtls,
            ..bare(service, address.clone(), port)
        });
    }
}

/// Where an endpoint is: two of one place are one.
type Place = (EndpointAddress, u16, Arc<str>);
/// The indexes of the endpoints of a service's ports, by place.
type Places = HashMap<TransportPort, HashMap<Place, usize>>;

fn place(endpoint: &Endpoint) -> Place {
    (endpoint.address.clone(), endpoint.port, endpoint.cluster.clone())
}

/// The endpoints of a slice. A slice of a Service with a selector is usually written by Kubernetes about the Pods that
/// are endpoints already; only the others are added.
fn of_slice(
    cx: &Cx<'_>,
    object: &Object,
    service: &Service,
    not_ready_too: bool,
    by_port: &mut EndpointsByPort,
    places: &mut Places,
) {
    let Resource::EndpointSlice(slice) = &object.resource else { return };
    let cluster: Arc<str> = remote::split(&object.name).0.into();
    let of_cluster = || cx.own_network().filter(|_| cluster.is_empty());
    let network = object.labels.get(NETWORK_LABEL).map(String::as_str).or_else(of_cluster).unwrap_or_default();
    let network: Arc<str> = network.into();
    for port in &slice.ports {
        let Some(number) = port.port else { continue };
        let port_name = port.name.as_ref().map_or("", |n| &n.0);
        let Some(service_port) = service.ports.iter().find(|p| &*p.name == port_name) else { continue };
        let transport_port = TransportPort::of(service_port);
        let list = by_port.get_or_default(transport_port);
        let places = places.entry(transport_port).or_insert_with(|| {
            // The first one of a place counts.
            list.iter().enumerate().rev().map(|(at, endpoint)| (place(endpoint), at)).collect()
        });
        let addresses = slice.endpoints.iter().flat_map(|e| e.addresses.iter().map(move |address| (e, address)));
        let found = addresses.filter_map(|(e, address)| slice_endpoint(cx, service, e, address, number.0));
        for mut endpoint in found {
            endpoint.ready |= not_ready_too;
            endpoint.failing &= !endpoint.ready;
            endpoint.cluster = cluster.clone();
            if endpoint.network.is_empty() {
                endpoint.network = network.clone();
            }
            let at = *places.entry(place(&endpoint)).or_insert(list.len());
            match list.get_mut(at) {
                Some(known) => known.draining |= endpoint.draining && !known.ready,
                None => {
                    cx.add_place(object, &endpoint.network, &mut endpoint.labels);
                    list.push(endpoint);
                }
            }
        }
    }
}

/// One of the addresses of an endpoint, each of which is one for clients, as in Istio.
fn slice_endpoint(
    cx: &Cx<'_>,
    service: &Service,
    endpoint: &SliceEndpoint,
    written: &str,
    port: u16,
) -> Option<Endpoint> {
    // The decoder has checked that it is an address or a name.
    let address = EndpointAddress::read(written)?;
    let pod = endpoint.target_ref.as_ref().filter(|t| t.kind == "Pod");
    let workload = pod.and_then(|t| cx.workload(t.namespace.as_deref().unwrap_or(&service.namespace), &t.name));
    let condition = |of: fn(&EndpointConditions) -> Option<bool>| endpoint.conditions.as_ref().and_then(of);
    let ready = condition(|c| c.ready).unwrap_or(true);
    // Istio's `endpointHealthStatus`.
    let draining = !ready && condition(|c| c.serving).unwrap_or(true) && condition(|c| c.terminating).unwrap_or(true);
    let ends = condition(|c| c.terminating).unwrap_or(false);
    let failing = !(ready || draining || ends);
    let known = match workload {
        None => bare(service, address, port),
        Some(w) => Endpoint {
            labels: w.labels.clone(),
            workload_name: w.workload_name.clone(),
            identity: w.has_proxy.then(|| w.identity.clone()),
            locality: w.locality.clone(),
            network: w.network.clone(),
            node: w.node.clone(),
            mtls: w.has_proxy && cx.mtls_mode(&w.namespace, &w.labels, port) != MtlsMode::Disable,
            ..bare(service, address, port)
        },
    };
    let locality = match &endpoint.zone {
        Some(zone) if known.locality.is_empty() => format!("/{zone}").into(),
        _ => known.locality.clone(),
    };
    let host_name = endpoint.hostname.as_ref().filter(|_| service.headless).map(|name| name.0.clone());
    let node = endpoint.node_name.as_deref().map_or_else(|| known.node.clone(), Into::into);
    Some(Endpoint { ready, draining, failing, node, locality, host_name, ..known })
}
