//! Routing of a workload's connections, by their original destination.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_model::service::{ServiceOrder, ServicePort};
use evenkeel_model::{Endpoint, EndpointAddress, GatewayRef, L4Match, RouteSet, Service, SidecarOutboundPolicy};
use evenkeel_xds::{Resource, ResourceType};
use prost::Message;

use super::inspectors::Inspectors;
use super::l4::{cidr_range, push_distinct, to_destinations};
use super::{balance, chain, companions, l4, listener, unbound};
use crate::context::{Context, PortProtocol};
use crate::endpoints::pipe;
use crate::finish::{encoded, finish};
use crate::http::{self, Calls, HostLookup};
use crate::metrics;
use crate::names::{self, BLACK_HOLE_CLUSTER, VIRTUAL_OUTBOUND, VIRTUAL_OUTBOUND_PORT, outbound_name};
use crate::output::{Collection, Output, Part};
use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch, Listener};
use crate::pb::core::{Address, CidrRange, TrafficDirection};
use crate::proto::{address, bool_value, u32_value};
use crate::routes::outbound::own_route_name;
use crate::scope::CallablePort;
use crate::traffic::InnerProtocol;
use crate::{access_log, dynamic_dns, rbac, stat_names};

/// Any IPv4 address.
const ANY_ADDRESS: &str = "0.0.0.0";
/// The protocols by which the HTTP inspector marks plaintext that can be routed as HTTP.
pub const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];

/// How long the first bytes of a connection to an unknown destination are waited for, where the host of HTTP is looked up and
/// the mesh sets no limit: the server may be the first to speak.
const UNKNOWN_PROTOCOL_WAIT: Duration = Duration::from_secs(1);

/// Takes every captured connection, and hands it to the listener of its destination; what has none passes or ends here.
pub fn virtual_outbound(context: Context<'_>) -> Listener {
    let to_itself =
        FilterChainMatch { destination_port: Some(u32_value(u32::from(VIRTUAL_OUTBOUND_PORT))), ..Default::default() };
    let mut all = listener(VIRTUAL_OUTBOUND.to_owned(), ANY_ADDRESS, VIRTUAL_OUTBOUND_PORT, TrafficDirection::Outbound);
    all.use_original_dst = Some(bool_value(true));
    all.transparent = (context.options().interception == InterceptionMode::Tproxy).then(|| bool_value(true));
    let egress = context.sidecar().into_iter().flat_map(|sidecar| &sidecar.egress).filter(|listener| listener.is_bound);
    let bound = egress.filter_map(|listener| match &listener.socket {
        Some(path) => Some(names::socket_listener(path)),
        None => Some(names::listener(&listener.bind?.to_string(), listener.port?.0)),
    });
    all.metadata = companions(context, bound);
    let policy = context.outbound_policy();
    all.filter_chains = vec![
        // A connection to the port itself would loop forever.
        chain("virtualOutbound-blackhole", to_itself, vec![http::tcp(context, BLACK_HOLE_CLUSTER)]),
        bytes_chain(
            context,
            "virtualOutbound-catchall-tcp",
            FilterChainMatch::default(),
            vec![http::tcp(context, &context.unknown_cluster(policy, InnerProtocol::Tcp))],
        ),
    ];
    if *policy == SidecarOutboundPolicy::AllowAnyDynamicDns {
        let manager = http::unknown_hosts_manager(context, "virtualOutbound-catchall-tcp-http");
        // A transport protocol would hide the chain above from all other plain text.
        let wanted = FilterChainMatch { transport_protocol: String::new(), ..plain_http() };
        all.filter_chains.push(chain("virtualOutbound-catchall-tcp-http", wanted, vec![manager]));
        let wait = context.snapshot.mesh().protocol_detection_timeout;
        let wait = if wait.is_zero() { UNKNOWN_PROTOCOL_WAIT } else { wait };
        Inspectors { http: true.into(), ..Inspectors::default() }.apply(wait, &mut all);
    }
    all
}

