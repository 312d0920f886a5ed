//! A recent request: what the proxies on its way decided then, and whether they would decide the same now.

use std::time::Duration;

use evenkeel_filters::explain::query::{Decision, ProxyDecision, REDACTED, RecentRequest};
use serde::Serialize;
use serde_json::Value;

use crate::answer::{Policy, ProxyName, Route, written};
use crate::policies;
use crate::text::{Look, Style, Text, at};
use crate::world::World;

pub use crate::replay::completed;

/// Maximum number of headers in the text.
const MAX_HEADERS: usize = 40;
/// Maximum length of a header value in the text, in characters.
const MAX_VALUE: usize = 200;
/// Headers that proxies add, which do not characterize the call.
const OF_PROXIES: [&str; 6] = [
    "x-request-id",
    "x-forwarded-proto",
    "x-envoy-attempt-count",
    "x-forwarded-client-cert",
    "x-envoy-decorator-operation",
    "accept-encoding",
];

/// How the details of requests begin that a policy has refused.
const REFUSALS: [&str; 2] = [BY_POLICY, BY_TOKEN];
/// By an AuthorizationPolicy.
const BY_POLICY: &str = "rbac_access_denied";
/// By a RequestAuthentication.
const BY_TOKEN: &str = "jwt_authn_access_denied";
/// By an external authorizer.
const BY_SERVICE: &str = "ext_authz";

/// A recent request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recent {
    /// Its id: that of `x-request-id`.
    pub id: String,
    /// The proxies that kept it, in the order in which it reached them.
    pub hops: Vec<RecentHop>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A request at one proxy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentHop {
    /// The proxy.
    pub proxy: ProxyName,
    /// The request, and what became of it.
    pub request: RecentRequest,
    /// The Pod that called.
    pub caller: Option<String>,
    /// The Pod behind the endpoint.
    pub server: Option<String>,
    /// The route, with its place.
    pub route: Option<Route>,
    /// The policies that refused the request: the one that denied it, or those of which none allows it.
    pub policies: Vec<Policy>,
    /// The rules that judge tokens, if the token was the reason; one sentence each.
    pub tokens: Vec<String>,
    /// The proxy's decision now.
    pub now: Now,
}

/// A proxy's decision about a recent request now.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Now {
    /// Whether it is the same; `null`: unknown.
    pub same: Option<bool>,
    /// Differences, one line each.
    pub differs: Vec<String>,
    /// A random number takes part in the decision.
    pub by_chance: bool,
    /// Why it is not known.
    pub unknown: Option<String>,
}

/// A proxy's record of a request, and its answer to the same call now.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The proxy; its side is derived.
    pub proxy: ProxyName,
    /// The record.
    pub request: RecentRequest,
    /// The answer now, or why there is none.
    pub now: Result<ProxyDecision, String>,
}

