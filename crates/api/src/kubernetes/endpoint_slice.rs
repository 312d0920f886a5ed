//! EndpointSlices: endpoints of Services besides the Pods that they select.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Label, Port};
use crate::kubernetes::TransportProtocol;

object! {
    /// Endpoints of the Service that the label `kubernetes.io/service-name` names.
    pub struct EndpointSlice {
        /// The type of the addresses.
        address_type: AddressType = "addressType",
        /// The endpoints.
        endpoints: Vec<SliceEndpoint> = "endpoints",
        /// Ports that each of them has.
        ports: Vec<EndpointPort> = "ports",
    }
    check: check;
}

choices! {
    /// The type of addresses.
    pub enum AddressType {
        /// IPv4
        Ipv4 = "IPv4",
        /// IPv6
        Ipv6 = "IPv6",
        /// DNS names
        Fqdn = "FQDN",
    }
}

object! {
    /// One endpoint.
    pub struct SliceEndpoint {
        /// Its addresses; all are the same endpoint.
        addresses: Vec<Spanned<String>> = "addresses",
        /// Its status.
        conditions: Option<EndpointConditions> = "conditions",
        /// The Pod behind it.
        target_ref: Option<TargetRef> = "targetRef",
        /// Its zone.
        zone: Option<String> = "zone",
        /// Its name under that of a headless Service.
        hostname: Option<Label> = "hostname",
        /// The machine it runs on.
        node_name: Option<String> = "nodeName",
    }
    // Istio chooses endpoints by locality itself, so it does not read the hints for kube-proxy.
    inert: ["hints", "deprecatedTopology"];
}

object! {
    /// The status of an endpoint.
    pub struct EndpointConditions {
        /// Whether it takes traffic; yes if not given.
        ready: Option<bool> = "ready",
        /// Whether it answers; as `ready` if not given.
        serving: Option<bool> = "serving",
        /// Whether it is about to end.
        terminating: Option<bool> = "terminating",
    }
}

object! {
    /// The object behind an endpoint.
    pub struct TargetRef {
        /// Its kind.
        kind: String = "kind",
        /// Its name.
        name: String = "name",
        /// Its namespace.
        namespace: Option<String> = "namespace",
    }
    inert: ["apiVersion", "uid", "resourceVersion", "fieldPath"];
}

object! {
    /// A port of all endpoints of a slice.
    pub struct EndpointPort {
        /// The name of the Service's port; empty for its only one.
        name: Option<Label> = "name",
        /// The number.
        port: Option<Port> = "port",
        /// TCP if not given.
        protocol: Option<TransportProtocol> = "protocol",
    }
    inert: ["appProtocol"];
}

fn check(slice: &EndpointSlice, _: &Node, cx: &mut Context) {
    for (index, endpoint) in slice.endpoints.iter().enumerate() {
        for address in &endpoint.addresses {
            let fits = match slice.address_type {
                AddressType::Ipv4 => address.parse::<Ipv4Addr>().is_ok(),
                AddressType::Ipv6 => address.parse::<Ipv6Addr>().is_ok(),
                AddressType::Fqdn => Hostname::parse(address).is_ok_and(|host| !host.is_wildcard()),
            };
            if !fits {
                let kind = slice.address_type.as_str();
                let message = format!("`{}` is not an address of type {kind}", address.value);
                let help = "correct the address, or `addressType`";
                cx.at_field("endpoints", |cx| {
                    cx.at_index(index, |cx| cx.error("bad-address", &address.span, message, help))
                });
            }
        }
    }
}

/// The label that names the Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

impl EndpointSlice {
    /// The Service that a slice with these labels belongs to.
    pub fn service_name(labels: &BTreeMap<String, String>) -> Option<&str> {
        labels.get(SERVICE_NAME_LABEL).map(String::as_str)
    }
}
