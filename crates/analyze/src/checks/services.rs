//! Services and ServiceEntries.

use std::collections::BTreeMap;

use evenkeel_api::decode::IntOrString;
use evenkeel_api::istio::{Resolution, ServiceEntryPort};
use evenkeel_api::kubernetes::{ServiceType, TransportProtocol};
use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_model::{MeshConfig, Protocol, Snapshot, Visibility};

/// Ports whose protocol is detected, because neither name nor `appProtocol` says it (IST0118). One that clients name
/// costs the first bytes of each connection, and servers that speak first wait for the detection's time limit.
pub fn port_names(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::Service(service) = &object.resource else { continue };
        if service.spec.kind == Some(ServiceType::ExternalName) || service.spec.selector.is_empty() {
            continue;
        }
        for port in &service.spec.ports {
            let name = port.name.as_ref().map_or("", |name| &name.0);
            let is_udp = port.protocol.is_some_and(|protocol| protocol != TransportProtocol::Tcp);
            if is_udp
                || !Protocol::detect(false, port.app_protocol.as_deref(), name).is_auto()
                || port.app_protocol.is_some()
            {
                continue;
            }
            let what = if name.is_empty() { "has no name".to_owned() } else { format!("is named `{name}`") };
            let message = format!("{object}: port {} {what}, which names no protocol: it is detected", port.port.0);
            let finding = Diagnostic::info("port-name", port.port.span.clone(), message);
            let help =
                "name it PROTOCOL or PROTOCOL-SUFFIX (http, http2, grpc, https, tls, tcp, …), or set `appProtocol`";
            found.push(finding.with_help(help).about(object.reference()));
        }
    }
}

/// Ports of widespread protocols that are no HTTP.
const OTHER_PROTOCOLS: [(u16, &str); 9] = [
    (3306, "MySQL"),
    (5432, "PostgreSQL"),
    (5672, "AMQP"),
    (6379, "Redis"),
    (6380, "Redis"),
    (9042, "Cassandra"),
    (9092, "Kafka"),
    (11211, "Memcached"),
    (27017, "MongoDB"),
];

/// Ports named after HTTP that lead to a port of another protocol: the proxies would refuse what its clients say.
pub fn other_protocols(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::Service(service) = &object.resource else { continue };
        for port in &service.spec.ports {
            let name = port.name.as_ref().map_or("", |name| &name.0);
            let target = port.target_port.as_ref().and_then(|target| match &target.value {
                IntOrString::Port(target) => Some(target.0),
                IntOrString::Name(_) => None,
            });
            let number = target.unwrap_or(port.port.0);
            let Some((_, spoken)) = OTHER_PROTOCOLS.iter().find(|(known, _)| *known == number) else { continue };
            let protocol = Protocol::detect(false, port.app_protocol.as_deref(), name);
            if !matches!(protocol, Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb) {
                continue;
            }
            let what = if port.app_protocol.is_some() { "`appProtocol`" } else { "its name" };
            let message = format!(
                "{object}: port {} is HTTP by {what}, and port {number} is usually {spoken}, which proxies would refuse there",
                port.port.0
            );
            let finding = Diagnostic::warning("other-protocol", port.port.span.clone(), message);
            found.push(finding.with_help("name it `tcp` or `tcp-…` if it is not HTTP").about(object.reference()));
        }
    }
}

/// A port of a host, as a ServiceEntry defines it.
struct Defined<'a> {
    object: &'a Object,
    port: &'a ServiceEntryPort,
    seen_by: Visibility,
}

