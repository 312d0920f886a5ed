//! Whether a failed try is tried again, and when: the route's policy, and what the request itself asks for.

use std::ops::Deref;
use std::time::Duration;

use evenkeel_base::grpc::{format_timeout, http_of_status, parse_status};
use evenkeel_http::{HeaderId, Headers, ResponseHead};
use evenkeel_runtime_config::matching::{HeaderMatcher, HeaderValueMatcher};
use evenkeel_runtime_config::retry::{RateLimitedBackOff, RetryOn, RetryPolicy};
use evenkeel_runtime_config::view::RequestView;
use evenkeel_upstream::Outcome;

use super::failure::{Failure, Retry};

/// Statuses and header names a request may add to the policy; further ones are left aside.
const MAX_ASKED: usize = 32;

/// What a request asks of the router in `x-envoy-*` headers. Requests from outside have had them taken off before.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RequestedRetry {
    on: RetryOn,
    max_retries: Option<u32>,
    statuses: Vec<u16>,
    header_names: Vec<String>,
    /// `x-envoy-upstream-rq-timeout-ms`.
    pub(super) timeout: Option<Duration>,
    /// `x-envoy-upstream-rq-per-try-timeout-ms`.
    pub(super) per_try_timeout: Option<Duration>,
}

/// The headers [`RequestedRetry`] is read from, less the common prefix. They end here.
const PREFIX: &[u8] = b"x-envoy-";
const NAMES: [&[u8]; 8] = [
    b"x-envoy-retry-on",
    b"x-envoy-retry-grpc-on",
    b"x-envoy-max-retries",
    b"x-envoy-retriable-status-codes",
    b"x-envoy-retriable-header-names",
    b"x-envoy-upstream-rq-timeout-ms",
    b"x-envoy-upstream-rq-per-try-timeout-ms",
    b"x-envoy-hedge-on-per-try-timeout",
];

impl RequestedRetry {
    /// Reads the headers and takes them off. `None`, for nearly all requests: there is none.
    pub(super) fn take(headers: &mut Headers) -> Option<Self> {
        let is_asked = |id, name: &[u8]| match id {
            HeaderId::EnvoyRetryOn | HeaderId::EnvoyMaxRetries | HeaderId::EnvoyHedgeOnPerTryTimeout => true,
            HeaderId::Other => name.starts_with(PREFIX) && NAMES.contains(&name),
            _ => false,
        };
        if !headers.any(is_asked) {
            return None;
        }
        let mut asked = Self::default();
        for (_, name, value) in headers.iter() {
            let Ok(text) = std::str::from_utf8(value) else { continue };
            let number = || text.trim().parse::<u32>().ok();
            let millis = || number().map(|millis| Duration::from_millis(millis.into()));
            let list = || text.split(',').map(str::trim).filter(|item| !item.is_empty()).take(MAX_ASKED);
            match name {
                // What is no condition is left aside, as in Envoy.
                b"x-envoy-retry-on" | b"x-envoy-retry-grpc-on" => _ = asked.on.add(text),
                b"x-envoy-max-retries" => asked.max_retries = number(),
                b"x-envoy-retriable-status-codes" => {
                    asked.statuses.extend(list().filter_map(|item| item.parse::<u16>().ok()))
                }
                b"x-envoy-retriable-header-names" => {
                    asked.header_names.extend(list().map(str::to_ascii_lowercase));
                }
                b"x-envoy-upstream-rq-timeout-ms" => asked.timeout = millis(),
                b"x-envoy-upstream-rq-per-try-timeout-ms" => asked.per_try_timeout = millis(),
                _ => {}
            }
        }
        NAMES.iter().for_each(|name| headers.remove_name(name));
        Some(asked)
    }
}

/// A policy in force for one request. One that is its own is boxed: few requests have one, and those that do not need no room for it.
#[derive(Debug)]
pub(super) enum Policy<'c> {
    Configured(&'c RetryPolicy),
    Own(Box<RetryPolicy>),
}

impl Policy<'_> {
    /// The same, changed for this request.
    pub(super) fn changed(self, change: impl FnOnce(&mut RetryPolicy)) -> Self {
        let mut own = match self {
            Self::Configured(policy) => Box::new(policy.clone()),
            Self::Own(policy) => policy,
        };
        change(&mut own);
        Self::Own(own)
    }
}

impl Deref for Policy<'_> {
    type Target = RetryPolicy;

    fn deref(&self) -> &RetryPolicy {
        match self {
            Self::Configured(policy) => policy,
            Self::Own(policy) => policy,
        }
    }
}

