//! Where the time of a recent request went, and what stood in its way: part of the proxy's page `/requests`.

use serde::{Deserialize, Serialize};

/// A part of a request's time at one proxy. Parts follow each other and do not overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Phase {
    /// What the request waited for.
    pub kind: PhaseKind,
    /// The filter, for [`PhaseKind::Filter`].
    pub filter: Option<String>,
    /// When it began, in microseconds after the request.
    pub start_us: u64,
    /// How long it lasted, in microseconds.
    pub duration_us: u64,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PhaseKind {
    /// The proxy's own work, and the rest of the request.
    #[default]
    Proxy,
    /// A filter: an answer that it asked for, a body that it collects, a delay that it injects.
    Filter,
    /// Configuration that the control plane is asked for (on-demand discovery).
    Configuration,
    /// Earlier tries, and the pauses after them.
    EarlierTries,
    /// A connection of the pool: as many as allowed were in use.
    Pool,
    /// A new TCP connection to the endpoint.
    Connect,
    /// The TLS handshake with the endpoint.
    Tls,
    /// The rest of the request's body, from the client or to the endpoint.
    RequestBody,
    /// The endpoint's first byte, after it had the whole request.
    Endpoint,
    /// The rest of the endpoint's response.
    ResponseBody,
    /// The client, which reads the response slowly.
    ClientReads,
}

/// A try that failed, or whose response was not good enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedTry {
    /// Its endpoint; none: none was chosen.
    pub endpoint: Option<String>,
    /// The status of its response; 0: there was none.
    pub status: u16,
    /// Envoy's details of the failure.
    pub details: String,
    /// Why connecting failed.
    pub transport_failure: String,
    /// The circuit breaker that was open.
    pub full: Option<CircuitBreaker>,
    /// When it ended, in microseconds after the request began.
    pub end_us: u64,
}

/// A limit of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CircuitBreaker {
    /// `max_connections`.
    Connections,
    /// `max_connection_pools`.
    Pools,
    /// `max_pending_requests`.
    PendingRequests,
    /// `max_requests`.
    Requests,
    /// `max_retries`, or the retry budget.
    Retries,
}

/// The limits of a request's cluster; none: unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterLimits {
    /// Connections.
    pub connections: Option<u32>,
    /// Requests that wait for a connection.
    pub pending_requests: Option<u32>,
    /// Requests in flight.
    pub requests: Option<u32>,
    /// Retries in flight.
    pub retries: Option<u32>,
}

/// Which endpoints there were to choose from, when the request ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointChoice {
    /// The load balancer's policy, by Envoy's name.
    pub policy: String,
    /// Endpoints of the cluster.
    pub endpoints: usize,
    /// Endpoints that took no requests.
    pub passed_over: usize,
    /// The first of these.
    pub first_passed_over: Vec<EndpointState>,
    /// The limits of the cluster.
    pub limits: ClusterLimits,
}

/// An endpoint's state, as the proxy sees it now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointState {
    /// Its address, or its host name.
    pub address: String,
    /// Whether it takes requests.
    pub healthy: bool,
    /// Why not, in Envoy's words: `failed_outlier_check` (ejected), `failed_active_hc`, …
    pub flags: Vec<String>,
    /// Requests in flight.
    pub active_requests: u64,
    /// When outlier detection ejected it, in microseconds since 1970, where that is known.
    pub ejected_us: Option<u64>,
}
