//! DestinationRules: how clients connect to a service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::Kind;
use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;

use crate::{Labels, Viewer, Visibility};

/// Settings of clients for connections to a host.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationRule {
    /// The kind of the object: a BackendTLSPolicy counts as a DestinationRule if there is no other.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// The host, as full name; may be a wildcard.
    pub host: Hostname,
    /// The namespaces that see it.
    pub export_to: Visibility,
    /// Only clients in its own namespace that have these labels use it; `None` = all that see it.
    pub workload_selector: Option<Labels>,
    /// `exportTo` as it is written, which decides with which rules it is merged.
    pub(crate) export_list: BTreeSet<Arc<str>>,
    /// The settings of all subsets that do not override them.
    pub traffic_policy: TrafficPolicy,
    /// Its subsets.
    pub subsets: Vec<Subset>,
    /// Where it was written.
    pub origin: Span,
}

/// A part of a service's endpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Subset {
    /// Its name.
    pub name: Arc<str>,
    /// Labels its endpoints have.
    pub labels: Labels,
    /// The settings that it overrides.
    pub traffic_policy: TrafficPolicy,
    /// Where it was written.
    pub origin: Span,
}

/// Settings of connections to a service. A field that is not set is inherited from the level above, in the end from the
/// mesh's defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrafficPolicy {
    /// How an endpoint is selected.
    pub load_balancer: Option<LoadBalancer>,
    /// Limits on connections and requests.
    pub connection_pool: Option<ConnectionPool>,
    /// TLS towards the endpoints; if not set, mutual TLS of the mesh where the endpoint has a proxy.
    pub tls: Option<ClientTls>,
    /// Outlier detection.
    pub outlier_detection: Option<OutlierDetection>,
    /// Retries as a share of requests.
    pub retry_budget: Option<RetryBudget>,
    /// The PROXY protocol header that connections begin with.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The tunnel for TCP and TLS connections.
    pub tunnel: Option<Tunnel>,
    /// Settings for single ports, by number. They replace all settings of this level; nothing is inherited.
    pub ports: BTreeMap<u16, TrafficPolicy>,
}

/// A tunnel through the service to another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Whether it is requested by POST instead of CONNECT.
    pub by_post: bool,
    /// The host behind it, `HOST:PORT`.
    pub target: Arc<str>,
}

/// Outlier detection. Fields that are not set have Envoy's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutlierDetection {
    /// Consecutive answers of 5xx; 0 = off.
    pub consecutive_5xx: Option<u32>,
    /// Consecutive answers of 502, 503 and 504; 0 = off.
    pub consecutive_gateway: Option<u32>,
    /// Consecutive local failures; used only with `split_local_origin`.
    pub consecutive_local_origin: Option<u32>,
    /// Whether local failures (such as failed connections) are counted apart from errors that endpoints return.
    pub split_local_origin: bool,
    /// Time between two checks for endpoints that may return.
    pub interval: Option<Duration>,
    /// How long the first ejection lasts.
    pub base_ejection_time: Option<Duration>,
    /// The largest share of endpoints that may be ejected, in percent.
    pub max_ejection_percent: Option<u32>,
    /// Minimum share of healthy endpoints, in percent: with fewer, all endpoints are used. 0 = never, also if not set.
    pub min_health_percent: Option<u32>,
    /// The share of a failing endpoint's answers that are errors, in percent; 0 = off, also if not set.
    pub failure_percentage: Option<u32>,
    /// The statuses that count as errors, ascending; empty: 5xx.
    pub error_codes: Vec<u16>,
}

/// Retries as a share of requests, instead of a number.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryBudget {
    /// The share, in percent.
    pub percent: f64,
    /// Retries that are always allowed.
    pub min_concurrency: u32,
    /// The window in which requests are counted; `None`: requests count while they are active.
    pub interval: Option<Duration>,
}

/// Probes of idle connections; unset fields use the system's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TcpKeepalive {
    /// Number of unanswered probes that end a connection.
    pub probes: Option<u32>,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// Time between two of them.
    pub interval: Option<Duration>,
}

/// How an endpoint is selected.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadBalancer {
    /// The algorithm; the mesh's default if not set.
    pub policy: Option<LbPolicy>,
    /// Locality-aware balancing; the mesh's setting if not set.
    pub locality: Option<LocalityLb>,
    /// Zone-aware balancing; the mesh's setting if neither this nor `locality` is set.
    pub zone_aware: Option<ZoneAwareLb>,
    /// Slow start of new endpoints.
    pub warmup: Option<Warmup>,
}

