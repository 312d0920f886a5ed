//! Services: Kubernetes Services and the hosts of ServiceEntries.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::spiffe::SpiffeId;

use crate::sorted::SortedMap;
use crate::{Labels, Place, Viewer, Visibility};

/// See [`Service::order`].
pub type ServiceOrder = (bool, Option<(Place, usize)>);

/// A host that can be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Its full name; a ServiceEntry's may be a wildcard.
    pub host: Hostname,
    /// The name of the object it comes from.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Labels of the object.
    pub labels: Labels,
    /// Labels of the workloads that are its endpoints; empty: it selects none.
    pub selector: Labels,
    /// Its place in the order of precedence, and that of its host in the object.
    pub(crate) rank: Option<(Place, usize)>,
    /// Whether connections race to all addresses of its host (`istio.io/connect-strategy: RACE_FIRST_TCP_CONNECT`).
    pub races_addresses: bool,
    /// Its ports, in the order written.
    pub ports: Vec<ServicePort>,
    /// Virtual addresses: one for a Service (none if headless), as written for a ServiceEntry (ranges too).
    pub addresses: Vec<IpNet>,
    /// How its endpoints are found.
    pub resolution: Resolution,
    /// Whether it is a Service with `clusterIP: None`, or a ServiceEntry that selects workloads and has neither address nor
    /// resolution: clients connect to endpoints' own addresses.
    pub headless: bool,
    /// Which endpoints are preferred.
    pub distribution: Distribution,
    /// Whether only endpoints on the client's machine are used (`internalTrafficPolicy: Local`).
    pub node_local: bool,
    /// Whether it is outside the mesh (`location: MESH_EXTERNAL`), so without mutual TLS of the mesh.
    pub external: bool,
    /// The namespaces that see it.
    pub export_to: Visibility,
    /// Whether its address is allotted by the control plane because a ServiceEntry has none. Only workloads whose DNS
    /// queries are answered with it call it there.
    pub allotted: bool,
    /// The remote cluster whose object describes it; empty: the control plane's own, or none.
    pub cluster: Arc<str>,
    /// Its addresses in remote clusters, by the cluster: the `clusterIP` of the Service of the same name there.
    pub remote_addresses: BTreeMap<Arc<str>, IpAddr>,
    /// Whether clients use only the endpoints of their own cluster (`serviceSettings`).
    pub cluster_local: bool,
    /// The host that it is another name of (`type: ExternalName`).
    pub alias_of: Option<Hostname>,
    /// Identities its endpoints may have beyond those of known workloads (`subjectAltNames` of a ServiceEntry).
    pub subject_alt_names: Vec<Arc<str>>,
    /// Identities from annotations of the Service, used like the former. They only apply to mutual TLS of the mesh.
    pub identities: Vec<Arc<str>>,
    /// The policies that judge calls to it where the mesh cannot: its clients refuse them.
    pub closed_by: Vec<ClosedBy>,
    /// Where it was written.
    pub origin: Span,
}

/// A policy that judges calls of a service at a waypoint, or is for its clients' connections, and is not supported there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedBy {
    /// The object: `AuthorizationPolicy shop/p`.
    pub what: Arc<str>,
    /// Where it was written.
    pub origin: Span,
}

impl ClosedBy {
    /// What tools say about answers that depend on it.
    pub fn unknown(&self) -> String {
        format!("unknown: {} is not supported; what it would judge is refused", self.what)
    }
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty if the only port has none.
    pub name: Arc<str>,
    /// The number clients call.
    pub number: u16,
    /// Its protocol, from `appProtocol` or the prefix of its name.
    pub protocol: Protocol,
    /// The port of the workload it leads to.
    pub target: TargetPort,
}

/// The port of a workload that a service port leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// The service port's own number.
    Same,
    /// This number.
    Number(u16),
    /// The container port of this name.
    Name(Arc<str>),
}

/// The protocol of a port by Istio's protocol selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// `http`
    Http,
    /// `http2`
    Http2,
    /// `grpc`
    Grpc,
    /// `grpc-web`
    GrpcWeb,
    /// `https`: TLS that is passed on unread
    Https,
    /// `tls`: TLS that is passed on unread
    Tls,
    /// `tcp`
    Tcp,
    /// `mongo`
    Mongo,
    /// `mysql`
    Mysql,
    /// `redis`
    Redis,
    /// `udp`, which the mesh does not carry
    Udp,
    /// Not set: detected from the first bytes (HTTP or plain TCP)
    Auto,
}

