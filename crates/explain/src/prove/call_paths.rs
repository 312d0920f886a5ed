//! The call paths from callers to a workload: the called addresses, the proxies on the path, and how each connection is
//! secured.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_model::{EndpointAddress as ModelAddress, Service, Workload};
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{Cluster, Discovery, Endpoint, Health};
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::listener::{FilterChain, Listener};

use crate::arrival::{Side, TlsClient};
use crate::hop;
use crate::proxy::Proxy;
use crate::world::World;

/// A client outside the mesh (RFC 5737).
pub const OUTSIDE: [u8; 4] = [203, 0, 113, 1];

/// A caller.
#[derive(Debug, Clone)]
pub enum Client {
    /// A workload with its sidecar, or without one.
    Workload(Arc<Workload>),
    /// A client outside the mesh, through this gateway.
    Outside(Arc<Workload>),
    /// A client without an identity that reaches the workload's own address.
    Anyone,
}

impl Client {
    /// Its name, for people.
    pub fn name(&self) -> String {
        match self {
            Self::Workload(workload) => format!("{}.{}", workload.workload_name, workload.namespace),
            Self::Outside(gateway) => {
                format!("outside, through the gateway {}.{}", gateway.workload_name, gateway.namespace)
            }
            Self::Anyone => "anyone without an identity".to_owned(),
        }
    }
}

/// The protocol that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An HTTP request.
    Http,
    /// Bytes that are no HTTP.
    Bytes,
    /// TLS of the client, inside which the proxies see no request.
    Tls,
}

/// The address that a client calls.
#[derive(Debug, Clone)]
pub struct Dialled {
    /// The address.
    pub address: SocketAddr,
    /// The host that has it.
    pub host: Option<Hostname>,
    /// A name for it that clients resolve; else its address.
    pub name: String,
    /// The protocol that the client sends.
    pub kind: Kind,
    /// The client's TLS, where a proxy may end it.
    pub tls: Option<TlsClient>,
    /// The port stands for all that no object names.
    pub unnamed_port: bool,
}

/// A connection as it arrives at a proxy, and the filter chain that serves it.
pub struct ProxyArrival {
    /// The proxy.
    pub proxy: Rc<Proxy>,
    /// The side that the proxy is on.
    pub side: Side,
    /// The source address that the proxy sees.
    pub source: IpAddr,
    /// The address that it called.
    pub destination: SocketAddr,
    /// TLS.
    pub tls: Option<TlsClient>,
    /// The protocol.
    pub kind: Kind,
}

impl ProxyArrival {
    /// The listener and the filter chain.
    pub fn served(&self) -> Option<(Arc<Listener>, Arc<FilterChain>)> {
        let listener = hop::listener(&self.proxy, self.side, self.destination)?;
        let destination = hop::at_listener(self.side, listener, self.destination);
        let source = SocketAddr::new(self.source, crate::arrival::CLIENT_PORT);
        let (filters, port) = (&listener.listener_filters, destination.port());
        let seen = self.tls.as_ref().filter(|_| filters.inspects_tls(port));
        let offered: Vec<&str> = match (&self.tls, seen) {
            (_, Some(tls)) => tls.alpn.iter().map(String::as_str).collect(),
            (None, _) if self.kind == Kind::Http && filters.inspects_http(port) => vec!["http/1.1"],
            _ => Vec::new(),
        };
        let input = ChainInput {
            destination,
            source,
            direct_source: source,
            server_name: seen.and_then(|tls| tls.server_name.as_deref()),
            transport_protocol: if seen.is_some() { "tls" } else { "raw_buffer" },
            application_protocols: &offered,
        };
        Some((Arc::clone(listener), Arc::clone(listener.find_filter_chain(&input)?)))
    }
}

/// An endpoint to which a cluster leads, and how.
#[derive(Debug, Clone)]
pub struct UpstreamConnection {
    /// Its address.
    pub to: SocketAddr,
    /// TLS towards it.
    pub tls: Option<TlsClient>,
}

