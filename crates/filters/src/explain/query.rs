//! A call to explain, and the decision about it: the data of the proxy's page `/explain`, and the form in which recent
//! requests are replayed.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_runtime_config::demand::listeners_of;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::hcm::{HttpFilter, HttpFilterConfig};
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::local_ratelimit::LocalRateLimit;
use evenkeel_runtime_config::matching::QueryParameterMatcher;
use evenkeel_runtime_config::rate_limit::Description;
use evenkeel_runtime_config::ratelimit::RateLimitPerRoute;
use evenkeel_runtime_config::route::{Route, RouteAction};
use evenkeel_runtime_config::route_filters::{FilterOverrides, RouteFilters};
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, PlainRequest};
use evenkeel_runtime_config::{Config, Demand};
use serde::{Deserialize, Serialize};

use super::{Call, Explainer, Explanation, Says, Step, Trace};

pub use super::timing::{CircuitBreaker, ClusterLimits, EndpointChoice, EndpointState, FailedTry, Phase, PhaseKind};

/// Maximum number of weighted clusters that a decision lists.
const MAX_CLUSTERS: usize = 100;
/// Replaces a secret value.
pub const REDACTED: &str = "[redacted]";

/// A call, with all that decides about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueriedCall {
    /// Names of the listeners that may accept it; the first that there is does.
    pub listeners: Vec<String>,
    /// The client's address.
    pub source: Option<SocketAddr>,
    /// The address of the socket's peer, if it is not the client's: a proxy told the client's (PROXY protocol).
    pub direct_source: Option<SocketAddr>,
    /// The address that it called.
    pub destination: Option<SocketAddr>,
    /// TLS, if the client speaks it.
    pub tls: Option<QueriedTls>,
    /// `http/1.0`, `http/1.1` or `h2c`, as far as a listener detects it; empty: `http/1.1` for requests.
    pub protocol: String,
    /// The request; none: a connection that carries bytes.
    pub request: Option<QueriedHead>,
    /// The result of every random draw.
    pub random: u64,
}

/// A client that speaks TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueriedTls {
    /// The name in its ClientHello.
    pub server_name: Option<String>,
    /// The protocols that it offers.
    pub alpn: Vec<String>,
    /// The URIs in its certificate; its SPIFFE id is the first.
    pub identities: Vec<String>,
    /// The DNS names in its certificate.
    pub dns_names: Vec<String>,
    /// The subject of its certificate.
    pub subject: String,
    /// The SHA-256 of its certificate, in hexadecimal digits; empty: not known.
    pub sha256: String,
}

/// A request's head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueriedHead {
    /// `:method`.
    pub method: String,
    /// `:authority`.
    pub authority: String,
    /// `:path`.
    pub path: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Names in lower case and values, in order.
    pub headers: Vec<(String, String)>,
    /// Names of the headers whose values are not known: they are [`REDACTED`]. `?NAME` is a parameter of the query.
    pub redacted: Vec<String>,
    /// Number of headers left out because the head is long.
    pub left_out: u32,
}

/// A request that a proxy has served, and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecentRequest {
    /// Its `x-request-id`, or else a number that the proxy gave it.
    pub id: String,
    /// When it began, in microseconds since 1970.
    pub started_us: u64,
    /// The worker that served it.
    pub worker: usize,
    /// `inbound`, `outbound`, or empty where the listener does not say.
    pub direction: String,
    /// The call. Secret values are redacted.
    pub call: QueriedCall,
    /// The head is not as it was received, but as the route changed it: it was kept only because the request failed or was slow.
    pub edited: bool,
    /// The filter chain that served it.
    pub filter_chain: String,
    /// The route's name.
    pub route: Option<String>,
    /// The cluster.
    pub cluster: Option<String>,
    /// The endpoint of the last try.
    pub endpoint: Option<String>,
    /// The status that was sent; 0: none.
    pub status: u16,
    /// Envoy's flags, separated by commas.
    pub flags: String,
    /// Envoy's details.
    pub details: String,
    /// Why connecting to the endpoint failed.
    pub transport_failure: String,
    /// Tries.
    pub attempts: u32,
    /// Bytes of its body.
    pub bytes_received: u64,
    /// Bytes of the response's body.
    pub bytes_sent: u64,
    /// From its first byte to its end, in microseconds.
    pub duration_us: u64,
    /// From its first byte to the first byte of the endpoint's response, in microseconds.
    pub first_byte_us: Option<u64>,
    /// Where its time went.
    pub phases: Vec<Phase>,
    /// The tries that failed; with a response in the end, these were repeated.
    pub failed_tries: Vec<FailedTry>,
    /// For how long the cgroup of the proxy was throttled in the seconds of the request, at most as long as that lasted; none: not known.
    pub throttled_us: Option<u64>,
    /// The endpoints to choose from; none: no cluster was chosen, or it is gone.
    pub choice: Option<EndpointChoice>,
}

