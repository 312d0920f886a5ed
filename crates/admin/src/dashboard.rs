//! The pages of the dashboard as JSON: the mesh as a graph, a workload, recent requests, and whether the configuration is live.
//!
//! Rates are per second over the last [`Graph::window_s`] seconds, times are milliseconds, and shares are between 0 and 1.

use serde::{Deserialize, Serialize};

use crate::diagnostics::Finding;

/// The path of [`Graph`].
pub const GRAPH: &str = "/api/graph";
/// The path of [`WorkloadPage`]; `?id=NODE` names the node.
pub const WORKLOAD: &str = "/api/workload";
/// The path of [`Status`].
pub const STATUS: &str = "/api/status";
/// The path of [`Objects`].
pub const OBJECTS: &str = "/api/objects";
/// The path of [`Requests`].
pub const REQUESTS: &str = "/api/requests";

/// The mesh as a graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Graph {
    /// When proxies were last read, in milliseconds since 1970.
    pub sampled_ms: u64,
    /// Length of the window of the rates, in seconds; 0: proxies have been read once, so there is no rate yet.
    pub window_s: f64,
    /// Proxies that were read.
    pub proxies: usize,
    /// The nodes, sorted by id.
    pub nodes: Vec<Node>,
    /// The edges, sorted by id.
    pub edges: Vec<Edge>,
    /// Edges that are missing, because there are too many.
    pub left_out: u64,
    /// What is unknown or missing, each with the reason.
    pub notes: Vec<Note>,
}

/// A part of the picture that is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// What it is about: POD.NAMESPACE, or the control plane.
    pub subject: String,
    /// The reason.
    pub message: String,
}

/// What a node of the graph is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A workload with a proxy.
    #[default]
    Workload,
    /// A gateway.
    Gateway,
    /// A workload without a proxy.
    WithoutProxy,
    /// A Service no endpoint of which got the request.
    Service,
    /// A host outside the mesh.
    External,
    /// Clients outside the mesh.
    Outside,
    /// Requests that no route matched.
    Unrouted,
}

/// How a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing is known about it.
    #[default]
    Unknown,
    /// All replicas are ready, and few requests fail.
    Healthy,
    /// Some replicas are not ready, or some requests fail.
    Degraded,
    /// No replica is ready, or many requests fail.
    Failing,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its key: `NAMESPACE/WORKLOAD`, or `KIND:HOST`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its namespace; empty for what has none.
    pub namespace: String,
    /// Its application.
    pub app: String,
    /// Its version.
    pub version: String,
    /// What it is.
    pub kind: NodeKind,
    /// Its replicas.
    pub replicas: usize,
    /// Those that are ready.
    pub ready: usize,
    /// How it is.
    pub health: Health,
    /// Why it is not healthy, in a few words.
    pub reason: String,
    /// The traffic that it receives, as its own proxy reports it.
    pub inbound: Option<Traffic>,
}

/// Traffic, as rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Requests per second.
    pub requests: f64,
    /// Share of responses 5xx, of gRPC's failures, and of requests without a response.
    pub error_share: f64,
    /// Share of responses 4xx.
    pub client_error_share: f64,
    /// Median duration.
    pub p50_ms: Option<f64>,
    /// 95th percentile of the durations.
    pub p95_ms: Option<f64>,
    /// 99th percentile of the durations.
    pub p99_ms: Option<f64>,
    /// Bytes per second from client to server; of TCP only.
    pub bytes_received: f64,
    /// Bytes per second from server to client; of TCP only.
    pub bytes_sent: f64,
    /// TCP connections opened per second.
    pub connections: f64,
}

/// Who calls whom.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Edge {
    /// Its key.
    pub id: String,
    /// The client's node.
    pub from: String,
    /// The server's node.
    pub to: String,
    /// The host that was called; empty if no proxy of a client reports it.
    pub service: String,
    /// `http`, `grpc` or `tcp`.
    pub protocol: String,
    /// Its traffic.
    pub traffic: Traffic,
    /// Requests, or of TCP connections, since the proxies started.
    pub total: u64,
    /// Whether there was traffic within the window.
    pub active: bool,
    /// The last failure as `CODE FLAGS`; empty: none was seen.
    pub last_error: String,
    /// How it was secured.
    pub security: Security,
}

/// How connections were secured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityMode {
    /// No proxy has reported it.
    #[default]
    Unknown,
    /// TLS with both identities verified.
    Mutual,
    /// TLS without the client's identity.
    Tls,
    /// Plain text.
    Plain,
    /// Some in plain text, others not.
    Mixed,
}

/// How an edge was secured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Security {
    /// The mode.
    pub mode: SecurityMode,
    /// The client's identities, SPIFFE ids.
    pub client_identities: Vec<String>,
    /// The server's identities, SPIFFE ids.
    pub server_identities: Vec<String>,
    /// `TLSv1.3 TLS_AES_256_GCM_SHA384 X25519MLKEM768`.
    pub parameters: Vec<String>,
    /// Connections that a proxy refused.
    pub refused: u64,
}

