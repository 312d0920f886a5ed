//! Gateway: the ports and hosts that gateway proxies serve.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::yaml::Node;

use super::proxy_ports;
use super::server_tls::{ServerTlsSettings, check_server_tls};
use crate::decode::{Context, Port};

object! {
    /// The ports and hosts that gateway proxies serve.
    pub struct Gateway {
        /// The specification.
        spec: GatewaySpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The ports and hosts that gateway proxies serve.
    pub struct GatewaySpec {
        /// Labels of the gateway proxies.
        selector: BTreeMap<String, String> = "selector",
        /// Ports and hosts.
        servers: Vec<Spanned<Server>> = "servers",
    }
    check: check;
}

object! {
    /// One port with its hosts.
    pub struct Server {
        /// The port.
        port: Spanned<GatewayPort> = "port",
        /// Address to listen on.
        bind: Option<Spanned<String>> = "bind",
        /// The hosts, `[namespace/]host`.
        hosts: Vec<Spanned<String>> = "hosts",
        /// TLS settings.
        tls: Option<Spanned<ServerTlsSettings>> = "tls",
        /// Its name.
        name: Option<String> = "name",
        /// Without effect, as in Istio.
        default_endpoint: Option<Spanned<String>> = "defaultEndpoint",
    }
    check: check_server;
}

object! {
    /// A port.
    pub struct GatewayPort {
        /// Its number.
        number: Spanned<Port> = "number",
        /// Its protocol.
        protocol: Spanned<String> = "protocol",
        /// Its name.
        name: String = "name",
        /// Without effect, as in Istio.
        target_port: Option<Spanned<Port>> = "targetPort",
    }
    check: check_port;
}

/// Protocols of a server, in Istio's spelling.
const PROTOCOLS: &[&str] = &["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TCP", "MONGO", "MYSQL", "REDIS"];

fn check(spec: &GatewaySpec, node: &Node, cx: &mut Context) {
    if spec.servers.is_empty() {
        cx.at_field("servers", |cx| {
            cx.error("missing-field", &node.span, "at least one server is needed", "add a port with hosts")
        });
    }
}

fn check_port(port: &GatewayPort, _: &Node, cx: &mut Context) {
    cx.at_field("number", |cx| proxy_ports::check(proxy_ports::OF_GATEWAYS, port.number.0, &port.number.span, cx));
    if let Some(target) = &port.target_port {
        let help = "the gateway listens on the `targetPort` of the Service in front of it, or else on `number`";
        cx.note("no-effect", &target.span, "Istio uses `targetPort` only in ServiceEntries", help);
    }
}

fn check_server(server: &Server, node: &Node, cx: &mut Context) {
    if let Some(bind) = server.bind.as_ref().filter(|bind| bind.parse::<IpAddr>().is_err()) {
        let message = if bind.starts_with("unix://") {
            "Unix domain sockets are not supported here".to_owned()
        } else {
            format!("`{}` is not an IP address", bind.value)
        };
        cx.at_field("bind", |cx| {
            cx.error("bad-value", &bind.span, message, "give an IP address of the gateway, or remove it")
        });
    }
    if let Some(endpoint) = &server.default_endpoint {
        let help = "route the host with a VirtualService";
        cx.note("no-effect", &endpoint.span, "Istio has no effect for `defaultEndpoint`", help);
    }
    if server.hosts.is_empty() {
        cx.at_field("hosts", |cx| {
            cx.error("missing-field", &node.span, "at least one host is needed", "add `hosts: [\"*\"]`")
        });
    }
    for host in &server.hosts {
        check_host(host, cx);
    }
    let protocol = server.port.protocol.to_uppercase();
    if !PROTOCOLS.contains(&protocol.as_str()) {
        let help = format!("allowed: {}", one_of(PROTOCOLS.iter().copied()));
        let message = format!("`{}` is not a protocol", server.port.protocol.value);
        cx.at_field("port", |cx| cx.error("bad-value", &server.port.protocol.span, message, help));
        return;
    }
    let secure = matches!(protocol.as_str(), "HTTPS" | "TLS");
    match &server.tls {
        None if secure => {
            let help = "add `tls` with `mode: SIMPLE` and `credentialName`, or `mode: PASSTHROUGH`";
            cx.error("missing-field", &node.span, format!("a server with protocol {protocol} needs `tls`"), help);
        }
        Some(tls) if secure => {
            cx.at_field("tls", |cx| check_server_tls(&tls.value, node.get("tls").unwrap_or(node), cx))
        }
        Some(tls) => {
            // With plain HTTP `tls` may only ask for the redirect; TCP with TLS is the protocol TLS.
            let only_redirect = tls.https_redirect && tls.mode.is_none() && protocol == "HTTP";
            if !only_redirect && tls.value != ServerTlsSettings::default() {
                let help = "use the protocol HTTPS or TLS, or remove `tls` (all but `httpsRedirect` for HTTP)";
                cx.at_field("tls", |cx| {
                    cx.error("conflict", &tls.span, format!("a server with protocol {protocol} does not use TLS"), help)
                });
            }
        }
        None => {}
    }
}

fn check_host(host: &Spanned<String>, cx: &mut Context) {
    let name = host.split_once('/').map_or(host.as_str(), |(_, name)| name);
    if let Err(error) = Hostname::parse(name) {
        let help = "expected `www.example.com`, `*.example.com`, `*` or `namespace/host`";
        cx.at_field("hosts", |cx| cx.error("bad-host", &host.span, error, help));
    }
}

/// Checks the names of the gateways at which a route applies.
pub(super) fn check_gateways(gateways: &[Spanned<String>], cx: &mut Context) {
    for (index, gateway) in gateways.iter().enumerate() {
        let named = |part: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            !part.is_empty() && part.chars().all(inner)
        };
        let parts: Vec<&str> = gateway.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|p| named(p)) {
            let message = format!("`{}` is not the name of a Gateway", gateway.value);
            cx.at_index(index, |cx| {
                cx.error("bad-value", &gateway.span, message, "expected `name`, `namespace/name` or `mesh`")
            });
        }
    }
}