/// The response of a proxy at `/requests`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecentRequests {
    /// Maximum number of requests that each worker keeps; 0: disabled.
    pub limit: usize,
    /// Workers that did not answer in time.
    pub silent_workers: usize,
    /// The requests, the latest first.
    pub requests: Vec<RecentRequest>,
}

/// The response of a proxy at `/explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyDecision {
    /// The decision.
    pub decision: Decision,
    /// The endpoints of the cluster, some of them.
    pub endpoint_states: Vec<EndpointState>,
    /// The configuration's number in this proxy.
    pub generation: u64,
    /// Number of workers that did not answer in time: their knowledge of endpoints is missing.
    pub silent_workers: usize,
}

/// The decision about a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Decision {
    /// The listener.
    pub listener: Option<String>,
    /// The filter chain; `#N` is the N-th without a name.
    pub filter_chain: Option<String>,
    /// The virtual host.
    pub virtual_host: Option<String>,
    /// The route's name.
    pub route: Option<String>,
    /// The object that the route was made from.
    pub origin: Option<String>,
    /// `forward`, `direct`, `redirect`, `deny`, `reset`, or `hold`: the control plane is asked first.
    pub outcome: String,
    /// The status that the proxy answers with.
    pub status: Option<u16>,
    /// Envoy's flag.
    pub response_flag: Option<String>,
    /// Envoy's details.
    pub details: Option<String>,
    /// Where a redirect leads.
    pub location: Option<String>,
    /// The cluster it goes to.
    pub cluster: Option<String>,
    /// All clusters that the route names, and their weights.
    pub clusters: Vec<(String, u32)>,
    /// Endpoints of the cluster, in endpoints.
    pub endpoints: usize,
    /// The path that is sent, if it is forwarded.
    pub path: Option<String>,
    /// The authority that is sent.
    pub authority: Option<String>,
    /// A random number takes part: weights, or a fraction of requests.
    pub by_chance: bool,
    /// A filter's decision depends on a body, on an answer, or on what happened before.
    pub by_state: bool,
    /// Redacted headers that routes of the virtual host match on.
    pub unknown_headers: Vec<String>,
    /// Every step, for people.
    pub steps: Vec<String>,
}

impl QueriedTls {
    /// The names of the verified certificate; none: the client presented none.
    fn peer(&self) -> Option<PeerIdentity> {
        let Self { identities, dns_names, subject, sha256, .. } = self.clone();
        let has_any = !(identities.is_empty() && dns_names.is_empty() && subject.is_empty() && sha256.is_empty());
        has_any.then(|| PeerIdentity {
            uri_sans: identities,
            dns_sans: dns_names,
            subject,
            sha256,
            ..PeerIdentity::default()
        })
    }
}

impl QueriedHead {
    /// As the request that a proxy decides about.
    pub fn plain(&self) -> PlainRequest {
        PlainRequest {
            method: self.method.clone(),
            path: self.path.clone(),
            authority: self.authority.clone(),
            scheme: if self.scheme.is_empty() { "http".to_owned() } else { self.scheme.clone() },
            headers: self.headers.clone(),
        }
    }
}