/// The policy in force for one request: the configured one, changed by what the request asks for. `None`: no retries.
pub(super) fn effective<'c>(
    configured: Option<&'c RetryPolicy>,
    asked: Option<&RequestedRetry>,
    request: &impl RequestView,
) -> Option<Policy<'c>> {
    let policy = match (configured, asked) {
        (None, None) => return None,
        (Some(policy), None) => Policy::Configured(policy),
        (configured, Some(asked)) => {
            let mut policy = configured.cloned().unwrap_or_default();
            policy.on = both(policy.on, asked.on);
            policy.num_retries = asked.max_retries.unwrap_or(policy.num_retries);
            policy.retriable_status_codes.extend(&asked.statuses);
            policy.retriable_headers.extend(asked.header_names.iter().map(|name| HeaderMatcher {
                name: name.as_str().into(),
                value: HeaderValueMatcher::Present(true),
                invert: false,
                treat_missing_as_empty: false,
            }));
            policy.per_try_timeout = asked.per_try_timeout.or(policy.per_try_timeout);
            Policy::Own(Box::new(policy))
        }
    };
    let limited = &policy.retriable_request_headers;
    if !limited.is_empty() && !limited.iter().any(|matcher| matcher.matches(request)) {
        // The policy's time limits hold nevertheless.
        return Some(policy.changed(|policy| policy.on = RetryOn::default()));
    }
    Some(policy)
}

fn both(one: RetryOn, other: RetryOn) -> RetryOn {
    RetryOn {
        any_5xx: one.any_5xx | other.any_5xx,
        gateway_error: one.gateway_error | other.gateway_error,
        reset: one.reset | other.reset,
        reset_before_request: one.reset_before_request | other.reset_before_request,
        connect_failure: one.connect_failure | other.connect_failure,
        retriable_4xx: one.retriable_4xx | other.retriable_4xx,
        refused_stream: one.refused_stream | other.refused_stream,
        status_codes: one.status_codes | other.status_codes,
        headers: one.headers | other.headers,
        envoy_ratelimited: one.envoy_ratelimited | other.envoy_ratelimited,
        grpc_cancelled: one.grpc_cancelled | other.grpc_cancelled,
        grpc_deadline_exceeded: one.grpc_deadline_exceeded | other.grpc_deadline_exceeded,
        grpc_internal: one.grpc_internal | other.grpc_internal,
        grpc_resource_exhausted: one.grpc_resource_exhausted | other.grpc_resource_exhausted,
        grpc_unavailable: one.grpc_unavailable | other.grpc_unavailable,
    }
}

/// Whether the policy covers a failure before any response.
pub(super) fn covers_failure(on: &RetryOn, failure: &Failure) -> bool {
    let any_reset = on.any_5xx || on.gateway_error || on.reset;
    match failure.row().retry {
        Retry::Never => false,
        Retry::Reset => any_reset,
        Retry::Unsent => any_reset || on.reset_before_request,
        Retry::Connect => any_reset || on.reset_before_request || on.connect_failure,
        Retry::Refused => any_reset || on.reset_before_request || on.refused_stream,
    }
}

/// Whether the policy covers a response.
pub(super) fn covers_response(policy: &RetryPolicy, response: &ResponseHead) -> bool {
    let (on, status) = (&policy.on, response.status);
    if !on.is_any() {
        return false;
    }
    if response.headers.contains(HeaderId::EnvoyRateLimited) {
        return on.envoy_ratelimited;
    }
    let has = |matcher: &HeaderMatcher| match &*matcher.name {
        ":status" => matcher.matches_values([status.to_string().as_bytes()]),
        name => matcher.matches_values(response.headers.find_all(name.as_bytes())),
    };
    (on.any_5xx && (500..600).contains(&status))
        || (on.gateway_error && matches!(status, 502..=504))
        || (on.retriable_4xx && status == 409)
        || (on.status_codes && policy.retriable_status_codes.contains(&status))
        || (on.headers && policy.retriable_headers.iter().any(has))
        || covers_grpc(on, response)
}

fn covers_grpc(on: &RetryOn, response: &ResponseHead) -> bool {
    match response.headers.get(HeaderId::GrpcStatus) {
        Some(b"1") => on.grpc_cancelled,
        Some(b"4") => on.grpc_deadline_exceeded,
        Some(b"8") => on.grpc_resource_exhausted,
        Some(b"13") => on.grpc_internal,
        Some(b"14") => on.grpc_unavailable,
        _ => false,
    }
}

/// Where a pause comes from, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackOff {
    /// It grows with each retry.
    Exponential,
    /// The upstream said how long to wait.
    RateLimited,
}

