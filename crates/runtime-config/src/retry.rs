//! `envoy.config.route.v3.RetryPolicy`, compiled.

use std::time::Duration;

use crate::matching::HeaderMatcher;
use crate::metadata::MetadataMatch;

/// When a request is retried, and how.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// Retry conditions.
    pub on: RetryOn,
    /// Maximum number of retries.
    pub num_retries: u32,
    /// Status codes for `retriable-status-codes`.
    pub retriable_status_codes: Vec<u16>,
    /// Response headers for `retriable-headers`; any of them.
    pub retriable_headers: Vec<HeaderMatcher>,
    /// Only requests with one of these are retried; empty: all.
    pub retriable_request_headers: Vec<HeaderMatcher>,
    /// Timeout of each try.
    pub per_try_timeout: Option<Duration>,
    /// A try without activity for this long is ended.
    pub per_try_idle_timeout: Option<Duration>,
    /// First back-off interval (25 ms when unset).
    pub base_interval: Duration,
    /// Maximum back-off interval (10 × base when unset).
    pub max_interval: Duration,
    /// Back-off requested by the upstream.
    pub rate_limited: Option<RateLimitedBackOff>,
    /// Avoid hosts tried before (`previous_hosts`).
    pub avoid_previous_hosts: bool,
    /// Avoid hosts with all metadata of one of these (`omit_host_metadata`).
    pub avoid_metadata: Vec<MetadataMatch>,
    /// After every this many tries, priorities already tried are avoided (`previous_priorities`).
    pub avoid_priorities_every: Option<u32>,
    /// How often to pick again when a predicate rejects a host.
    pub host_selection_max_attempts: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            on: RetryOn::default(),
            num_retries: 1,
            retriable_status_codes: Vec::new(),
            retriable_headers: Vec::new(),
            retriable_request_headers: Vec::new(),
            per_try_timeout: None,
            per_try_idle_timeout: None,
            base_interval: Duration::from_millis(25),
            max_interval: Duration::from_millis(250),
            rate_limited: None,
            avoid_previous_hosts: false,
            avoid_metadata: Vec::new(),
            avoid_priorities_every: None,
            host_selection_max_attempts: 1,
        }
    }
}

/// `RateLimitedRetryBackOff`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitedBackOff {
    /// Headers that contain the time to wait; the first valid one counts.
    pub reset_headers: Vec<ResetHeader>,
    /// Maximum back-off accepted from the upstream (300 s when unset).
    pub max_interval: Duration,
}

/// `ResetHeader`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetHeader {
    /// Lower-case name.
    pub name: Box<str>,
    /// Seconds since 1970 instead of seconds from now.
    pub unix_timestamp: bool,
}

/// Conditions of `retry_on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools)]
pub struct RetryOn {
    /// `5xx`: any 5xx, or no response at all.
    pub any_5xx: bool,
    /// `gateway-error`: 502, 503, 504.
    pub gateway_error: bool,
    /// `reset`: no response at all.
    pub reset: bool,
    /// `reset-before-request`: reset before the request was sent.
    pub reset_before_request: bool,
    /// `connect-failure`.
    pub connect_failure: bool,
    /// `retriable-4xx`: 409.
    pub retriable_4xx: bool,
    /// `refused-stream`.
    pub refused_stream: bool,
    /// `retriable-status-codes`.
    pub status_codes: bool,
    /// `retriable-headers`.
    pub headers: bool,
    /// `envoy-ratelimited`.
    pub envoy_ratelimited: bool,
    /// gRPC `cancelled`.
    pub grpc_cancelled: bool,
    /// gRPC `deadline-exceeded`.
    pub grpc_deadline_exceeded: bool,
    /// gRPC `internal`.
    pub grpc_internal: bool,
    /// gRPC `resource-exhausted`.
    pub grpc_resource_exhausted: bool,
    /// gRPC `unavailable`.
    pub grpc_unavailable: bool,
}

impl RetryOn {
    /// Adds the conditions of a list (`5xx,reset`). The error is the first unknown word; the others are added nevertheless.
    pub fn add<'t>(&mut self, list: &'t str) -> Result<(), &'t str> {
        let mut unknown = Ok(());
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            // Upstream HTTP/3 is not supported, so this cannot happen.
            if word == "http3-post-connect-failure" {
                continue;
            }
            match self.flags().into_iter().find(|(name, _)| *name == word) {
                Some((_, flag)) => *flag = true,
                None => unknown = unknown.and(Err(word)),
            }
        }
        unknown
    }

    /// The names of the conditions set.
    pub fn names(mut self) -> Vec<&'static str> {
        self.flags().into_iter().filter(|(_, flag)| **flag).map(|(name, _)| name).collect()
    }

    fn flags(&mut self) -> [(&'static str, &mut bool); 15] {
        [
            ("5xx", &mut self.any_5xx),
            ("gateway-error", &mut self.gateway_error),
            ("reset", &mut self.reset),
            ("reset-before-request", &mut self.reset_before_request),
            ("connect-failure", &mut self.connect_failure),
            ("retriable-4xx", &mut self.retriable_4xx),
            ("refused-stream", &mut self.refused_stream),
            ("retriable-status-codes", &mut self.status_codes),
            ("retriable-headers", &mut self.headers),
            ("envoy-ratelimited", &mut self.envoy_ratelimited),
            ("cancelled", &mut self.grpc_cancelled),
            ("deadline-exceeded", &mut self.grpc_deadline_exceeded),
            ("internal", &mut self.grpc_internal),
            ("resource-exhausted", &mut self.grpc_resource_exhausted),
            ("unavailable", &mut self.grpc_unavailable),
        ]
    }

    /// Whether any condition is set.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}
