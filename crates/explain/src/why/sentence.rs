//! The cause of a request in a sentence, with its numbers.

use std::time::{Duration, UNIX_EPOCH};

use evenkeel_filters::explain::cause::Cause;
use evenkeel_filters::explain::query::{EndpointState, PhaseKind, RecentRequest};

use super::limit::{self, Limit};
use super::share::{Part, Share};
use super::{Side, Verdict};
use crate::place::Source;
use crate::text::at;

/// Maximum number of endpoints that a sentence names.
const MAX_NAMED: usize = 4;
/// The filter that injects delays.
const FAULT_FILTER: &str = "envoy.filters.http.fault";

/// The cause in a sentence.
pub fn sentence(sides: &[Side], verdict: &Verdict, limit: Option<&Limit>) -> String {
    let Some(side) = sides.get(verdict.hop) else { return "no proxy has kept it".to_owned() };
    let request = &side.request;
    let (who, target) = (proxy(side), target(side));
    let after = written(request.duration_us);
    let route = place(source(side, verdict.cause).as_ref());
    let meanwhile = || verdict.share.map(|share| format!(": {}", spent(sides, share, limit))).unwrap_or_default();
    match verdict.cause {
        Cause::NoRoute => format!("no route of {who} matches {}", authority(request)),
        Cause::NoCluster => format!("the route of {who} leads to a destination that does not exist{route}"),
        Cause::DeniedByPolicy => denied(side),
        Cause::InvalidToken => format!("{who} refused its token: {}", reason(&request.details)),
        Cause::DeniedByService => format!("the authorization service that {who} asks denied it ({})", request.status),
        Cause::FaultInjected => format!("{who} answered {}: a fault is injected{route}", request.status),
        Cause::RateLimited => format!("{who} answered {}: the limit of requests is reached", request.status),
        Cause::NoHealthyEndpoint => no_endpoint(side),
        Cause::CircuitBreaker => format!("{} of {who} was full", limit_text(side, verdict.cause, limit)),
        Cause::ConnectionRefused if side.request.direction == "inbound" => {
            let endpoint = request.endpoint.as_deref().unwrap_or_default();
            format!("{} does not listen: {endpoint} refused the connection", application(side))
        }
        Cause::ConnectionRefused => format!("{target} refused the connection of {who}{}", tries(request)),
        Cause::ConnectTimeout => format!("{target} did not take the connection of {who} in time, after {after}"),
        Cause::ConnectFailed => format!("{who} cannot connect to {target}: {}", connecting(request)),
        Cause::TlsFailure => format!("the TLS handshake of {who} with {target} failed: {}", connecting(request)),
        Cause::ConnectionReset if request.status > 0 && request.status < 400 => {
            format!("{target} ended the response before its end, after {after}")
        }
        Cause::ConnectionReset => {
            format!("{target} closed or reset the connection before it answered, after {after}{}", tries(request))
        }
        Cause::ProtocolError => format!("the response of {target} is not valid HTTP"),
        Cause::RouteTimeout => format!("the timeout of the route{route} ended after {after}{}", meanwhile()),
        Cause::TryTimeout => {
            format!("the timeout of each try of the route{route} ended{}{}", tries(request), meanwhile())
        }
        Cause::IdleTimeout => format!("nothing moved at {who} until its idle timeout, after {after}{}", meanwhile()),
        Cause::DurationTimeout => format!("the greatest duration of a stream ended at {who} after {after}"),
        Cause::DroppedOverload => format!("{who} dropped it, as the control plane asks"),
        Cause::ProxyOverload => format!("{who} is overloaded, or serves as many requests as it may"),
        Cause::ProxyLoop => format!("the request came back to {who}, which forwards it"),
        Cause::InvalidRequest => format!("{who} refused the request: {}", request.details),
        Cause::ClientLeft => format!("the client left after {after}{}", meanwhile()),
        Cause::ServerError => format!("{} answered {} after {after}", application(side), request.status),
        Cause::Throttled => {
            let throttled = written(request.throttled_us.unwrap_or(0));
            let total = written(sides.first().map_or(request.duration_us, |first| first.request.duration_us));
            format!("the CPU limit throttled {who} for up to {throttled} of {total}")
        }
        Cause::Slow(_) | Cause::Network => {
            verdict.share.map_or_else(|| "its time is not known".to_owned(), |share| spent(sides, share, limit))
        }
        Cause::Other => format!("{who} answered {}: {}", request.status, request.details),
    }
}

