//! Listeners for connections to the workload: filter chains by destination port and by what PeerAuthentication accepts
//! there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::workload::InboundPort;
use evenkeel_model::{IngressListener, MtlsMode, PeerAuthentication, Protocol, Selectable, ServerTls};

use super::inspectors::{Inspected, Inspectors, Ports};
use super::outbound::PLAIN_HTTP;
use super::{balance, chain, companions, listener, secured};
use crate::access_log;
use crate::context::{Context, PortProtocol};
use crate::http::{self, Calls};
use crate::metadata_exchange::{self, PEER_EXCHANGE};
use crate::names::{self, BLACK_HOLE_CLUSTER, INBOUND_PASSTHROUGH_CLUSTER, VIRTUAL_INBOUND, VIRTUAL_INBOUND_PORT};
use crate::output::Output;
use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch};
use crate::pb::core::TrafficDirection;
use crate::proto::{bool_value, u32_value};
use crate::rbac::{self, Bytes};
use crate::tls::{self, MESH_ALPN, MESH_HTTP_ALPN, MESH_TCP_ALPN};
use crate::traffic::Direction;
use crate::traffic::InnerProtocol;
use crate::{ext_authz, metrics, routes, stat_names};

/// The TLS inspector's name for TLS.
const TLS: &str = "tls";
/// Its name for anything else.
const PLAIN: &str = "raw_buffer";

/// The listener for all captured connections to the workload.
pub fn virtual_inbound(context: Context<'_>, out: &mut Output<'_>) {
    let context = context.receiving();
    let mut all = listener(VIRTUAL_INBOUND.to_owned(), "0.0.0.0", VIRTUAL_INBOUND_PORT, TrafficDirection::Inbound);
    let to_itself =
        FilterChainMatch { destination_port: Some(u32_value(u32::from(VIRTUAL_INBOUND_PORT))), ..Default::default() };
    all.filter_chains.push(chain("virtualInbound-blackhole", to_itself, vec![http::tcp(context, BLACK_HOLE_CLUSTER)]));

    let rest = Target::rest();
    all.filter_chains.extend(chains(context, &rest, mode(context, 0)));
    for target in targets(context) {
        let mode = mode(context, target.port.unwrap_or(0));
        all.filter_chains.extend(chains(context, &target, mode));
    }

    all.connection_balance_config = balance(context, context.options().exact_balance_inbound);
    let transparent = context.options().interception == InterceptionMode::Tproxy;
    all.transparent = transparent.then(|| bool_value(true));
    let inspect = Inspectors { original_dst: true, original_src: transparent, ..needed_by(&all.filter_chains) };
    inspect.apply(context.snapshot.mesh().protocol_detection_timeout, &mut all);
    all.access_log = access_log::of_unmatched(context);
    all.metadata =
        companions(context, bound(context).map(|(address, port)| names::listener(&address.to_string(), port.port)));
    let origin = context.workload().map(|w| w.origin.clone());
    out.add(all, origin);
}

/// Listeners for ports that clients connect to directly, without redirection.
pub fn bound_ports(context: Context<'_>, out: &mut Output<'_>) {
    let context = context.receiving();
    let ports = context.inbound_ports();
    for (address, listener_of) in bound(context) {
        let port = ports.iter().find(|port| port.port == listener_of.port);
        let Some(target) = port.and_then(|port| Target::port(context, port)) else { continue };
        let (host, number) = (address.to_string(), listener_of.port);
        let mut made = listener(names::listener(&host, number), &host, number, TrafficDirection::Inbound);
        let mode = mode(context, number);
        made.filter_chains = chains(context, &target, mode);
        needed_by(&made.filter_chains).apply(context.snapshot.mesh().protocol_detection_timeout, &mut made);
        made.access_log = access_log::of_unmatched(context);
        let origin = context.sidecar().map(|sidecar| sidecar.origin.clone());
        out.add(made, origin);
    }
}

/// The inspectors that these chains need, each on the ports whose chains ask for what it finds (Istio's
/// `populateListenerFilters`): a server that speaks first can be called on a port that nothing inspects.
fn needed_by(chains: &[FilterChain]) -> Inspectors {
    let (mut tls, mut http) = (Ports::new(), Ports::new());
    for wanted in chains.iter().filter_map(|chain| chain.filter_chain_match.as_ref()) {
        let port = wanted.destination_port.and_then(|port| u16::try_from(port.value).ok()).unwrap_or(0);
        let wants_http = wanted.application_protocols.iter().any(|alpn| PLAIN_HTTP.contains(&alpn.as_str()));
        *tls.entry(port).or_default() |= wanted.transport_protocol == TLS;
        *http.entry(port).or_default() |= wants_http;
    }
    Inspectors { tls: Inspected::of(tls), http: Inspected::of(http), ..Inspectors::default() }
}

