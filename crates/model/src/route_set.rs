//! Routes with every name resolved, whatever kind of object they were written as.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::Kind;
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Span, Spanned};

use crate::labels::Selectable;
use crate::{HeaderMatch, Headers, Labels, StringMatch, Viewer, Visibility};

/// Routes for hosts. All kinds with routes are converted to route sets, and proxies' routes are generated only from
/// these.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSet {
    /// The kind of the object it was made of.
    pub kind: Kind,
    /// That object's name.
    pub name: Arc<str>,
    /// That object's namespace.
    pub namespace: Arc<str>,
    /// The hosts it serves, as full names.
    pub hosts: Vec<Spanned<Hostname>>,
    /// The gateways where it applies; `mesh` if not given.
    pub gateways: Vec<GatewayRef>,
    /// The namespaces that see it.
    pub export_to: Visibility,
    /// Routes of HTTP requests, in order: the first match wins.
    pub http: Vec<HttpRoute>,
    /// What the order in `http` means.
    pub order: RouteOrder,
    /// Routes of TLS connections by SNI.
    pub tls: Vec<TlsRoute>,
    /// Routes of TCP connections.
    pub tcp: Vec<L4Route>,
    /// Routes of datagrams.
    pub udp: Vec<L4Route>,
    /// Where it was written.
    pub origin: Span,
}

/// A place where a route set applies.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GatewayRef {
    /// Sidecars (`mesh`).
    Mesh,
    /// A Gateway object.
    Named {
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
    },
}

impl GatewayRef {
    /// Reads an entry of `gateways`: `mesh`, `name` (in `namespace`) or `namespace/name`.
    pub fn parse(text: &str, namespace: &str) -> Self {
        match text.split_once('/') {
            None if text == "mesh" => Self::Mesh,
            None => Self::Named { namespace: namespace.into(), name: text.into() },
            Some((".", name)) => Self::Named { namespace: namespace.into(), name: name.into() },
            Some((namespace, name)) => Self::Named { namespace: namespace.into(), name: name.into() },
        }
    }
}

impl fmt::Display for GatewayRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh => f.write_str("mesh"),
            Self::Named { namespace, name } => write!(f, "{namespace}/{name}"),
        }
    }
}

impl fmt::Debug for GatewayRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the order of a route set's HTTP routes means. Where it means nothing, the routes are sorted, together with those of
/// all such route sets of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteOrder {
    /// The first match wins, as in a VirtualService.
    AsWritten,
    /// Nothing, as in an Ingress: longer paths come first, and of equal ones the exact (Istio's
    /// `ConvertIngressVirtualService`).
    ByPath,
    /// Nothing, as in the Gateway API: exact paths come first, then prefixes, then expressions; the longer one; with a
    /// method; with more headers; with more query parameters; the older object (Istio's `sortHTTPRoutes`).
    ByPrecedence,
}

/// The place of a route among those of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchOrder {
    kind: Reverse<u8>,
    length: Reverse<usize>,
    is_loose: bool,
    has_method: Reverse<bool>,
    headers: Reverse<usize>,
    query_params: Reverse<usize>,
}

impl HttpRoute {
    /// Its place among the routes of its host, if their order is not as written.
    pub fn place(&self, order: RouteOrder) -> MatchOrder {
        let condition = self.matches.first();
        let (kind, length) = match condition.and_then(|condition| condition.uri.as_ref()) {
            // It would hide what follows.
            _ if condition.is_some_and(HttpMatch::is_everything) => (0, 0),
            Some(StringMatch::Exact(path)) => (3, path.len()),
            Some(StringMatch::Prefix(path)) => (2, path.len()),
            Some(StringMatch::Regex(pattern)) => (1, pattern.len()),
            _ => (0, 0),
        };
        let none = MatchOrder {
            kind: Reverse(0),
            length: Reverse(length),
            is_loose: false,
            has_method: Reverse(false),
            headers: Reverse(0),
            query_params: Reverse(0),
        };
        match order {
            RouteOrder::AsWritten => MatchOrder { length: Reverse(0), ..none },
            // A prefix of whole parts is an exact path and a prefix.
            RouteOrder::ByPath => MatchOrder { is_loose: kind != 3 || self.matches.len() > 1, ..none },
            RouteOrder::ByPrecedence => MatchOrder {
                kind: Reverse(kind),
                has_method: Reverse(condition.is_some_and(|condition| condition.method.is_some())),
                headers: Reverse(condition.map_or(0, |condition| condition.headers.len())),
                query_params: Reverse(condition.map_or(0, |condition| condition.query_params.len())),
                ..none
            },
        }
    }
}

