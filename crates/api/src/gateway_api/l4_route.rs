//! TLSRoute and TCPRoute: routes of connections, at Gateways; UDPRoute: of datagrams.

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::http_route::check_weight;
use super::limits::{SectionName, at_most, check_hostname};
use super::reference::{BackendTarget, DefaultScope, ParentRef, check_parents};
use crate::decode::{Context, Label, Port};

object! {
    /// Routes of TLS connections by the server name that the client asks for.
    pub struct TlsRoute {
        /// The specification.
        spec: TlsRouteSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a TLSRoute.
    pub struct TlsRouteSpec {
        /// What it attaches to.
        parent_refs: Vec<Spanned<ParentRef>> = "parentRefs",
        /// The server names; those of the listeners if not given.
        hostnames: Vec<Spanned<Hostname>> = "hostnames",
        /// The rules.
        rules: Vec<Spanned<L4RouteRule>> = "rules",
        /// Whether it also attaches to the Gateways that say `defaultScope: All`.
        use_default_gateways: Option<Spanned<DefaultScope>> = "useDefaultGateways",
    }
    check: check_tls_route;
}

object! {
    /// Routes of connections by the listener that takes them.
    pub struct TcpRoute {
        /// The specification.
        spec: TcpRouteSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a TCPRoute.
    pub struct TcpRouteSpec {
        /// What it attaches to.
        parent_refs: Vec<Spanned<ParentRef>> = "parentRefs",
        /// The rules.
        rules: Vec<Spanned<L4RouteRule>> = "rules",
        /// Whether it also attaches to the Gateways that say `defaultScope: All`.
        use_default_gateways: Option<Spanned<DefaultScope>> = "useDefaultGateways",
    }
    check: check_tcp_route;
}

object! {
    /// Routes of datagrams by the listener that takes them.
    pub struct UdpRoute {
        /// The specification.
        spec: UdpRouteSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a UDPRoute.
    pub struct UdpRouteSpec {
        /// What it attaches to.
        parent_refs: Vec<Spanned<ParentRef>> = "parentRefs",
        /// The rules.
        rules: Vec<Spanned<L4RouteRule>> = "rules",
        /// Whether it also attaches to the Gateways that say `defaultScope: All`.
        use_default_gateways: Option<Spanned<DefaultScope>> = "useDefaultGateways",
    }
    check: check_udp_route;
}

object! {
    /// Where connections go.
    pub struct L4RouteRule {
        /// Its name.
        name: Option<SectionName> = "name",
        /// The backends.
        backend_refs: Vec<Spanned<BackendRef>> = "backendRefs",
    }
    check: check_rule;
}

object! {
    /// A backend and its share of the connections.
    pub struct BackendRef {
        /// Its group; Kubernetes' core if not given.
        group: Option<String> = "group",
        /// Its kind; `Service` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; the route's own if not given.
        namespace: Option<Label> = "namespace",
        /// Its port.
        port: Option<Port> = "port",
        /// Its share, relative to the sum of all; 1 if not given.
        weight: Option<Spanned<u32>> = "weight",
    }
    check: check_backend;
}

impl BackendRef {
    /// The backend.
    pub fn target(&self) -> BackendTarget<'_> {
        BackendTarget {
            group: self.group.as_deref().unwrap_or_default(),
            kind: self.kind.as_deref().unwrap_or("Service"),
            name: &self.name,
            namespace: self.namespace.as_ref(),
            port: self.port.map(|port| port.0),
        }
    }
}

fn check_tls_route(route: &TlsRouteSpec, node: &Node, cx: &mut Context) {
    check_parents(&route.parent_refs, node, cx);
    for (at, host) in route.hostnames.iter().enumerate() {
        cx.at_field("hostnames", |cx| cx.at_index(at, |cx| check_hostname(host, cx)));
    }
    check_rules(&route.rules, node, cx);
}

fn check_tcp_route(route: &TcpRouteSpec, node: &Node, cx: &mut Context) {
    check_parents(&route.parent_refs, node, cx);
    check_rules(&route.rules, node, cx);
}

fn check_udp_route(route: &UdpRouteSpec, node: &Node, cx: &mut Context) {
    check_parents(&route.parent_refs, node, cx);
    check_rules(&route.rules, node, cx);
}

/// Connections have no conditions, so a second rule gets none.
fn check_rules(rules: &[Spanned<L4RouteRule>], node: &Node, cx: &mut Context) {
    if rules.is_empty() {
        let message = "a route needs a rule";
        cx.at_field("rules", |cx| cx.error("missing-field", &node.span, message, "add a rule with `backendRefs`"));
    }
    if let Some(second) = rules.get(1) {
        let message = "the first rule takes all connections";
        cx.at_field("rules", |cx| {
            cx.at_index(1, |cx| cx.error("conflict", &second.span, message, "join them by weights"))
        });
    }
}

fn check_rule(rule: &L4RouteRule, node: &Node, cx: &mut Context) {
    at_most(16, rule.backend_refs.len(), "backendRefs", &node.span, cx);
}

fn check_backend(backend: &BackendRef, _: &Node, cx: &mut Context) {
    backend.target().check(cx);
    check_weight(backend.weight.as_ref(), cx);
}
