//! `envoy.config.cluster.v3.Cluster` and its endpoints, compiled.

mod load_balancer;
mod subset;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::mutual_addresses::MutualAddresses;
use evenkeel_tls::upstream::UpstreamTls;

pub use load_balancer::{
    HashFunction, HashKey, LeastRequest, LoadBalancer, Maglev, Metric, MetricMap, PanicMode, RingHash, SlowStart,
    Utilization, ZoneAware,
};
pub use subset::{SelectorFallback, SubsetConfig, SubsetFallback, SubsetSelector};

use crate::address::EndpointAddress;
use crate::bind::BindConfig;
use crate::dns::{DnsOptions, DnsTarget};
use crate::dynamic_forward_proxy::ForwardProxyCluster;
use crate::filters::metadata_exchange::MetadataExchange;
use crate::hash_policy::HashPolicies;
use crate::hcm::HttpFilter;
use crate::health_check::{EndpointCheck, HealthCheck};
use crate::http2::Http2Options;
use crate::metadata::MetadataMatch;
use crate::mirror::MirrorPolicy;
use crate::outlier_detection::OutlierDetection;
use crate::peer::DestinationService;
use crate::proxy_protocol::{ProxyProtocolVersion, Tlv, TlvSelection};

/// One cluster, with its current endpoints.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Name.
    pub name: Arc<str>,
    /// Name in statistics (`alt_stat_name`, or the name).
    pub stat_name: Arc<str>,
    /// How endpoints are found.
    pub discovery: Discovery,
    /// How an endpoint is picked.
    pub load_balancer: LoadBalancer,
    /// Current endpoints; shared with the previous configuration if they did not change.
    pub endpoints: Arc<EndpointSet>,
    /// Connect timeout (5 s when unset).
    pub connect_timeout: Duration,
    /// Transport for endpoints that no `transport_socket_matches` entry matches.
    pub transport: Transport,
    /// The first entry whose labels are all in the endpoint's `envoy.transport_socket_match` metadata wins.
    pub transport_matches: Vec<TransportMatch>,
    /// Original destinations that require mutual TLS of the mesh: the first entry of `transport_matches` is for them
    /// (`evenkeel.dev`: `mutual_tls` in the cluster's metadata).
    pub mutual_addresses: MutualAddresses,
    /// The service behind it, as its metadata names it (`istio`: `services`).
    pub service: Option<Arc<DestinationService>>,
    /// Whether it is outside the mesh, as its metadata says (`istio`: `external`).
    pub external: bool,
    /// Whether filters leave the ALPN protocols of its TLS contexts alone (`istio`: `alpn_override`).
    pub keeps_alpn: bool,
    /// The exchange with peers that agree on its protocol (Istio's filter in `filters`).
    pub metadata_exchange: Option<Arc<MetadataExchange>>,
    /// Protocol towards the endpoints.
    pub http: UpstreamHttp,
    /// HTTP filters that each try of a request passes on its way to a host, before the codec, in order.
    pub http_filters: Arc<[HttpFilter]>,
    /// The mirrors of its requests, whatever their routes say (`HttpProtocolOptions.request_mirror_policies`).
    pub mirrors: Option<Arc<[MirrorPolicy]>>,
    /// Limits across all workers.
    pub circuit_breakers: CircuitBreakers,
    /// Active health checks of each host.
    pub health_checks: Option<Arc<[HealthCheck]>>,
    /// Outlier detection, which ejects hosts for their failures.
    pub outlier_detection: Option<Arc<OutlierDetection>>,
    /// Hosts that were never checked are excluded (`ignore_new_hosts_until_first_hc`).
    pub ignore_unchecked_hosts: bool,
    /// A host removed by service discovery is dropped immediately, healthy or not (`ignore_health_on_host_removal`).
    pub ignore_health_on_removal: bool,
    /// Source address and socket options of connections.
    pub bind: BindConfig,
    /// Keep-alive probes of connections (`upstream_connection_options.tcp_keepalive`).
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Panic mode: behaviour when few hosts are healthy.
    pub panic: PanicMode,
    /// Requests are divided among localities by weight (`locality_weighted_lb_config`).
    pub locality_weighted: bool,
    /// How requests are divided among zones; `None`: they are not, because the load balancer cannot, or because the
    /// proxy has no local cluster.
    pub zone_aware: Option<ZoneAware>,
    /// Whether it is the local cluster (`cluster_manager.local_cluster_name`): its hosts are the proxies like this one.
    pub is_local: bool,
    /// How the hosts' weights are computed from their load reports, if the load balancer uses them.
    pub utilization: Option<Arc<Utilization>>,
    /// The proxy's own locality, if it has one: it is listed first among the localities.
    pub own_locality: Option<Arc<str>>,
    /// Load balancer subsets, selected by the metadata of routes.
    pub subsets: Option<Arc<SubsetConfig>>,
    /// The load balancer's own hash policies, which replace the route's.
    pub hash_policies: Arc<HashPolicies>,
    /// The health statuses in which a host may be used for a stateful session (`override_host_status`).
    pub override_host_status: OverrideHostStatus,
    /// Whether connections to all hosts are closed when hosts change (`close_connections_on_host_set_change`).
    pub close_connections_on_host_set_change: bool,
    /// How names are resolved, for DNS clusters.
    pub dns: DnsOptions,
    /// The user's object it was generated from, if the control plane said so.
    pub origin: Option<Arc<str>>,
}