impl Protocol {
    /// Whether the first bytes decide.
    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }

    /// Whether the client itself speaks TLS, so that routing sees only SNI.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// The name as written in `appProtocol`; `auto` for [`Protocol::Auto`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::GrpcWeb => "grpc-web",
            Self::Https => "https",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::Mongo => "mongo",
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::Udp => "udp",
            Self::Auto => "auto",
        }
    }

    /// Reads a protocol name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "http" => Self::Http,
            "http2" => Self::Http2,
            "grpc" => Self::Grpc,
            "grpc-web" => Self::GrpcWeb,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "tcp" => Self::Tcp,
            "mongo" => Self::Mongo,
            "mysql" => Self::Mysql,
            "redis" => Self::Redis,
            "udp" => Self::Udp,
            _ => return None,
        })
    }

    /// Istio's protocol selection: `appProtocol` first, then the port's name up to its first dash.
    pub fn detect(transport_udp: bool, app_protocol: Option<&str>, port_name: &str) -> Self {
        if transport_udp {
            return Self::Udp;
        }
        match app_protocol {
            Some("kubernetes.io/h2c") => return Self::Http2,
            // Envoy's upgrade handling serves WebSocket over plain HTTP/1.1.
            Some("kubernetes.io/ws") => return Self::Http,
            Some("kubernetes.io/wss") => return Self::Https,
            Some(name) => return Self::from_name(name).unwrap_or(Self::Auto),
            None => {}
        }
        if port_name.eq_ignore_ascii_case("grpc-web") || port_name.to_ascii_lowercase().starts_with("grpc-web-") {
            return Self::GrpcWeb;
        }
        let prefix = port_name.split('-').next().unwrap_or_default();
        Self::from_name(prefix).unwrap_or(Self::Auto)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a service's endpoints are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// The control plane knows them (Kubernetes, `STATIC`): EDS.
    Static,
    /// Each proxy asks DNS for every address (`DNS`): STRICT_DNS.
    Dns,
    /// Each proxy asks DNS and uses the first address (`DNS_ROUND_ROBIN`): LOGICAL_DNS.
    DnsRoundRobin,
    /// Each proxy asks DNS for the host that a call names (`DYNAMIC_DNS`): a dynamic forward proxy.
    DynamicDns,
    /// The address the client called (`NONE`): ORIGINAL_DST.
    Passthrough,
    /// Through another host, of which it is an alias (`ExternalName`): it has no cluster.
    Alias,
}

/// Which endpoints a service prefers (`trafficDistribution`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Distribution {
    /// No preference.
    #[default]
    Any,
    /// Endpoints in the client's zone, then in its region.
    SameZone,
    /// Endpoints on the client's machine, then in its sub-zone, zone and region.
    SameNode,
}

/// An endpoint for one port of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// The address on which it listens.
    pub address: EndpointAddress,
    /// The port it listens on; 0 for a Unix socket.
    pub port: u16,
    /// Whether it takes traffic.
    pub ready: bool,
    /// Whether it is about to end: it keeps the sessions it has, and takes no others.
    pub draining: bool,
    /// Whether it should take traffic and cannot: it counts when proxies compare how many of a locality can.
    pub failing: bool,
    /// The machine it runs on; empty if unknown.
    pub node: Arc<str>,
    /// Its host name below that of a headless service: `web-0`.
    pub host_name: Option<Arc<str>>,
    /// Its labels, which subsets select by.
    pub labels: Labels,
    /// The workload behind it, as Istio's `WORKLOAD_NAME`; the service's name if unknown.
    pub workload_name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its identity, if it is in the mesh.
    pub identity: Option<SpiffeId>,
    /// `region/zone/subzone`; may be empty.
    pub locality: Arc<str>,
    /// The remote cluster that it is in; empty: the control plane's own, or none.
    pub cluster: Arc<str>,
    /// The network that its address is in; empty: it can be called from everywhere.
    pub network: Arc<str>,
    /// Load balancing weight; 1 if not given.
    pub weight: u32,
    /// Whether to use mutual TLS of the mesh towards it: it has a proxy, and its PeerAuthentication for this port is
    /// not `DISABLE`.
    pub mtls: bool,
}

/// A gateway through which clients of other networks reach the endpoints of its network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkGateway {
    /// The network.
    pub network: Arc<str>,
    /// The remote cluster that it is in; empty: the control plane's own.
    pub cluster: Arc<str>,
    /// Its address.
    pub address: IpAddr,
    /// Its port that passes the mesh's TLS on.
    pub port: u16,
}

/// The address on which an endpoint listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointAddress {
    /// An address.
    Ip(IpAddr),
    /// A name that the proxy resolves.
    Name(Hostname),
    /// A Unix socket's path.
    Unix(Arc<str>),
}

impl EndpointAddress {
    /// Reads an address, a host name or `unix://PATH`; `None` for anything else.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Some(Self::Unix(path.into()));
        }
        match text.parse::<IpAddr>() {
            Ok(ip) => Some(Self::Ip(ip)),
            Err(_) => Hostname::parse(text).ok().map(Self::Name),
        }
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::Unix(path) => f.write_str(path),
        }
    }
}

impl Service {
    /// Its place among services that share an address and a port, of which the first gets the connections that nothing tells
    /// apart: what is exported to few comes first, then the oldest.
    pub fn order(&self) -> ServiceOrder {
        (self.export_to == Visibility::Public, self.rank.clone())
    }