/// The rule that decided, if one did.
pub fn source(side: &Side, cause: Cause) -> Option<Source> {
    let of_route = || side.route.as_ref()?.source.clone();
    match cause {
        Cause::DeniedByPolicy => side.policies.first().map(|policy| policy.source.clone()),
        Cause::RouteTimeout | Cause::TryTimeout | Cause::FaultInjected | Cause::NoCluster => of_route(),
        Cause::Slow(PhaseKind::Filter) if is_injected(&side.request) => of_route(),
        _ => None,
    }
}

/// Whether its longest wait for a filter was an injected delay.
pub fn is_injected(request: &RecentRequest) -> bool {
    let waits = request.phases.iter().filter(|phase| phase.kind == PhaseKind::Filter);
    waits.max_by_key(|phase| phase.duration_us).is_some_and(|phase| phase.filter.as_deref() == Some(FAULT_FILTER))
}

/// Who spent the greatest part of the time.
fn spent(sides: &[Side], share: Share, limit: Option<&Limit>) -> String {
    let Some(side) = sides.get(share.hop) else { return String::new() };
    let request = &side.request;
    let (who, target) = (proxy(side), target(side));
    let total = sides.first().map_or(request.duration_us, |first| first.request.duration_us);
    let (time, of) = (written(share.micros), written(total.max(share.micros)));
    let took = format!("{time} of {of}");
    match share.kind {
        Part::Between => format!("the way between {who} and {target} took {took}"),
        Part::Phase(PhaseKind::Proxy) => format!("{who} itself took {took}"),
        Part::Phase(PhaseKind::Filter) if is_injected(request) => {
            format!(
                "{who} delayed it by {took}: a fault is injected{}",
                place(source(side, Cause::FaultInjected).as_ref())
            )
        }
        Part::Phase(PhaseKind::Filter) => {
            let waits = request.phases.iter().filter(|phase| phase.kind == PhaseKind::Filter);
            let longest = waits.max_by_key(|phase| phase.duration_us).and_then(|phase| phase.filter.clone());
            format!("the filter {} of {who} took {took}", longest.unwrap_or_default())
        }
        Part::Phase(PhaseKind::Configuration) => format!("{who} waited {took} for configuration of the control plane"),
        Part::Phase(PhaseKind::EarlierTries) => format!("tries that failed took {took} at {who}{}", tries(request)),
        Part::Phase(PhaseKind::Pool) => {
            let limit = limit_text(side, Cause::Slow(PhaseKind::Pool), limit);
            format!("{who} waited {took} for a connection: {limit} was full")
        }
        Part::Phase(PhaseKind::Connect) => format!("{who} took {took} to connect to {target}"),
        Part::Phase(PhaseKind::Tls) => format!("the TLS handshake of {who} with {target} took {took}"),
        Part::Phase(PhaseKind::RequestBody) => format!("the client took {took} to send its request to {who}"),
        Part::Phase(PhaseKind::Endpoint) => format!("{} took {took}", application(side)),
        Part::Phase(PhaseKind::ResponseBody) => format!("{} took {took} to send its response", application(side)),
        Part::Phase(PhaseKind::ClientReads) => format!("the client took {took} to read the response of {who}"),
    }
}

fn denied(side: &Side) -> String {
    let who = proxy(side);
    let peer = side.request.call.tls.as_ref().and_then(|tls| tls.identities.first());
    let caller = peer.map_or_else(|| "a client without identity".to_owned(), Clone::clone);
    let policies: Vec<String> = side.policies.iter().map(|policy| at(&policy.source)).collect();
    match (&*side.request.details, policies.as_slice()) {
        ("rbac_access_denied_matched_policy[none]", []) => format!("no AuthorizationPolicy of {who} allows {caller}"),
        ("rbac_access_denied_matched_policy[none]", all) => {
            format!("no AuthorizationPolicy of {who} allows {caller}: there is {}", all.join("; "))
        }
        (details, []) => format!("a policy of {who} denies {caller}: {}", reason(details)),
        (_, all) => format!("{} denies {caller} at {who}", all.join("; ")),
    }
}