/// How requests are distributed among localities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalityLb {
    /// Whether it is the mesh's setting, before which a service's `trafficDistribution` counts.
    pub of_mesh: bool,
    /// Whether it is disabled here, whatever the mesh's setting.
    pub disabled: bool,
    /// By the client's locality (`region/zone/subzone`, where `*` stands for the rest): percentages by the endpoints'
    /// locality.
    pub distribute: Vec<(Arc<str>, Shares)>,
    /// The region to fail over to when the client's region has no healthy endpoint.
    pub failover: Vec<(Arc<str>, Arc<str>)>,
    /// Labels whose values endpoints should share with the client (`NAME`), or that endpoints should have
    /// (`NAME=VALUE`), the most important first.
    pub failover_priority: Vec<Arc<str>>,
}

/// Zone-aware balancing: the client's region first, and within it the client's zone as far as its endpoints can take the
/// requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ZoneAwareLb {
    /// Whether it is the mesh's setting, before which a service's `trafficDistribution` counts.
    pub of_mesh: bool,
    /// Whether it is disabled here, whatever the mesh's setting.
    pub disabled: bool,
    /// Minimum number of healthy endpoints: with fewer, zones are ignored.
    pub min_cluster_size: Option<u32>,
    /// The region to fail over to when the client's region has no healthy endpoint.
    pub failover: Vec<(Arc<str>, Arc<str>)>,
    /// As in [`LocalityLb`]; takes precedence over the region.
    pub failover_priority: Vec<Arc<str>>,
}

impl LoadBalancer {
    /// The zone-aware balancing that applies, if any.
    pub fn zones(&self) -> Option<&ZoneAwareLb> {
        self.zone_aware.as_ref().filter(|zones| !zones.disabled)
    }
}

/// Weights from the load reports of endpoints. What is not given has Envoy's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackendUtilization {
    /// How long an endpoint must have reported before its weight is used.
    pub stabilization: Option<Duration>,
    /// After this long without a report a weight is no longer used.
    pub expiration: Option<Duration>,
    /// How often weights are computed.
    pub update: Option<Duration>,
    /// The percentage by which the error rate increases the utilization.
    pub error_penalty_percent: Option<u32>,
    /// The metrics whose maximum is the utilization.
    pub metrics: Vec<Arc<str>>,
}

/// Percentages of requests by the locality they go to.
pub type Shares = Vec<(Arc<str>, u32)>;

/// Slow start of new endpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmup {
    /// Time until an endpoint gets its full share.
    pub duration: Duration,
    /// The least part of its share, in percent.
    pub minimum_percent: Option<f64>,
    /// Above 1 it grows faster at first.
    pub aggression: Option<f64>,
}

/// The part of a request that is hashed; requests with the same value go to the same endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashKey {
    /// A header.
    Header(Arc<str>),
    /// A cookie, set by the proxy if the client has none and a lifetime is given.
    Cookie {
        /// Its name.
        name: Arc<str>,
        /// Its path; may be empty.
        path: Arc<str>,
        /// Its lifetime; zero = until the browser is closed.
        ttl: Option<Duration>,
        /// Further attributes; values may be empty.
        attributes: Vec<(Arc<str>, Arc<str>)>,
    },
    /// The client's address.
    SourceIp,
    /// A query parameter.
    QueryParameter(Arc<str>),
}

/// The table that maps hashes to endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashTable {
    /// A ring of at least this many points.
    Ring(Option<u32>),
    /// A Maglev table of this size.
    Maglev(Option<u32>),
}

/// The rule by which endpoints are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LbPolicy {
    /// Consistent hashing.
    ConsistentHash(HashKey, HashTable),
    /// Round robin.
    RoundRobin,
    /// The endpoint with fewer requests of two random ones; Istio's default.
    LeastRequest,
    /// A random one.
    Random,
    /// In turn, by weights from the load reports of endpoints.
    BackendUtilization(BackendUtilization),
    /// The address the client called.
    Passthrough,
}