/// One HTTP route.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpRoute {
    /// Its name, for logs; may be empty.
    pub name: Arc<str>,
    /// Any of these must hold; none given = always.
    pub matches: Vec<HttpMatch>,
    /// The action for the request.
    pub action: HttpAction,
    /// Changes to headers for all destinations.
    pub headers: Headers,
    /// Faults for tests.
    pub fault: Option<Fault>,
    /// Which scripts in browsers may read responses.
    pub cors: Option<CorsPolicy>,
    /// Whether the requests of a session go to one endpoint; before what its service says.
    pub session: Option<Session>,
    /// Where it was written.
    pub origin: Span,
}

/// How the requests of a session are known, which go to the endpoint that served the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Session {
    /// By a cookie.
    Cookie {
        /// Its name.
        name: Arc<str>,
        /// The path below which clients send it.
        path: Arc<str>,
        /// How long clients keep it; `None`: until they end.
        lifetime: Option<Duration>,
    },
    /// By a header of the first response, which clients repeat.
    Header(Arc<str>),
}

/// The action for a request.
#[derive(Debug, Clone, PartialEq)]
pub enum HttpAction {
    /// Forwards it.
    Route {
        /// The destinations, at least one. A single destination gets everything, whatever its weight.
        destinations: Vec<WeightedDestination>,
        /// Changes to path and authority.
        rewrite: Option<Rewrite>,
        /// Timeout for the whole response; `Some(ZERO)` = unlimited, `None` = Istio's default (unlimited).
        timeout: Option<Duration>,
        /// Not set = the mesh's default.
        retries: Option<RetryPolicy>,
        /// The services that get copies of requests.
        mirrors: Vec<Mirror>,
    },
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// The proxy answers.
    DirectResponse(DirectResponse),
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millionths(pub u32);

impl Millionths {
    /// All requests.
    pub const ALL: Self = Self(1_000_000);

    /// Converts a percentage; as in Istio, fractions below a millionth are dropped.
    pub fn from_percent(percent: f64) -> Self {
        // The cast saturates.
        Self((percent * 10_000.0) as u32).min(Self::ALL)
    }
}

/// A service that gets copies of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirror {
    /// The service.
    pub destination: Destination,
    /// The share of requests, above zero.
    pub share: Millionths,
}

/// Faults for tests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    /// Requests that wait: how long, and their share.
    pub delay: Option<(Duration, Millionths)>,
    /// Requests that get this response instead of being forwarded, and their share.
    pub abort: Option<(AbortStatus, Millionths)>,
}

/// The status of an injected response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// An HTTP status, 200–599.
    Http(u16),
    /// A gRPC status.
    Grpc(u8),
}

/// Which scripts in browsers may read responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CorsPolicy {
    /// Origins of scripts.
    pub allow_origins: Vec<StringMatch>,
    /// Methods that they may use, separated by commas.
    pub allow_methods: Arc<str>,
    /// Request headers that they may send, separated by commas.
    pub allow_headers: Arc<str>,
    /// Response headers that they may read, separated by commas.
    pub expose_headers: Arc<str>,
    /// How long browsers may cache the response to a preflight request, in seconds.
    pub max_age: Option<u64>,
    /// Whether they may use credentials; `None`: the header is not sent.
    pub allow_credentials: Option<bool>,
    /// Whether preflight requests of other origins are forwarded.
    pub forwards_unmatched: bool,
}

