//! TLSRoutes, TCPRoutes and UDPRoutes as route sets.

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{L4RouteRule, TcpRouteSpec, TlsRouteSpec, UdpRouteSpec};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostics, Spanned};

use super::super::tracking::Cx;
use super::backends::{Backends, Transport};
use super::outline::at;
use super::parents::Attached;
use crate::{Destination, DestinationState, Headers, L4Match, L4Route, RouteSet, TlsRoute, WeightedDestination};

/// What becomes of connections to a backend that cannot be used.
const EFFECT: &str = "its share of the connections is closed";

/// What becomes of datagrams to a backend that cannot be used.
const UDP_EFFECT: &str = "its share of the datagrams is dropped";

/// The route sets of a TLSRoute. Where TLS ends at the listener, the listener has chosen by the name already.
pub(super) fn tls(
    cx: &Cx<'_>,
    object: &Object,
    spec: &TlsRouteSpec,
    found: &mut Diagnostics,
    attached: Vec<Attached>,
) -> Vec<RouteSet> {
    let mut backends = Backends { cx, object, found, effect: EFFECT, transport: Transport::Tcp };
    let Some(rule) = spec.rules.first() else { return Vec::new() };
    let destinations = destinations(rule, &mut backends);
    let sets = attached.into_iter().map(|place| {
        let (port, is_passed, hosts) = (place.port, place.passes_tls, hosts_of(&place, &spec.hostnames));
        let set = at(object, place);
        if is_passed {
            let matches = vec![(hosts, L4Match { port, ..L4Match::default() })];
            let route = TlsRoute { matches, destinations: destinations.clone(), origin: rule.span.clone() };
            RouteSet { tls: vec![route], ..set }
        } else {
            RouteSet { tcp: vec![tcp_route(rule, destinations.clone(), port)], ..set }
        }
    });
    sets.collect()
}

/// The names that clients ask for: at a listener those that both have, in the mesh the route's or else the service's.
fn hosts_of(place: &Attached, written: &[Spanned<Hostname>]) -> Vec<Hostname> {
    let is_mesh = place.at == crate::GatewayRef::Mesh;
    let names = if is_mesh && !written.is_empty() { written } else { &place.hosts };
    names.iter().map(|host| host.value.clone()).collect()
}

/// The route sets of a TCPRoute.
pub(super) fn tcp(
    cx: &Cx<'_>,
    object: &Object,
    spec: &TcpRouteSpec,
    found: &mut Diagnostics,
    attached: Vec<Attached>,
) -> Vec<RouteSet> {
    let mut backends = Backends { cx, object, found, effect: EFFECT, transport: Transport::Tcp };
    let Some(rule) = spec.rules.first() else { return Vec::new() };
    let destinations = destinations(rule, &mut backends);
    let sets = attached.into_iter().map(|place| {
        let route = tcp_route(rule, destinations.clone(), place.port);
        RouteSet { tcp: vec![route], ..at(object, place) }
    });
    sets.collect()
}

/// The route sets of a UDPRoute.
pub(super) fn udp(
    cx: &Cx<'_>,
    object: &Object,
    spec: &UdpRouteSpec,
    found: &mut Diagnostics,
    attached: Vec<Attached>,
) -> Vec<RouteSet> {
    let mut backends = Backends { cx, object, found, effect: UDP_EFFECT, transport: Transport::Udp };
    let Some(rule) = spec.rules.first() else { return Vec::new() };
    let destinations = destinations(rule, &mut backends);
    let sets = attached.into_iter().map(|place| {
        let route = tcp_route(rule, destinations.clone(), place.port);
        RouteSet { udp: vec![route], ..at(object, place) }
    });
    sets.collect()
}

fn tcp_route(rule: &Spanned<L4RouteRule>, destinations: Vec<WeightedDestination>, port: Option<u16>) -> L4Route {
    let matches = port.map(|port| L4Match { port: Some(port), ..L4Match::default() }).into_iter().collect();
    L4Route { matches, destinations, origin: rule.span.clone() }
}

/// The backends; without any, connections are closed.
fn destinations(rule: &Spanned<L4RouteRule>, backends: &mut Backends<'_, '_>) -> Vec<WeightedDestination> {
    let weighted =
        |destination: Destination, weight| WeightedDestination { destination, weight, headers: Headers::default() };
    let mut all = Vec::new();
    for backend in &rule.backend_refs {
        let destination = backends.destination(backend.target());
        let weight = backend.weight.as_ref().map_or(1, |weight| weight.value);
        all.extend((weight > 0).then(|| weighted(destination, weight)));
    }
    if all.is_empty() {
        if rule.backend_refs.is_empty() {
            let help = "add `backendRefs: [{name: SERVICE, port: 80}]`".to_owned();
            backends.warn("no-effect", &rule.span, "a rule has no backend".to_owned(), help);
        }
        let object = backends.object;
        let host = Hostname::of_service(&object.name, &object.namespace, &backends.cx.mesh().cluster_domain);
        let state = DestinationState::Refused;
        let refused = Destination { host, subset: None, port: None, state, origin: rule.span.clone() };
        all.push(weighted(refused, 1));
    }
    all
}
