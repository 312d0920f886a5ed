//! Whether a failed try is tried again.

use std::time::Duration;

use evenkeel_http::{HeaderId, ResponseHead};
use evenkeel_runtime_config::route::{RetryOn, RetryPolicy};

use super::failure::Failure;

/// Whether the policy covers a failure before any response.
pub(super) fn covers_failure(on: &RetryOn, failure: &Failure) -> bool {
    match failure {
        Failure::Connect(_) | Failure::ConnectTimeout => {
            on.connect_failure || on.any_5xx || on.gateway_error || on.reset || on.reset_before_request
        }
        Failure::UpstreamClosed { sent } => {
            on.any_5xx || on.gateway_error || on.reset || (on.reset_before_request && !sent)
        }
        Failure::UpstreamProtocol | Failure::UpstreamReset => on.any_5xx || on.gateway_error || on.reset,
        Failure::UpstreamRefused => on.any_5xx || on.gateway_error || on.reset || on.refused_stream,
        Failure::PerTryTimeout => on.any_5xx || on.gateway_error || on.reset,
        Failure::Overflow => on.any_5xx || on.gateway_error || on.reset || on.reset_before_request,
        _ => false,
    }
}

/// Whether the policy covers a response.
pub(super) fn covers_response(policy: &RetryPolicy, response: &ResponseHead) -> bool {
    let (on, status) = (&policy.on, response.status);
    let rate_limited = response.headers.contains(HeaderId::EnvoyRateLimited);
    if rate_limited {
        return on.envoy_ratelimited;
    }
    (on.any_5xx && (500..600).contains(&status))
        || (on.gateway_error && matches!(status, 502..=504))
        || (on.retriable_4xx && status == 409)
        || (on.status_codes && policy.retriable_status_codes.contains(&status))
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

/// Pause before retry number `retry` (from 1): a random part of an exponentially growing interval, as Envoy's jittered
/// back-off.
pub(super) fn back_off(policy: &RetryPolicy, retry: u32, random: u64) -> Duration {
    let factor = 1u32.checked_shl(retry.min(31)).unwrap_or(u32::MAX).saturating_sub(1).max(1);
    let interval = policy.base_interval.saturating_mul(factor).min(policy.max_interval);
    let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random % micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_cover_what_they_say() {
        let on = |f: fn(&mut RetryOn)| {
            let mut on = RetryOn::default();
            f(&mut on);
            on
        };
        let closed = |sent| Failure::UpstreamClosed { sent };
        let refused = || Failure::Connect(String::new());
        assert!(covers_failure(&on(|on| on.connect_failure = true), &refused()));
        assert!(!covers_failure(&on(|on| on.connect_failure = true), &closed(true)));
        assert!(covers_failure(&on(|on| on.reset = true), &closed(true)));
        assert!(covers_failure(&on(|on| on.reset_before_request = true), &closed(false)));
        assert!(!covers_failure(&on(|on| on.reset_before_request = true), &closed(true)));
        assert!(covers_failure(&on(|on| on.gateway_error = true), &closed(true)));
        assert!(!covers_failure(&on(|on| on.any_5xx = true), &Failure::ResponseTimeout));
        assert!(!covers_failure(&on(|on| on.any_5xx = true), &Failure::NoHealthyHost));
    }
}
