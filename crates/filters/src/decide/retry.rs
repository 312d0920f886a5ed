//! The effective retry policy of one request: the route's, modified by the request's headers.

use std::ops::Deref;
use std::time::Duration;

use evenkeel_base::grpc::format_timeout;
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::matching::{HeaderMatcher, HeaderValueMatcher};
use evenkeel_runtime_config::retry::{RetryOn, RetryPolicy};
use evenkeel_runtime_config::view::RequestView;

/// Status codes and header names that a request may add to the policy; further ones are ignored.
const MAX_ASKED: usize = 32;

/// The retry settings that a request has in `x-envoy-*` headers. They have been removed from external requests before.
#[derive(Debug, Default, PartialEq)]
pub struct RequestedRetry {
    on: RetryOn,
    max_retries: Option<u32>,
    statuses: Vec<u16>,
    header_names: Vec<String>,
    /// `x-envoy-upstream-rq-timeout-ms`.
    pub(super) timeout: Option<Duration>,
    /// `x-envoy-upstream-rq-per-try-timeout-ms`.
    pub(super) per_try_timeout: Option<Duration>,
}

/// The headers [`RequestedRetry`] is read from, and their common prefix. They are not forwarded.
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
    /// Reads and removes the headers. `None` for nearly all requests: there are none.
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
                // Unknown conditions are ignored, as in Envoy.
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

/// The retry policy of one request. A policy of the request's own is boxed: few requests have one, and the others need no
/// room for it.
#[derive(Debug)]
pub enum Policy<'c> {
    /// That of the route or virtual host.
    Configured(&'c RetryPolicy),
    /// The request's own.
    Own(Box<RetryPolicy>),
}

impl Policy<'_> {
    /// Returns the same policy, modified for this request.
    pub fn changed(self, change: impl FnOnce(&mut RetryPolicy)) -> Self {
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

/// The effective policy of one request: the configured one, modified by what the request asks for. `None`: no retries.
pub fn effective<'c>(
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
        // The policy's timeouts apply nevertheless.
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

/// Tells the server the timeout that will be enforced, by Envoy's header if wanted; a gRPC server also by
/// `grpc-timeout`, if the route says so.
pub fn announce_timeout(headers: &mut Headers, timeout: Duration, to_grpc: bool, by_envoys_header: bool) {
    if by_envoys_header {
        let mut digits = itoa::Buffer::new();
        headers.set(HeaderId::EnvoyExpectedRqTimeoutMs, digits.format(timeout.as_millis()).as_bytes());
    }
    if to_grpc {
        headers.set_name(b"grpc-timeout", format_timeout(timeout).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(conditions: &str) -> RetryOn {
        let mut on = RetryOn::default();
        on.add(conditions).expect("conditions");
        on
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
}