/// Limits on connections and requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionPool {
    /// Connections to all endpoints together.
    pub max_connections: Option<u32>,
    /// Timeout for new connections.
    pub connect_timeout: Option<Duration>,
    /// Requests that wait for a connection (`http1MaxPendingRequests`).
    pub max_pending_requests: Option<u32>,
    /// Requests per connection before it is closed; 0 = unlimited.
    pub max_requests_per_connection: Option<u32>,
    /// Requests at a time to all endpoints together (`http2MaxRequests`).
    pub max_requests: Option<u32>,
    /// Retries at a time to all endpoints together.
    pub max_retries: Option<u32>,
    /// Connections without a request are closed after this time.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may last.
    pub max_connection_duration: Option<Duration>,
    /// Probes of idle connections.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Idle TCP connections are closed after this time; zero = never.
    pub tcp_idle_timeout: Option<Duration>,
    /// Whether HTTP/1.1 requests are forwarded over HTTP/2; the mesh's setting if not set.
    pub h2_upgrade: Option<bool>,
    /// Whether requests are forwarded in the protocol they arrived in.
    pub use_client_protocol: bool,
    /// Requests at a time on one HTTP/2 connection; 0 = Envoy's default.
    pub max_concurrent_streams: Option<u32>,
    /// PINGs on HTTP/2 connections.
    pub http2_keepalive: Option<Http2Keepalive>,
}

impl ConnectionPool {
    /// Returns these limits, with those of the mesh for fields that are not set.
    #[must_use]
    pub fn or(self, mesh: &Self) -> Self {
        Self {
            max_connections: self.max_connections.or(mesh.max_connections),
            connect_timeout: self.connect_timeout.or(mesh.connect_timeout),
            max_pending_requests: self.max_pending_requests.or(mesh.max_pending_requests),
            max_requests_per_connection: self.max_requests_per_connection.or(mesh.max_requests_per_connection),
            max_requests: self.max_requests.or(mesh.max_requests),
            max_retries: self.max_retries.or(mesh.max_retries),
            idle_timeout: self.idle_timeout.or(mesh.idle_timeout),
            max_connection_duration: self.max_connection_duration.or(mesh.max_connection_duration),
            tcp_keepalive: match (self.tcp_keepalive, &mesh.tcp_keepalive) {
                (Some(own), Some(of_mesh)) => Some(own.or(of_mesh)),
                (own, of_mesh) => own.or_else(|| of_mesh.clone()),
            },
            tcp_idle_timeout: self.tcp_idle_timeout.or(mesh.tcp_idle_timeout),
            h2_upgrade: self.h2_upgrade.or(mesh.h2_upgrade),
            use_client_protocol: self.use_client_protocol || mesh.use_client_protocol,
            max_concurrent_streams: self.max_concurrent_streams.or(mesh.max_concurrent_streams),
            http2_keepalive: self.http2_keepalive.or(mesh.http2_keepalive),
        }
    }
}

impl TcpKeepalive {
    /// Returns these probes, with those of the mesh for fields that are not set.
    #[must_use]
    pub fn or(self, mesh: &Self) -> Self {
        Self {
            probes: self.probes.or(mesh.probes),
            time: self.time.or(mesh.time),
            interval: self.interval.or(mesh.interval),
        }
    }
}

impl OutlierDetection {
    /// Returns this detection, with that of the mesh for fields that are not set.
    #[must_use]
    pub fn or(self, mesh: &Self) -> Self {
        Self {
            consecutive_5xx: self.consecutive_5xx.or(mesh.consecutive_5xx),
            consecutive_gateway: self.consecutive_gateway.or(mesh.consecutive_gateway),
            consecutive_local_origin: self.consecutive_local_origin.or(mesh.consecutive_local_origin),
            split_local_origin: self.split_local_origin || mesh.split_local_origin,
            interval: self.interval.or(mesh.interval),
            base_ejection_time: self.base_ejection_time.or(mesh.base_ejection_time),
            max_ejection_percent: self.max_ejection_percent.or(mesh.max_ejection_percent),
            min_health_percent: self.min_health_percent.or(mesh.min_health_percent),
            failure_percentage: self.failure_percentage.or(mesh.failure_percentage),
            error_codes: if self.error_codes.is_empty() { mesh.error_codes.clone() } else { self.error_codes },
        }
    }
}

/// PINGs on HTTP/2 connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2Keepalive {
    /// Time between two of them.
    pub interval: Duration,
    /// A connection whose PING is not answered within this is closed.
    pub timeout: Duration,
}

