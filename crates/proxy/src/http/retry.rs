//! Whether a failed try is followed by another, and when.

use std::time::Duration;

use evenkeel_base::grpc::{http_of_status, parse_status};
use evenkeel_http::{HeaderId, ResponseHead};
use evenkeel_runtime_config::matching::HeaderMatcher;
use evenkeel_runtime_config::retry::{RateLimitedBackOff, RetryOn, RetryPolicy};
use evenkeel_upstream::Outcome;

use super::failure::{Failure, Retry};

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

/// The origin of a pause, for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackOff {
    /// The pause grows with each retry.
    Exponential,
    /// The upstream said how long to wait.
    RateLimited,
}

/// The pause before retry number `retry` (from 1): what the response asks for, or a random part of an exponentially growing interval.
/// `now`: seconds since 1970.
pub(super) fn back_off(
    policy: &RetryPolicy,
    response: Option<&ResponseHead>,
    retry: u32,
    now: u64,
    random: u64,
) -> (Duration, BackOff) {
    let asked = policy.rate_limited.as_ref().zip(response).and_then(|(limits, head)| asked_pause(limits, head, now));
    if let Some(pause) = asked {
        // Adds up to half of it at random, so that clients that got the same value do not all come back at once.
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

/// Returns the outcome that a response reports about its host: its status, or for gRPC the HTTP status that its `grpc-status`
/// maps to.
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
    use evenkeel_runtime_config::matching::HeaderValueMatcher;
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
            ("5xx,reset,reset-before-request", Failure::Overflow(evenkeel_upstream::Overflow::Requests), false),
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
    fn outcomes_are_told_by_status_and_grpc_status() {
        assert_eq!(outcome_of_response(&response(503, &[])), Outcome::Answered(503));
        assert_eq!(outcome_of_response(&response(200, &[("grpc-status", "14")])), Outcome::Answered(503));
        assert_eq!(outcome_of_response(&response(200, &[("grpc-status", "0")])), Outcome::Answered(200));
        assert_eq!(Failure::ConnectTimeout.row().outcome, Some(Outcome::ConnectFailed));
        assert_eq!(Failure::ClientGone.row().outcome, None);
    }
}
