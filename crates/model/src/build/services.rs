//! Services: Kubernetes' own and the hosts of ServiceEntries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::decode::IntOrString;
use evenkeel_api::istio::{self, Location, ServiceEntrySpec};
use evenkeel_api::kubernetes::{self, ClusterIp, ServiceType, TransportProtocol};
use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::{Objects, note_idle_selector, shared};
use crate::address_book::{Range, SERVICE_ENTRIES, SERVICES};
use crate::{AddressBook, MeshConfig, Protocol, Resolution, Service, ServicePort, TargetPort, Visibility};

/// The annotation by which a Service says who sees it.
const EXPORT_TO_ANNOTATION: &str = "networking.istio.io/exportTo";

pub(super) fn build(
    objects: &Objects<'_>,
    mesh: &MeshConfig,
    book: &mut AddressBook,
    diagnostics: &mut Diagnostics,
) -> Vec<Arc<Service>> {
    let mut services = Vec::new();
    let mut wanting: BTreeMap<String, Range> = BTreeMap::new();
    let mut taken: BTreeMap<IpAddr, (String, Span)> = BTreeMap::new();
    for object in objects.of(Kind::Service) {
        let Resource::Service(service) = &object.resource else { continue };
        note_idle_selector(objects, object, &service.spec.selector, diagnostics);
        let built = of_service(object, service, mesh);
        let name = object.to_string();
        match pinned(service, &name, &mut taken, diagnostics) {
            Address::Pinned(address) => services.push(Service { addresses: vec![address.into()], ..built }),
            Address::None => services.push(built),
            Address::Wanted => {
                wanting.insert(built.host.to_string(), SERVICES);
                services.push(built);
            }
        }
    }
    for object in objects.of(Kind::ServiceEntry) {
        let Resource::ServiceEntry(entry) = &object.resource else { continue };
        for built in of_entry(object, &entry.spec) {
            if built.addresses.is_empty() && built.resolution != Resolution::Passthrough && !built.host.is_wildcard() {
                wanting.entry(built.host.to_string()).or_insert(SERVICE_ENTRIES);
            }
            services.push(built);
        }
    }
    let pinned: BTreeSet<IpAddr> =
        taken.into_keys().chain(services.iter().flat_map(|s| s.vips().collect::<Vec<_>>())).collect();
    book.allot(&wanting, &pinned);
    for service in services.iter_mut().filter(|s| s.addresses.is_empty()) {
        let wants =
            !service.headless && service.external_name.is_none() && service.resolution != Resolution::Passthrough;
        service.addresses =
            wants.then(|| book.address(service.host.as_str())).flatten().map(IpNet::from).into_iter().collect();
    }
    // Stable, so that of two ServiceEntries for one host the earlier one comes first.
    services.sort_by(|a, b| (&a.host, &a.namespace).cmp(&(&b.host, &b.namespace)));
    drop_doubles(services, diagnostics)
}

/// Where a Service's address comes from.
enum Address {
    Pinned(IpAddr),
    Wanted,
    None,
}

fn pinned(
    service: &kubernetes::Service,
    name: &str,
    taken: &mut BTreeMap<IpAddr, (String, Span)>,
    diagnostics: &mut Diagnostics,
) -> Address {
    if service.spec.kind == Some(ServiceType::ExternalName) {
        return Address::None;
    }
    let Some(written) = &service.spec.cluster_ip else { return Address::Wanted };
    let ClusterIp::Address(address) = written.value else { return Address::None };
    if let Some((owner, span)) = taken.get(&address) {
        let message = format!("{address} is already the address of {owner}; another one is allotted");
        diagnostics.push(
            Diagnostic::error("address-conflict", written.span.clone(), message)
                .with_help("give each Service its own `clusterIP`, or leave it out")
                .with_related(span.clone(), "first used here"),
        );
        return Address::Wanted;
    }
    taken.insert(address, (name.to_owned(), written.span.clone()));
    Address::Pinned(address)
}