impl Recent {
    /// Creates the answer from the proxies' records of one request. `world`: the mesh's files, if they can be read.
    pub fn new(world: Option<&World>, mut kept: Vec<RecordedRequest>) -> Self {
        kept.sort_by_key(|kept| (kept.request.started_us, kept.request.direction == "inbound"));
        let id = kept.first().map(|kept| kept.request.id.clone()).unwrap_or_default();
        let mut notes = Vec::new();
        if kept.iter().any(|kept| kept.request.edited) {
            notes.push(
                "a proxy kept the request only because it failed or was slow: its head is as the route changed it"
                    .to_owned(),
            );
        }
        Self { id, hops: kept.into_iter().map(|kept| hop(world, kept)).collect(), notes }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// For people. `now_us`: the time, in microseconds since 1970.
    pub fn to_text(&self, look: impl Into<Look>, now_us: u64) -> String {
        let mut out = Text::new(look);
        let Style { bold, dim, good, bad, end, .. } = out.style;
        if let Some(first) = self.hops.first() {
            let head = first.request.call.request.clone().unwrap_or_default();
            out.line(&format!("{bold}{} {}://{}{}{end}", head.method, head.scheme, head.authority, head.path));
            let request = &first.request;
            let (mark, style) = if is_failure(request) { ("✗", bad) } else { ("✓", good) };
            let after = written(round(request.duration_us));
            out.line(&format!("{style}{mark} {}{end} after {after}", status(request)));
            let ago = Duration::from_micros(now_us.saturating_sub(request.started_us));
            out.line(&format!("  {dim}{} ago, id {}{end}", written(Duration::from_secs(ago.as_secs())), self.id));
        }
        self.hops.iter().for_each(|hop| hop.write(&mut out));
        for note in &self.notes {
            out.blank();
            out.wrapped("", "note: ", note);
        }
        out.out
    }
}

/// Derives what the files say about a record.
pub(crate) fn hop(world: Option<&World>, kept: RecordedRequest) -> RecentHop {
    let RecordedRequest { mut proxy, request, now } = kept;
    let replayed = world.and_then(|world| world.replay(&proxy.pod, &proxy.namespace, &request));
    proxy.side = match (&replayed, &*request.direction) {
        (Some(replayed), _) => replayed.side,
        (None, "inbound") => "inbound",
        (None, "outbound") => "outbound",
        (None, _) => "gateway",
    };
    let pod_at = |address: &str| world.and_then(|world| world.pod_at(address));
    let same_route = |name: &Option<String>| name == &request.route;
    // The files know the line, the proxy the object; either only if it is still the same route.
    let of_files = replayed.as_ref().filter(|own| same_route(&own.decision.route)).and_then(|own| own.source.clone());
    let of_proxy = || {
        let decision = now.as_ref().ok().map(|now| &now.decision).filter(|own| same_route(&own.route))?;
        world?.of_route(decision.origin.as_deref()?).map(|(_, source)| source)
    };
    let source = of_files.or_else(of_proxy);
    let route = request.route.clone().map(|name| Route { name, source });
    let (policies, tokens) = world.map(|world| refused_by(world, &proxy, &request)).unwrap_or_default();
    RecentHop {
        policies,
        tokens,
        caller: request.call.source.and_then(|source| pod_at(&source.to_string())),
        server: request.endpoint.as_deref().and_then(pod_at),
        now: compare(&request, now),
        proxy,
        route,
        request,
    }
}

/// The policies, or the rules about tokens, that refused a request.
fn refused_by(world: &World, proxy: &ProxyName, request: &RecentRequest) -> (Vec<Policy>, Vec<String>) {
    let (details, nothing) = (&*request.details, (Vec::new(), Vec::new()));
    let Ok(workload) = world.find(&proxy.pod, Some(&proxy.namespace)) else { return nothing };
    if details.starts_with(BY_TOKEN) {
        return (Vec::new(), policies::tokens(world, &workload));
    }
    let all = || world.retake(&workload, request).policies;
    let of = |fits: fn(&Policy) -> bool| (all().into_iter().filter(fits).collect(), Vec::new());
    match details.strip_prefix(BY_POLICY).and_then(|rest| rest.strip_prefix("_matched_policy[")?.strip_suffix(']')) {
        Some("none") => of(|policy| policy.action == "ALLOW"),
        Some(name) => (policies::by_name(world, &workload, name).into_iter().collect(), Vec::new()),
        None if details.starts_with(BY_SERVICE) => of(|policy| policy.action == "CUSTOM" && policy.matches),
        None => nothing,
    }
}

/// Compares the outcome of the request then with the outcome now.
fn compare(then: &RecentRequest, now: Result<ProxyDecision, String>) -> Now {
    let now = match now {
        Ok(now) => now.decision,
        Err(reason) => return Now { unknown: Some(reason), ..Now::default() },
    };
    let by_chance = now.by_chance;
    let unknown = |reason: String| Now { unknown: Some(reason), by_chance, ..Now::default() };
    if !now.unknown_headers.is_empty() {
        return unknown(format!("routes ask for {}, which is kept secret", now.unknown_headers.join(", ")));
    }
    if now.outcome == "hold" {
        return unknown("the proxy no longer holds the configuration for it, and would ask for it first".to_owned());
    }
    if !is_read(then) {
        return unknown("its head was not read: what came was no request".to_owned());
    }
    let differs = differences(then, &now);
    Now { same: Some(differs.is_empty()), differs, by_chance, unknown: None }
}

fn differences(then: &RecentRequest, now: &Decision) -> Vec<String> {
    let mut differs = Vec::new();
    let text = |value: Option<&str>| value.filter(|text| !text.is_empty()).unwrap_or("none").to_owned();
    let mut differ = |name: &str, then: String, now: String| {
        if then != now {
            differs.push(format!("{name}: {then} then, {now} now"));
        }
    };
    differ("route", text(then.route.as_deref()), text(now.route.as_deref()));
    let is_other_share =
        now.by_chance && now.clusters.iter().any(|(name, _)| Some(name.as_str()) == then.cluster.as_deref());
    // A cluster that does not exist is not noted.
    let is_missing = then.cluster.is_none() && now.response_flag.as_deref() == Some("NC");
    if !is_other_share && !is_missing {
        differ("cluster", text(then.cluster.as_deref()), text(now.cluster.as_deref()));
    }
    let was_local = then.endpoint.is_none() && then.details != "via_upstream";
    let is_local = now.outcome != "forward" || now.status.is_some();
    match (was_local, is_local) {
        (true, true) => {
            let now_status = now.status.unwrap_or(0);
            differ("status", then.status.to_string(), now_status.to_string());
            if then.status != now_status || now.outcome == "deny" {
                differ("details", text(Some(&then.details)), text(now.details.as_deref()));
            }
        }
        (true, false) if now.by_state => {}
        (true, false) => differ("outcome", format!("answered {} by the proxy", then.status), "forwarded".to_owned()),
        (false, true) if then.endpoint.is_some() => {
            let status = now.status.map(|status| format!(" {status}")).unwrap_or_default();
            differ("outcome", "forwarded".to_owned(), format!("{}{status}", now.outcome));
        }
        _ => {}
    }
    differs
}

/// Whether the proxy could read the request's head.
pub(crate) fn is_read(request: &RecentRequest) -> bool {
    request.call.request.as_ref().is_some_and(|head| !head.method.is_empty())
}

/// Whether a decision contradicts what became of the request: a proxy lets it pass and the other does not, and neither chance nor
/// the state of filters and endpoints is the reason.
pub(crate) fn is_contrary(then: &RecentRequest, now: &Decision) -> bool {
    let is_judged = |outcome: &str| matches!(outcome, "deny" | "reset" | "direct" | "redirect");
    let was_denied = then.endpoint.is_none() && REFUSALS.iter().any(|of| then.details.starts_with(of));
    let passes = now.outcome == "forward" && now.status.is_none();
    let is_certain = !now.by_chance && !now.by_state;
    is_certain && ((then.endpoint.is_some() && is_judged(&now.outcome)) || (was_denied && passes))
}

fn is_failure(request: &RecentRequest) -> bool {
    request.status == 0 || request.status >= 400
}

fn status(request: &RecentRequest) -> String {
    match (request.status, &*request.flags) {
        (0, "") => "no response".to_owned(),
        (0, flags) => format!("no response ({flags})"),
        (status, "") => status.to_string(),
        (status, flags) => format!("{status} ({flags})"),
    }
}

/// Rounds a time, without digits that do not matter.
fn round(micros: u64) -> Duration {
    Duration::from_micros(if micros >= 10_000 { micros / 1000 * 1000 } else { micros })
}

/// A duration such as `12ms`, `850us`.
fn short(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..10_000 => format!("{:.1} ms", micros as f64 / 1000.0),
        _ => format!("{} ms", micros / 1000),
    }
}