/// The endpoints of a cluster, as seen from a proxy.
pub fn upstreams(
    world: &World,
    proxy: &Proxy,
    cluster: &Cluster,
    (destination, is_http): (SocketAddr, bool),
    own: Option<&TlsClient>,
) -> Vec<UpstreamConnection> {
    let upstream = |to: SocketAddr, endpoint: Option<&Endpoint>| {
        let tls = hop::tls_to(world, proxy, cluster, (to, endpoint), is_http).or_else(|| own.cloned());
        UpstreamConnection { to, tls }
    };
    if let Discovery::OriginalDst(options) = &cluster.discovery {
        let port = options.port_override.unwrap_or(destination.port());
        return vec![upstream(SocketAddr::new(destination.ip(), port), None)];
    }
    let healthy = cluster.endpoints.hosts.iter().filter(|host| host.health == Health::Healthy);
    healthy
        .filter_map(|host| match &host.address {
            EndpointAddress::Socket(address) => Some(upstream(*address, Some(host))),
            EndpointAddress::Pipe(_) => None,
        })
        .collect()
}

/// Returns the addresses that a workload may call and that may lead into the mesh: those of services, and those of the
/// targets. `host`, `port`: only these.
pub fn dialled(world: &World, targets: &[Arc<Workload>], (host, port): (Option<&str>, Option<u16>)) -> Vec<Dialled> {
    let mut all = Vec::new();
    let is_port = |number: u16| port.is_none_or(|port| port == number);
    for service in world.snapshot.services.iter() {
        let named = host.is_none_or(|host| is_named(service, host, &world.snapshot.mesh.cluster_domain));
        if !named {
            continue;
        }
        for service_port in service.ports.iter().filter(|own| is_port(own.number)) {
            for address in addresses_of(world, service, service_port.number) {
                let name = host.map_or_else(|| service.host.to_string(), str::to_owned);
                let name = if name.contains('*') { address.to_string() } else { name };
                all.push((SocketAddr::new(address, service_port.number), Some(service.host.clone()), name, false));
            }
        }
    }
    for workload in targets.iter().filter(|_| host.is_none_or(|host| host.parse::<IpAddr>().is_ok())) {
        for address in workload.addresses.iter().filter(|address| host.is_none_or(|host| host.parse() == Ok(**address)))
        {
            let (named, unnamed) = own_ports(world, workload);
            let ports = named.into_iter().map(|number| (number, false)).chain(unnamed.map(|number| (number, true)));
            let ports = ports.filter(|(number, _)| is_port(*number));
            all.extend(
                ports.map(|(number, unnamed)| (SocketAddr::new(*address, number), None, address.to_string(), unnamed)),
            );
        }
    }
    let mut known = BTreeSet::new();
    all.retain(|(address, host, ..)| known.insert((*address, host.as_ref().map(ToString::to_string))));
    let each = |(address, host, name, unnamed_port): (SocketAddr, Option<Hostname>, String, bool)| {
        [Kind::Http, Kind::Bytes, Kind::Tls].map(|kind| {
            let server_name = name.parse::<IpAddr>().is_err().then(|| name.clone());
            let tls = (kind == Kind::Tls).then(|| TlsClient { server_name, alpn: Vec::new(), identity: None });
            Dialled { address, host: host.clone(), name: name.clone(), kind, tls, unnamed_port }
        })
    };
    let mut all: Vec<Dialled> = all.into_iter().flat_map(each).collect();
    // Requests are asked about first, and ports at which a program is known to listen.
    all.sort_by_key(|dialled| (dialled.unnamed_port, dialled.kind != Kind::Http));
    all
}

fn is_named(service: &Service, host: &str, domain: &str) -> bool {
    let own = service.host.as_str();
    let inside = own.split_once(".svc.").map_or("", |(inside, _)| inside);
    let short = [inside.to_owned(), inside.split('.').next().unwrap_or_default().to_owned(), format!("{inside}.svc")];
    own == host
        || !inside.is_empty() && (short.iter().any(|name| name == host) || format!("{host}.svc.{domain}") == own)
        || service.vips().any(|vip| vip.to_string() == host)
        || service.host.is_wildcard() && Hostname::parse(host).is_ok_and(|host| service.host.covers(&host))
}

