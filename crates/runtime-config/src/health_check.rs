//! `envoy.config.core.v3.HealthCheck`, compiled.

use std::ops::Range;
use std::time::Duration;

use crate::cluster::EndpointAddress;
use crate::matching::StringMatcher;

/// An active health check of a cluster's hosts.
#[derive(Debug, Clone)]
pub struct HealthCheck {
    /// Among several of a cluster; statistics are under it. Empty: it has none.
    pub name: Box<str>,
    /// What is asked, and what the answer must be.
    pub probe: Probe,
    /// Limit of one check, connecting included.
    pub timeout: Duration,
    /// Checks in a row that must fail before a host counts as unhealthy.
    pub unhealthy_threshold: u32,
    /// Checks in a row that must succeed before a host counts as healthy again; the first ever is enough by itself.
    pub healthy_threshold: u32,
    /// When the next check comes.
    pub intervals: Intervals,
    /// Another port than the endpoint's.
    pub alt_port: Option<u16>,
    /// The connection is kept for the next check.
    pub reuse_connection: bool,
    /// Labels that choose the transport instead of the endpoint's own (`transport_socket_match_criteria`).
    pub transport_labels: Option<Vec<(Box<str>, Box<str>)>>,
    /// Failures are logged each time, not only when the host's health changes.
    pub always_log_failures: bool,
    /// Successes are logged each time.
    pub always_log_success: bool,
}

/// Pauses between checks. Each of the special ones is `interval` when unset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervals {
    /// Usual pause.
    pub interval: Duration,
    /// Once: up to this much before the first check.
    pub initial_jitter: Duration,
    /// Up to this much is added to each pause.
    pub jitter: Duration,
    /// And up to this share of the pause.
    pub jitter_percent: u32,
    /// While the host is unhealthy.
    pub unhealthy: Duration,
    /// After the check that failed first.
    pub unhealthy_edge: Duration,
    /// After the check that succeeded first.
    pub healthy_edge: Duration,
    /// While the cluster has not had a request yet (60 s).
    pub no_traffic: Duration,
    /// The same for hosts that are healthy.
    pub no_traffic_healthy: Duration,
}

/// One kind of check.
#[derive(Debug, Clone)]
pub enum Probe {
    /// A request, judged by its answer.
    Http(Box<HttpProbe>),
    /// A connection, and maybe bytes.
    Tcp(TcpProbe),
    /// `grpc.health.v1.Health/Check`.
    Grpc(GrpcProbe),
}

/// `HttpHealthCheck`.
#[derive(Debug, Clone)]
pub struct HttpProbe {
    /// `Host`, unless the endpoint has a name for checks; the cluster's name when empty.
    pub host: Box<str>,
    /// Path, with query.
    pub path: Box<str>,
    /// Method.
    pub method: &'static str,
    /// Body.
    pub send: Vec<u8>,
    /// What the body must hold, in this order.
    pub receive: Vec<Vec<u8>>,
    /// Body bytes looked at; 0: all there are, within the limit of the proxy.
    pub response_buffer_bytes: usize,
    /// Headers added.
    pub headers_to_add: Vec<(Box<str>, Box<str>)>,
    /// Headers left out.
    pub headers_to_remove: Vec<Box<str>>,
    /// Statuses of a healthy host; 200 when empty.
    pub expected_statuses: Vec<Range<u16>>,
    /// Statuses that count towards the unhealthy threshold; other unexpected ones make a host unhealthy at once.
    pub retriable_statuses: Vec<Range<u16>>,
    /// The host speaks HTTP/2.
    pub http2: bool,
    /// What `x-envoy-upstream-healthchecked-cluster` of the answer must be.
    pub service_name: Option<StringMatcher>,
}

/// `TcpHealthCheck`.
#[derive(Debug, Clone, Default)]
pub struct TcpProbe {
    /// Bytes to send; empty: connecting is enough.
    pub send: Vec<u8>,
    /// What the answer must hold, in this order.
    pub receive: Vec<Vec<u8>>,
}

/// `GrpcHealthCheck`.
#[derive(Debug, Clone, Default)]
pub struct GrpcProbe {
    /// Service asked about; the whole server when empty.
    pub service: Box<str>,
    /// `:authority`, unless the endpoint has a name for checks; the cluster's name when empty.
    pub authority: Box<str>,
    /// Metadata added.
    pub metadata: Vec<(Box<str>, Box<str>)>,
}

/// `Endpoint.HealthCheckConfig`: where and whether one endpoint is checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointCheck {
    /// Another address than the endpoint's.
    pub address: Option<EndpointAddress>,
    /// Another port.
    pub port: Option<u16>,
    /// Host name sent, instead of the check's and the endpoint's.
    pub hostname: Box<str>,
    /// Not checked: always healthy by that measure.
    pub disabled: bool,
}