/// The listeners of a service: one `0.0.0.0_PORT` for each HTTP port, shared with other services, and one
/// `ADDRESS_PORT` per address for other ports; if a Sidecar names an address, one for that address.
pub fn of_service(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    let origin = || service.origin.clone();
    for CallablePort { port, port_protocol, bind, grpc_web } in context.callable(service) {
        let port = port.as_ref();
        let http = || Part::Http(origin(), dynamic_dns::is_looked_up(service));
        let any_address = Collection::Port(port.number);
        if grpc_web {
            out.give(
                bind.map_or(any_address.clone(), |address| Collection::Egress(address, port.number)),
                Part::GrpcWeb,
            );
        }
        match (bind, port_protocol) {
            (Some(address), PortProtocol::Tcp) => {
                let chains = sni_chains(context, service, port);
                out.give(Collection::Egress(address, port.number), Part::Tcp(chains, origin(), service.order()));
            }
            (Some(address), _) => out.give(Collection::Egress(address, port.number), http()),
            (None, PortProtocol::Http) => {
                out.give(any_address.clone(), http());
                if service.is_closed() {
                    give_closed(context, service, port, out);
                }
            }
            // Clients call its endpoints by their own addresses.
            (None, PortProtocol::Tcp | PortProtocol::Auto) if service.headless => {}
            (None, PortProtocol::Tcp | PortProtocol::Auto) => {
                let addresses = context.vips(service).map(|vip| (vip, port.number));
                give_addresses(context, service, port, port_protocol, addresses, out);
                if context.is_called_anywhere(service) {
                    let chains = sni_chains(context, service, port);
                    out.give(any_address.clone(), Part::Tcp(within(service, chains), origin(), service.order()));
                    if port_protocol == PortProtocol::Auto {
                        out.give(any_address, http());
                    }
                }
            }
        }
    }
}

/// Closes the addresses of a service that a policy closes to its clients on a port for HTTP: the listener of the port lets bytes
/// and requests with other hosts pass to wherever they were sent.
fn give_closed(context: Context<'_>, service: &Arc<Service>, port: &ServicePort, out: &mut Output<'_>) {
    let addresses = context.vips(service).map(|vip| (vip, port.number));
    give_addresses(context, service, port, PortProtocol::Auto, addresses, out);
    if service.ranges().next().is_some() {
        let chains = within(service, l4_chains(context, service, port));
        out.give(Collection::Port(port.number), Part::Tcp(chains, service.origin.clone(), service.order()));
    }
}

/// Puts a service behind the listeners for all ports.
pub fn for_all_ports(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    for listener in context.for_all_ports(service) {
        let Some((number, protocol)) = listener.port else { continue };
        let collection = match (&listener.socket, listener.bind) {
            (Some(path), _) => Collection::Socket(path.clone()),
            (None, Some(address)) => Collection::Egress(address, number),
            (None, None) => continue,
        };
        let ports = context.ports_through(listener, service);
        if PortProtocol::of(protocol) == Some(PortProtocol::Tcp) {
            for port in ports {
                let routes = context.route_sets_at(service, listener);
                let chains = by_server_name(context, service, &port, l4_chains_by(context, service, &port, routes));
                out.give(collection.clone(), Part::Tcp(chains, service.origin.clone(), service.order()));
            }
        } else if !ports.is_empty() {
            out.give(collection, Part::Http(service.origin.clone(), dynamic_dns::is_looked_up(service)));
        }
    }
}

/// Limits chains to the address ranges of a service. Ranges have no listeners of their own, so the listener of the port
/// matches them.
fn within(service: &Service, mut chains: Vec<FilterChain>) -> Vec<FilterChain> {
    let ranges: Vec<CidrRange> = service.ranges().map(cidr_range).collect();
    for chain in chains.iter_mut().filter(|_| !ranges.is_empty()) {
        let wanted = chain.filter_chain_match.get_or_insert_default();
        // A route's own ranges are narrower, or lead elsewhere on purpose.
        if wanted.prefix_ranges.is_empty() {
            wanted.prefix_ranges.clone_from(&ranges);
        }
    }
    chains
}