/// Version of the PROXY protocol header, which tells endpoints the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// TLS of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTls {
    /// No TLS, even if the endpoint has a proxy.
    Disable,
    /// TLS to a server outside the mesh (`SIMPLE`, `MUTUAL`).
    Outside(Box<OutsideTls>),
    /// Mutual TLS of the mesh.
    IstioMutual {
        /// The name sent to the server; Istio's `outbound_.PORT_.SUBSET_.HOST` if none is given.
        sni: Option<Arc<str>>,
        /// Names, one of which the server's certificate must have; the endpoints' identities if empty.
        subject_alt_names: Vec<Arc<str>>,
        /// A file with revocation lists for servers' certificates.
        revocation_lists: Option<Arc<str>>,
    },
}

/// TLS to a server outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideTls {
    /// The name sent to the server; that of the call if none is given.
    pub sni: Option<Arc<str>>,
    /// Names, one of which the server's certificate must have; empty = the SNI is checked instead.
    pub subject_alt_names: Vec<Arc<str>>,
    /// A file with the roots to trust; the system's if none is given.
    pub ca_certificates: Option<Arc<str>>,
    /// A file with revocation lists.
    pub revocation_lists: Option<Arc<str>>,
    /// Files with the client's certificate chain and key (`MUTUAL`).
    pub client_certificate: Option<(Arc<str>, Arc<str>)>,
    /// The Secret with all of these. Sidecars use it only if the rule selects them.
    pub credential: Option<Arc<str>>,
    /// The Secret with the roots to trust, if it is another one.
    pub roots_credential: Option<Arc<str>>,
    /// Whether the client shows a certificate (`MUTUAL`).
    pub is_mutual: bool,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
    /// Set if a BackendTLSPolicy asks for it: the roots are then those of the policy.
    pub of_backend: Option<BackendTls>,
}

/// What is particular to TLS that a BackendTLSPolicy asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTls {
    /// The policy's name.
    pub policy: Arc<str>,
    /// The roots to trust.
    pub roots: BackendRoots,
}

/// The roots that a BackendTLSPolicy names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendRoots {
    /// Those of the system.
    System,
    /// These certificates.
    Pem(Arc<[u8]>),
    /// None that can be used: no connection is made.
    Unresolved,
}

impl OutsideTls {
    /// The Secret with the roots to trust.
    pub fn roots_secret(&self) -> Option<&Arc<str>> {
        self.roots_credential.as_ref().or(self.credential.as_ref())
    }
}

impl TrafficPolicy {
    /// Sets TLS of a port, or of all ports, whatever is set so far.
    pub(crate) fn set_tls(&mut self, port: Option<u16>, tls: &ClientTls) {
        match port {
            None => {
                self.tls = Some(tls.clone());
                self.ports.values_mut().for_each(|policy| policy.tls = Some(tls.clone()));
            }
            Some(port) => {
                let own = self.for_port(port);
                self.ports.insert(port, TrafficPolicy { tls: Some(tls.clone()), ..own });
            }
        }
    }
}

impl DestinationRule {
    /// Sets TLS of a port, or of all ports, in all subsets, whatever is set so far.
    pub(crate) fn set_tls(&mut self, port: Option<u16>, tls: &ClientTls) {
        let in_force: Vec<Option<TrafficPolicy>> =
            self.subsets.iter().map(|subset| port.map(|port| self.policy_for(Some(&subset.name), port))).collect();
        for (subset, in_force) in self.subsets.iter_mut().zip(in_force) {
            // Settings of a port replace all others, so they have to be complete.
            subset.traffic_policy.ports.extend(port.zip(in_force));
            subset.traffic_policy.set_tls(port, tls);
        }
        self.traffic_policy.set_tls(port, tls);
    }
}

impl DestinationRule {
    /// The subset of this name.
    pub fn subset(&self, name: &str) -> Option<&Subset> {
        self.subsets.iter().find(|s| &*s.name == name)
    }