/// Pause before retry number `retry` (from 1): what the response asks for, or a random part of an exponentially growing
/// interval. `now`: seconds since 1970.
pub(super) fn back_off(
    policy: &RetryPolicy,
    response: Option<&ResponseHead>,
    retry: u32,
    now: u64,
    random: u64,
) -> (Duration, BackOff) {
    let asked = policy.rate_limited.as_ref().zip(response).and_then(|(limits, head)| asked_pause(limits, head, now));
    if let Some(pause) = asked {
        // Up to half of it more, so that those who were told the same do not come back together.
        return (pause + part(pause / 2, random), BackOff::RateLimited);
    }
    let factor = 1u32.checked_shl(retry.saturating_sub(1)).unwrap_or(u32::MAX);
    let interval = policy.base_interval.saturating_mul(factor).min(policy.max_interval);
    (part(interval, random), BackOff::Exponential)
}

fn part(whole: Duration, random: u64) -> Duration {
    let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random % micros)
}

fn asked_pause(limits: &RateLimitedBackOff, response: &ResponseHead, now: u64) -> Option<Duration> {
    limits.reset_headers.iter().find_map(|header| {
        let value = response.headers.find(header.name.as_bytes())?;
        let number: u64 = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
        let seconds = if header.unix_timestamp { number.checked_sub(now)? } else { number };
        let pause = Duration::from_secs(seconds);
        (!pause.is_zero() && pause <= limits.max_interval).then_some(pause)
    })
}

/// Tells the server of the limit that will be kept, and a gRPC server in its own words where the route says so.
pub(crate) fn announce_timeout(headers: &mut Headers, timeout: Duration, to_grpc: bool) {
    let mut digits = itoa::Buffer::new();
    headers.set(HeaderId::EnvoyExpectedRqTimeoutMs, digits.format(timeout.as_millis()).as_bytes());
    if to_grpc {
        headers.set_name(b"grpc-timeout", format_timeout(timeout).as_bytes());
    }
}

/// What an answer says of the host: its status, or for gRPC the status that its `grpc-status` stands for.
pub(super) fn outcome_of_response(response: &ResponseHead) -> Outcome {
    let grpc =
        response.headers.get(HeaderId::GrpcStatus).map(|status| parse_status(status).map_or(500, http_of_status));
    Outcome::Answered(grpc.unwrap_or(response.status))
}

