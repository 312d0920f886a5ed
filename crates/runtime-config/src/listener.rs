//! `envoy.config.listener.v3.Listener`, compiled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_tls::downstream::DownstreamTls;

use crate::access_log::AccessLog;
use crate::address::ListenAddress;
use crate::bind::ListenOption;
use crate::demand::OnDemandClusters;
use crate::filter_chain_match::{ChainIndex, ChainInput, FilterChainMatch};
use crate::filter_needs::FilterNeeds;
use crate::hcm::{HttpConnectionManager, RouteSource};
use crate::header_edits::HeaderAddition;
use crate::metadata::MetadataMatch;
use crate::proxy_protocol::ProxyProtocol;
use crate::substitution_format::Format;
use crate::udp_proxy::UdpProxy;

pub use crate::network_filters::NetworkFilterConfig;

/// Traffic direction, for statistics and logs (`core.v3.TrafficDirection`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrafficDirection {
    /// Not specified.
    #[default]
    Unspecified,
    /// Towards the workload.
    Inbound,
    /// From the workload.
    Outbound,
}

/// One listener.
#[derive(Debug)]
pub struct Listener {
    /// Unique name.
    pub name: Arc<str>,
    /// Address to bind, or the address original destinations are matched against when `bind_to_port` is false.
    pub address: ListenAddress,
    /// Further addresses where it has sockets, with their options (`additional_addresses`). Its statistics are under the first one.
    pub additional: Vec<(ListenAddress, Arc<[ListenOption]>)>,
    /// The permissions of the file, if the address is one (`Pipe.mode`); `None`: as the process's umask has them.
    pub file_mode: Option<u32>,
    /// Options of its sockets, in the order in which they are set.
    pub socket_options: Arc<[ListenOption]>,
    /// Whether a socket is bound. Without one the listener only receives connections handed over by `use_original_dst`.
    pub bind_to_port: bool,
    /// Each worker has its own `SO_REUSEPORT` socket.
    pub reuse_port: bool,
    /// The socket accepts connections to addresses of others, which TPROXY rules pass to it (`IP_TRANSPARENT`).
    pub transparent: bool,
    /// Its connections neither count for the process's limit (`envoy.resource_monitors.global_downstream_max_connections`) nor are
    /// refused because of it.
    pub ignore_global_conn_limit: bool,
    /// Hand a redirected connection to the listener of its original destination.
    pub use_original_dst: bool,
    /// Direction, for statistics.
    pub direction: TrafficDirection,
    /// The listener filters, which inspect a connection before a filter chain is selected.
    pub listener_filters: ListenerFilters,
    /// Filter chains in order of definition; [`Listener::find_filter_chain`] applies Envoy's precedence.
    pub filter_chains: Vec<Arc<FilterChain>>,
    /// Serves connections that match no chain.
    pub default_filter_chain: Option<Arc<FilterChain>>,
    /// Index of `filter_chains` by their match criteria.
    pub chain_index: ChainIndex,
    /// What serves the datagrams of a UDP listener; it has no filter chains then.
    pub udp: Option<Arc<UdpProxy>>,
    /// Logs of connections that were refused before a filter chain was selected.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// `listen(2)` backlog.
    pub backlog: u32,
    /// Names of listeners to hold along with this one, if listeners are requested by name: handed-over connections
    /// never demand a listener that binds its own port.
    pub companions: Vec<Arc<str>>,
    /// A connection was handed over to it since this was last checked.
    pub(crate) used: AtomicBool,
}

impl Listener {
    /// The chain for the connection: the most specific match, else the default chain, else none.
    pub fn find_filter_chain(&self, input: &ChainInput<'_>) -> Option<&Arc<FilterChain>> {
        self.chain_index
            .find(input)
            .and_then(|index| self.filter_chains.get(index))
            .or(self.default_filter_chain.as_ref())
    }

