//! Endpoints: Pods that a Service selects, and those that are written down.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::istio::WorkloadEntry;
use evenkeel_api::kubernetes::{EndpointSlice, ServiceSpec, SliceEndpoint};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::{Diagnostic, Diagnostics};

use super::Objects;
use crate::service::EndpointsByPort;
use crate::{
    Endpoint, EndpointAddress, Labels, MtlsMode, Protocol, Resolution, Service, ServicePort, Snapshot, TargetPort,
    Workload,
};

type Endpoints = BTreeMap<(Arc<str>, Hostname), EndpointsByPort>;

pub(super) fn build(
    objects: &Objects<'_>,
    snapshot: &Snapshot,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<(Arc<str>, Hostname), Arc<EndpointsByPort>> {
    let mut endpoints = Endpoints::new();
    let kubernetes = KubernetesServices::new(objects);
    for workload in &snapshot.workloads {
        for service in &workload.services {
            let not_ready_too = service.is_kubernetes() && kubernetes.publishes_not_ready(service);
            let by_port = endpoints.entry(key(service)).or_default();
            of_workload(workload, service, snapshot, not_ready_too, by_port);
        }
    }
    for object in objects.of(Kind::EndpointSlice) {
        let Resource::EndpointSlice(slice) = &object.resource else { continue };
        of_slice(object, slice, &kubernetes, snapshot, &mut endpoints, diagnostics);
    }
    for object in objects.of(Kind::ServiceEntry) {
        let Resource::ServiceEntry(entry) = &object.resource else { continue };
        for host in &entry.spec.hosts {
            let Some(service) = of_object(snapshot, object, host) else { continue };
            let by_port = endpoints.entry(key(service)).or_default();
            for written in &entry.spec.endpoints {
                of_entry(object, written, service, snapshot, by_port);
            }
        }
    }
    for service in snapshot.services.iter() {
        let name = service
            .external_name
            .as_ref()
            .or((service.resolution != Resolution::Passthrough && service.resolution != Resolution::Static)
                .then_some(&service.host));
        let by_port = endpoints.entry(key(service)).or_default();
        if let (Some(name), true) = (name, by_port.values().all(Vec::is_empty)) {
            of_name(service, name, by_port);
        }
    }
    endpoints.retain(|_, by_port| !by_port.is_empty());
    endpoints.into_iter().map(|(place, by_port)| (place, Arc::new(by_port))).collect()
}

fn key(service: &Service) -> (Arc<str>, Hostname) {
    (service.namespace.clone(), service.host.clone())
}

/// The service that an object became, unless another one took its place.
fn of_object<'s>(snapshot: &'s Snapshot, object: &Object, host: &Hostname) -> Option<&'s Arc<Service>> {
    snapshot.services_of(host.as_str()).iter().find(|s| s.namespace == object.namespace && s.name == object.name)
}

fn carried(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.ports.iter().filter(|p| p.protocol != Protocol::Udp)
}

/// The Services as written, by namespace and name.
struct KubernetesServices<'a>(BTreeMap<(&'a str, &'a str), &'a ServiceSpec>);

impl<'a> KubernetesServices<'a> {
    fn new(objects: &Objects<'a>) -> Self {
        let specs = objects.of(Kind::Service).filter_map(|o| match &o.resource {
            Resource::Service(service) => Some(((&*o.namespace, &*o.name), &service.spec)),
            _ => None,
        });
        Self(specs.collect())
    }

    fn spec(&self, service: &Service) -> Option<&'a ServiceSpec> {
        self.0.get(&(&*service.namespace, &*service.name)).copied()
    }

    fn publishes_not_ready(&self, service: &Service) -> bool {
        self.spec(service).is_some_and(|spec| spec.publish_not_ready_addresses)
    }

    fn has_selector(&self, service: &Service) -> bool {
        self.spec(service).is_some_and(|spec| !spec.selector.is_empty())
    }
}

fn of_workload(
    workload: &Workload,
    service: &Service,
    snapshot: &Snapshot,
    not_ready_too: bool,
    by_port: &mut EndpointsByPort,
) {
    let Some(address) = workload.addresses.first() else { return };
    for service_port in carried(service) {
        let Some(port) = service_port.target.number_on(workload, service_port.number) else { continue };
        let mode = snapshot.mtls_mode(&workload.namespace, &workload.labels, port);
        by_port.entry(service_port.number).or_default().push(Endpoint {
            address: EndpointAddress::Ip(*address),
            port,
            ready: workload.ready || not_ready_too,
            labels: workload.labels.clone(),
            workload_name: workload.workload_name.clone(),
            namespace: workload.namespace.clone(),
            identity: workload.has_proxy.then(|| workload.identity.clone()),
            locality: workload.locality.clone(),
            weight: 1,
            mtls: workload.has_proxy && mode != MtlsMode::Disable,
        });
    }
}