/// Decides about a call, as the proxy with this configuration does.
pub fn decide(explainer: &mut Explainer, config: &Config, asked: &QueriedCall) -> Decision {
    decide_traced(explainer, config, asked).0
}

/// The same, with the objects that took part.
pub fn decide_traced(explainer: &mut Explainer, config: &Config, asked: &QueriedCall) -> (Decision, Trace) {
    let ended = |outcome: &str, step: Step| {
        (
            Decision { outcome: outcome.to_owned(), steps: vec![step.to_string()], ..Decision::default() },
            Trace::default(),
        )
    };
    if let Some(demand) = demand(config, asked) {
        return ended("hold", Step::Unanswered { demand });
    }
    let found = asked.listeners.iter().find_map(|name| config.listeners.get(name.as_str()));
    let Some(listener) = found else {
        return ended("reset", Step::NoListener { name: asked.listeners.first().cloned().unwrap_or_default() });
    };
    let (explanation, trace) = trace(explainer, config, listener, asked);
    (Decision::of(&explanation, &trace, (config, listener), asked), trace)
}

/// Returns the listener that is requested from the control plane before the connection is served.
fn demand(config: &Config, asked: &QueriedCall) -> Option<Demand> {
    let destination = asked.destination?;
    let first = asked.listeners.first()?;
    let names = listeners_of(destination);
    let is_of_destination =
        names.iter().any(|name| **name == **first) && !config.listeners.contains_key(first.as_str());
    let missing = if is_of_destination { config.unanswered_listeners(destination) } else { Vec::new() };
    missing.into_iter().next()
}

/// Takes a call through a listener, and tells which objects took part.
pub fn trace(
    explainer: &mut Explainer,
    config: &Config,
    listener: &Listener,
    asked: &QueriedCall,
) -> (Explanation, Trace) {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let (source, destination) = (asked.source.unwrap_or(nowhere), asked.destination.unwrap_or(nowhere));
    let direct_source = asked.direct_source.unwrap_or(source);
    let (filters, port) = (&listener.listener_filters, destination.port());
    let tls = asked.tls.as_ref();
    // As in the proxy, what no listener filter looks for is not known when the chain is selected.
    let seen = tls.filter(|_| filters.inspects_tls(port));
    let protocol = if asked.protocol.is_empty() { "http/1.1" } else { &asked.protocol };
    let offered: Vec<&str> = match (tls, seen) {
        (_, Some(tls)) => tls.alpn.iter().map(String::as_str).collect(),
        (None, _) if asked.request.is_some() && filters.inspects_http(port) => vec![protocol],
        _ => Vec::new(),
    };
    let chain = ChainInput {
        destination,
        source,
        direct_source,
        server_name: seen.and_then(|tls| tls.server_name.as_deref()),
        transport_protocol: if seen.is_some() { "tls" } else { "raw_buffer" },
        application_protocols: &offered,
    };
    // Without TLS termination the proxy sees neither a request nor an identity.
    let ends_tls = listener.find_filter_chain(&chain).is_some_and(|chain| chain.tls.is_some());
    let peer = tls.filter(|_| ends_tls).and_then(QueriedTls::peer).map(Arc::new);
    let known = if ends_tls { tls } else { seen };
    let connection = ConnectionView {
        direct_remote: direct_source,
        server_name: known.and_then(|tls| tls.server_name.as_deref()).map(Into::into),
        tls: tls.is_some() && ends_tls,
        peer,
        ..ConnectionView::plaintext(source, destination)
    };
    let request = asked.request.as_ref().filter(|_| tls.is_none() || ends_tls).map(QueriedHead::plain);
    let call = Call {
        listener: &listener.name,
        chain,
        connection: &connection,
        request: request.as_ref(),
        random: asked.random,
    };
    explainer.trace(config, &call)
}

/// A filter chain's name, or its place among those without a name.
pub fn chain_name(chain: &FilterChain, listener: &Listener) -> String {
    if !chain.name.is_empty() {
        return chain.name.to_string();
    }
    let is_default =
        listener.default_filter_chain.as_ref().is_some_and(|default| std::ptr::eq(&raw const **default, chain));
    let at = listener.filter_chains.iter().position(|other| std::ptr::eq(&raw const **other, chain));
    match (is_default, at) {
        (true, _) => "default".to_owned(),
        (false, Some(at)) => format!("#{at}"),
        (false, None) => "unnamed".to_owned(),
    }
}

