//! The page for what a cluster's nodes and name server need: Services with their addresses and ready endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_model::{Endpoint, EndpointAddress, OutboundTrafficPolicy, Protocol, Service, ServicePort, Snapshot};
use serde_json::{Value, json};

/// The page's content. `known`: the generation that the client has; nothing more is sent if that is the present one.
pub(super) fn page(snapshot: &Snapshot, generation: u64, known: Option<u64>) -> Value {
    if known == Some(generation) {
        return json!({ "generation": generation });
    }
    // ServiceEntries apply only to proxies.
    let services = snapshot.services.iter().filter(|service| service.is_kubernetes());
    json!({
        "generation": generation,
        "allow_any": snapshot.mesh.outbound_traffic_policy != OutboundTrafficPolicy::RegistryOnly,
        "services": services.map(|service| of_service(snapshot, service)).collect::<Vec<_>>(),
        "registered": registered(snapshot),
    })
}

/// What Services and ServiceEntries name: all that may be called with `outboundTrafficPolicy: {mode: REGISTRY_ONLY}`.
fn registered(snapshot: &Snapshot) -> Value {
    let mut endpoints = BTreeSet::new();
    for service in snapshot.services.iter() {
        for port in &service.ports {
            let all = endpoints_of(snapshot, service, port);
            endpoints.extend(all.iter().filter_map(|endpoint| match &endpoint.address {
                EndpointAddress::Ip(address) => Some((address.to_string(), endpoint.port)),
                EndpointAddress::Name(name) => Some((name.as_str().to_owned(), endpoint.port)),
                EndpointAddress::Unix(_) => None,
            }));
        }
    }
    let host = |service: &Arc<Service>| {
        json!({
            "host": service.host.as_str(),
            "alias_of": service.alias_of.as_ref().map(|host| host.as_str()),
            "addresses": service.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "ports": service.ports.iter().map(|port| port.number).collect::<Vec<_>>(),
        })
    };
    json!({
        "hosts": snapshot.services.iter().map(host).collect::<Vec<_>>(),
        "endpoints": endpoints.into_iter().collect::<Vec<_>>(),
    })
}

fn of_service(snapshot: &Snapshot, service: &Arc<Service>) -> Value {
    let port = |port: &ServicePort| {
        let ready = endpoints_of(snapshot, service, port).iter().filter(|endpoint| endpoint.ready);
        json!({
            "name": &*port.name,
            "number": port.number,
            "udp": port.protocol == Protocol::Udp,
            "endpoints": ready.filter_map(of_endpoint).collect::<Vec<_>>(),
        })
    };
    json!({
        "host": service.host.as_str(),
        "headless": service.headless,
        "alias_of": service.alias_of.as_ref().map(|host| host.as_str()),
        "addresses": service.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn endpoints_of<'s>(snapshot: &'s Snapshot, service: &Service, port: &ServicePort) -> &'s [Endpoint] {
    if port.protocol == Protocol::Udp {
        snapshot.udp_endpoints(service, port.number)
    } else {
        snapshot.endpoints(service, port.number)
    }
}

fn of_endpoint(endpoint: &Endpoint) -> Option<Value> {
    let EndpointAddress::Ip(address) = &endpoint.address else { return None };
    Some(json!({ "address": address.to_string(), "port": endpoint.port, "host_name": endpoint.host_name.as_deref() }))
}