/// The ingress listeners that bind a port of their own, each with its address.
fn bound(context: Context<'_>) -> impl Iterator<Item = (IpAddr, &IngressListener)> {
    let ingress = context.sidecar().into_iter().flat_map(|sidecar| &sidecar.ingress);
    let bound = ingress.filter(|listener| listener.is_bound);
    bound.filter_map(move |listener| Some((listener.bind.or_else(|| context.address())?, listener)))
}

/// Returns the ports with separate filter chains: those of services, and those that a PeerAuthentication names.
fn targets(context: Context<'_>) -> Vec<Target> {
    let ports = context.inbound_ports();
    let applies = |p: &PeerAuthentication| !p.selector.is_empty() && context.selected_by(&p.selector);
    let policies = context.snapshot.peer_authentications_of(context.namespace()).iter().filter(|p| applies(p));
    let named: BTreeSet<u16> = policies.flat_map(|p| p.port_modes.keys().copied()).collect();
    let unserved = named.into_iter().filter(|number| !ports.iter().any(|p| p.port == *number));
    ports.iter().filter_map(|port| Target::port(context, port)).chain(unserved.map(Target::named)).collect()
}

/// Returns the mode of mutual TLS that a workload accepts on a port; 0 stands for ports without a service.
fn mode(context: Context<'_>, port: u16) -> MtlsMode {
    context.snapshot.mtls_mode(context.namespace(), &context, port)
}

/// The destination of filter chains.
struct Target {
    /// Destination port; `None`: all ports without a service.
    port: Option<u16>,
    port_protocol: PortProtocol,
    calls: Calls,
    /// Only for gRPC, whose clients repeat calls themselves.
    grpc: bool,
    cluster: String,
    /// The prefix of the statistics of its TCP connections; empty: the cluster's name.
    stat: String,
    service_port: u16,
    /// The service's host; `None`: it is no service's port.
    host: Option<Hostname>,
    http_name: String,
    tcp_name: String,
    /// TLS of a Sidecar's ingress port.
    tls: Option<ServerTls>,
}

impl Target {
    fn rest() -> Self {
        Self {
            port: None,
            port_protocol: PortProtocol::Auto,
            calls: Calls::Any,
            grpc: false,
            cluster: INBOUND_PASSTHROUGH_CLUSTER.to_owned(),
            stat: String::new(),
            service_port: 0,
            host: None,
            http_name: "virtualInbound-catchall-http".to_owned(),
            tcp_name: "virtualInbound".to_owned(),
            tls: None,
        }
    }

    /// Returns a port without a service that has its own mode.
    fn named(port: u16) -> Self {
        let name = names::wildcard_listener(port);
        Self { port: Some(port), service_port: port, http_name: name.clone(), tcp_name: name, ..Self::rest() }
    }

    fn port(context: Context<'_>, port: &InboundPort) -> Option<Self> {
        let name = names::wildcard_listener(port.port);
        Some(Self {
            port: Some(port.port),
            port_protocol: PortProtocol::of(port.protocol)?,
            calls: Calls::of_grpc_web(port.protocol == Protocol::GrpcWeb),
            grpc: matches!(port.protocol, Protocol::Grpc | Protocol::GrpcWeb),
            cluster: names::inbound_cluster(port.port),
            stat: stat_names::inbound(context, port),
            service_port: port.service.as_ref().map_or(port.port, |(_, number)| *number),
            host: port.service.as_ref().map(|(service, _)| service.host.clone()),
            http_name: name.clone(),
            tcp_name: name,
            tls: context.sidecar().and_then(|sidecar| sidecar.ingress_of(port.port)?.tls.clone()),
        })
    }

    fn wants(&self, transport: &str, alpn: &[&str]) -> FilterChainMatch {
        FilterChainMatch {
            destination_port: self.port.map(|port| u32_value(u32::from(port))),
            transport_protocol: transport.to_owned(),
            application_protocols: alpn.iter().map(|&p| p.to_owned()).collect(),
            ..Default::default()
        }
    }
}