/// An endpoint about which nothing but its place is known.
fn bare(service: &Service, address: EndpointAddress, port: u16) -> Endpoint {
    Endpoint {
        address,
        port,
        ready: true,
        labels: Labels::new(),
        workload_name: service.name.clone(),
        namespace: service.namespace.clone(),
        identity: None,
        locality: "".into(),
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
    for port in carried(service) {
        let endpoint = bare(service, EndpointAddress::Name(name.clone()), target_number(port));
        by_port.entry(port.number).or_default().push(endpoint);
    }
}

fn of_entry(
    object: &Object,
    written: &WorkloadEntry,
    service: &Service,
    snapshot: &Snapshot,
    by_port: &mut EndpointsByPort,
) {
    let Some(address) = written.address.as_ref().and_then(|a| read_address(a)) else { return };
    let account = written.service_account.as_ref();
    let identity = account.and_then(|a| SpiffeId::new(&snapshot.mesh.trust_domain, &object.namespace, &a.0).ok());
    for service_port in carried(service) {
        let own = written.ports.get(&*service_port.name).map(|p| p.0);
        let port = match address {
            EndpointAddress::Unix(_) => 0,
            _ => own.unwrap_or_else(|| target_number(service_port)),
        };
        let tls_mode = written.labels.get("security.istio.io/tlsMode").map(String::as_str);
        by_port.entry(service_port.number).or_default().push(Endpoint {
            labels: written.labels.clone(),
            identity: identity.clone(),
            locality: written.locality.as_deref().unwrap_or_default().into(),
            weight: written.weight.unwrap_or(1).max(1),
            mtls: tls_mode == Some("istio"),
            ..bare(service, address.clone(), port)
        });
    }
}

fn read_address(text: &str) -> Option<EndpointAddress> {
    if let Some(path) = text.strip_prefix("unix://") {
        return Some(EndpointAddress::Unix(path.into()));
    }
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(EndpointAddress::Ip(ip)),
        Err(_) => Hostname::parse(text).ok().map(EndpointAddress::Name),
    }
}

fn of_slice(
    object: &Object,
    slice: &EndpointSlice,
    kubernetes: &KubernetesServices<'_>,
    snapshot: &Snapshot,
    endpoints: &mut Endpoints,
    diagnostics: &mut Diagnostics,
) {
    let Some(name) = EndpointSlice::service_name(&object.labels) else {
        let message = format!("{object} names no Service, so nothing uses it");
        let help = "add the label `kubernetes.io/service-name: NAME`";
        diagnostics.push(Diagnostic::warning("selects-nothing", object.origin.clone(), message).with_help(help));
        return;
    };
    let host = Hostname::of_service(name, &object.namespace, &snapshot.mesh.cluster_domain);
    let Some(service) = snapshot.services_of(host.as_str()).iter().find(|s| s.namespace == object.namespace) else {
        let message = format!("{object} belongs to the Service `{name}`, which does not exist in this namespace");
        diagnostics
            .push(Diagnostic::warning("missing-service", object.origin.clone(), message).with_help("add the Service"));
        return;
    };
    if kubernetes.has_selector(service) {
        let message =
            format!("{object} is ignored: the Service `{name}` has a selector, its endpoints are the Pods it selects");
        let help = "remove the Service's selector, or the EndpointSlice";
        diagnostics.push(Diagnostic::info("no-effect", object.origin.clone(), message).with_help(help));
        return;
    }
    let by_port = endpoints.entry(key(service)).or_default();
    for port in &slice.ports {
        let Some(number) = port.port else { continue };
        let port_name = port.name.as_ref().map_or("", |n| &n.0);
        let Some(service_port) = carried(service).find(|p| &*p.name == port_name) else { continue };
        let list = by_port.entry(service_port.number).or_default();
        list.extend(slice.endpoints.iter().filter_map(|e| slice_endpoint(service, e, number.0, snapshot)));
    }
}

fn slice_endpoint(service: &Service, endpoint: &SliceEndpoint, port: u16, snapshot: &Snapshot) -> Option<Endpoint> {
    let written = endpoint.addresses.first()?;
    // The decoder has checked that it is an address or a name.
    let address = read_address(written)?;
    let pod = endpoint.target_ref.as_ref().filter(|t| t.kind == "Pod");
    let workload = pod.and_then(|t| snapshot.workload(t.namespace.as_deref().unwrap_or(&service.namespace), &t.name));
    let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
    let known = match workload {
        None => bare(service, address, port),
        Some(w) => Endpoint {
            labels: w.labels.clone(),
            workload_name: w.workload_name.clone(),
            identity: w.has_proxy.then(|| w.identity.clone()),
            locality: w.locality.clone(),
            mtls: w.has_proxy && snapshot.mtls_mode(&w.namespace, &w.labels, port) != MtlsMode::Disable,
            ..bare(service, address, port)
        },
    };
    let locality = match &endpoint.zone {
        Some(zone) if known.locality.is_empty() => format!("/{zone}").into(),
        _ => known.locality.clone(),
    };
    Some(Endpoint { ready, locality, ..known })
}
