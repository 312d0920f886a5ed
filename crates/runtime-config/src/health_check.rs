//! `envoy.config.core.v3.HealthCheck`, compiled.

use std::ops::Range;
use std::time::Duration;

use crate::address::EndpointAddress;
use crate::string_match::StringMatcher;

/// An active health check of a cluster's hosts.
#[derive(Debug, Clone)]
pub struct HealthCheck {
    /// Distinguishes several checks of a cluster, also in statistics. Empty if it has none.
    pub name: Box<str>,
    /// The request to send, and the expected response.
    pub probe: Probe,
    /// Time limit of one check, including connecting.
    pub timeout: Duration,
    /// Consecutive checks that must fail before a host counts as unhealthy.
    pub unhealthy_threshold: u32,
    /// Consecutive checks that must succeed before a host counts as healthy again; for the first check ever, one suffices.
    pub healthy_threshold: u32,
    /// Intervals between checks.
    pub intervals: Intervals,
    /// Port to check instead of the endpoint's.
    pub alt_port: Option<u16>,
    /// The connection is kept for the next check.
    pub reuse_connection: bool,
    /// Labels that select the transport instead of the endpoint's own (`transport_socket_match_criteria`).
    pub transport_labels: Option<Vec<(Box<str>, Box<str>)>>,
    /// Each failure is logged, not only a change of the host's health.
    pub always_log_failures: bool,
    /// Each success is logged.
    pub always_log_success: bool,
}

/// Intervals between checks. The special ones default to `interval`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervals {
    /// Regular interval.
    pub interval: Duration,
    /// Random delay before the first check, up to this much.
    pub initial_jitter: Duration,
    /// Random time added to each interval, up to this much.
    pub jitter: Duration,
    /// Random time added to each interval, up to this share of it.
    pub jitter_percent: u32,
    /// While the host is unhealthy.
    pub unhealthy: Duration,
    /// After the first failed check.
    pub unhealthy_edge: Duration,
    /// After the first successful check.
    pub healthy_edge: Duration,
    /// While the cluster has not had any request yet (60 s).
    pub no_traffic: Duration,
    /// The interval for healthy hosts.
    pub no_traffic_healthy: Duration,
}

/// One kind of check.
#[derive(Debug, Clone)]
pub enum Probe {
    /// A request, judged by its response.
    Http(Box<HttpProbe>),
    /// A connection, and optionally bytes.
    Tcp(TcpProbe),
    /// `grpc.health.v1.Health/Check`.
    Grpc(GrpcProbe),
}

/// `HttpHealthCheck`.
#[derive(Debug, Clone)]
pub struct HttpProbe {
    /// `Host`, unless the endpoint has its own host name for checks; the cluster's name when empty.
    pub host: Box<str>,
    /// Path, with query.
    pub path: Box<str>,
    /// Method.
    pub method: &'static str,
    /// Body.
    pub send: Vec<u8>,
    /// Byte sequences that the body must contain, in this order.
    pub receive: Vec<Vec<u8>>,
    /// Body bytes examined; 0: all, within the proxy's limit.
    pub response_buffer_bytes: usize,
    /// Headers added.
    pub headers_to_add: Vec<(Box<str>, Box<str>)>,
    /// Headers removed.
    pub headers_to_remove: Vec<Box<str>>,
    /// Statuses of a healthy host; 200 when empty.
    pub expected_statuses: Vec<Range<u16>>,
    /// Statuses that count towards the unhealthy threshold; other unexpected ones make a host unhealthy immediately.
    pub retriable_statuses: Vec<Range<u16>>,
    /// The host speaks HTTP/2.
    pub http2: bool,
    /// The expected `x-envoy-upstream-healthchecked-cluster` of the response.
    pub service_name: Option<StringMatcher>,
}

/// `TcpHealthCheck`.
#[derive(Debug, Clone, Default)]
pub struct TcpProbe {
    /// Bytes to send; empty: connecting suffices.
    pub send: Vec<u8>,
    /// Byte sequences that the response must contain, in this order.
    pub receive: Vec<Vec<u8>>,
}

/// `GrpcHealthCheck`.
#[derive(Debug, Clone, Default)]
pub struct GrpcProbe {
    /// Service to query; the whole server when empty.
    pub service: Box<str>,
    /// `:authority`, unless the endpoint has its own host name for checks; the cluster's name when empty.
    pub authority: Box<str>,
    /// Metadata added.
    pub metadata: Vec<(Box<str>, Box<str>)>,
}

/// `Endpoint.HealthCheckConfig`: whether and at which address one endpoint is checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointCheck {
    /// Address to check instead of the endpoint's.
    pub address: Option<EndpointAddress>,
    /// Port to check instead.
    pub port: Option<u16>,
    /// Host name to send, instead of the check's and the endpoint's.
    pub hostname: Box<str>,
    /// Not checked; active health checks never make it unhealthy.
    pub disabled: bool,
}