    /// The port of this number.
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.number == number)
    }

    /// The port of this name.
    pub fn port_named(&self, name: &str) -> Option<&ServicePort> {
        self.ports.iter().find(|p| &*p.name == name)
    }

    /// The virtual addresses that are single addresses, not ranges.
    pub fn vips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().filter(|net| net.prefix_len() == net.max_prefix_len()).map(IpNet::addr)
    }

    /// Whether policies close it to its clients.
    pub fn is_closed(&self) -> bool {
        !self.closed_by.is_empty()
    }

    /// The virtual addresses that are ranges.
    pub fn ranges(&self) -> impl Iterator<Item = &IpNet> {
        self.addresses.iter().filter(|net| net.prefix_len() != net.max_prefix_len())
    }

    /// Whether it comes from a Kubernetes Service, not from a ServiceEntry.
    pub fn is_kubernetes(&self) -> bool {
        let rest = self.host.as_str().strip_prefix(&*self.name).and_then(|r| r.strip_prefix('.'));
        let rest = rest.and_then(|r| r.strip_prefix(&*self.namespace));
        rest.is_some_and(|r| r.starts_with(".svc."))
    }

    /// Other names by which a client reaches a host of the form `name.namespace.svc.DOMAIN` (`name`, `name.namespace`,
    /// `name.namespace.svc`), shortest first; empty for other hosts. The bare name works only in the namespace that the host
    /// names, whatever the namespace of the object (Istio's `GenerateAltVirtualHosts`).
    pub fn short_names(&self, client: &(impl Viewer + ?Sized)) -> Vec<String> {
        let inside = self.host.as_str().split_once(".svc.").map(|(inside, _)| inside);
        let Some((inside, (name, namespace))) = inside.and_then(|inside| Some((inside, inside.split_once('.')?)))
        else {
            return Vec::new();
        };
        let is_own = namespace == &*self.namespace;
        let namespace = if is_own { self.namespace.clone() } else { namespace.into() };
        let mut names = Vec::with_capacity(3);
        // The bare name of a wildcard would be every name.
        if name != "*" && client.is_in(&namespace) {
            names.push(name.to_owned());
        }
        names.push(inside.to_owned());
        names.push(format!("{inside}.svc"));
        names
    }
}

/// Returns the service that a client uses if several have the host, which are in the order of precedence: for a workload
/// that of its own namespace, then a Service of Kubernetes, then what is exported to few, then the oldest (Istio's
/// `selectServices`; for gateways `appendSidecarServices`).
pub(crate) fn preferred<'a>(
    same_host: impl Iterator<Item = &'a Arc<Service>> + Clone,
    client: &(impl Viewer + ?Sized),
) -> Option<&'a Arc<Service>> {
    let mut visible = same_host.filter(|s| s.export_to.seen_by(client));
    let first = visible.next()?;
    // If there is only one, the client's namespace does not matter and is not recorded as a question.
    let mut others = visible.peekable();
    if others.peek().is_none() {
        return Some(first);
    }
    let all = std::iter::once(first).chain(others);
    let is_own = |service: &&Arc<Service>| client.is_in(&service.namespace);
    let own = client.takes_own_first().then(|| all.clone().find(is_own)).flatten();
    own.or_else(|| all.clone().find(|service| service.is_kubernetes()))
        .or_else(|| all.clone().find(|service| service.export_to != Visibility::Public))
        .or(Some(first))
}

/// Endpoints of one service by its port.
pub type EndpointsByPort = SortedMap<TransportPort, Vec<Endpoint>>;

/// A port of a service with its transport: a service may have the same number for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportPort {
    /// A port of TCP.
    Tcp(u16),
    /// A port of UDP.
    Udp(u16),
}

impl TransportPort {
    /// The port of a service.
    pub fn of(port: &ServicePort) -> Self {
        if port.protocol == Protocol::Udp { Self::Udp(port.number) } else { Self::Tcp(port.number) }
    }
}

/// Whether there are endpoints and all of them accept mutual TLS of the mesh.
pub(crate) fn all_take_mtls(endpoints: &[Endpoint]) -> bool {
    !endpoints.is_empty() && endpoints.iter().all(|endpoint| endpoint.mtls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_the_protocol_as_istio_does() {
        let check = |app: Option<&str>, name: &str, expected| {
            assert_eq!(Protocol::detect(false, app, name), expected, "{app:?} {name}")
        };
        check(None, "http", Protocol::Http);
        check(None, "http-web", Protocol::Http);
        check(None, "HTTP2-x", Protocol::Http2);
        check(None, "grpc-web", Protocol::GrpcWeb);
        check(None, "grpc-web-a", Protocol::GrpcWeb);
        check(None, "grpc-a", Protocol::Grpc);
        check(None, "tcp-http", Protocol::Tcp);
        check(None, "web", Protocol::Auto);
        check(None, "", Protocol::Auto);
        check(Some("https"), "http", Protocol::Https);
        check(Some("kubernetes.io/h2c"), "http", Protocol::Http2);
        check(Some("example.com/own"), "http", Protocol::Auto);
        assert_eq!(Protocol::detect(true, None, "http"), Protocol::Udp);
    }
}