/// The listeners of a headless service: one for each of its endpoints on ports that are not HTTP. HTTP is routed by
/// host name.
pub fn of_endpoints(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    if !service.headless {
        return;
    }
    for CallablePort { port, port_protocol, bind, .. } in context.callable(service) {
        if port_protocol != PortProtocol::Http && bind.is_none() {
            let addresses = endpoint_addresses(context, service, port.number);
            give_addresses(context, service, &port, port_protocol, addresses, out);
        }
    }
}

/// Listeners for addresses with ports that belong only to this service.
fn give_addresses(
    context: Context<'_>,
    service: &Arc<Service>,
    port: &ServicePort,
    port_protocol: PortProtocol,
    addresses: impl Iterator<Item = (IpAddr, u16)>,
    out: &mut Output<'_>,
) {
    for (address, bound) in addresses {
        let made = at_address(context, address, bound, service, port, port_protocol);
        let made = encoded(&made, Some(service.origin.clone()));
        out.give(Collection::Address(address, bound), Part::Listener(made, service.order()));
    }
}

/// The listener of an address, from the [first](Service::order) service that has it. Those of further services for bytes add the
/// connections that it does not match, such as those with other server names (Istio's `mergeTCPFilterChains`).
pub fn of_address(context: Context<'_>, (address, port): (IpAddr, u16), parts: &[&Part], out: &mut Output<'_>) {
    let mut listeners: Vec<_> = listeners_of(parts).collect();
    listeners.sort_by_key(|(_, order)| *order);
    let Some(((first, _), others)) = listeners.split_first() else { return };
    let rest: Vec<Vec<FilterChain>> = others.iter().filter_map(|(other, _)| tcp_chains_of(other)).collect();
    let Some(mut chains) = tcp_chains_of(first).filter(|_| !rest.is_empty()) else {
        return out.add_encoded::<Listener>(first);
    };
    rest.into_iter().flatten().for_each(|chain| push_distinct(&mut chains, chain));
    let made = for_bytes(context, address, port, chains);
    let shared = finish(context.patches(), made, None);
    let shared = match &first.origin {
        Some(origin) => shared.with_origin(origin.clone()),
        None => shared,
    };
    out.resources.push((ResourceType::Listener, shared));
}

/// The listener of what only the first service (by host) can have.
pub fn of_first(parts: &[&Part], out: &mut Output<'_>) {
    if let Some((first, _)) = listeners_of(parts).next() {
        out.add_encoded::<Listener>(first);
    }
}

fn listeners_of<'p>(parts: &[&'p Part]) -> impl Iterator<Item = (&'p Resource, &'p ServiceOrder)> {
    parts.iter().filter_map(|part| match part {
        Part::Listener(listener, order) => Some((listener, order)),
        _ => None,
    })
}

/// The chains of a service's listener for bytes, without those for other connections; `None`: it takes HTTP as well.
fn tcp_chains_of(listener: &Resource) -> Option<Vec<FilterChain>> {
    let made = Listener::decode(&*listener.any().value).ok()?;
    let is_http = |chain: &FilterChain| {
        chain.filter_chain_match.as_ref().is_some_and(|wanted| !wanted.application_protocols.is_empty())
    };
    (!made.filter_chains.iter().any(is_http)).then_some(made.filter_chains)
}