impl Cluster {
    /// A cluster with defaults and no endpoints.
    pub fn named(name: &str, load_balancer: LoadBalancer) -> Self {
        Self {
            name: name.into(),
            stat_name: name.into(),
            discovery: Discovery::Static,
            load_balancer,
            endpoints: Arc::default(),
            connect_timeout: Duration::from_secs(5),
            transport: Transport::Raw,
            transport_matches: Vec::new(),
            mutual_addresses: MutualAddresses::default(),
            service: None,
            external: false,
            keeps_alpn: false,
            metadata_exchange: None,
            http: UpstreamHttp::default(),
            http_filters: Arc::default(),
            mirrors: None,
            circuit_breakers: CircuitBreakers::default(),
            health_checks: None,
            outlier_detection: None,
            ignore_unchecked_hosts: false,
            ignore_health_on_removal: false,
            bind: BindConfig::default(),
            tcp_keepalive: None,
            panic: PanicMode::default(),
            locality_weighted: false,
            zone_aware: None,
            is_local: false,
            utilization: None,
            own_locality: None,
            subsets: None,
            hash_policies: Arc::default(),
            override_host_status: OverrideHostStatus::default(),
            close_connections_on_host_set_change: false,
            dns: DnsOptions::default(),
            origin: None,
        }
    }
}

/// The health statuses in which a stateful session may use its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct OverrideHostStatus {
    pub healthy: bool,
    pub degraded: bool,
    pub draining: bool,
    pub unhealthy: bool,
}

impl Default for OverrideHostStatus {
    fn default() -> Self {
        Self { healthy: true, degraded: true, draining: false, unhealthy: false }
    }
}

impl OverrideHostStatus {
    /// Whether a host of this health may be used.
    pub fn allows(&self, health: Health) -> bool {
        match health {
            Health::Healthy => self.healthy,
            Health::Degraded => self.degraded,
            Health::Draining => self.draining,
            Health::Unhealthy => self.unhealthy,
        }
    }
}

/// How endpoints are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery {
    /// Written in the cluster.
    Static,
    /// EDS under this service name.
    Eds(Arc<str>),
    /// DNS names, each address an endpoint; resolved by the control thread.
    StrictDns(Vec<DnsTarget>),
    /// DNS names, of each of which one current address is used as if it were one host.
    LogicalDns(Vec<DnsTarget>),
    /// The address the client connected to.
    OriginalDst(OriginalDst),
    /// The host that the request calls, resolved by a filter (`envoy.clusters.dynamic_forward_proxy`).
    DynamicForwardProxy(ForwardProxyCluster),
}

impl Discovery {
    /// Whether there is no list of hosts: each call determines its host.
    pub fn is_by_call(&self) -> bool {
        matches!(self, Self::OriginalDst(_) | Self::DynamicForwardProxy(_))
    }
}

impl Cluster {
    /// The transport to an original destination.
    pub fn transport_to(&self, address: SocketAddr) -> &Transport {
        match self.transport_matches.first() {
            Some(mutual) if self.mutual_addresses.contains(address) => &mutual.transport,
            _ => &self.transport,
        }
    }
}

/// `original_dst_lb_config`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginalDst {
    /// Use this port instead of the one the client connected to.
    pub port_override: Option<u16>,
}

/// A cluster's endpoints.
#[derive(Debug, Clone)]
pub struct EndpointSet {
    /// Hosts of all priorities and localities.
    pub hosts: Vec<Arc<Endpoint>>,
    /// Healthy hosts count as this percentage of themselves before requests spill over to the next priority (140 when unset).
    pub overprovisioning_percent: u32,
    /// The healthy part of a priority is measured by host weights, not by number of hosts.
    pub weighted_priority_health: bool,
    /// This many of a million requests are dropped (`drop_overloads`).
    pub drop_overload_ppm: u32,
}

