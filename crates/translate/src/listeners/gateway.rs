//! Listeners of gateways: one per port of the Gateways that select the gateway.

use std::collections::BTreeMap;

use evenkeel_base::Span;
use evenkeel_model::{Gateway, GatewayRef, L4Match, RouteSet, Server, ServerProtocol};
use evenkeel_xds::ResourceType;

use super::inspectors::Inspectors;
use super::outbound::to_destinations;
use super::{chain, listener, push_distinct, secured};
use crate::access_log;
use crate::context::Context;
use crate::http::{self, Direction};
use crate::names;
use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch, Listener};
use crate::pb::core::TrafficDirection;
use crate::plan::{Collection, Output, Part};
use crate::{rbac, tls};

/// Ports below this need privileges that gateways do not have.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;
/// Offset of the ports used instead, as in the target ports of Istio's gateway Service: 80 → 8080, 443 → 8443.
const UNPRIVILEGED_OFFSET: u16 = 8000;

/// The port a gateway listens on for a server's port.
pub fn bound_port(port: u16) -> u16 {
    match port < FIRST_UNPRIVILEGED_PORT {
        true => port + UNPRIVILEGED_OFFSET,
        false => port,
    }
}

/// The route configuration of an HTTPS server.
pub fn https_route(gateway: &Gateway, server: &Server) -> String {
    format!("https.{}.{}.{}.{}", server.port, server.port_name, gateway.name, gateway.namespace)
}

/// Whether a server ends TLS itself.
pub fn terminates_tls(server: &Server) -> bool {
    server.tls.as_ref().is_some_and(|tls| tls.mode.terminates())
}

/// One bound listener per port. Services contribute to the listener of a port where TLS is passed on by SNI.
pub fn listeners(context: Context<'_>, out: &mut Output) {
    for (port, servers) in servers_by_port(context) {
        if let Some((_, server)) = servers.iter().find(|(_, server)| server.passes_by_service()) {
            out.give(Collection::Port(port), Part::Server(server.port, server.origin.clone()));
        } else {
            add(context, port, &servers, &[], out);
        }
    }
}

/// The listener of a port where TLS is passed on to services by SNI.
pub fn of_shared_port(context: Context<'_>, port: u16, parts: &[&Part], out: &mut Output) {
    if let Some(servers) = servers_by_port(context).get(&port) {
        add(context, port, servers, parts, out);
    }
}

fn servers_by_port(context: Context<'_>) -> BTreeMap<u16, Vec<(&Gateway, &Server)>> {
    let mut by_port: BTreeMap<u16, Vec<(&Gateway, &Server)>> = BTreeMap::new();
    for gateway in context.snapshot.gateways_for(&context) {
        for server in &gateway.servers {
            by_port.entry(bound_port(server.port)).or_default().push((gateway, server));
        }
    }
    by_port
}

fn add(context: Context<'_>, port: u16, servers: &[(&Gateway, &Server)], parts: &[&Part], out: &mut Output) {
    if let Some((made, origin)) = of_port(context, port, servers, parts) {
        out.add(ResourceType::Listener, &made.name, &made, Some(origin));
    }
}

fn of_port(
    context: Context<'_>,
    port: u16,
    servers: &[(&Gateway, &Server)],
    parts: &[&Part],
) -> Option<(Listener, Span)> {
    let (_, first) = servers.first()?;
    let mut made = listener(
        names::wildcard_listener(port),
        first.bind.as_deref().unwrap_or("0.0.0.0"),
        port,
        TrafficDirection::Outbound,
    );
    for (gateway, server) in servers {
        for chain in chains(context, port, gateway, server) {
            // Plain HTTP servers of one port share one filter chain; its routes match their hosts.
            push_distinct(&mut made.filter_chains, chain);
        }
    }
    for part in parts {
        let Part::Tcp(chains, _) = part else { continue };
        chains.iter().for_each(|chain| push_distinct(&mut made.filter_chains, chain.clone()));
    }
    if made.filter_chains.is_empty() {
        return None;
    }
    let tls = made.filter_chains.iter().any(|c| c.filter_chain_match.is_some());
    Inspectors { tls: tls.into(), proxy_protocol: context.takes_proxy_protocol(), ..Inspectors::default() }
        .apply(context.snapshot.mesh().protocol_detection_timeout, &mut made);
    made.access_log = access_log::of_unmatched(context);
    Some((made, first.origin.clone()))
}