/// Addresses and ports of a service port's ready endpoints.
fn endpoint_addresses<'a>(
    context: Context<'a>,
    service: &Service,
    port: u16,
) -> impl Iterator<Item = (IpAddr, u16)> + use<'a> {
    let endpoints = context.snapshot.endpoints(service, port).iter().filter(|e| e.ready);
    let endpoints = endpoints.filter(|e| context.is_offered(service, e) && context.is_near(e));
    let endpoints: Vec<&Endpoint> = endpoints.collect();
    endpoints.into_iter().filter_map(move |e| match e.address {
        // Leave out the workload's own address; otherwise it would call itself through the mesh.
        EndpointAddress::Ip(ip) if !context.has_address(ip) && !context.is_egress_address(ip, e.port) => {
            Some((ip, e.port))
        }
        _ => None,
    })
}

/// The listener of one address of a service.
fn at_address(
    context: Context<'_>,
    address: IpAddr,
    number: u16,
    service: &Arc<Service>,
    port: &ServicePort,
    port_protocol: PortProtocol,
) -> Listener {
    if port_protocol != PortProtocol::Auto {
        return for_bytes(context, address, number, l4_chains(context, service, port));
    }
    let host = address.to_string();
    let mut made = listener(names::listener(&host, number), &host, number, TrafficDirection::Outbound);
    let route = own_route_name(service, port.number);
    let looks_up = dynamic_dns::is_looked_up(service);
    let manager =
        http::outbound_manager(context, &format!("outbound_{route}"), &route, Calls::Any, HostLookup::of(looks_up));
    made.filter_chains = vec![chain("", plain_http(), vec![manager])];
    let (rest, matching): (Vec<_>, Vec<_>) =
        l4_chains(context, service, port).into_iter().partition(|chain| chain.filter_chain_match.is_none());
    made.filter_chains.extend(matching);
    made.default_filter_chain = rest.into_iter().next();
    let inspect = Inspectors { http: true.into(), ..Inspectors::default() };
    inspect.apply(context.snapshot.mesh().protocol_detection_timeout, &mut made);
    unbound(context, made)
}

/// The listener of an address for bytes. The outbound policy decides about connections that no chain matches.
fn for_bytes(context: Context<'_>, address: IpAddr, number: u16, chains: Vec<FilterChain>) -> Listener {
    let host = address.to_string();
    let mut made = listener(names::listener(&host, number), &host, number, TrafficDirection::Outbound);
    let takes_all = chains.iter().any(|chain| chain.filter_chain_match.is_none());
    made.default_filter_chain = (!takes_all).then(|| unknown(context, number));
    let inspect = Inspectors { tls: needs_sni(&chains).into(), ..Inspectors::default() };
    made.filter_chains = chains;
    inspect.apply(context.snapshot.mesh().protocol_detection_timeout, &mut made);
    unbound(context, made)
}

fn plain_http() -> FilterChainMatch {
    FilterChainMatch {
        transport_protocol: "raw_buffer".to_owned(),
        application_protocols: PLAIN_HTTP.map(str::to_owned).to_vec(),
        ..Default::default()
    }
}

fn needs_sni(chains: &[FilterChain]) -> bool {
    chains.iter().filter_map(|c| c.filter_chain_match.as_ref()).any(|m| !m.server_names.is_empty())
}

/// A service's filter chains on a port shared with others: TLS connections match by SNI.
fn sni_chains(context: Context<'_>, service: &Arc<Service>, port: &ServicePort) -> Vec<FilterChain> {
    by_server_name(context, service, port, l4_chains(context, service, port))
}

fn by_server_name(
    context: Context<'_>,
    service: &Arc<Service>,
    port: &ServicePort,
    mut chains: Vec<FilterChain>,
) -> Vec<FilterChain> {
    for chain in chains.iter_mut().filter(|chain| port.protocol.is_tls() && chain.filter_chain_match.is_none()) {
        let mut server_names = vec![service.host.to_string()];
        for alias in context.aliases(service, context.sidecar().and_then(|sidecar| sidecar.egress(port.number))) {
            server_names.push(alias.host.to_string());
            server_names.extend(alias.short_names(&context));
        }
        let names = FilterChainMatch { server_names, ..Default::default() };
        chain.filter_chain_match = Some(names);
    }
    chains
}