impl Decision {
    fn of(
        explanation: &Explanation,
        trace: &Trace,
        (config, listener): (&Config, &Listener),
        asked: &QueriedCall,
    ) -> Self {
        let answer = explanation.answer.as_ref();
        let mut decision = Self {
            listener: Some(listener.name.to_string()),
            filter_chain: trace.chain.as_ref().map(|chain| chain_name(chain, listener)),
            virtual_host: trace.host.as_ref().map(|host| host.name.to_string()),
            route: trace.route.as_ref().map(|route| route.name.to_string()),
            origin: trace.route.as_ref().and_then(|route| route.origin.as_deref()).map(str::to_owned),
            status: answer.map(|answer| answer.status),
            details: answer.map(|answer| answer.details.clone()).filter(|details| !details.is_empty()),
            path: trace.sent.as_ref().map(|sent| sent.path.clone()),
            authority: trace.sent.as_ref().map(|sent| sent.authority.clone()),
            unknown_headers: unknown_headers(trace, asked),
            steps: explanation.steps.iter().map(ToString::to_string).collect(),
            ..Self::default()
        };
        explanation.steps.iter().for_each(|step| decision.read_chance(step));
        decision.clusters = clusters(trace);
        decision.read_end(explanation.steps.last(), config, trace.matched.is_some());
        decision
    }

    /// Records which parts of the outcome depend on more than the call and the configuration.
    fn read_chance(&mut self, step: &Step) {
        match step {
            Step::Route { share_ppm: Some(_), .. } | Step::Share { .. } | Step::Filter { chance: true, .. } => {
                self.by_chance = true;
            }
            Step::Filter {
                says: Says::Collects { .. } | Says::Waits { answer: true, .. } | Says::Remarks { state: true, .. },
                ..
            } => self.by_state = true,
            _ => {}
        }
    }

    /// Reads the outcome from the last step.
    fn read_end(&mut self, last: Option<&Step>, config: &Config, is_http: bool) {
        let (outcome, flag) = match last {
            Some(Step::Endpoints { cluster, count }) => {
                self.cluster = Some(cluster.to_string());
                self.endpoints = *count;
                let is_anywhere = config.clusters.get(cluster).is_some_and(|cluster| cluster.discovery.is_by_call());
                match (*count > 0 || is_anywhere, is_http) {
                    (true, _) => ("forward", ""),
                    (false, true) => {
                        self.status = Some(503);
                        ("forward", "UH")
                    }
                    (false, false) => ("reset", "UH"),
                }
            }
            Some(Step::NoHost { cluster }) => {
                self.cluster = Some(cluster.to_string());
                ("reset", "UH")
            }
            Some(Step::NoCluster { cluster, status }) => {
                self.cluster = Some(cluster.to_string());
                (if *status == 0 { "reset" } else { "direct" }, "NC")
            }
            Some(Step::Rbac { verdict }) if !verdict.allowed => {
                let policy = verdict.policy.as_deref().unwrap_or("none");
                self.details = Some(format!("rbac_access_denied_matched_policy[{policy}]"));
                ("deny", "")
            }
            Some(
                Step::Redirect { location, .. } | Step::TlsRedirect { location } | Step::PathRedirect { location },
            ) => {
                self.location = Some(location.clone());
                ("redirect", "")
            }
            Some(Step::Filter { says: Says::Replies { flags, .. }, .. }) => {
                self.response_flag = flags.short_names().next().map(str::to_owned);
                ("direct", "")
            }
            Some(Step::DirectResponse { .. } | Step::PathRefused { .. } | Step::UpgradeRefused { .. }) => {
                ("direct", "")
            }
            Some(Step::NoRoute | Step::NoRouteTable { .. }) => ("direct", "NR"),
            Some(Step::NoFilterChain { .. }) => ("reset", "NR"),
            Some(Step::Unanswered { .. }) => ("hold", ""),
            Some(Step::FilterChain { .. }) if !is_http => ("reset", "DPE"),
            _ => ("reset", ""),
        };
        self.outcome = outcome.to_owned();
        if !flag.is_empty() {
            self.response_flag = Some(flag.to_owned());
        }
    }
}