/// Conditions on a request; all must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HttpMatch {
    /// Its name, for logs; may be empty.
    pub name: Arc<str>,
    /// The path, without query.
    pub uri: Option<StringMatch>,
    /// Whether a prefix in `uri` matches whole parts between slashes only: `/a` is none of `/ab`.
    pub by_parts: bool,
    /// Whether `uri` ignores case; only for exact and prefix.
    pub ignore_uri_case: bool,
    /// `http` or `https`.
    pub scheme: Option<StringMatch>,
    /// The method.
    pub method: Option<StringMatch>,
    /// The host with port, as sent.
    pub authority: Option<StringMatch>,
    /// Headers that must match.
    pub headers: Vec<HeaderMatch>,
    /// Headers that must not match.
    pub without_headers: Vec<HeaderMatch>,
    /// Query parameters that must match.
    pub query_params: Vec<HeaderMatch>,
    /// The port the request is addressed to.
    pub port: Option<u16>,
    /// Labels the client's workload must have; at a gateway, the gateway's.
    pub source_labels: Labels,
    /// The namespace the client's workload must be in; at a gateway, the gateway's.
    pub source_namespace: Option<Arc<str>>,
    /// Gateways where this condition applies; empty = wherever the route set applies.
    pub gateways: Vec<GatewayRef>,
    /// The prefix of the route's statistics; may be empty.
    pub stat_prefix: Arc<str>,
    /// Where it was written.
    pub origin: Span,
}

/// A destination and its share of the requests.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedDestination {
    /// The destination.
    pub destination: Destination,
    /// The share, relative to the sum of the siblings' weights.
    pub weight: u32,
    /// Changes to headers for this destination only.
    pub headers: Headers,
}

/// A service, or part of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// The service's full name.
    pub host: Hostname,
    /// A subset that a DestinationRule names.
    pub subset: Option<Arc<str>>,
    /// The service's port; required unless it has only one or the request's own port is meant.
    pub port: Option<u16>,
    /// Whether it exists. Routes to what does not exist answer 503.
    pub state: DestinationState,
    /// Where it was written.
    pub origin: Span,
}

/// Whether a destination exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationState {
    /// The service or subset exists.
    Known,
    /// No visible service has this host.
    UnknownHost,
    /// The service lacks the port.
    UnknownPort,
    /// No DestinationRule for the host has the subset.
    UnknownSubset,
    /// The route must not lead there, or what it names cannot be a destination: its share of the requests is refused.
    Refused,
}

/// Changes to a request's path and authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// Replaces the path, or the part a prefix match matched.
    pub uri: Option<Arc<str>>,
    /// Replaces the authority.
    pub authority: Option<Arc<str>>,
    /// Replaces what the expression finds in the path: (RE2 expression, replacement with `\1`).
    pub uri_regex: Option<(Arc<str>, Arc<str>)>,
}

/// A redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Replaces the path.
    pub uri: Option<Arc<str>>,
    /// Replaces the part of the path that a prefix match matched.
    pub prefix: Option<Arc<str>>,
    /// Replaces what the expression finds in the path: (RE2 expression, replacement with `\1`).
    pub uri_regex: Option<(Arc<str>, Arc<str>)>,
    /// Replaces the host.
    pub authority: Option<Arc<str>>,
    /// Replaces the scheme.
    pub scheme: Option<Arc<str>>,
    /// Replaces the port.
    pub port: Option<RedirectPort>,
    /// 301, 302, 303, 307 or 308.
    pub code: u16,
}

/// The port of a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectPort {
    /// This one.
    Number(u16),
    /// The default port of the scheme (`FROM_PROTOCOL_DEFAULT`).
    ProtocolDefault,
    /// The request's port (`FROM_REQUEST_PORT`).
    Request,
}

/// An answer given by the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectResponse {
    /// Its status, 200–599.
    pub status: u16,
    /// Its body; may be empty.
    pub body: Arc<[u8]>,
}

/// The conditions for retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries after the first try; 0 = none.
    pub attempts: u32,
    /// Limit for each try; none given = the route's timeout.
    pub per_try_timeout: Option<Duration>,
    /// Envoy's `retry_on` conditions and retriable status codes; none given = Istio's default.
    pub retry_on: Option<Arc<str>>,
    /// Whether retries prefer hosts that were not tried.
    pub avoid_previous_hosts: bool,
    /// Whether retries prefer localities that were not tried.
    pub avoid_previous_localities: bool,
    /// Maximum pause before the first retry; `None` = Envoy's default.
    pub back_off: Option<Duration>,
}