/// The listener of a port that services share. TCP services match by SNI; of those without SNI the first gets all the
/// rest.
pub fn of_port(context: Context<'_>, number: u16, parts: &[&Part], out: &mut Output<'_>) {
    shared_by(context, &Place::of(ANY_ADDRESS, number, false), parts, out);
}

/// The listener of an address that a Sidecar names; services are matched in the same way.
pub fn of_egress(context: Context<'_>, address: IpAddr, number: u16, parts: &[&Part], out: &mut Output<'_>) {
    shared_by(context, &Place::of(&address.to_string(), number, context.is_bound(number)), parts, out);
}

/// The listener of a Unix socket that a Sidecar names.
pub fn of_socket(context: Context<'_>, path: &str, parts: &[&Part], out: &mut Output<'_>) {
    let place = Place {
        name: names::socket_listener(path),
        route: names::socket_route(path),
        address: pipe(path),
        port: 0,
        is_bound: true,
    };
    shared_by(context, &place, parts, out);
}

/// The address of a listener that services share.
struct Place {
    /// The listener's name.
    name: String,
    /// The name of its route configuration.
    route: String,
    address: Address,
    /// Its port; 0 for a Unix socket.
    port: u16,
    /// Whether clients connect to it directly.
    is_bound: bool,
}

impl Place {
    fn of(host: &str, port: u16, is_bound: bool) -> Self {
        let (name, route) = (names::listener(host, port), port.to_string());
        Self { name, route, address: address(host, u32::from(port)), port, is_bound }
    }
}

fn shared_by(context: Context<'_>, place: &Place, parts: &[&Part], out: &mut Output<'_>) {
    let Place { name, route, port: number, .. } = place;
    let mut made = Listener {
        name: name.clone(),
        address: Some(place.address.clone()),
        traffic_direction: TrafficDirection::Outbound as i32,
        ..Default::default()
    };
    let has_http = parts.iter().any(|part| matches!(part, Part::Http(..)));
    if has_http {
        let stat = format!("outbound_{name}");
        let calls = Calls::of_grpc_web(parts.iter().any(|part| matches!(part, Part::GrpcWeb)));
        let lookup = HostLookup::of(parts.iter().any(|part| matches!(part, Part::Http(_, true))));
        let manager = http::outbound_manager(context, &stat, route, calls, lookup);
        made.filter_chains.push(chain("", plain_http(), vec![manager]));
    }
    let mut rest = None;
    let tcp = parts.iter().filter_map(|part| match part {
        Part::Tcp(chains, _, order) => Some((order, chains)),
        _ => None,
    });
    let mut tcp: Vec<_> = tcp.collect();
    tcp.sort_by_key(|(order, _)| *order);
    for (_, chains) in tcp {
        for l4 in chains {
            if l4.filter_chain_match.is_some() {
                push_distinct(&mut made.filter_chains, l4.clone())
            } else {
                rest = rest.or_else(|| Some(l4.clone()))
            }
        }
    }
    made.default_filter_chain = Some(rest.unwrap_or_else(|| unknown(context, *number)));
    let inspect =
        Inspectors { http: has_http.into(), tls: needs_sni(&made.filter_chains).into(), ..Inspectors::default() };
    inspect.apply(context.snapshot.mesh().protocol_detection_timeout, &mut made);
    let origin = parts.iter().find_map(|part| match part {
        Part::Http(origin, _) | Part::Tcp(_, origin, _) => Some(origin.clone()),
        _ => None,
    });
    made.access_log = access_log::of_unmatched(context);
    made.bind_to_port = (!place.is_bound).then(|| bool_value(false));
    made.connection_balance_config = balance(context, !place.is_bound && context.options().exact_balance_outbound);
    out.add(made, origin);
}

