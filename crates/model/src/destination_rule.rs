//! DestinationRules: how a service is called.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::Span;
use evenkeel_base::hostname::Hostname;

use crate::{Labels, Viewer, Visibility};

/// How clients call a host.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationRule {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// The host, as full name; may be a wildcard.
    pub host: Hostname,
    /// Who sees it.
    pub export_to: Visibility,
    /// Only clients with these labels (in its own namespace) use it; empty = all.
    pub workload_selector: Labels,
    /// For all subsets that do not say otherwise.
    pub traffic_policy: TrafficPolicy,
    /// Parts of the service.
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
    /// What it overrides.
    pub traffic_policy: TrafficPolicy,
    /// Where it was written.
    pub origin: Span,
}

/// Settings of a connection to a service. A field that is not given is left to the level above, in the end to the
/// mesh's defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrafficPolicy {
    /// Which endpoint gets the next request.
    pub load_balancer: Option<LoadBalancer>,
    /// Limits on connections and requests.
    pub connection_pool: Option<ConnectionPool>,
    /// TLS towards the endpoints; none given = mutual TLS of the mesh where the endpoint has a proxy.
    pub tls: Option<ClientTls>,
    /// Which endpoints are left out for what they do.
    pub outlier_detection: Option<OutlierDetection>,
    /// Retries as a share of requests.
    pub retry_budget: Option<RetryBudget>,
    /// Endpoints are told who the client is.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Settings for single ports, by number. They replace those of the service, field by field not inherited.
    pub ports: BTreeMap<u16, TrafficPolicy>,
}

/// Which endpoints are left out for what they do. What is not given is Envoy's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutlierDetection {
    /// Answers of 5xx in a row; 0 = off.
    pub consecutive_5xx: Option<u32>,
    /// Answers of 502, 503, 504 in a row; 0 = off.
    pub consecutive_gateway: Option<u32>,
    /// Local failures in a row; counted only if `split_local_origin`.
    pub consecutive_local_origin: Option<u32>,
    /// Local failures are told apart from what endpoints answer.
    pub split_local_origin: bool,
    /// Between two looks at who may come back.
    pub interval: Option<Duration>,
    /// How long the first ejection lasts.
    pub base_ejection_time: Option<Duration>,
    /// How many endpoints may be left out, in percent.
    pub max_ejection_percent: Option<u32>,
    /// With fewer healthy endpoints than this all are used, in percent; 0 = never.
    pub min_health_percent: u32,
}

/// Retries as a share of requests, instead of a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryBudget {
    /// The share, in percent.
    pub percent: u32,
    /// Retries that are always allowed.
    pub min_concurrency: u32,
}

/// Probes of idle connections; what is not given is the system's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TcpKeepalive {
    /// How many unanswered ones end a connection.
    pub probes: Option<u32>,
    /// Idle time before the first.
    pub time: Option<Duration>,
    /// Between them.
    pub interval: Option<Duration>,
}

/// Which endpoint gets the next request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadBalancer {
    /// By which rule; none given = the mesh's default.
    pub policy: Option<LbPolicy>,
    /// How localities share requests; none given = the mesh's setting.
    pub locality: Option<LocalityLb>,
    /// How new endpoints begin.
    pub warmup: Option<Warmup>,
}

/// How localities share requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalityLb {
    /// Switched off here, whatever the mesh says.
    pub disabled: bool,
    /// Shares by where requests come from (`region/zone/subzone`, `*` stands for the rest): percentages by where they go.
    pub distribute: Vec<(Arc<str>, Shares)>,
    /// Which region to go to, by the client's, when nothing is left there.
    pub failover: Vec<(Arc<str>, Arc<str>)>,
    /// Labels (`NAME`, or `NAME=VALUE` whatever the client's is) in which endpoints ought to agree with the client, the most
    /// important first.
    pub failover_priority: Vec<Arc<str>>,
}

/// Percentages of requests by the locality they go to.
pub type Shares = Vec<(Arc<str>, u32)>;

/// How new endpoints begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmup {
    /// Until an endpoint gets all of its share.
    pub duration: Duration,
    /// The least part of its share, in percent.
    pub minimum_percent: Option<f64>,
    /// Above 1 it grows faster at first.
    pub aggression: Option<f64>,
}

/// What requests must agree in to go to the same endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashKey {
    /// A header.
    Header(Arc<str>),
    /// A cookie, made if the client has none and a time to live is given.
    Cookie {
        /// Its name.
        name: Arc<str>,
        /// Its path; may be empty.
        path: Arc<str>,
        /// How long it lives; zero = until the browser ends.
        ttl: Option<Duration>,
        /// What else it says; values may be empty.
        attributes: Vec<(Arc<str>, Arc<str>)>,
    },
    /// The client's address.
    SourceIp,
    /// A query parameter.
    QueryParameter(Arc<str>),
}

/// How hashes lead to endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashTable {
    /// A ring of at least so many points.
    Ring(Option<u32>),
    /// A Maglev table of so many entries.
    Maglev(Option<u32>),
}

/// The rule by which endpoints are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LbPolicy {
    /// By hash.
    ConsistentHash(HashKey, HashTable),
    /// In turn.
    RoundRobin,
    /// The less busy of two random ones; Istio's default.
    LeastRequest,
    /// A random one.
    Random,
    /// The address the client called.
    Passthrough,
}