impl Default for EndpointSet {
    fn default() -> Self {
        Self { hosts: Vec::new(), overprovisioning_percent: 140, weighted_priority_health: false, drop_overload_ppm: 0 }
    }
}

impl Endpoint {
    /// A healthy endpoint of weight 1.
    pub fn at(address: EndpointAddress) -> Self {
        Self {
            address,
            further: Vec::new(),
            hostname: "".into(),
            weight: 1,
            health: Health::Healthy,
            priority: 0,
            locality: "".into(),
            locality_weight: 0,
            hash_key: None,
            lb_metadata: MetadataMatch::default(),
            workload: None,
            transport_labels: Vec::new(),
            transport_index: None,
            check: EndpointCheck::default(),
        }
    }
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Its address.
    pub address: EndpointAddress,
    /// Further addresses of the same host (LOGICAL_DNS), in the order in which they are tried if the first does not answer.
    pub further: Vec<SocketAddr>,
    /// Host name, for `auto_host_rewrite` and logs.
    pub hostname: Arc<str>,
    /// Load balancing weight, 1 when unset.
    pub weight: u32,
    /// Health status from EDS.
    pub health: Health,
    /// Priority; 0 is used first.
    pub priority: u32,
    /// `region/zone/sub_zone`.
    pub locality: Arc<str>,
    /// Weight of its locality; 0 when unset, which means no requests if locality weights are used.
    pub locality_weight: u32,
    /// Its hash key in place of its address (`hash_key` of its `envoy.lb` metadata).
    pub hash_key: Option<Arc<str>>,
    /// Its `envoy.lb` metadata, by which subsets are formed.
    pub lb_metadata: MetadataMatch,
    /// The workload behind it (`istio`: `workload` in its metadata, see [`Peer::parse`](crate::peer::Peer::parse)).
    pub workload: Option<Arc<str>>,
    /// `envoy.transport_socket_match` labels.
    pub transport_labels: Vec<(Box<str>, Box<str>)>,
    /// Index of the matching entry of `Cluster.transport_matches`; `None`: the default transport. Resolved when compiled.
    pub transport_index: Option<usize>,
    /// Whether and at which address it is health checked.
    pub check: EndpointCheck,
}

/// `HealthStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// Receives traffic (`UNKNOWN` and `HEALTHY`).
    #[default]
    Healthy,
    /// Receives traffic when few hosts are healthy.
    Degraded,
    /// Receives none (`UNHEALTHY`, `TIMEOUT`).
    Unhealthy,
    /// Receives no new traffic.
    Draining,
}

/// The transport socket of connections to an endpoint.
#[derive(Debug, Clone)]
pub enum Transport {
    /// Plaintext.
    Raw,
    /// TLS.
    Tls(Arc<UpstreamTls>),
    /// A PROXY protocol header, followed by either of them.
    ProxyProtocol(Arc<ProxyProtocolTransport>),
}

impl Transport {
    /// Whether the bytes sent are encrypted.
    pub fn is_secure(&self) -> bool {
        match self {
            Self::Raw => false,
            Self::Tls(_) => true,
            Self::ProxyProtocol(transport) => transport.inner.is_secure(),
        }
    }
}

/// `envoy.transport_sockets.upstream_proxy_protocol`: connections begin with a header that names the client.
#[derive(Debug)]
pub struct ProxyProtocolTransport {
    /// The header's version.
    pub version: ProxyProtocolVersion,
    /// Which of the client's own TLVs are passed on.
    pub pass_through: TlvSelection,
    /// TLVs added to every connection.
    pub added: Vec<Tlv>,
    /// The transport after the header.
    pub inner: Transport,
}

impl ProxyProtocolTransport {
    /// The TLVs of a connection whose client sent `tlvs`: an added TLV replaces passed-on ones of its type.
    pub fn tlvs(&self, tlvs: &[Tlv]) -> Vec<Tlv> {
        let added = |kind: u8| self.added.iter().any(|tlv| tlv.kind == kind);
        let passed = tlvs.iter().filter(|tlv| self.pass_through.includes(tlv.kind) && !added(tlv.kind));
        self.added.iter().chain(passed).cloned().collect()
    }
}

/// An entry of `transport_socket_matches`.
#[derive(Debug, Clone)]
pub struct TransportMatch {
    /// Name.
    pub name: Arc<str>,
    /// Labels the endpoint must have, all of them.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The transport to use.
    pub transport: Transport,
}