/// The filter chains of one port. Mesh clients are recognized by the ALPN they offer; other TLS is the workload's own,
/// which PERMISSIVE and DISABLE pass on unread.
fn chains(context: Context<'_>, target: &Target, mode: MtlsMode) -> Vec<FilterChain> {
    let http = |wanted, terminate| http_chain(context, target, wanted, terminate);
    let tcp = |wanted, terminate| tcp_chain(context, target, wanted, terminate);
    if let (MtlsMode::Disable, Some(server)) = (mode, &target.tls) {
        return vec![ingress_tls_chain(context, target, server)];
    }
    match (mode, target.port_protocol) {
        (MtlsMode::Strict, PortProtocol::Http) => vec![http(target.wants(TLS, &[]), true)],
        (MtlsMode::Strict, PortProtocol::Tcp) => vec![tcp(target.wants(TLS, &[]), true)],
        (MtlsMode::Strict, PortProtocol::Auto) => {
            vec![http(target.wants(TLS, &MESH_HTTP_ALPN), true), tcp(target.wants(TLS, &[]), true)]
        }
        (MtlsMode::Permissive, PortProtocol::Http) => {
            vec![http(target.wants(TLS, &MESH_ALPN), true), http(target.wants(PLAIN, &[]), false)]
        }
        (MtlsMode::Permissive, PortProtocol::Tcp) => vec![
            tcp(target.wants(TLS, &MESH_ALPN), true),
            tcp(target.wants(TLS, &[]), false),
            tcp(target.wants(PLAIN, &[]), false),
        ],
        (MtlsMode::Permissive, PortProtocol::Auto) => vec![
            http(target.wants(TLS, &MESH_HTTP_ALPN), true),
            http(target.wants(PLAIN, &PLAIN_HTTP), false),
            tcp(target.wants(TLS, &MESH_TCP_ALPN), true),
            tcp(target.wants(PLAIN, &[]), false),
            tcp(target.wants(TLS, &[]), false),
        ],
        // The TLS inspector passes over these ports, so all of their connections are `raw_buffer`, as in Istio.
        (MtlsMode::Disable, PortProtocol::Http) => vec![http(target.wants(PLAIN, &[]), false)],
        (MtlsMode::Disable, PortProtocol::Tcp) => vec![tcp(target.wants(PLAIN, &[]), false)],
        (MtlsMode::Disable, PortProtocol::Auto) => {
            vec![http(target.wants(PLAIN, &PLAIN_HTTP), false), tcp(target.wants(PLAIN, &[]), false)]
        }
    }
}

/// The chain of a port whose Sidecar has TLS for clients outside the mesh. Plain text is refused (Istio's
/// `getTLSFilterChainMatchOptions`).
fn ingress_tls_chain(context: Context<'_>, target: &Target, server: &ServerTls) -> FilterChain {
    let wanted = target.wants(TLS, &[]);
    let (chain, inner) = match target.port_protocol {
        PortProtocol::Http | PortProtocol::Auto => (http_chain(context, target, wanted, false), InnerProtocol::Http),
        PortProtocol::Tcp => (tcp_chain(context, target, wanted, false), InnerProtocol::Tcp),
    };
    secured(chain, tls::gateway_server(context.tls(), server, inner))
}

fn http_chain(context: Context<'_>, target: &Target, wanted: FilterChainMatch, terminate: bool) -> FilterChain {
    let (host, port) = (target.host.as_ref(), target.service_port);
    let routes = routes::inbound::to_workload(context, &target.cluster, host, port, !target.grpc);
    let stat = match target.port {
        Some(port) => format!("inbound_0.0.0.0_{port}"),
        None => target.cluster.clone(),
    };
    let manager = http::manager_with_routes(context, Direction::Inbound, &stat, routes, target.calls);
    with_tls(context, chain(&target.http_name, wanted, vec![manager]), &tls::HTTP_ALPN, terminate)
}

fn tcp_chain(context: Context<'_>, target: &Target, wanted: FilterChainMatch, terminate: bool) -> FilterChain {
    let bytes = match target.port_protocol {
        PortProtocol::Auto => Bytes::Unrecognized,
        PortProtocol::Http | PortProtocol::Tcp => Bytes::Declared,
    };
    // First, as in Istio: the others see the application's bytes.
    let exchange = metadata_exchange::of_listener(context).filter(|_| terminate);
    let exchanges = exchange.is_some();
    let mut filters: Vec<Filter> = exchange.into_iter().collect();
    filters.extend(ext_authz::network_filters(context, bytes));
    filters.extend(rbac::network_filters(context, bytes));
    filters.push(http::tcp_by(context, &target.cluster, &target.stat, None));
    let alpn: Vec<&str> = exchanges.then_some(PEER_EXCHANGE).into_iter().chain(tls::HTTP_ALPN).collect();
    with_tls(context, chain(&target.tcp_name, wanted, metrics::counting(context, filters)), &alpn, terminate)
}

fn with_tls(context: Context<'_>, chain: FilterChain, alpn: &[&str], terminate: bool) -> FilterChain {
    secured(chain, terminate.then(|| tls::mesh_server(context.tls(), alpn)))
}
