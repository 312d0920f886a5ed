//! Gateway: where traffic enters the mesh.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::gateway_tls::GatewayTls;
use super::listener::{Listener, check_listeners};
use super::listener_set::AllowedListeners;
use super::reference::DefaultScope;
use crate::decode::Context;

object! {
    /// The Gateway of the Gateway API: where traffic enters the mesh. Istio's Gateway is another kind of the same name.
    pub struct Gateway {
        /// The specification.
        spec: GatewaySpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a Gateway.
    pub struct GatewaySpec {
        /// Its class.
        gateway_class_name: Spanned<String> = "gatewayClassName",
        /// The ports and hosts.
        listeners: Vec<Spanned<Listener>> = "listeners",
        /// Its addresses; one of the type `Hostname` names the Service of gateway proxies that exist already.
        addresses: Vec<Spanned<GatewayAddress>> = "addresses",
        /// TLS of all listeners, and towards backends.
        tls: Option<Spanned<GatewayTls>> = "tls",
        /// The ListenerSets that may attach; none if not given.
        allowed_listeners: Option<AllowedListeners> = "allowedListeners",
        /// Whether it takes routes that say `useDefaultGateways: All`.
        default_scope: Option<DefaultScope> = "defaultScope",
    }
    // What is deployed in a cluster: crate `k8s` reads it.
    inert: ["infrastructure"];
    check: check_spec;
}

object! {
    /// An address of a Gateway.
    pub struct GatewayAddress {
        /// Its type; `IPAddress` if not given.
        kind: Option<String> = "type",
        /// The address.
        value: Option<String> = "value",
    }
}

impl GatewayAddress {
    /// An address of the load balancer.
    pub const IP_ADDRESS: &str = "IPAddress";
    /// The name of a Service, as in Istio.
    pub const HOSTNAME: &str = "Hostname";

    /// The type: one of those here, or another one, which is not supported.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or(Self::IP_ADDRESS)
    }
}

fn check_spec(spec: &GatewaySpec, node: &Node, cx: &mut Context) {
    check_listeners(&spec.listeners, node, cx);
    if spec.gateway_class_name.is_empty() {
        let span = &spec.gateway_class_name.span;
        cx.at_field("gatewayClassName", |cx| cx.error("bad-name", span, "the class is empty", "write `istio`"));
    }
    super::limits::at_most(16, spec.addresses.len(), "addresses", &node.span, cx);
    for (at, address) in spec.addresses.iter().enumerate() {
        let same = |other: &Spanned<GatewayAddress>| other.value.value.is_some() && other.value == address.value;
        if spec.addresses.iter().take(at).any(same) {
            let message = "this address is written twice";
            cx.at_field("addresses", |cx| {
                cx.at_index(at, |cx| cx.error("conflict", &address.span, message, "remove one"))
            });
        }
    }
}