    /// The settings for a port of the service or of a subset, as Istio's `MergeSubsetTrafficPolicy`. On each level those
    /// of the port replace the general ones as a whole. The subset's general settings override those of the rule one by
    /// one; its settings of the port replace them, also those that it leaves out. The result has no `ports`.
    pub fn policy_for(&self, subset: Option<&str>, port: u16) -> TrafficPolicy {
        let base = self.traffic_policy.for_port(port);
        let Some(subset) = subset.and_then(|name| self.subset(name)) else { return base };
        let over = subset.traffic_policy.for_port(port);
        let further = TrafficPolicy {
            retry_budget: over.retry_budget.or(base.retry_budget),
            proxy_protocol: over.proxy_protocol.or(base.proxy_protocol),
            tunnel: over.tunnel.or(base.tunnel),
            ..TrafficPolicy::default()
        };
        let (load_balancer, connection_pool) = (over.load_balancer, over.connection_pool);
        let (tls, outlier_detection) = (over.tls, over.outlier_detection);
        if subset.traffic_policy.ports.contains_key(&port) {
            TrafficPolicy { load_balancer, connection_pool, tls, outlier_detection, ..further }
        } else {
            TrafficPolicy {
                load_balancer: load_balancer.or(base.load_balancer),
                connection_pool: connection_pool.or(base.connection_pool),
                tls: tls.or(base.tls),
                outlier_detection: outlier_detection.or(base.outlier_detection),
                ..further
            }
        }
    }
}

impl TrafficPolicy {
    fn for_port(&self, port: u16) -> TrafficPolicy {
        match self.ports.get(&port) {
            // As in Istio's `GetPortLevelTrafficPolicy`: nothing is inherited, not even what a port cannot have.
            Some(own) => own.clone(),
            None => TrafficPolicy { ports: BTreeMap::new(), ..self.clone() },
        }
    }
}

/// The client for which a rule is looked up.
pub(crate) struct RuleClient<'c, V: ?Sized, S> {
    /// Its namespace, if there are rules for the service.
    pub own: Option<&'c str>,
    /// Decides which rules of other namespaces the client sees.
    pub viewer: &'c V,
    /// Whether its workload has all these labels.
    pub selected: S,
}

/// The rule that a client uses for a service of `service_namespace`. Istio's order (`destinationRule` of its push context):
/// the client's own namespace, the service's, the `root` namespace. In the client's own the most specific host of which the
/// client has a rule decides: the first rule for its workload, otherwise one for all. In the others the most specific host
/// of which a rule is exported at all decides, even if the client does not see that rule. Of several rules for one host,
/// which are exported differently, the last counts. Unlike in Istio, rules for other workloads do not hide those of
/// other hosts and namespaces. `covering` yields the rules of a namespace whose host covers the service's, the most specific
/// first.
pub(crate) fn applicable<'a, I: IntoIterator<Item = &'a Arc<DestinationRule>>>(
    service_namespace: &str,
    root: &str,
    client: RuleClient<'_, impl Viewer + ?Sized, impl Fn(&Labels) -> bool>,
    covering: impl Fn(&str) -> I,
) -> Option<&'a Arc<DestinationRule>> {
    let RuleClient { own, viewer, selected } = client;
    let is_private =
        |rule: &DestinationRule| rule.workload_selector.is_some() || rule.export_to.is_private(&rule.namespace);
    let local = |wanted: &str, only_private: bool| {
        let all: Vec<_> = covering(wanted).into_iter().filter(|rule| !only_private || is_private(rule)).collect();
        all.chunk_by(|a, b| a.host == b.host).find_map(|of_host| {
            // A rule for some workloads is for those of its own namespace, whatever its `exportTo`.
            let is_for_it = |rule: &&&Arc<DestinationRule>| rule.workload_selector.as_ref().is_some_and(&selected);
            let is_for_all =
                |rule: &&&Arc<DestinationRule>| rule.workload_selector.is_none() && rule.export_to.seen_by(viewer);
            of_host.iter().find(is_for_it).or_else(|| of_host.iter().rfind(is_for_all)).copied()
        })
    };
    let exported = |wanted: &str| {
        let all: Vec<_> = covering(wanted).into_iter().filter(|rule| !is_private(rule)).collect();
        let host = &all.first()?.host;
        all.iter().rfind(|rule| rule.host == *host && rule.export_to.seen_by(viewer)).copied()
    };
    // Rules of the root namespace are the mesh's defaults, not the client's own, even for clients that live there, unless
    // only those see them.
    own.and_then(|own| local(own, own == root))
        .or_else(|| (own != Some(service_namespace)).then(|| exported(service_namespace)).flatten())
        .or_else(|| exported(root))
}