fn of_service(object: &Object, service: &kubernetes::Service, mesh: &MeshConfig) -> Service {
    let spec = &service.spec;
    let headless = matches!(spec.cluster_ip.as_deref(), Some(ClusterIp::Headless));
    let external_name = spec.external_name.as_ref().map(|n| n.value.clone());
    let export_to = object.annotations.get(EXPORT_TO_ANNOTATION);
    let export_to = export_to.into_iter().flat_map(|a| a.split(',')).map(str::trim).filter(|e| !e.is_empty());
    Service {
        host: Hostname::of_service(&object.name, &object.namespace, &mesh.cluster_domain),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        labels: object.labels.clone(),
        ports: spec.ports.iter().filter_map(service_port).collect(),
        addresses: Vec::new(),
        resolution: match (headless, &external_name) {
            (_, Some(_)) => Resolution::Dns,
            // Clients choose a Pod themselves, and are taken there.
            (true, None) => Resolution::Passthrough,
            (false, None) => Resolution::Static,
        },
        headless,
        external: external_name.is_some(),
        export_to: Visibility::from_export_to(export_to, &object.namespace),
        external_name,
        subject_alt_names: Vec::new(),
        origin: object.origin.clone(),
    }
}

/// SCTP cannot be carried; the port does not exist for the mesh.
fn service_port(port: &kubernetes::ServicePort) -> Option<ServicePort> {
    let transport = port.protocol.unwrap_or(TransportProtocol::Tcp);
    if transport == TransportProtocol::Sctp {
        return None;
    }
    let name = port.name.as_ref().map_or("", |n| &n.0);
    let udp = transport == TransportProtocol::Udp;
    Some(ServicePort {
        name: shared(name),
        number: port.port.0,
        protocol: Protocol::detect(udp, port.app_protocol.as_deref(), name),
        target: match port.target_port.as_deref() {
            None => TargetPort::Same,
            Some(IntOrString::Port(number)) => TargetPort::Number(number.0),
            Some(IntOrString::Name(name)) => TargetPort::Name(shared(name)),
        },
    })
}

fn of_entry<'e>(object: &'e Object, spec: &'e ServiceEntrySpec) -> impl Iterator<Item = Service> + 'e {
    spec.hosts.iter().map(move |host| Service {
        host: host.value.clone(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        labels: object.labels.clone(),
        ports: spec.ports.iter().map(entry_port).collect(),
        addresses: spec.addresses.iter().map(|a| a.value).collect(),
        resolution: match spec.resolution.unwrap_or(istio::Resolution::None) {
            istio::Resolution::None => Resolution::Passthrough,
            istio::Resolution::Static => Resolution::Static,
            istio::Resolution::Dns => Resolution::Dns,
            istio::Resolution::DnsRoundRobin => Resolution::DnsRoundRobin,
        },
        headless: false,
        external: spec.location != Some(Location::MeshInternal),
        export_to: Visibility::from_export_to(spec.export_to.iter().map(|e| e.as_str()), &object.namespace),
        external_name: None,
        subject_alt_names: spec.subject_alt_names.iter().map(|n| shared(n)).collect(),
        origin: host.span.clone(),
    })
}

fn entry_port(port: &istio::ServiceEntryPort) -> ServicePort {
    ServicePort {
        name: port.name.0.clone(),
        number: port.number.0,
        protocol: match &port.protocol {
            Some(protocol) => Protocol::from_name(protocol).unwrap_or(Protocol::Tcp),
            None => Protocol::detect(false, None, &port.name.0),
        },
        target: port.target_port.map_or(TargetPort::Same, |p| TargetPort::Number(p.0)),
    }
}

/// One host can be described once per namespace; of several the first stays.
fn drop_doubles(services: Vec<Service>, diagnostics: &mut Diagnostics) -> Vec<Arc<Service>> {
    let mut kept: Vec<Arc<Service>> = Vec::with_capacity(services.len());
    for service in services {
        match kept.last().filter(|last| last.host == service.host && last.namespace == service.namespace) {
            Some(first) => diagnostics.push(
                Diagnostic::error(
                    "duplicate-host",
                    service.origin.clone(),
                    format!("`{}` is already described in this namespace; this one is ignored", service.host),
                )
                .with_help("merge the two")
                .with_related(first.origin.clone(), "first described here"),
            ),
            None => kept.push(Arc::new(service)),
        }
    }
    kept
}