/// Limits on connections and requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionPool {
    /// Connections to all endpoints together.
    pub max_connections: Option<u32>,
    /// Until a connection is made.
    pub connect_timeout: Option<Duration>,
    /// Requests that wait for a connection (`http1MaxPendingRequests`).
    pub max_pending_requests: Option<u32>,
    /// Requests per connection before it is closed; 0 = unlimited.
    pub max_requests_per_connection: Option<u32>,
    /// Requests at a time to all endpoints together (`http2MaxRequests`).
    pub max_requests: Option<u32>,
    /// Retries at a time to all endpoints together.
    pub max_retries: Option<u32>,
    /// Connections without a request are closed after this long.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may last.
    pub max_connection_duration: Option<Duration>,
    /// Probes of idle connections.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// TCP connections on which nothing moves are closed after this long; zero = never.
    pub tcp_idle_timeout: Option<Duration>,
    /// HTTP/1.1 goes on as HTTP/2.
    pub h2_upgrade: bool,
    /// Requests go on in the protocol they came in.
    pub use_client_protocol: bool,
    /// Requests at a time on one HTTP/2 connection; 0 = Envoy's default.
    pub max_concurrent_streams: Option<u32>,
    /// PINGs on HTTP/2 connections.
    pub http2_keepalive: Option<Http2Keepalive>,
}

/// PINGs on HTTP/2 connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2Keepalive {
    /// Between them.
    pub interval: Duration,
    /// A connection whose PING is not answered within this is closed.
    pub timeout: Duration,
}

/// Form of the header that tells endpoints who the client is.
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
    /// None, even if the endpoint has a proxy.
    Disable,
    /// The server shows a certificate.
    Simple {
        /// The name sent to the server.
        sni: Option<Arc<str>>,
        /// Names of which the server's certificate must have one; empty = the SNI is checked instead.
        subject_alt_names: Vec<Arc<str>>,
        /// A file with the roots to trust; the system's if none is given.
        ca_certificates: Option<Arc<str>>,
        /// Accept any certificate.
        insecure_skip_verify: bool,
    },
    /// Both show certificates, ours from files.
    Mutual {
        /// The name sent to the server.
        sni: Option<Arc<str>>,
        /// Names of which the server's certificate must have one.
        subject_alt_names: Vec<Arc<str>>,
        /// A file with the roots to trust; the system's if none is given.
        ca_certificates: Option<Arc<str>>,
        /// A file with our chain.
        client_certificate: Arc<str>,
        /// A file with our key.
        private_key: Arc<str>,
        /// Accept any certificate.
        insecure_skip_verify: bool,
    },
    /// Mutual TLS of the mesh.
    IstioMutual {
        /// The name sent to the server; Istio's `outbound_.PORT_.SUBSET_.HOST` if none is given.
        sni: Option<Arc<str>>,
        /// Names of which the server's certificate must have one; the endpoints' identities if empty.
        subject_alt_names: Vec<Arc<str>>,
    },
}

impl DestinationRule {
    /// The subset of this name.
    pub fn subset(&self, name: &str) -> Option<&Subset> {
        self.subsets.iter().find(|s| &*s.name == name)
    }

    /// What applies to a port of the service, or of a subset: the subset's settings over the rule's, and on each level
    /// those of the port instead of the general ones. The result has no `ports`.
    pub fn policy_for(&self, subset: Option<&str>, port: u16) -> TrafficPolicy {
        let base = self.traffic_policy.for_port(port);
        match subset.and_then(|name| self.subset(name)) {
            None => base,
            Some(subset) => {
                let over = subset.traffic_policy.for_port(port);
                TrafficPolicy {
                    load_balancer: over.load_balancer.or(base.load_balancer),
                    connection_pool: over.connection_pool.or(base.connection_pool),
                    tls: over.tls.or(base.tls),
                    outlier_detection: over.outlier_detection.or(base.outlier_detection),
                    retry_budget: over.retry_budget.or(base.retry_budget),
                    proxy_protocol: over.proxy_protocol.or(base.proxy_protocol),
                    ports: BTreeMap::new(),
                }
            }
        }
    }
}

impl TrafficPolicy {
    fn for_port(&self, port: u16) -> TrafficPolicy {
        match self.ports.get(&port) {
            Some(own) => own.clone(),
            None => TrafficPolicy { ports: BTreeMap::new(), ..self.clone() },
        }
    }
}

/// Who asks for a rule.
pub(crate) struct RuleClient<'c, V: ?Sized, S> {
    /// Its namespace, if there are rules for the service.
    pub own: Option<&'c str>,
    /// What sees rules of other namespaces.
    pub viewer: &'c V,
    /// Whether its workload has all these labels.
    pub selected: S,
}

/// The rule that a client uses for a service of `service_namespace`. Istio's order: the client's own namespace, the
/// service's, the `root` namespace; in each a rule for the client's workload first, then the most specific host.
/// `covering` yields the rules of a namespace whose host covers the service's, in that order.
pub(crate) fn applicable<'a, I: IntoIterator<Item = &'a Arc<DestinationRule>>>(
    service_namespace: &str,
    root: &str,
    client: RuleClient<'_, impl Viewer + ?Sized, impl Fn(&Labels) -> bool>,
    covering: impl Fn(&str) -> I,
) -> Option<&'a Arc<DestinationRule>> {
    let RuleClient { own, viewer, selected } = client;
    let in_namespace = |wanted: &str, client_is_here: bool| {
        covering(wanted)
            .into_iter()
            .filter(|r| client_is_here || r.export_to.seen_by(viewer))
            .filter(|r| r.workload_selector.is_empty() || (client_is_here && selected(&r.workload_selector)))
            .min_by_key(|r| r.workload_selector.is_empty())
    };
    // Rules of the root namespace are the mesh's defaults, not the client's own, even for clients that live there.
    let of_client = own.filter(|own| *own != root).and_then(|own| in_namespace(own, true));
    of_client
        .or_else(|| (own != Some(service_namespace)).then(|| in_namespace(service_namespace, false)).flatten())
        .or_else(|| in_namespace(root, own == Some(root)))
}
