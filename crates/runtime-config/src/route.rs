//! `envoy.config.route.v3.RouteConfiguration`, compiled.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::re2::Regex;

use crate::dynamic_metadata::{DynamicMetadata, MetadataMatcher};
use crate::hash_policy::HashPolicies;
use crate::header_edits::HeaderEdits;
use crate::matching::{HeaderMatcher, QueryParameterMatcher};
use crate::metadata::MetadataMatch;
use crate::mirror::{MirrorCluster, MirrorPolicy};
use crate::rate_limit::RouteRateLimits;
use crate::retry::RetryPolicy;
use crate::route_filters::FilterOverrides;
use crate::tracing::RouteTracing;

/// A virtual host.
#[derive(Debug)]
pub struct VirtualHost {
    /// Name, for statistics, logs and retries.
    pub name: Arc<str>,
    /// Domains it answers for.
    pub domains: Vec<Box<str>>,
    /// Routes; the first that matches wins.
    pub routes: Vec<Arc<Route>>,
    /// Plain-HTTP requests are redirected to https.
    pub require_tls: RequireTls,
    /// Header edits for every route of it.
    pub headers: HeaderEdits,
    /// Send `x-envoy-attempt-count` upstream.
    pub include_request_attempt_count: bool,
    /// Send `x-envoy-attempt-count` downstream.
    pub include_attempt_count_in_response: bool,
    /// Retry policy of routes without one.
    pub retry: Option<Arc<RetryPolicy>>,
    /// Whether it was compiled from files, too.
    pub reads_files: bool,
}

impl VirtualHost {
    /// The clusters its routes may pick or mirror to; may contain duplicates.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        let actions = self.routes.iter().filter_map(|route| match &route.action {
            RouteAction::Forward(action) => Some(action),
            _ => None,
        });
        actions.flat_map(|action| {
            let mirrors = action.mirrors.iter().flat_map(|mirrors| mirrors.iter());
            let mirrored = mirrors.filter_map(|mirror| match &mirror.cluster {
                MirrorCluster::Named(cluster) => Some(cluster),
                MirrorCluster::Header(_) => None,
            });
            action.clusters.iter().map(|leg| &leg.cluster).chain(mirrored)
        })
    }
}

/// `VirtualHost.TlsRequirementType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequireTls {
    /// No requirement.
    #[default]
    None,
    /// Redirect all plaintext requests.
    All,
    /// Redirect plaintext requests from external clients.
    ExternalOnly,
}

/// One route.
#[derive(Debug)]
pub struct Route {
    /// Name, for logs (`%ROUTE_NAME%`).
    pub name: Arc<str>,
    /// Which requests it matches.
    pub matches: RouteMatch,
    /// What to do with them.
    pub action: RouteAction,
    /// The name under which its requests are counted (`stat_prefix`).
    pub stat_prefix: Option<Arc<str>>,
    /// Header edits.
    pub headers: HeaderEdits,
    /// Per-route filter configuration (`typed_per_filter_config`), including its virtual host's.
    pub filters: FilterOverrides,
    /// The user's object it was generated from (such as `metadata.filter_metadata.istio.config`), for `/config_dump` and explanations.
    pub origin: Option<Arc<str>>,
    /// Its other metadata (`metadata.filter_metadata`), for filters that pass it on.
    pub metadata: DynamicMetadata,
    /// How its requests are traced (`decorator`, `tracing`).
    pub tracing: Option<Box<RouteTracing>>,
}

/// `RouteMatch`.
#[derive(Debug)]
pub struct RouteMatch {
    /// Path.
    pub path: PathMatch,
    /// Whether path matching is case-sensitive.
    pub case_sensitive: bool,
    /// All must match.
    pub headers: Vec<HeaderMatcher>,
    /// All must match.
    pub query_parameters: Vec<QueryParameterMatcher>,
    /// Share of requests the route applies to, in millionths (`runtime_fraction`); 1,000,000: all.
    pub fraction_ppm: u32,
    /// Only gRPC requests (`content-type: application/grpc…`).
    pub grpc_only: bool,
    /// All must match. Requests have none until a filter has set some and has the route chosen again.
    pub dynamic_metadata: Vec<MetadataMatcher>,
}

/// How the path is matched; the query string is not part of it.
#[derive(Debug)]
pub enum PathMatch {
    /// Any path with this prefix.
    Prefix(Box<str>),
    /// Exactly this path.
    Exact(Box<str>),
    /// The whole path matches.
    Regex(Regex),
    /// This path, or any below it (`path_separated_prefix`).
    SeparatedPrefix(Box<str>),
    /// CONNECT, to any authority (`connect_matcher`).
    Connect,
}