fn chains(context: Context<'_>, port: u16, gateway: &Gateway, server: &Server) -> Vec<FilterChain> {
    match (server.protocol, &server.tls) {
        (ServerProtocol::Http, _) => {
            let manager = manager(context, port, &names::gateway_route(port));
            vec![chain("", FilterChainMatch::default(), vec![manager])]
        }
        (ServerProtocol::Https | ServerProtocol::Tls, _) if server.passes_by_service() => Vec::new(),
        (ServerProtocol::Https, Some(server_tls)) if server_tls.mode.terminates() => {
            let manager = manager(context, port, &https_route(gateway, server));
            let made = chain("", server_names(server), vec![manager]);
            vec![secured(made, tls::gateway_server(context.snapshot.mesh(), server_tls, tls::InnerProtocol::Http))]
        }
        (ServerProtocol::Tls, Some(server_tls)) if server_tls.mode.terminates() => {
            let made = tcp_chains(context, gateway, server, &server_names(server)).into_iter();
            let socket = || tls::gateway_server(context.snapshot.mesh(), server_tls, tls::InnerProtocol::Tcp);
            made.map(|chain| secured(chain, socket())).collect()
        }
        (ServerProtocol::Https | ServerProtocol::Tls, _) => sni_chains(context, gateway, server),
        (ServerProtocol::Tcp, _) => tcp_chains(context, gateway, server, &FilterChainMatch::default()),
    }
}

fn manager(context: Context<'_>, port: u16, route: &str) -> Filter {
    let stat = format!("outbound_{}", names::wildcard_listener(port));
    http::manager_with_rds(context, Direction::Gateway, &stat, route, rbac::http_filters(context))
}

/// The SNI values of a server's hosts; `*` is everything.
fn server_names(server: &Server) -> FilterChainMatch {
    let hosts: Vec<String> = server.hosts.iter().map(|h| h.value.host.to_string()).collect();
    match hosts.iter().any(|host| host == "*") {
        true => FilterChainMatch { transport_protocol: "tls".to_owned(), ..Default::default() },
        false => FilterChainMatch { server_names: hosts, ..Default::default() },
    }
}

/// TCP connections: the first TCP route that applies.
fn tcp_chains(context: Context<'_>, gateway: &Gateway, server: &Server, wanted: &FilterChainMatch) -> Vec<FilterChain> {
    let reference = reference(gateway);
    let route_context = context.route_context(server.port);
    for route_set in bound(context, &reference, server) {
        let applies = |m: &L4Match| applies(context, &reference, server, m);
        let route = route_set.tcp.iter().find(|r| r.matches.is_empty() || r.matches.iter().any(applies));
        if let Some(route) = route {
            let mut filters = rbac::network_filters(context);
            filters.push(to_destinations(context, route_context, &route.destinations));
            return vec![chain("", wanted.clone(), filters)];
        }
    }
    Vec::new()
}

/// TLS passed on unread: one chain per SNI condition.
fn sni_chains(context: Context<'_>, gateway: &Gateway, server: &Server) -> Vec<FilterChain> {
    let reference = reference(gateway);
    let route_context = context.route_context(server.port);
    let mut chains = Vec::new();
    for route_set in bound(context, &reference, server) {
        for route in &route_set.tls {
            for (names, condition) in &route.matches {
                if applies(context, &reference, server, condition) {
                    let server_names = names.iter().map(ToString::to_string).collect();
                    let wanted = FilterChainMatch { server_names, ..Default::default() };
                    let mut filters = rbac::network_filters(context);
                    filters.push(to_destinations(context, route_context, &route.destinations));
                    chains.push(chain("", wanted, filters));
                }
            }
        }
    }
    chains
}

fn reference(gateway: &Gateway) -> GatewayRef {
    GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() }
}

fn applies(context: Context<'_>, reference: &GatewayRef, server: &Server, condition: &L4Match) -> bool {
    condition.applies_to(reference, &context) && condition.port.is_none_or(|port| port == server.port)
}

/// The route sets bound to a server by one of its hosts.
fn bound<'a>(
    context: Context<'a>,
    reference: &'a GatewayRef,
    server: &'a Server,
) -> impl Iterator<Item = &'a RouteSet> {
    let serves = |route_set: &RouteSet| {
        route_set.hosts.iter().any(|h| server.hosts.iter().any(|s| s.value.intersection(route_set, &h.value).is_some()))
    };
    let all = context.snapshot.route_sets_at(reference, &context);
    all.into_iter().map(AsRef::as_ref).filter(move |route_set| serves(route_set))
}