/// Filter chains for a service's TCP traffic. On a port of TLS those of TLS routes; connections that no route names are
/// left to the outbound policy, as in Istio (`buildSidecarOutboundTLSFilterChainOpts`). On other ports those of TCP
/// routes. Without routes for all connections one for the service.
fn l4_chains(context: Context<'_>, service: &Arc<Service>, port: &ServicePort) -> Vec<FilterChain> {
    l4_chains_by(context, service, port, context.route_sets(service, port.number))
}

/// As [`l4_chains`], with these route sets.
fn l4_chains_by<'a>(
    context: Context<'a>,
    service: &Arc<Service>,
    port: &ServicePort,
    route_sets: Vec<&'a Arc<RouteSet>>,
) -> Vec<FilterChain> {
    let route_context = context.route_context(port.number);
    let route_sets = context.in_order(route_sets).into_iter().map(AsRef::as_ref);
    let applies = |m: &L4Match| m.applies_to(&GatewayRef::Mesh, &context) && m.port.is_none_or(|p| p == port.number);
    let targets = if port.protocol.is_tls() { l4::tls(route_sets, applies) } else { l4::tcp(route_sets, applies) };
    let mut chains = Vec::new();
    for (wanted, destinations) in &targets {
        let looked_up = destinations.iter().filter_map(|to| context.service(&to.destination.host));
        let mut filters = sni_filters(port, looked_up);
        filters.push(to_destinations(route_context, destinations));
        push_distinct(&mut chains, bytes_chain(context, "", wanted.clone(), filters));
    }
    // What the routes leave is closed with the rest of a closed service.
    let is_complete = if port.protocol.is_tls() && !service.is_closed() {
        !targets.is_empty()
    } else {
        chains.iter().any(|chain| chain.filter_chain_match.is_none())
    };
    // Without TLS, a connection carries no host name that could be resolved.
    if !is_complete && (port.protocol.is_tls() || !dynamic_dns::is_looked_up(service)) {
        let cluster = outbound_name(port, "", service, InnerProtocol::Tcp);
        let policy = context.policy(service, port.number, None);
        let stat = stat_names::outbound(context, service, port, "");
        let filter = http::tcp_by(context, &cluster, &stat, policy.as_ref());
        let mut filters = sni_filters(port, [service]);
        filters.push(filter);
        chains.push(bytes_chain(context, "", FilterChainMatch::default(), filters));
    }
    chains
}

/// The filter that looks up a server name, if TLS connections go to a service whose hosts are looked up.
fn sni_filters<'s>(port: &ServicePort, services: impl IntoIterator<Item = &'s Arc<Service>>) -> Vec<Filter> {
    let looks_up = port.protocol.is_tls() && services.into_iter().any(|service| dynamic_dns::is_looked_up(service));
    looks_up.then(|| dynamic_dns::sni_filter(port.number)).into_iter().collect()
}

/// The chain for connections that no other chain matches: the outbound policy decides.
fn unknown(context: Context<'_>, port: u16) -> FilterChain {
    let policy = match context.outbound_policy_on(port) {
        // Without redirection, only HTTP names its destination.
        SidecarOutboundPolicy::AllowAnyDynamicDns if context.is_bound(port) => &SidecarOutboundPolicy::RegistryOnly,
        policy => policy,
    };
    let filters = vec![http::tcp(context, &context.unknown_cluster(policy, InnerProtocol::Tcp))];
    bytes_chain(context, "PassthroughFilterChain", FilterChainMatch::default(), filters)
}

/// A chain for connections that carry bytes. What stands in for something that would judge them and is not supported refuses them.
fn bytes_chain(context: Context<'_>, name: &str, wanted: FilterChainMatch, filters: Vec<Filter>) -> FilterChain {
    let refused = rbac::outbound_network_filter(context);
    chain(name, wanted, metrics::counting(context, refused.into_iter().chain(filters).collect()))
}