impl RecentHop {
    fn write(&self, out: &mut Text) {
        let Style { dim, good, bad, warn, end, .. } = out.style;
        let (request, call) = (&self.request, &self.request.call);
        out.title(&self.proxy);
        let address = |address: Option<std::net::SocketAddr>| address.map_or_else(|| "?".to_owned(), |a| a.to_string());
        let caller = self.caller.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let how = match &call.tls {
            None => "plain text".to_owned(),
            Some(tls) if tls.identities.is_empty() => "TLS".to_owned(),
            Some(tls) => format!("mutual TLS as {}", tls.identities.join(", ")),
        };
        out.fact("arrived", &[format!("{how} from {}{caller} to {}", address(call.source), address(call.destination))]);
        let headers: Vec<String> = call.request.iter().flat_map(headers).collect();
        out.fact("headers", &headers);
        if let Some(listener) = call.listeners.first() {
            let chain = Some(&request.filter_chain).filter(|chain| !chain.is_empty());
            let chain = chain.map(|chain| format!(", filter chain {chain}")).unwrap_or_default();
            out.fact("listener", &[format!("{listener}{chain}")]);
        }
        if let Some(route) = self.route.as_ref().filter(|route| self.proxy.side != "inbound" || route.source.is_some())
        {
            let name = if route.name.is_empty() { "unnamed" } else { &route.name };
            let place = match &route.source {
                Some(source) => format!("{dim}{}{end}", at(source)),
                None if self.now.same == Some(true) => "made by the mesh".to_owned(),
                None => String::new(),
            };
            out.fact("route", &[format!("{name}  {place}")]);
        }
        out.fact("cluster", &request.cluster.iter().cloned().collect::<Vec<_>>());
        if let Some(endpoint) = &request.endpoint {
            let server = self.server.as_ref().map(|name| format!("  {name}")).unwrap_or_default();
            out.fact("endpoint", &[format!("{endpoint}{server}")]);
        }
        let style = if is_failure(request) { bad } else { good };
        let mut lines = vec![format!("{style}{}{end}  {dim}{}{end}", status(request), request.details)];
        if !request.transport_failure.is_empty() {
            lines.push(request.transport_failure.clone());
        }
        if request.attempts > 1 {
            lines.push(format!("{} tries", request.attempts));
        }
        let first =
            request.first_byte_us.map(|micros| format!("first byte after {}, ", short(micros))).unwrap_or_default();
        lines.push(format!("{first}end after {}", short(request.duration_us)));
        lines.push(format!("{} bytes received, {} bytes sent", request.bytes_received, request.bytes_sent));
        out.fact("response", &lines);
        let mut refused: Vec<String> = self.policies.iter().flat_map(|policy| out.policy(policy, true)).collect();
        refused.extend(self.tokens.iter().cloned());
        out.fact("refused by", &refused);
        let chance = if self.now.by_chance { ", as far as chance does not decide" } else { "" };
        let mut lines = match (&self.now.same, &self.now.unknown) {
            (Some(true), _) => vec![format!("{good}✓{end} the proxy would decide the same{chance}")],
            (Some(false), _) => vec![format!("{warn}≠{end} the proxy would decide otherwise")],
            (None, reason) => vec![format!("{warn}?{end} not known: {}", reason.as_deref().unwrap_or("not asked"))],
        };
        lines.extend(self.now.differs.iter().map(|line| format!("  {line}")));
        out.fact("now", &lines);
    }
}

fn headers(head: &evenkeel_filters::explain::query::QueriedHead) -> Vec<String> {
    let of_client = |(name, _): &&(String, String)| !OF_PROXIES.contains(&&**name);
    let mut lines: Vec<String> = head
        .headers
        .iter()
        .filter(of_client)
        .take(MAX_HEADERS)
        .map(|(name, value)| match value.chars().count() {
            count if count > MAX_VALUE && value != REDACTED => {
                let start: String = value.chars().take(MAX_VALUE).collect();
                format!("{name}: {start}… ({count} characters)")
            }
            _ => format!("{name}: {value}"),
        })
        .collect();
    if head.left_out > 0 {
        lines.push(format!("and {} more, which were not kept", head.left_out));
    }
    lines
}