/// The clusters that the chosen route, or TCP proxy, names, with their weights.
fn clusters(trace: &Trace) -> Vec<(String, u32)> {
    let action = trace.route.as_ref().map(|route| &route.action);
    let all: Vec<(&Arc<str>, u32)> = match (action, trace.chain.as_ref().map(|chain| &chain.terminal)) {
        (Some(RouteAction::Forward(action)), _) => {
            action.clusters.iter().map(|entry| (&entry.cluster, entry.weight)).collect()
        }
        (None, Some(Terminal::Tcp(proxy))) => {
            proxy.clusters.iter().map(|entry| (&entry.cluster, entry.weight)).collect()
        }
        _ => Vec::new(),
    };
    let alone = u32::from(all.len() == 1);
    all.into_iter().take(MAX_CLUSTERS).map(|(name, weight)| (name.to_string(), weight.max(alone))).collect()
}

/// The redacted headers that some route of the virtual host, or a filter, asks for: another value might lead elsewhere.
fn unknown_headers(trace: &Trace, asked: &QueriedCall) -> Vec<String> {
    let Some(head) = asked.request.as_ref().filter(|head| !head.redacted.is_empty()) else { return Vec::new() };
    let routes = trace.host.iter().flat_map(|host| &host.routes);
    let matches: Vec<_> = routes.map(|route| &route.matches).collect();
    let filters = match trace.chain.as_ref().map(|chain| &chain.terminal) {
        Some(Terminal::Http(manager)) => manager.filters.as_slice(),
        _ => &[],
    };
    let limiting = |filter: &&HttpFilter| {
        matches!(filter.config, HttpFilterConfig::LocalRateLimit(_) | HttpFilterConfig::RateLimit(_))
    };
    let limiting: Vec<_> = filters.iter().filter(limiting).collect();
    let is_asked_for = |name: &&String| {
        let by_route = match name.strip_prefix('?') {
            Some(parameter) => {
                let asks = |asked: &QueryParameterMatcher| *asked.name == *parameter && asked.value.is_some();
                matches.iter().any(|own| own.query_parameters.iter().any(asks))
            }
            None => matches.iter().any(|own| own.headers.iter().any(|asked| asked.reads(name))),
        };
        by_route
            || filters.iter().any(|filter| filter.config.reads(name))
            || limiting.iter().any(|filter| is_counted_by(trace, &filter.name, name))
    };
    let mut unknown: Vec<String> = head.redacted.iter().filter(is_asked_for).cloned().collect();
    unknown.dedup();
    unknown
}

/// Whether a filter that limits rates asks for a header because a route, or what is around it, says so.
fn is_counted_by(trace: &Trace, filter: &str, header: &str) -> bool {
    let reads = |all: &[Description]| all.iter().flat_map(|one| &one.actions).any(|action| action.reads(header));
    let is_told = |level: &FilterOverrides| {
        let level = RouteFilters::of(level);
        level.all::<Arc<LocalRateLimit>>(filter).any(|told| reads(&told.descriptions))
            || level.all::<RateLimitPerRoute>(filter).any(|told| reads(&told.descriptions))
    };
    let by_route = |route: &Arc<Route>| {
        let by_action = match &route.action {
            RouteAction::Forward(action) => {
                let limits = action.rate_limits.as_deref();
                limits.is_some_and(|limits| reads(&limits.own) || reads(&limits.of_host))
                    || action.clusters.iter().any(|entry| is_told(&entry.filters))
            }
            _ => false,
        };
        by_action || is_told(&route.filters)
    };
    is_told(&trace.table_filters) || trace.host.iter().flat_map(|host| &host.routes).any(by_route)
}