/// Whether a request may be sent twice: RFC 9110 section 9.2.2.
pub(super) fn is_idempotent(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::retry::ResetHeader;

    use super::*;

    fn on(conditions: &str) -> RetryOn {
        let mut on = RetryOn::default();
        on.add(conditions).expect("conditions");
        on
    }

    fn response(status: u16, headers: &[(&str, &str)]) -> ResponseHead {
        let mut head = ResponseHead { status, ..ResponseHead::default() };
        headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value.as_bytes()));
        head
    }

    #[test]
    fn none_is_overlooked() {
        for name in NAMES {
            let mut headers = Headers::default();
            headers.append(name, b"1");
            assert!(RequestedRetry::take(&mut headers).is_some() && headers.is_empty(), "{}", name.escape_ascii());
        }
        let mut headers = Headers::default();
        headers.append(b"x-envoy-other", b"1");
        headers.append(b"via", b"1");
        assert_eq!(RequestedRetry::take(&mut headers), None);
    }

    #[test]
    fn policies_cover_the_failures_they_name() {
        let closed = |sent| Failure::UpstreamClosed { sent };
        for (conditions, failure, expected) in [
            ("connect-failure", Failure::Connect(String::new()), true),
            ("connect-failure", Failure::ConnectTimeout, true),
            ("connect-failure", closed(true), false),
            ("reset", closed(true), true),
            ("reset-before-request", closed(false), true),
            ("reset-before-request", closed(true), false),
            ("gateway-error", closed(true), true),
            ("5xx", Failure::PerTryTimeout, true),
            ("refused-stream", Failure::UpstreamRefused, true),
            ("refused-stream", Failure::UpstreamReset, false),
            ("5xx", Failure::ResponseTimeout, false),
            ("5xx", Failure::NoHealthyHost(503), false),
            ("5xx,reset,reset-before-request", Failure::Overflow, false),
            ("http3-post-connect-failure", closed(false), false),
        ] {
            assert_eq!(covers_failure(&on(conditions), &failure), expected, "{conditions}: {failure:?}");
        }
    }

    #[test]
    fn policies_cover_the_answers_they_name() {
        let policy = |conditions: &str| RetryPolicy {
            on: on(conditions),
            retriable_status_codes: vec![418],
            retriable_headers: vec![HeaderMatcher {
                name: "x-again".into(),
                value: HeaderValueMatcher::Present(true),
                invert: false,
                treat_missing_as_empty: false,
            }],
            ..RetryPolicy::default()
        };
        for (conditions, answer, expected) in [
            ("5xx", response(500, &[]), true),
            ("gateway-error", response(500, &[]), false),
            ("gateway-error", response(504, &[]), true),
            ("retriable-4xx", response(409, &[]), true),
            ("retriable-4xx", response(404, &[]), false),
            ("retriable-status-codes", response(418, &[]), true),
            ("5xx", response(418, &[]), false),
            ("retriable-headers", response(200, &[("x-again", "1")]), true),
            ("retriable-headers", response(200, &[]), false),
            ("5xx", response(503, &[("x-envoy-ratelimited", "true")]), false),
            ("envoy-ratelimited", response(429, &[("x-envoy-ratelimited", "true")]), true),
            ("unavailable", response(200, &[("grpc-status", "14")]), true),
            ("cancelled", response(200, &[("grpc-status", "14")]), false),
        ] {
            assert_eq!(covers_response(&policy(conditions), &answer), expected, "{conditions}: {answer:?}");
        }
    }

    #[test]
    fn pauses_grow_at_random_up_to_the_longest() {
        let policy = RetryPolicy { max_interval: Duration::from_millis(80), ..RetryPolicy::default() };
        for (retry, longest) in [(1, 25), (2, 50), (3, 80), (40, 80)] {
            let pause = |random| back_off(&policy, None, retry, 0, random).0;
            assert_eq!(pause(0), Duration::ZERO);
            assert_eq!(pause(longest * 1000 - 1), Duration::from_micros(longest * 1000 - 1), "retry {retry}");
            assert_eq!(pause(longest * 1000), Duration::ZERO, "retry {retry}");
        }
    }

    #[test]
    fn the_upstream_may_say_how_long_to_wait() {
        let header = |name: &str, unix_timestamp| ResetHeader { name: name.into(), unix_timestamp };
        let policy = RetryPolicy {
            rate_limited: Some(RateLimitedBackOff {
                reset_headers: vec![header("retry-after", false), header("x-reset", true)],
                max_interval: Duration::from_secs(60),
            }),
            ..RetryPolicy::default()
        };
        let pause = |headers: &[(&str, &str)]| {
            let (pause, kind) = back_off(&policy, Some(&response(503, headers)), 1, 1000, 0);
            (kind == BackOff::RateLimited).then_some(pause.as_secs())
        };
        assert_eq!(pause(&[("retry-after", "3")]), Some(3));
        assert_eq!(pause(&[("retry-after", "soon"), ("x-reset", "1007")]), Some(7));
        assert_eq!(pause(&[("x-reset", "999")]), None, "in the past");
        assert_eq!(pause(&[("retry-after", "61")]), None, "too long");
        assert_eq!(pause(&[]), None);
    }

    #[test]
    fn requests_may_ask_for_retries_and_times() {
        let mut headers = Headers::default();
        assert_eq!(RequestedRetry::take(&mut headers), None);
        for (name, value) in [
            ("x-envoy-retry-on", "reset,nonsense,retriable-headers"),
            ("x-envoy-max-retries", "7"),
            ("x-envoy-retriable-status-codes", "418, 503,no"),
            ("x-envoy-retriable-header-names", "X-Again"),
            ("x-envoy-upstream-rq-timeout-ms", "250"),
            ("x-envoy-upstream-rq-per-try-timeout-ms", "x"),
            ("x-other", "stays"),
        ] {
            headers.append(name.as_bytes(), value.as_bytes());
        }
        let asked = RequestedRetry::take(&mut headers).expect("headers");
        assert_eq!(headers.len(), 1);
        assert_eq!(asked.on, on("reset,retriable-headers"));
        assert_eq!(
            (asked.max_retries, &*asked.statuses, &*asked.header_names),
            (Some(7), &[418, 503][..], &["x-again".to_owned()][..])
        );
        assert_eq!((asked.timeout, asked.per_try_timeout), (Some(Duration::from_millis(250)), None));
    }

    #[test]
    fn outcomes_are_told_by_status_and_grpc_status() {
        assert_eq!(outcome_of_response(&response(503, &[])), Outcome::Answered(503));
        assert_eq!(outcome_of_response(&response(200, &[("grpc-status", "14")])), Outcome::Answered(503));
        assert_eq!(outcome_of_response(&response(200, &[("grpc-status", "0")])), Outcome::Answered(200));
        assert_eq!(Failure::ConnectTimeout.row().outcome, Some(Outcome::ConnectFailed));
        assert_eq!(Failure::ClientGone.row().outcome, None);
    }
}
