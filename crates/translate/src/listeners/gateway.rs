//! Listeners of gateways: one per port of the Gateways that select the gateway.

use std::collections::BTreeMap;

use evenkeel_base::Span;
use evenkeel_model::{Gateway, GatewayRef, L4Match, RouteSet, Server, ServerProtocol};

use super::inspectors::Inspectors;
use super::l4::{push_distinct, to_destinations};
use super::{chain, l4, listener, secured};
use crate::access_log;
use crate::context::Context;
use crate::http::{self, Calls};
use crate::metrics;
use crate::names;
use crate::output::{Collection, Output, Part};
use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch, Listener};
use crate::pb::core::TrafficDirection;
use crate::rbac::{self, Bytes};
use crate::traffic::Direction;
use crate::traffic::InnerProtocol;
use crate::{ext_authz, tls};

/// The route configuration of a server whose requests are routed (Istio's `gatewayRDSRouteName`): servers of one address
/// share one for plain HTTP, and each HTTPS server has its own. `listening` is the port of the listener.
pub fn route_table(gateway: &Gateway, server: &Server, listening: u16) -> Option<String> {
    let bind = server.bind.as_deref().map(|bind| format!(".{bind}")).unwrap_or_default();
    match server.protocol {
        ServerProtocol::Http => Some(format!("{}{bind}", names::gateway_route(listening))),
        ServerProtocol::Https if terminates_tls(server) => {
            let (port, name) = (server.port, &server.port_name);
            Some(format!("https.{port}.{name}.{}.{}{bind}", gateway.name, gateway.namespace))
        }
        _ => None,
    }
}

/// Whether a server ends TLS itself.
pub fn terminates_tls(server: &Server) -> bool {
    server.tls.as_ref().is_some_and(|tls| tls.mode.terminates())
}

/// One listener per port and address (`bind`). Services contribute to the listeners of a port where TLS is passed on by
/// SNI.
pub fn listeners(context: Context<'_>, out: &mut Output<'_>) {
    for ((port, _), servers) in servers_by_place(context) {
        if let Some((_, server)) = servers.iter().find(|(_, server)| server.passes_by_service()) {
            out.give(Collection::Port(port), Part::Server(server.port, server.origin.clone()));
        } else {
            add(context, port, &servers, &[], out);
        }
    }
}

/// The listeners of a port where TLS is passed on to services by SNI.
pub fn of_shared_port(context: Context<'_>, port: u16, parts: &[&Part], out: &mut Output<'_>) {
    for ((_, _), servers) in servers_by_place(context).into_iter().filter(|((other, _), _)| *other == port) {
        if servers.iter().any(|(_, server)| server.passes_by_service()) {
            add(context, port, &servers, parts, out);
        }
    }
}

/// A port, and the address to listen on if it is not any.
type Place<'a> = (u16, Option<&'a str>);