fn addresses_of(world: &World, service: &Service, port: u16) -> Vec<IpAddr> {
    let vips: Vec<IpAddr> = service.vips().collect();
    if !vips.is_empty() {
        return vips;
    }
    let endpoints = world.snapshot.endpoints(service, port).iter().filter(|endpoint| endpoint.ready);
    endpoints
        .filter_map(|endpoint| match endpoint.address {
            ModelAddress::Ip(ip) => Some(ip),
            _ => None,
        })
        .collect()
}

/// Returns the ports of a workload, and one that no object names.
pub fn own_ports(world: &World, workload: &Workload) -> (Vec<u16>, Option<u16>) {
    let mut ports: Vec<u16> = workload.inbound_ports().iter().map(|port| port.port).collect();
    ports.extend(workload.ports.iter().map(|port| port.number));
    let named = world.snapshot.peer_authentications_of(&workload.namespace);
    ports.extend(named.iter().flat_map(|policy| policy.port_modes.keys().copied()));
    ports.sort_unstable();
    ports.dedup();
    let unnamed = (1..=u16::MAX).rev().find(|port| !ports.contains(port));
    (ports, unnamed)
}

/// The names by which clients may ask a gateway's listener for TLS, one for each filter chain; no TLS for the others.
pub fn gateway_clients(listener: &Listener) -> Vec<Option<TlsClient>> {
    let mut all: Vec<Option<TlsClient>> = Vec::new();
    for chain in listener.filter_chains.iter().chain(&listener.default_filter_chain) {
        let speaks_tls = chain.tls.is_some()
            || chain.matches.transport_protocol.as_deref() == Some("tls")
            || !chain.matches.server_names.is_empty();
        if !speaks_tls {
            all.push(None);
            continue;
        }
        let names = chain
            .matches
            .server_names
            .iter()
            .map(|name| Some(name.strip_prefix("*.").map_or_else(|| name.to_string(), |rest| format!("a.{rest}"))));
        let names: Vec<Option<String>> =
            if chain.matches.server_names.is_empty() { vec![Some("a.invalid".to_owned())] } else { names.collect() };
        let alpn = vec!["h2".to_owned(), "http/1.1".to_owned()];
        all.extend(
            names.into_iter().map(|server_name| Some(TlsClient { server_name, alpn: alpn.clone(), identity: None })),
        );
    }
    all.dedup_by_key(|tls| tls.as_ref().map(|tls| tls.server_name.clone()));
    all
}

/// Describes how a connection to an endpoint is secured, for people.
pub fn secured(tls: Option<&TlsClient>) -> &'static str {
    match tls {
        Some(TlsClient { identity: Some(_), .. }) => "mutual TLS",
        Some(_) => "TLS",
        None => "plain text",
    }
}

/// Addresses outside the mesh that no object names.
pub fn elsewhere(claim: &super::answer::Claim) -> Vec<Dialled> {
    let address: IpAddr = crate::proxy::SOMEWHERE.into();
    let named = claim.host.clone();
    let ports = claim.port.map_or_else(|| vec![80, 443, 5432], |port| vec![port]);
    let each = |port: u16| {
        let name = named.clone().unwrap_or_else(|| address.to_string());
        [Kind::Http, Kind::Bytes, Kind::Tls].map(|kind| {
            let server_name = name.parse::<IpAddr>().is_err().then(|| name.clone());
            let tls = (kind == Kind::Tls).then(|| TlsClient { server_name, alpn: Vec::new(), identity: None });
            let host = Hostname::parse(&name).ok();
            Dialled {
                address: SocketAddr::new(address, port),
                host,
                name: name.clone(),
                kind,
                tls,
                unnamed_port: false,
            }
        })
    };
    ports.into_iter().flat_map(each).collect()
}