fn no_endpoint(side: &Side) -> String {
    let cluster = side.request.cluster.clone().unwrap_or_default();
    let Some(choice) = &side.request.choice else { return format!("no endpoint of {cluster} takes requests") };
    if choice.endpoints == 0 {
        return format!("no endpoint: {cluster} has none");
    }
    let named: Vec<String> = choice.first_passed_over.iter().take(MAX_NAMED).map(endpoint).collect();
    let more = choice.passed_over.saturating_sub(named.len());
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let reasons = if named.is_empty() { String::new() } else { format!(": {}{more}", named.join(", ")) };
    format!("no endpoint: {} of {} of {cluster} take no requests{reasons}", choice.passed_over, choice.endpoints)
}

/// An endpoint, and why it takes no requests.
pub fn endpoint(state: &EndpointState) -> String {
    let why: Vec<&str> = state.flags.iter().map(|flag| words(flag)).collect();
    let since = state.ejected_us.map(|micros| format!(" since {}", clock(micros))).unwrap_or_default();
    format!("{} is {}{since}", state.address, why.join(" and "))
}

fn words(flag: &str) -> &str {
    match flag {
        "failed_outlier_check" => "ejected",
        "failed_active_hc" => "unhealthy by its health checks",
        "failed_eds_health" => "not ready",
        other => other,
    }
}

/// The time of day, in UTC.
fn clock(micros: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_micros(micros);
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The limit with its place, or at least its name.
fn limit_text(side: &Side, cause: Cause, limit: Option<&Limit>) -> String {
    if let Some(limit) = limit {
        let place = place(limit.source.as_ref());
        return format!("the limit `{}: {}`{place}", limit.field, limit.value);
    }
    let breaker = limit::breaker(side, cause);
    let name = breaker.and_then(|breaker| limit::fields(breaker).first().copied()).unwrap_or("connectionPool");
    let limits = side.request.choice.as_ref().map(|choice| choice.limits.clone()).unwrap_or_default();
    let value = match name {
        "maxConnections" => limits.connections,
        "http1MaxPendingRequests" => limits.pending_requests,
        "http2MaxRequests" => limits.requests,
        _ => limits.retries,
    };
    value.map_or_else(|| format!("the limit `{name}`"), |value| format!("the limit `{name}: {value}`"))
}

fn place(source: Option<&Source>) -> String {
    source.map(|source| format!(" ({})", at(source))).unwrap_or_default()
}

/// The proxy, by its role.
fn proxy(side: &Side) -> String {
    let role = match side.proxy.side {
        "inbound" => "the server's proxy",
        "gateway" => "the gateway",
        _ => "the client's proxy",
    };
    format!("{role} ({}.{})", side.proxy.pod, side.proxy.namespace)
}

/// What the proxy forwards to.
fn target(side: &Side) -> String {
    match (&side.request.endpoint, &side.server) {
        (Some(endpoint), Some(pod)) => format!("{endpoint} ({pod})"),
        (Some(endpoint), None) => endpoint.clone(),
        (None, _) => "its endpoint".to_owned(),
    }
}

/// The program that answers behind a proxy.
fn application(side: &Side) -> String {
    if side.request.direction == "inbound" {
        return format!("the server's application ({}.{})", side.proxy.pod, side.proxy.namespace);
    }
    format!("the server at {}", target(side))
}

fn authority(request: &RecentRequest) -> String {
    let head = request.call.request.clone().unwrap_or_default();
    format!("{} {}{}", head.method, head.authority, head.path)
}

/// What stands in brackets in Envoy's details.
fn reason(details: &str) -> &str {
    let inner = details.split_once(['{', '[']).map_or(details, |(_, inner)| inner);
    inner.trim_end_matches(['}', ']'])
}

fn connecting(request: &RecentRequest) -> &str {
    if request.transport_failure.is_empty() { reason(&request.details) } else { &request.transport_failure }
}

fn tries(request: &RecentRequest) -> String {
    match request.attempts {
        0 | 1 => String::new(),
        tries => format!(", in each of {tries} tries"),
    }
}

/// A duration, as people read it.
pub fn written(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..10_000 => format!("{:.1} ms", micros as f64 / 1000.0),
        10_000..10_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{:.1} s", micros as f64 / 1_000_000.0),
    }
}