/// Conditions on a TCP or TLS connection; all must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct L4Match {
    /// Address ranges, one of which must contain the destination; empty = any.
    pub destination_subnets: Vec<IpNet>,
    /// The address range of clients; none given = any.
    pub source_subnet: Option<IpNet>,
    /// The port the connection is addressed to.
    pub port: Option<u16>,
    /// Labels the client's workload must have; at a gateway, the gateway's.
    pub source_labels: Labels,
    /// The namespace the client's workload must be in; at a gateway, the gateway's.
    pub source_namespace: Option<Arc<str>>,
    /// Gateways where this condition applies; empty = wherever the route set applies.
    pub gateways: Vec<GatewayRef>,
}

/// One TCP route.
#[derive(Debug, Clone, PartialEq)]
pub struct L4Route {
    /// Any of these must hold; none given = always.
    pub matches: Vec<L4Match>,
    /// The destinations, at least one.
    pub destinations: Vec<WeightedDestination>,
    /// Where it was written.
    pub origin: Span,
}

/// One route for TLS connections that are forwarded without being terminated.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsRoute {
    /// Any of these must hold; at least one. The names are what the client's SNI must be covered by.
    pub matches: Vec<(Vec<Hostname>, L4Match)>,
    /// The destinations, at least one.
    pub destinations: Vec<WeightedDestination>,
    /// Where it was written.
    pub origin: Span,
}

impl RouteSet {
    /// The status of requests to a destination that does not exist, if it is not the proxy's default (503): in the Gateway
    /// API, 500.
    pub fn missing_destination_status(&self) -> Option<u16> {
        (self.order == RouteOrder::ByPrecedence).then_some(500)
    }

    /// Whether its routes are sorted together with those of another one for the same host.
    pub fn is_sorted_with(&self, other: &Self) -> bool {
        self.order != RouteOrder::AsWritten && self.order == other.order
    }

    /// Whether it applies at `gateway`.
    pub fn applies_at(&self, gateway: &GatewayRef) -> bool {
        self.gateways.contains(gateway)
    }

    /// The services it may lead to, mirrors included, each as often as it is named.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let http = self.http.iter().map(|route| match &route.action {
            HttpAction::Route { destinations, mirrors, .. } => (destinations.as_slice(), mirrors.as_slice()),
            HttpAction::Redirect(_) | HttpAction::DirectResponse(_) => Default::default(),
        });
        let mirrors = http.clone().flat_map(|(_, mirrors)| mirrors).map(|mirror| &mirror.destination);
        let tls = self.tls.iter().flat_map(|route| &route.destinations);
        let tcp = self.tcp.iter().flat_map(|route| &route.destinations);
        let udp = self.udp.iter().flat_map(|route| &route.destinations);
        let weighted = http.flat_map(|(destinations, _)| destinations).chain(tls).chain(tcp).chain(udp);
        weighted.map(|weighted| &weighted.destination).chain(mirrors)
    }
}

impl HttpMatch {
    /// Whether it holds for every request of a host.
    fn is_everything(&self) -> bool {
        let uri = self.uri.as_ref().is_none_or(|uri| matches!(uri, StringMatch::Prefix(prefix) if &**prefix == "/"));
        let others = [&self.scheme, &self.method, &self.authority].into_iter().all(Option::is_none);
        uri && others && self.headers.is_empty() && self.without_headers.is_empty() && self.query_params.is_empty()
    }

    /// Whether it can hold for a client at `gateway`.
    pub fn applies_to(&self, gateway: &GatewayRef, client: &(impl Selectable + Viewer)) -> bool {
        source_applies(&self.gateways, self.source_namespace.as_ref(), &self.source_labels, gateway, client)
    }
}

impl L4Match {
    /// Whether it can hold for a client at `gateway`.
    pub fn applies_to(&self, gateway: &GatewayRef, client: &(impl Selectable + Viewer)) -> bool {
        source_applies(&self.gateways, self.source_namespace.as_ref(), &self.source_labels, gateway, client)
    }
}

fn source_applies(
    gateways: &[GatewayRef],
    source_namespace: Option<&Arc<str>>,
    source_labels: &Labels,
    gateway: &GatewayRef,
    client: &(impl Selectable + Viewer),
) -> bool {
    let here = gateways.is_empty() || gateways.contains(gateway);
    // At a gateway they are compared with the gateway, which does not know the workload behind a request: a route for
    // some workloads must not be one for everybody.
    let from_namespace = || source_namespace.is_none_or(|wanted| client.is_in(wanted));
    here && from_namespace() && client.selected_by(source_labels)
}