/// ServiceEntries that some namespace sees together, and that give one port of a host different protocols (IST0177): only one of them
/// counts.
pub fn conflicting_protocols(objects: &[&Object], snapshot: &Snapshot, found: &mut Diagnostics) {
    let mut defined: BTreeMap<(&str, u16), Vec<Defined<'_>>> = BTreeMap::new();
    for object in objects {
        let Resource::ServiceEntry(entry) = &object.resource else { continue };
        let written = entry.spec.export_to.iter().map(|entry| entry.as_str());
        let seen_by = MeshConfig::visibility(written, &snapshot.mesh.service_export_to, &object.namespace);
        for host in &entry.spec.hosts {
            for port in &entry.spec.ports {
                let own = Defined { object, port, seen_by: seen_by.clone() };
                defined.entry((host.as_str(), port.number.0)).or_default().push(own);
            }
        }
    }
    for ((host, number), all) in &defined {
        for (at, own) in all.iter().enumerate() {
            let differs = |other: &&Defined<'_>| {
                protocol_of(other.port) != protocol_of(own.port) && other.seen_by.overlaps(&own.seen_by)
            };
            let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
            let Some(other) = others.into_iter().find(differs) else { continue };
            let message = format!(
                "{}: port {number} of `{host}` is {} here and {} in {}; only one of them counts",
                own.object,
                protocol_of(own.port),
                protocol_of(other.port),
                other.object
            );
            let finding = Diagnostic::warning("conflicting-protocol", own.object.origin.clone(), message)
                .with_help("give the port one protocol, or define the host in one ServiceEntry")
                .with_related(other.object.origin.clone(), "the other one");
            found.push(finding.about(own.object.reference()));
        }
    }
}

/// The protocol of a port; detected if none is written.
fn protocol_of(port: &ServiceEntryPort) -> &'static str {
    let protocol = match &port.protocol {
        Some(written) => Protocol::from_name(written).unwrap_or(Protocol::Tcp),
        None => Protocol::detect(false, None, &port.name.0),
    };
    protocol.as_str()
}

/// Ports of ExternalName Services that carry bytes (IST0150): such a Service has no address that tells its connections
/// from others of the port.
pub fn external_names(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::Service(service) = &object.resource else { continue };
        if service.spec.kind != Some(ServiceType::ExternalName) {
            continue;
        }
        for port in &service.spec.ports {
            let name = port.name.as_ref().map_or("", |name| &name.0);
            if !matches!(Protocol::detect(false, port.app_protocol.as_deref(), name), Protocol::Auto | Protocol::Tcp) {
                continue;
            }
            let message = format!(
                "{object}: port {} of this ExternalName Service is TCP: it takes connections to this port number at other addresses too",
                port.port.0
            );
            let finding = Diagnostic::warning("external-name-port", port.port.span.clone(), message);
            found.push(
                finding.with_help("name it after its protocol: http-…, https-…, tls-…").about(object.reference()),
            );
        }
    }
}

/// Byte ports of ServiceEntries without addresses (IST0134): only an address, or a virtual one, tells their connections
/// from others of the port.
pub fn addresses_required(objects: &[&Object], _: &Snapshot, found: &mut Diagnostics) {
    for object in objects {
        let Resource::ServiceEntry(entry) = &object.resource else { continue };
        let spec = &entry.spec;
        // With `STATIC` and `DNS` a host gets a virtual address, which the agent's DNS answers; a wildcard does not.
        let has_address = !spec.addresses.is_empty()
            || (spec.resolution.is_some_and(|how| how != Resolution::None)
                && spec.hosts.iter().all(|host| !host.value.is_wildcard()));
        for port in spec.ports.iter().filter(|_| !has_address) {
            let protocol = port.protocol.as_ref().map_or("TCP", |protocol| protocol.value.as_str());
            if !protocol.eq_ignore_ascii_case("TCP") {
                continue;
            }
            let message = format!(
                "{object}: port {} is TCP, and the entry has no addresses: it takes the port at every address",
                port.number.0
            );
            let finding = Diagnostic::warning("address-required", port.number.span.clone(), message);
            let help = "list `addresses`, or set the protocol if it is HTTP or TLS";
            found.push(finding.with_help(help).about(object.reference()));
        }
    }
}