    /// All its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &ListenAddress> {
        std::iter::once(&self.address).chain(self.additional.iter().map(|(address, _)| address))
    }

    /// The options of its sockets at an address.
    pub fn socket_options_at(&self, address: &ListenAddress) -> &Arc<[ListenOption]> {
        let further = self.additional.iter().find(|(further, _)| further == address);
        further.map_or(&self.socket_options, |(_, options)| options)
    }

    /// The clusters that its connections use without demanding them individually.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        let chains = self.filter_chains.iter().chain(&self.default_filter_chain);
        let of_chains = chains.flat_map(|chain| {
            let (tcp, table) = match &chain.terminal {
                Terminal::Tcp(proxy) if proxy.on_demand.is_none() => (Some(&proxy.clusters), None),
                Terminal::Tcp(_) => (None, None),
                Terminal::Http(manager) => match &manager.routes {
                    RouteSource::Static(table) => (None, Some(table)),
                    RouteSource::Rds(_) => (None, None),
                },
            };
            let tcp = tcp.into_iter().flatten().map(|entry| &entry.cluster);
            let of_filters = chain.needs().flat_map(FilterNeeds::clusters);
            let of_reports = chain.collector().into_iter().chain(chain.log_services());
            tcp.chain(table.into_iter().flat_map(|table| table.clusters())).chain(of_filters).chain(of_reports)
        });
        let of_udp = self.udp.iter().flat_map(|udp| udp.clusters());
        of_chains.chain(of_udp).chain(self.access_logs.iter().filter_map(|log| log.service()))
    }

    /// Notes that a connection was handed over to it.
    pub fn mark_used(&self) {
        // Avoids writing a cache line for each connection that all workers read.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Whether a connection was handed over since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.load(Relaxed) && self.used.swap(false, Relaxed)
    }
}

/// The enabled listener filters.
#[derive(Debug, Clone, Default)]
pub struct ListenerFilters {
    /// Read a PROXY protocol header before anything else.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Restore the address the client connected to before a redirect (`SO_ORIGINAL_DST`).
    pub original_dst: bool,
    /// Connect upstream with the client's address as the source, and with this mark; 0: without a mark of its own.
    pub original_src: Option<u32>,
    /// Read the ClientHello: transport protocol, SNI, ALPN.
    pub tls_inspector: bool,
    /// Original destination ports that the TLS inspector skips (`filter_disabled`).
    pub tls_inspector_disabled: PortPredicate,
    /// Distinguish HTTP from other plaintext: application protocol `http/1.0`, `http/1.1` or `h2c`.
    pub http_inspector: bool,
    /// Original destination ports that the HTTP inspector skips (`filter_disabled`).
    pub http_inspector_disabled: PortPredicate,
    /// How long the filters may wait for bytes; `None`: no limit.
    pub timeout: Option<Duration>,
    /// After the timeout, continue with what is known instead of closing the connection.
    pub continue_on_timeout: bool,
}

impl ListenerFilters {
    /// Whether the TLS inspector inspects connections to this port.
    pub fn inspects_tls(&self, destination_port: u16) -> bool {
        self.tls_inspector && !self.tls_inspector_disabled.matches(destination_port)
    }

    /// Whether the HTTP inspector inspects connections to this port.
    pub fn inspects_http(&self, destination_port: u16) -> bool {
        self.http_inspector && !self.http_inspector_disabled.matches(destination_port)
    }
}

/// `ListenerFilterChainMatchPredicate` over destination ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortPredicate {
    /// No port.
    #[default]
    Never,
    /// Every port.
    Any,
    /// `[start, end)`.
    Range(std::ops::Range<u32>),
    /// One of them.
    Or(Vec<PortPredicate>),
    /// All of them.
    And(Vec<PortPredicate>),
    /// Not it.
    Not(Box<PortPredicate>),
}

impl PortPredicate {
    /// Whether the predicate holds for `port`.
    pub fn matches(&self, port: u16) -> bool {
        match self {
            Self::Never => false,
            Self::Any => true,
            Self::Range(range) => range.contains(&u32::from(port)),
            Self::Or(rules) => rules.iter().any(|rule| rule.matches(port)),
            Self::And(rules) => rules.iter().all(|rule| rule.matches(port)),
            Self::Not(rule) => !rule.matches(port),
        }
    }
}

/// One filter chain.
#[derive(Debug)]
pub struct FilterChain {
    /// Name, for logs and statistics; may be empty.
    pub name: Arc<str>,
    /// Which connections it matches.
    pub matches: FilterChainMatch,
    /// TLS termination; `None` is plaintext.
    pub tls: Option<Arc<DownstreamTls>>,
    /// How long the TLS handshake may take (`transport_socket_connect_timeout`, 15 s when unset).
    pub handshake_timeout: Duration,
    /// Network filters before the terminal one.
    pub network_filters: Vec<NetworkFilter>,
    /// The terminal filter, which serves the connection.
    pub terminal: Terminal,
}

impl FilterChain {
    /// What its filters need, network filters first.
    fn needs(&self) -> impl Iterator<Item = &dyn FilterNeeds> {
        let of_requests = match &self.terminal {
            Terminal::Http(hcm) => hcm.filters.as_slice(),
            Terminal::Tcp(_) => &[],
        };
        let of_connections = self.network_filters.iter().map(|filter| filter.config.needs());
        of_connections.chain(of_requests.iter().map(|filter| filter.config.needs()))
    }

