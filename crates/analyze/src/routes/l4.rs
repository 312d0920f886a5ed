//! Routes of connections: TLSRoutes and TCPRoutes.

use std::collections::BTreeSet;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::{GatewayRef, L4Match, RouteSet, WeightedDestination};
use serde_json::{Map, Value};

use super::actions::{Rules, Setting};
use super::documents::{RouteDocument, Routes};
use super::gateways::PlannedGateways;
use super::places::{Carried, RoutePlace, places};
use super::writer::Writer;

/// A route of connections at a place.
struct Connections<'a> {
    kind: &'static str,
    hostnames: Vec<String>,
    port: Option<u16>,
    destinations: &'a [WeightedDestination],
    span: &'a Span,
}

/// Writes the routes of TLS and TCP of a VirtualService.
pub(super) fn write(writer: &mut Writer<'_>, set: &RouteSet, gateways: &PlannedGateways, routes: &mut Routes) {
    if !set.tls.is_empty() {
        check_names(writer, set);
        for place in places(writer, set, Carried::Tls, gateways) {
            tls_at(writer, set, &place, routes);
        }
    }
    if !set.tcp.is_empty() {
        for place in places(writer, set, Carried::Tcp, gateways) {
            tcp_at(writer, set, &place, routes);
        }
    }
}

/// The most specific name decides in the Gateway API, and the first route in a VirtualService.
fn check_names(writer: &mut Writer<'_>, set: &RouteSet) {
    for (at, route) in set.tls.iter().enumerate() {
        let names = |route: &'_ evenkeel_model::TlsRoute| -> Vec<Hostname> {
            route.matches.iter().flat_map(|(names, _)| names.clone()).collect()
        };
        let own = names(route);
        let earlier = set.tls.iter().take(at).filter(|other| other.destinations != route.destinations);
        for other in earlier {
            if names(other).iter().any(|name| own.iter().any(|own| own.overlaps(name))) {
                let message =
                    format!("`tls`: the route at {} has some of the same names, and is the first", other.origin);
                writer.refuse(&route.origin, message, "give the routes different `sniHosts`");
            }
        }
    }
}

fn tls_at(writer: &mut Writer<'_>, set: &RouteSet, place: &RoutePlace, routes: &mut Routes) {
    for route in &set.tls {
        for (names, condition) in &route.matches {
            if !applies(writer, condition, place, &route.origin) {
                continue;
            }
            let hostnames: Vec<String> = names.iter().map(ToString::to_string).filter(|name| name != "*").collect();
            let (destinations, span) = (route.destinations.as_slice(), &route.origin);
            let kind = "TLSRoute";
            write_at(
                writer,
                set,
                place,
                Connections { kind, hostnames, port: condition.port, destinations, span },
                routes,
            );
        }
    }
}

fn tcp_at(writer: &mut Writer<'_>, set: &RouteSet, place: &RoutePlace, routes: &mut Routes) {
    let mut taken: BTreeSet<u16> = BTreeSet::new();
    for route in &set.tcp {
        let any = [L4Match::default()];
        let matches = if route.matches.is_empty() { &any[..] } else { route.matches.as_slice() };
        for condition in matches {
            if !applies(writer, condition, place, &route.origin) {
                continue;
            }
            let ports: Vec<u16> = match condition.port {
                Some(port) => vec![port],
                None if taken.is_empty() && set.tcp.len() == 1 => Vec::new(),
                None => place.numbers(),
            };
            let ports: Vec<u16> = ports.into_iter().filter(|port| place.numbers().contains(port)).collect();
            let free: Vec<Option<u16>> = match (ports.as_slice(), condition.port) {
                ([], None) => vec![None],
                (ports, _) => ports.iter().filter(|port| taken.insert(**port)).map(|port| Some(*port)).collect(),
            };
            for port in free {
                let (destinations, span) = (route.destinations.as_slice(), &route.origin);
                let connections = Connections { kind: "TCPRoute", hostnames: Vec::new(), port, destinations, span };
                write_at(writer, set, place, connections, routes);
            }
        }
    }
}

/// Whether a condition can hold at a place; what has no equal is refused.
fn applies(writer: &mut Writer<'_>, condition: &L4Match, place: &RoutePlace, span: &Span) -> bool {
    if !condition.gateways.is_empty() && !condition.gateways.contains(&place.at) {
        return false;
    }
    let unknown = [
        (!condition.destination_subnets.is_empty(), "destinationSubnets"),
        (condition.source_subnet.is_some(), "sourceSubnet"),
        (!condition.source_labels.is_empty(), "sourceLabels"),
        (condition.source_namespace.is_some(), "sourceNamespace"),
    ];
    for (_, field) in unknown.into_iter().filter(|(is_set, _)| *is_set) {
        let help = "leave the VirtualService";
        writer.refuse(
            span,
            format!("`match.{field}`: routes of connections of the Gateway API have no conditions"),
            help,
        );
    }
    condition.port.is_none_or(|port| place.numbers().contains(&port))
}

fn write_at(
    writer: &mut Writer<'_>,
    set: &RouteSet,
    place: &RoutePlace,
    connections: Connections<'_>,
    routes: &mut Routes,
) {
    let setting = Setting {
        namespace: place.namespace.clone(),
        port: connections.port,
        is_gateway: matches!(place.at, GatewayRef::Named { .. }),
        has_usual_ports: true,
    };
    let mut rules = Rules { writer, setting, grants: BTreeSet::new() };
    let backends = rules.backends(connections.destinations, connections.span);
    routes.grants.extend(rules.grants);
    let rule = Map::from_iter([("backendRefs".to_owned(), Value::from(backends))]);
    routes.routes.push(RouteDocument {
        kind: connections.kind,
        namespace: place.namespace.clone(),
        name: set.name.to_string(),
        parents: place.parents(connections.port),
        hostnames: connections.hostnames,
        rules: vec![rule],
        origin: connections.span.clone(),
    });
}