fn servers_by_place(context: Context<'_>) -> BTreeMap<Place<'_>, Vec<(&Gateway, &Server)>> {
    let mut by_place: BTreeMap<Place<'_>, Vec<(&Gateway, &Server)>> = BTreeMap::new();
    for gateway in context.snapshot.gateways_for(&context) {
        for server in gateway.servers.iter().filter(|server| server.protocol != ServerProtocol::Udp) {
            let place = (context.listening_port(server.port), server.bind.as_deref());
            by_place.entry(place).or_default().push((gateway, server));
        }
    }
    by_place
}

fn add(context: Context<'_>, port: u16, servers: &[(&Gateway, &Server)], parts: &[&Part], out: &mut Output<'_>) {
    if let Some((made, origin)) = of_place(context, port, servers, parts) {
        out.add(made, Some(origin));
    }
}

/// The listener of servers with the same port and address.
fn of_place(
    context: Context<'_>,
    port: u16,
    servers: &[(&Gateway, &Server)],
    parts: &[&Part],
) -> Option<(Listener, Span)> {
    let (_, first) = servers.first()?;
    let address = first.bind.as_deref().unwrap_or("0.0.0.0");
    let mut made = listener(names::listener(address, port), address, port, TrafficDirection::Outbound);
    // Plain HTTP servers of one address share a filter chain: if one of them is for gRPC-Web, so is the chain.
    let plain_calls = Calls::of_grpc_web(servers.iter().any(|(_, server)| server.grpc_web));
    for (gateway, server) in servers {
        for chain in chains(context, gateway, server, port, plain_calls) {
            // The routes of the shared chain match their hosts.
            push_distinct(&mut made.filter_chains, chain);
        }
    }
    for part in parts {
        let Part::Tcp(chains, ..) = part else { continue };
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

fn chains(context: Context<'_>, gateway: &Gateway, server: &Server, port: u16, plain_calls: Calls) -> Vec<FilterChain> {
    match (server.protocol, &server.tls) {
        (ServerProtocol::Http, _) => {
            let manager = manager(context, gateway, server, port, plain_calls);
            vec![chain("", FilterChainMatch::default(), vec![manager])]
        }
        (ServerProtocol::Https | ServerProtocol::Tls, _) if server.passes_by_service() => Vec::new(),
        (ServerProtocol::Https, Some(server_tls)) if server_tls.mode.terminates() => {
            let manager = manager(context, gateway, server, port, Calls::Any);
            let made = chain("", server_names(server), vec![manager]);
            vec![secured(made, tls::gateway_server(context.tls(), server_tls, InnerProtocol::Http))]
        }
        (ServerProtocol::Tls, Some(server_tls)) if server_tls.mode.terminates() => {
            let made = tcp_chains(context, gateway, server, &server_names(server)).into_iter();
            let socket = || tls::gateway_server(context.tls(), server_tls, InnerProtocol::Tcp);
            made.map(|chain| secured(chain, socket())).collect()
        }
        (ServerProtocol::Https | ServerProtocol::Tls, _) => sni_chains(context, gateway, server),
        (ServerProtocol::Tcp, _) => tcp_chains(context, gateway, server, &FilterChainMatch::default()),
        // It has a listener of its own.
        (ServerProtocol::Udp, _) => Vec::new(),
    }
}

fn manager(context: Context<'_>, gateway: &Gateway, server: &Server, port: u16, calls: Calls) -> Filter {
    let address = server.bind.as_deref().unwrap_or("0.0.0.0");
    let stat = format!("outbound_{}", names::listener(address, port));
    let route = route_table(gateway, server, port).unwrap_or_default();
    http::manager_with_rds(context, Direction::Gateway, &stat, &route, calls)
}

/// The SNI values of a server's hosts; `*` is everything.
fn server_names(server: &Server) -> FilterChainMatch {
    let hosts: Vec<String> = server.hosts.iter().map(|h| h.value.host.to_string()).collect();
    if hosts.iter().any(|host| host == "*") {
        FilterChainMatch { transport_protocol: "tls".to_owned(), ..Default::default() }
    } else {
        FilterChainMatch { server_names: hosts, ..Default::default() }
    }
}

/// TCP connections, by the conditions of TCP routes.
fn tcp_chains(context: Context<'_>, gateway: &Gateway, server: &Server, wanted: &FilterChainMatch) -> Vec<FilterChain> {
    let reference = reference(gateway);
    let applies = |m: &L4Match| applies(context, &reference, server, m);
    let targets = l4::tcp(bound(context, &reference, server), applies).into_iter();
    let with_names = targets.map(|(ranges, destinations)| {
        let FilterChainMatch { server_names, transport_protocol, .. } = wanted.clone();
        (FilterChainMatch { server_names, transport_protocol, ..ranges }, destinations)
    });
    chains_to(context, server, with_names.collect())
}

/// TLS passed on unread, by the conditions of TLS routes.
fn sni_chains(context: Context<'_>, gateway: &Gateway, server: &Server) -> Vec<FilterChain> {
    let reference = reference(gateway);
    let applies = |m: &L4Match| applies(context, &reference, server, m);
    chains_to(context, server, l4::tls(bound(context, &reference, server), applies))
}

fn chains_to(context: Context<'_>, server: &Server, targets: Vec<l4::Target<'_>>) -> Vec<FilterChain> {
    let route_context = context.route_context(server.port);
    let chain = |(wanted, destinations): l4::Target<'_>| {
        let mut filters = ext_authz::network_filters(context, Bytes::Declared);
        filters.extend(rbac::network_filters(context, Bytes::Declared));
        filters.push(to_destinations(route_context, destinations));
        chain("", wanted, metrics::counting(context, filters))
    };
    targets.into_iter().map(chain).collect()
}

pub(super) fn reference(gateway: &Gateway) -> GatewayRef {
    GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() }
}

fn applies(context: Context<'_>, reference: &GatewayRef, server: &Server, condition: &L4Match) -> bool {
    condition.applies_to(reference, &context) && condition.port.is_none_or(|port| port == server.port)
}

/// The route sets bound to a server by one of its hosts.
pub(super) fn bound<'a>(
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
