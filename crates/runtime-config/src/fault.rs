//! `envoy.filters.http.fault`, compiled: injects delays, aborts and slow responses, to test how callers cope.

use std::time::Duration;

use crate::dynamic_metadata::Fields;
use crate::filter_needs::FilterNeeds;
use crate::fraction::Fraction;
use crate::matching::HeaderMatcher;

/// Configuration of the filter, or of a route.
#[derive(Debug)]
pub struct Fault {
    /// Delays of requests.
    pub delay: Option<Delay>,
    /// Requests to abort with a local reply.
    pub abort: Option<Abort>,
    /// Rate limit of responses.
    pub rate_limit: Option<RateLimit>,
    /// Only requests to this cluster; empty: all.
    pub upstream_cluster: Box<str>,
    /// Only requests from one of these proxies (`x-envoy-downstream-service-node`); empty: all.
    pub downstream_nodes: Vec<Box<[u8]>>,
    /// Only requests with these headers.
    pub headers: Vec<HeaderMatcher>,
    /// Limit of concurrent requests with a fault; others get none.
    pub max_active: Option<u32>,
    /// Disables statistics per downstream cluster (`x-envoy-downstream-service-cluster`).
    pub disable_downstream_cluster_stats: bool,
    /// Dynamic metadata set on requests with a fault.
    pub metadata: Fields,
}

impl FilterNeeds for Fault {}

/// `FaultDelay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// How long; `None`: as the request asks (`x-envoy-fault-delay-request`).
    pub fixed: Option<Duration>,
    /// Share of requests. A request that sets the duration may lower it.
    pub share: Fraction,
}

/// `FaultAbort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// The response's status.
    pub status: AbortStatus,
    /// Share of requests. A request that sets the status may lower it.
    pub share: Fraction,
}

/// The status of an aborted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// This HTTP status.
    Http(u16),
    /// This gRPC status.
    Grpc(u32),
    /// The value in the request's header (`x-envoy-fault-abort-request`, `x-envoy-fault-abort-grpc-request`).
    Header,
}

/// `FaultRateLimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// KiB per second; `None`: as the request asks (`x-envoy-fault-throughput-response`).
    pub fixed_kib: Option<u64>,
    /// Share of responses. A request that sets the rate may lower it.
    pub share: Fraction,
}