/// The action of a route.
#[derive(Debug)]
pub enum RouteAction {
    /// Forward.
    Forward(Box<ForwardAction>),
    /// Redirect.
    Redirect(Box<RedirectAction>),
    /// Respond directly.
    DirectResponse {
        /// HTTP status.
        status: u16,
        /// Body, within `max_direct_response_body_size_bytes`.
        body: Arc<[u8]>,
    },
}

/// `RouteAction` of Envoy.
#[derive(Debug)]
pub struct ForwardAction {
    /// Destination clusters, by weight.
    pub clusters: Vec<WeightedCluster>,
    /// Sum of weights; never 0 unless `clusters` has one entry.
    pub total_weight: u32,
    /// Status when the cluster does not exist (503 when unset).
    pub cluster_not_found_status: u16,
    /// Replacement of the matched prefix or path.
    pub prefix_rewrite: Option<Box<str>>,
    /// Pattern and substitution by which the path is rewritten; the substitution uses `\1`.
    pub regex_rewrite: Option<(Regex, Box<str>)>,
    /// How `:authority` is rewritten.
    pub host_rewrite: HostRewrite,
    /// Send the original authority as `x-forwarded-host`.
    pub append_x_forwarded_host: bool,
    /// From the end of the request to the end of the response; 504 beyond. `None`: no limit. 15 s when unset.
    pub timeout: Option<Duration>,
    /// A stream without activity for this long is ended. `None`: the connection manager's applies; `Duration::MAX`: no limit.
    pub idle_timeout: Option<Duration>,
    /// Retry policy.
    pub retry: Option<Arc<RetryPolicy>>,
    /// The priority, which selects the cluster's circuit breaker thresholds.
    pub priority: Priority,
    /// From the request's head to the end of the response, regardless of activity. `None`: the connection manager's
    /// applies; `Duration::MAX`: no limit.
    pub max_stream_duration: Option<Duration>,
    /// How `grpc-timeout` of gRPC clients is honoured.
    pub grpc_timeout: Option<GrpcTimeout>,
    /// Upgrade types (lower case: `websocket`, `connect`) that this route enables (`true`) or disables.
    pub upgrades: Vec<(Box<str>, bool)>,
    /// CONNECT is terminated here (`connect_config`): the upstream gets the tunnel's bytes only.
    pub connect_terminates: bool,
    /// The input of a request's hash, for clusters that pick endpoints by hash.
    pub hash_policies: HashPolicies,
    /// The mirrors of its requests: the route's `request_mirror_policies`, else its virtual host's, else its table's.
    pub mirrors: Option<Arc<[MirrorPolicy]>>,
    /// What describes its requests to filters that limit rates: its own `rate_limits`, and its virtual host's.
    pub rate_limits: Option<Box<RouteRateLimits>>,
}

/// `core.v3.RoutingPriority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// `DEFAULT`.
    #[default]
    Default,
    /// `HIGH`.
    High,
}

/// How `grpc-timeout` is honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcTimeout {
    /// Whether it replaces the route's timeout (`max_grpc_timeout`), rather than `max_stream_duration`.
    pub as_route_timeout: bool,
    /// Maximum timeout that a client may set; `None`: any.
    pub most: Option<Duration>,
    /// Subtracted from what the client asks for, so that the response reaches it in time.
    pub offset: Duration,
}

/// A share of a route's requests.
#[derive(Debug)]
pub struct WeightedCluster {
    /// Cluster name.
    pub cluster: Arc<str>,
    /// Share out of `total_weight`.
    pub weight: u32,
    /// Header edits for requests to this cluster.
    pub headers: HeaderEdits,
    /// `:authority` for requests to this cluster.
    pub host_rewrite: Option<Box<str>>,
    /// Metadata match criteria of the subset: the route's and this entry's.
    pub metadata_match: Option<MetadataMatch>,
    /// Per-route filter configuration (`typed_per_filter_config`).
    pub filters: FilterOverrides,
}

/// How `:authority` is rewritten.
#[derive(Debug, Default)]
pub enum HostRewrite {
    /// Not at all.
    #[default]
    None,
    /// To this value.
    Literal(Box<str>),
    /// To the endpoint's host name (DNS clusters).
    Auto,
}

/// `RedirectAction`.
#[derive(Debug)]
pub struct RedirectAction {
    /// New scheme.
    pub scheme: Option<Box<str>>,
    /// New host.
    pub host: Option<Box<str>>,
    /// New port.
    pub port: Option<u16>,
    /// New path.
    pub path: RedirectPath,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Drop the query.
    pub strip_query: bool,
}

/// New path of a redirect.
#[derive(Debug, Default)]
pub enum RedirectPath {
    /// Unchanged.
    #[default]
    Keep,
    /// This path; a query in it replaces the request's.
    Full(Box<str>),
    /// The matched prefix is replaced.
    Prefix(Box<str>),
    /// Rewritten by pattern and substitution.
    Regex(Regex, Box<str>),
}
