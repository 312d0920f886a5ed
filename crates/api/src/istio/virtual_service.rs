//! VirtualService: routes for hosts. Its HTTP routes are in `http_route.rs`.

use std::collections::BTreeMap;

use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostic, Spanned};

use super::check_export_to;
use super::destination::{Destination, check_weights};
use super::gateway::check_gateways;
use super::http_route::HttpRoute;
use crate::decode::{Context, Label, Port};

object! {
    /// Routes for hosts.
    pub struct VirtualService {
        /// The specification.
        spec: VirtualServiceSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// Routes for hosts.
    pub struct VirtualServiceSpec {
        /// The hosts: full names, names of Services of the same namespace, wildcards. Without any it is a delegate.
        hosts: Vec<Spanned<Hostname>> = "hosts",
        /// Where it applies: names of Gateways or `mesh`; `mesh` if not given.
        gateways: Vec<Spanned<String>> = "gateways",
        /// Routes of HTTP requests.
        http: Vec<Spanned<HttpRoute>> = "http",
        /// Routes of TLS connections that are passed on unread.
        tls: Vec<Spanned<TlsRoute>> = "tls",
        /// Routes of TCP connections.
        tcp: Vec<Spanned<TcpRoute>> = "tcp",
        /// The namespaces that see it.
        export_to: Vec<Spanned<String>> = "exportTo",
    }
    check: check;
}

object! {
    /// A share of the connections.
    pub struct RouteDestination {
        /// The destination.
        destination: Spanned<Destination> = "destination",
        /// Its size.
        weight: Option<u32> = "weight",
    }
}

object! {
    /// One TLS route.
    pub struct TlsRoute {
        /// Any of these must hold.
        matches: Vec<TlsMatchAttributes> = "match",
        /// The destinations of connections.
        route: Vec<RouteDestination> = "route",
    }
    check: check_tls_route;
}

object! {
    /// Conditions on a TLS connection.
    pub struct TlsMatchAttributes {
        /// Names the client may ask for.
        sni_hosts: Vec<Spanned<Hostname>> = "sniHosts",
        /// Ranges of the called address.
        destination_subnets: Vec<IpNet> = "destinationSubnets",
        /// The port that is called.
        port: Option<Port> = "port",
        /// Labels of the client.
        source_labels: BTreeMap<String, String> = "sourceLabels",
        /// Namespace of the client.
        source_namespace: Option<Label> = "sourceNamespace",
        /// The gateways at which the condition applies.
        gateways: Vec<Spanned<String>> = "gateways",
    }
}

object! {
    /// One TCP route.
    pub struct TcpRoute {
        /// Any of these must hold.
        matches: Vec<L4MatchAttributes> = "match",
        /// The destinations of connections.
        route: Vec<RouteDestination> = "route",
    }
    check: check_tcp_route;
}

object! {
    /// Conditions on a TCP connection.
    pub struct L4MatchAttributes {
        /// Ranges of the called address.
        destination_subnets: Vec<IpNet> = "destinationSubnets",
        /// The port that is called.
        port: Option<Port> = "port",
        /// Labels of the client.
        source_labels: BTreeMap<String, String> = "sourceLabels",
        /// Namespace of the client.
        source_namespace: Option<Label> = "sourceNamespace",
        /// The gateways at which the condition applies.
        gateways: Vec<Spanned<String>> = "gateways",
        /// Range of the client's address.
        source_subnet: Option<IpNet> = "sourceSubnet",
    }
}

fn check(spec: &VirtualServiceSpec, node: &Node, cx: &mut Context) {
    check_export_to(&spec.export_to, cx);
    if spec.hosts.is_empty() {
        check_delegate(spec, node, cx);
    }
    check_hosts(spec, cx);
    cx.at_field("gateways", |cx| check_gateways(&spec.gateways, cx));
    if spec.http.is_empty() && spec.tls.is_empty() && spec.tcp.is_empty() {
        cx.error("missing-field", &node.span, "there are no routes", "add `http`, `tls` or `tcp`");
    }
    check_reachable(&spec.http, cx);
    for sni in spec.tls.iter().flat_map(|r| &r.matches).flat_map(|m| &m.sni_hosts) {
        if !spec.hosts.iter().any(|h| h.covers(sni)) {
            let message = format!("`{}` is not one of the hosts of this VirtualService", sni.value);
            cx.at_field("tls", |cx| cx.error("bad-host", &sni.span, message, "add it to `hosts`"));
        }
    }
}

/// A VirtualService without hosts only has HTTP routes that others delegate to, and these do not delegate further
/// (Istio's `ValidateVirtualService`).
fn check_delegate(spec: &VirtualServiceSpec, node: &Node, cx: &mut Context) {
    for (given, name) in
        [(!spec.gateways.is_empty(), "gateways"), (!spec.tls.is_empty(), "tls"), (!spec.tcp.is_empty(), "tcp")]
    {
        if given {
            let message = format!("a VirtualService without `hosts` is a delegate, which cannot have `{name}`");
            let help = format!("add `hosts`, or remove `{name}`");
            cx.error("missing-field", node.span_of_path(name), message, help);
        }
    }
    for (index, route) in spec.http.iter().enumerate() {
        if let Some(delegate) = &route.delegate {
            let message = "a VirtualService without `hosts` is a delegate, which cannot delegate further";
            let help = "delegate to that VirtualService from the one with `hosts`";
            cx.at_field("http", |cx| cx.at_index(index, |cx| cx.error("conflict", &delegate.span, message, help)));
        }
    }
}

fn check_hosts(spec: &VirtualServiceSpec, cx: &mut Context) {
    cx.at_field("hosts", |cx| {
        let in_mesh = spec.gateways.is_empty() || spec.gateways.iter().any(|g| g.value == "mesh");
        for (index, host) in spec.hosts.iter().enumerate() {
            if spec.hosts.iter().take(index).any(|earlier| earlier == host) {
                let message = format!("`{}` appears twice", host.value);
                cx.error("duplicate-host", &host.span, message, "remove one of the two");
            }
            if in_mesh && host.as_str() == "*" {
                let help = "name the hosts, or list `gateways` without `mesh`";
                cx.error("bad-host", &host.span, "`*` is only for gateways, not for the mesh", help);
            }
        }
    });
}

/// Reports routes that are never used because an earlier route matches every request.
fn check_reachable(routes: &[Spanned<HttpRoute>], cx: &mut Context) {
    let Some(first) = routes.iter().position(|r| r.matches.is_empty()) else { return };
    let (Some(takes_all), Some(next)) = (routes.get(first), routes.get(first + 1)) else { return };
    let path = cx.path();
    let message =
        format!("`{path}.http[{}]`: never reached, because an earlier route matches every request", first + 1);
    cx.push(
        Diagnostic::warning("unreachable-route", next.span.clone(), message)
            .with_help("move it before the other, or add a `match` to that one")
            .with_related(takes_all.span.clone(), "matches every request"),
    );
}

fn check_tls_route(route: &TlsRoute, node: &Node, cx: &mut Context) {
    if route.matches.is_empty() || route.matches.iter().any(|m| m.sni_hosts.is_empty()) {
        cx.error(
            "missing-field",
            &node.span,
            "a TLS route needs `match` with `sniHosts`",
            "add `match: [{sniHosts: [example.com]}]`",
        );
    }
    check_l4_route(&route.route, node, cx);
    for matched in &route.matches {
        cx.at_field("match", |cx| check_gateways(&matched.gateways, cx));
    }
}

fn check_tcp_route(route: &TcpRoute, node: &Node, cx: &mut Context) {
    check_l4_route(&route.route, node, cx);
    for matched in &route.matches {
        cx.at_field("match", |cx| check_gateways(&matched.gateways, cx));
    }
}

fn check_l4_route(destinations: &[RouteDestination], node: &Node, cx: &mut Context) {
    cx.at_field("route", |cx| {
        if destinations.is_empty() {
            cx.error(
                "missing-field",
                &node.span,
                "at least one destination is needed",
                "add `- destination: {host: db}`",
            );
        }
        check_weights(destinations.iter().map(|d| d.weight.unwrap_or(0)), node, cx);
    });
}