/// One workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadPage {
    /// The node.
    pub node: Node,
    /// What it received, over the last minutes and the last hour.
    pub recent: History,
    /// The same with fewer points.
    pub hour: History,
    /// Edges at which it is the server or the client.
    pub edges: Vec<Edge>,
    /// Its replicas.
    pub replicas: Vec<Replica>,
    /// The Services that lead to it, and the routing and policy objects of its namespace and of the mesh's root namespace.
    pub objects: Vec<ConfigObject>,
    /// Findings about objects of its name, and about its Services.
    pub findings: Vec<Finding>,
    /// What is unknown.
    pub notes: Vec<Note>,
}

/// Traffic over time, by columns. A point is a mean over `step_s`; there is none for times at which nobody looked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Seconds between points.
    pub step_s: u64,
    /// Times, in seconds since 1970.
    pub time: Vec<f64>,
    /// Requests per second.
    pub requests: Vec<f64>,
    /// Failures per second.
    pub errors: Vec<f64>,
    /// Median durations.
    pub p50_ms: Vec<Option<f64>>,
    /// 95th percentiles.
    pub p95_ms: Vec<Option<f64>>,
    /// 99th percentiles.
    pub p99_ms: Vec<Option<f64>>,
    /// Bytes of TCP per second, both ways.
    pub bytes: Vec<f64>,
}

/// A replica and its proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Its name.
    pub pod: String,
    /// Its address.
    pub address: String,
    /// Whether it receives requests.
    pub ready: bool,
    /// Why not.
    pub detail: String,
    /// How often its program was restarted.
    pub restarts: u32,
    /// The workers of its proxy.
    pub workers: Vec<Worker>,
    /// Its certificates.
    pub certificates: Vec<Certificate>,
    /// Whether the proxy runs the newest configuration that concerns it; `None`: it has no stream to the control plane.
    pub live: Option<bool>,
    /// The generation up to which it runs everything that concerns it.
    pub generation: Option<u64>,
}

/// A worker of a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Its number.
    pub worker: usize,
    /// Open connections.
    pub connections_active: u64,
    /// Requests since the start.
    pub requests_total: u64,
    /// Share of the time that it was busy.
    pub busy_share: f64,
}

/// A certificate in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificate {
    /// The secret's name.
    pub name: String,
    /// The names that it is for.
    pub identities: Vec<String>,
    /// RFC 3339.
    pub valid_from: String,
    /// RFC 3339.
    pub expires: String,
}

/// Whether the configuration is live.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The newest generation.
    pub generation: u64,
    /// Why the control plane cannot be read, if so.
    pub unreachable: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub unreachable_since_ms: Option<u64>,
    /// Proxies that run the newest configuration that concerns them.
    pub live: usize,
    /// All connected proxies.
    pub proxies: usize,
    /// Those that do not, each with the reason.
    pub late: Vec<Note>,
    /// Ages of changes when proxies applied them: the greatest median and the greatest 99th percentile.
    pub age_p50_ms: Option<f64>,
    /// See `age_p50_ms`.
    pub age_p99_ms: Option<f64>,
    /// Responses sent to the connected proxies.
    pub pushes: u64,
    /// Responses that they refused.
    pub rejects: u64,
    /// Responses that are not answered yet.
    pub in_flight: usize,
    /// Replicas that receive no traffic.
    pub not_ready: Vec<String>,
    /// Findings about the configuration.
    pub findings: Vec<Finding>,
}

/// The objects in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Objects {
    /// Services, and routing and policy objects, sorted.
    pub objects: Vec<ConfigObject>,
    /// Objects that are missing, because there are too many.
    pub left_out: usize,
    /// Why there are none: the control plane cannot be read.
    pub unreachable: Option<String>,
}

/// An object in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigObject {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its name; of a Service its host.
    pub name: String,
    /// The position in the user's files, `FILE:LINE:COLUMN`.
    pub origin: String,
}

/// Recent slow and failed requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Failed ones, the latest first.
    pub failed: Vec<Request>,
    /// The slowest of those that proxies keep, the slowest first.
    pub slow: Vec<Request>,
    /// Proxies that keep none or do not answer.
    pub notes: Vec<Note>,
}

/// A request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The proxy, as POD.NAMESPACE.
    pub proxy: String,
    /// The proxy's node.
    pub node: String,
    /// `inbound` or `outbound`.
    pub direction: String,
    /// Its `x-request-id`.
    pub id: String,
    /// In milliseconds since 1970.
    pub started_ms: u64,
    /// Its method.
    pub method: String,
    /// Its authority.
    pub authority: String,
    /// Its path.
    pub path: String,
    /// The status; 0: none.
    pub status: u16,
    /// Envoy's flags.
    pub flags: String,
    /// Why: Envoy's details, and why connecting failed.
    pub cause: String,
    /// The cluster.
    pub cluster: String,
    /// The route.
    pub route: String,
    /// Its duration in microseconds.
    pub duration_us: u64,
}
