//! `envoy.filters.http.fault`, compiled: delays, answers instead of the service's, and slow answers, for tests of what is around it.

use std::time::Duration;

use crate::dynamic_metadata::Fields;
use crate::fraction::Fraction;
use crate::matching::HeaderMatcher;

/// The filter's configuration, or that of a route.
#[derive(Debug)]
pub struct Fault {
    /// Requests that are held back.
    pub delay: Option<Delay>,
    /// Requests that are answered here.
    pub abort: Option<Abort>,
    /// Answers that are slowed down.
    pub rate_limit: Option<RateLimit>,
    /// Only requests to this cluster; empty: all.
    pub upstream_cluster: Box<str>,
    /// Only requests that name one of these as the proxy they come from (`x-envoy-downstream-service-node`); empty: all.
    pub downstream_nodes: Vec<Box<[u8]>>,
    /// Only requests with these headers.
    pub headers: Vec<HeaderMatcher>,
    /// While so many requests suffer, no other does.
    pub max_active: Option<u32>,
    /// Nothing is counted by the cluster a request comes from (`x-envoy-downstream-service-cluster`).
    pub disable_downstream_cluster_stats: bool,
    /// Dynamic metadata of requests that suffer.
    pub metadata: Fields,
}

/// `FaultDelay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delay {
    /// How long; `None`: the request says (`x-envoy-fault-delay-request`).
    pub fixed: Option<Duration>,
    /// Of these requests. A request that says how long may ask for less.
    pub share: Fraction,
}

/// `FaultAbort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// With what.
    pub status: AbortStatus,
    /// Of these requests. A request that says with what may ask for less.
    pub share: Fraction,
}

/// What a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortStatus {
    /// This status.
    Http(u16),
    /// This status of gRPC.
    Grpc(u32),
    /// What the request says (`x-envoy-fault-abort-request`, `x-envoy-fault-abort-grpc-request`).
    Header,
}

/// `FaultRateLimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// KiB a second; `None`: the request says (`x-envoy-fault-throughput-response`).
    pub fixed_kib: Option<u64>,
    /// Of these answers. A request that says how many may ask for less.
    pub share: Fraction,
}