/// `HttpProtocolOptions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamHttp {
    /// Idle upstream connections are closed after this long (1 h when unset); `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A connection is closed after this many requests; `None`: no limit.
    pub max_requests_per_connection: Option<u32>,
    /// A connection accepts no new requests after this long; `None`: no limit.
    pub max_connection_duration: Option<Duration>,
    /// Protocol towards the endpoints.
    pub protocol: UpstreamProtocol,
    /// HTTP/1 trailers are forwarded to the endpoints and accepted from them.
    pub enable_trailers: bool,
    /// Names of headers are passed on over HTTP/1 as the endpoints spell them (`preserve_case`).
    pub preserve_header_case: bool,
    /// Limit of a response's head in bytes; `None`: the protocol's default (80 KiB over HTTP/1, 60 KiB over HTTP/2).
    pub max_response_headers_bytes: Option<usize>,
    /// Limit of header fields in a response's head.
    pub max_headers_count: usize,
    /// The SNI of TLS connections is the host that the request calls (`auto_sni`).
    pub auto_sni: bool,
    /// The server's certificate must have the host that the request calls (`auto_san_validation`).
    pub auto_san_validation: bool,
}

impl UpstreamHttp {
    /// Whether a TLS connection serves only requests that call the same host.
    pub fn names_server(&self) -> bool {
        self.auto_sni || self.auto_san_validation
    }
}

impl Default for UpstreamHttp {
    fn default() -> Self {
        Self {
            idle_timeout: Some(Duration::from_secs(3600)),
            max_requests_per_connection: None,
            max_connection_duration: None,
            protocol: UpstreamProtocol::Http1,
            enable_trailers: false,
            preserve_header_case: false,
            max_response_headers_bytes: None,
            max_headers_count: 100,
            auto_sni: false,
            auto_san_validation: false,
        }
    }
}

/// `upstream_protocol_options`: the protocol towards endpoints, with its HTTP/2 options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, by prior knowledge or ALPN (`explicit_http_config.http2_protocol_options`).
    Http2(Box<Http2Options>),
    /// The protocol the client used (`use_downstream_protocol_config`).
    Downstream(Box<Http2Options>),
    /// The protocol negotiated by ALPN, HTTP/2 preferred (`auto_config`).
    Auto(Box<Http2Options>),
}

/// `CircuitBreakers`, counted across all workers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CircuitBreakers {
    /// For requests of routes with default priority, and for TCP.
    pub default: Thresholds,
    /// For requests of routes with priority `HIGH`.
    pub high: Thresholds,
    /// Connections to one host (`per_host_thresholds`); `None`: no limit.
    pub max_connections_per_host: Option<u32>,
}

/// `CircuitBreakers.Thresholds` of one priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// Connections (1024 when unset).
    pub max_connections: u32,
    /// Requests waiting for a connection (1024).
    pub max_pending_requests: u32,
    /// Requests in flight (1024).
    pub max_requests: u32,
    /// Retries in flight (3), unless there is a budget.
    pub max_retries: u32,
    /// Retries as a share of requests, instead of `max_retries`.
    pub retry_budget: Option<RetryBudget>,
    /// Connection pools, one per worker and host in use (no limit when unset).
    pub max_connection_pools: u32,
    /// Remaining capacity is reported in statistics (`track_remaining`).
    pub track_remaining: bool,
}

/// `RetryBudget`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryBudget {
    /// Retries in flight as a share of requests in flight or waiting, in percent (20 when unset).
    pub percent: f64,
    /// Retries that are always allowed (3 when unset).
    pub min_concurrency: u32,
    /// Requests count for this long, whether or not they have ended; `None`: while they are in flight or waiting.
    pub interval: Option<Duration>,
}

impl Thresholds {
    /// Whether any limit can be reached, or remaining capacity is reported.
    pub fn limits_anything(&self) -> bool {
        let limits = [self.max_connections, self.max_pending_requests, self.max_requests, self.max_retries];
        limits.iter().any(|limit| *limit != u32::MAX) || self.track_remaining || self.max_connection_pools != u32::MAX
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_pending_requests: 1024,
            max_requests: 1024,
            max_retries: 3,
            retry_budget: None,
            max_connection_pools: u32::MAX,
            track_remaining: false,
        }
    }
}

/// `TcpKeepalive`; `None`: the system's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpKeepalive {
    /// Probes before giving up.
    pub probes: Option<u32>,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// Interval between probes.
    pub interval: Option<Duration>,
}