    /// The cluster that gets the spans of its requests.
    fn collector(&self) -> Option<&Arc<str>> {
        let Terminal::Http(hcm) = &self.terminal else { return None };
        hcm.tracing.as_ref()?.provider.as_ref().map(|provider| provider.cluster())
    }

    /// The clusters that get the access logs of its requests and connections.
    fn log_services(&self) -> impl Iterator<Item = &Arc<str>> {
        let logs = match &self.terminal {
            Terminal::Tcp(proxy) => &proxy.access_logs,
            Terminal::Http(manager) => &manager.access_logs,
        };
        logs.iter().filter_map(|log| log.service())
    }

    /// Whether a filter sends the client's certificate to another service.
    pub fn sends_certificate(&self) -> bool {
        self.needs().any(FilterNeeds::sends_certificate)
    }
}

/// A network filter before the terminal one.
#[derive(Debug)]
pub struct NetworkFilter {
    /// Its name.
    pub name: Arc<str>,
    /// Its type and configuration.
    pub config: NetworkFilterConfig,
}

/// The terminal network filter.
#[derive(Debug)]
pub enum Terminal {
    /// `envoy.filters.network.http_connection_manager`.
    Http(Arc<HttpConnectionManager>),
    /// `envoy.filters.network.tcp_proxy`.
    Tcp(Arc<TcpProxy>),
}

/// `envoy.filters.network.tcp_proxy`.
#[derive(Debug)]
pub struct TcpProxy {
    /// Statistics prefix `tcp.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// Destination clusters, by weight.
    pub clusters: Vec<WeightedTcpCluster>,
    /// Connections without a byte in either direction for this long are closed; `None`: never. 1 h when unset.
    pub idle_timeout: Option<Duration>,
    /// Connections are closed after this long in any case.
    pub max_downstream_connection_duration: Option<Duration>,
    /// Attempts to connect upstream, 1 when unset.
    pub max_connect_attempts: u32,
    /// One entry per connection.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// The hash is computed of the client's address, for clusters that pick endpoints by hash.
    pub hash_source_ip: bool,
    /// Missing clusters are requested on demand, and the connection is held meanwhile (`on_demand`).
    pub on_demand: Option<OnDemandClusters>,
    /// A client that sends SNI goes to the cluster of that name (`envoy.filters.network.sni_cluster` precedes the filter).
    pub cluster_from_sni: bool,
    /// Metadata match criteria of the subset for such clients.
    pub metadata_match: Option<MetadataMatch>,
    /// The bytes are sent inside an HTTP tunnel.
    pub tunneling: Option<Tunneling>,
}

/// `TcpProxy.TunnelingConfig`: the cluster's hosts are proxies, and CONNECT or POST tells them the destination.
#[derive(Debug)]
pub struct Tunneling {
    /// The destination: a name or address with its port.
    pub hostname: Format,
    /// Headers to send with the tunnel request.
    pub headers: Vec<HeaderAddition>,
    /// The tunnel is requested by POST to this path (`use_post`, `post_path`), over HTTP/2 only; `None`: by CONNECT.
    pub post: Option<Box<str>>,
    /// Access logs can print the response's headers (`propagate_response_headers`).
    pub keep_headers: bool,
    /// Access logs can print the response's trailers (`propagate_response_trailers`).
    pub keep_trailers: bool,
}

/// A share of a TCP proxy's connections.
#[derive(Debug)]
pub struct WeightedTcpCluster {
    /// Cluster name.
    pub cluster: Arc<str>,
    /// Share out of the sum of weights.
    pub weight: u32,
    /// Metadata match criteria of their subset.
    pub metadata_match: Option<MetadataMatch>,
}

impl TcpProxy {
    /// The cluster of a connection, and the metadata of the subset there: the cluster named by its SNI if
    /// `cluster_from_sni` is set, else one picked at random by weight.
    pub fn destination<'p>(
        &'p self,
        server_name: Option<&'p Arc<str>>,
        random: u64,
    ) -> Option<(&'p Arc<str>, Option<&'p MetadataMatch>)> {
        match server_name.filter(|_| self.cluster_from_sni) {
            Some(server_name) => Some((server_name, self.metadata_match.as_ref())),
            None => self.pick_cluster(random).map(|entry| (&entry.cluster, entry.metadata_match.as_ref())),
        }
    }

    /// The cluster for a random number, by weight. `None` only without clusters, which the compiler rejects.
    fn pick_cluster(&self, random: u64) -> Option<&WeightedTcpCluster> {
        let total: u64 = self.clusters.iter().map(|entry| u64::from(entry.weight)).sum();
        let mut point = random % total.max(1);
        for entry in &self.clusters {
            match point.checked_sub(u64::from(entry.weight)) {
                None => return Some(entry),
                Some(rest) => point = rest,
            }
        }
        self.clusters.last()
    }
}
