//! The Service of a Gateway, and the addresses under which clients reach it.

use std::sync::Arc;

use evenkeel_api::gateway_api::{Gateway, GatewayAddress};
use evenkeel_api::kubernetes::{ClusterIp, Service, ServiceType};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;

use super::super::shared;
use super::super::tracking::Cx;
use crate::gateway_api_status::GatewayStatusAddress;
use crate::selection::GATEWAY_NAME;
use crate::{Condition, Labels};

/// Istio's annotation of a Gateway: the name of what is deployed for it.
const NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// Istio's annotation of a Gateway: whether its status shows the Service's address (`IPAddress`) or its name (`Hostname`).
const ADDRESS_TYPE: &str = "networking.istio.io/address-type";
/// The condition.
const PROGRAMMED: &str = "Programmed";

/// Where a Gateway is reached.
pub(super) struct Reached {
    pub(super) programmed: Condition,
    pub(super) addresses: Vec<GatewayStatusAddress>,
}

/// Returns where a Gateway is reached: by the Service that it names, or else by the one that is deployed for it.
pub(super) fn reached(cx: &Cx<'_>, object: &Object, written: &Gateway) -> Reached {
    let key = service_of(object, written);
    let host = Hostname::of_service(&key.name, &key.namespace, &cx.mesh().cluster_domain);
    let fails = |reason, message: String| Reached {
        programmed: Condition::fails(PROGRAMMED, reason, message),
        addresses: Vec::new(),
    };
    let own = Labels::from([(GATEWAY_NAME.to_owned(), object.name.to_string())]);
    let Some(Resource::Service(service)) = cx.object(&key).map(|object| &object.resource) else {
        // Proxies that somebody has deployed without a Service serve it, too.
        if written.spec.addresses.is_empty() && cx.selects_something(&object.namespace, &own) {
            let programmed = Condition::holds(PROGRAMMED, "Programmed", "its proxies have the configuration");
            return Reached { programmed, addresses: Vec::new() };
        }
        return fails("AddressNotUsable", format!("there is no Service `{host}`"));
    };
    let selector = &service.spec.selector;
    if !selector.is_empty() && !cx.selects_something(&key.namespace, selector) {
        return fails("AddressNotAssigned", format!("the Service `{host}` has no Pods"));
    }
    let external = external(service);
    let requested = written.spec.addresses.iter().filter(|address| address.kind() == GatewayAddress::IP_ADDRESS);
    let mut values = requested.filter_map(|address| address.value.value.as_deref().filter(|value| !value.is_empty()));
    if let Some(missing) = values.find(|value| external.iter().all(|of| of.value != **value)) {
        return fails("AddressNotUsable", format!("the Service `{host}` does not have the address {missing}"));
    }
    if external.is_empty() && service.spec.kind == Some(ServiceType::LoadBalancer) {
        return fails("AddressNotAssigned", format!("the address of the Service `{host}` is pending"));
    }
    let addresses = if external.is_empty() { internal(object, service, &host) } else { external };
    let message = format!("assigned to the Service `{host}`");
    Reached { programmed: Condition::holds(PROGRAMMED, "Programmed", message), addresses }
}

/// The type of an address, if it is not supported.
pub(super) fn unsupported_type(address: &GatewayAddress) -> Option<&str> {
    Some(address.kind()).filter(|kind| ![GatewayAddress::IP_ADDRESS, GatewayAddress::HOSTNAME].contains(kind))
}

/// The Service that a Gateway names by its address, or the one that is deployed for it.
fn service_of(object: &Object, written: &Gateway) -> ObjectKey {
    let named = written.spec.addresses.iter().find(|address| address.kind() == GatewayAddress::HOSTNAME);
    let (namespace, name): (Arc<str>, Arc<str>) = match named.and_then(|address| address.value.value.as_deref()) {
        Some(host) => {
            let mut parts = host.split('.');
            let name = shared(parts.next().unwrap_or_default());
            (parts.next().map_or_else(|| object.namespace.clone(), shared), name)
        }
        None => {
            let overridden = object.annotations.get(NAME_OVERRIDE).map(|name| shared(name));
            let name = overridden
                .unwrap_or_else(|| format!("{}-{}", object.name, written.spec.gateway_class_name.value).into());
            (object.namespace.clone(), name)
        }
    };
    ObjectKey { kind: Kind::Service, namespace, name }
}

/// The addresses of a load balancer.
fn external(service: &Service) -> Vec<GatewayStatusAddress> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.into_iter().flat_map(|balancer| &balancer.ingress);
    let address = |kind, value: &Option<String>| {
        value.clone().filter(|value| !value.is_empty()).map(|value| GatewayStatusAddress { kind, value })
    };
    points
        .filter_map(|point| address("IPAddress", &point.ip).or_else(|| address("Hostname", &point.hostname)))
        .collect()
}

/// The name of a Service in the cluster, or its address if the Gateway asks for it.
fn internal(object: &Object, service: &Service, host: &Hostname) -> Vec<GatewayStatusAddress> {
    let kind = object.annotations.get(ADDRESS_TYPE).map(|kind| kind.as_str());
    match (kind, service.spec.cluster_ip.as_ref().map(|address| address.value)) {
        (Some("IPAddress"), Some(ClusterIp::Address(address))) => {
            vec![GatewayStatusAddress { kind: "IPAddress", value: address.to_string() }]
        }
        _ => vec![GatewayStatusAddress { kind: "Hostname", value: host.to_string() }],
    }
}
