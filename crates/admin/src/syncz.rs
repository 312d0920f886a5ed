//! `/debug/syncz`: which of its resources each proxy holds, and how old changes were when it applied them.

use serde::{Deserialize, Serialize};

use crate::authorities::Alarm;

/// The path of the page.
pub const PATH: &str = "/debug/syncz";

/// Types with a column of their own: those that istioctl shows, and Evenkeel's.
pub const COLUMNS: [&str; 5] = ["CDS", "LDS", "EDS", "RDS", "VHDS"];

/// The page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Syncz {
    /// The control plane's name.
    #[serde(default)]
    pub control_plane: String,
    /// The newest generation of the configuration.
    #[serde(default)]
    pub generation: u64,
    /// The connected streams. A page without them is not this one.
    pub proxies: Vec<Proxy>,
    /// Findings about what is not in force, or only as a stand-in.
    #[serde(default)]
    pub refused: Vec<String>,
    /// Replicas with a proxy that receive no traffic, as POD.NAMESPACE.
    #[serde(default)]
    pub not_ready: Vec<String>,
    /// Certificates that expire soon.
    #[serde(default)]
    pub certificates_ending: Vec<Alarm>,
    /// Workloads that wanted to register themselves and were refused.
    #[serde(default)]
    pub not_registered: Vec<NotRegistered>,
    /// Programs and proxies that keep ending. `evenkeel proxy-status` adds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<Vec<Failing>>,
}

/// A stream of a proxy or an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Proxy {
    /// The node id, `sidecar~IP~POD.NAMESPACE~DOMAIN`.
    pub proxy: String,
    /// `sidecar` or `router`.
    pub kind: String,
    /// The program and its version.
    pub program: String,
    /// How the proxy confines itself, if it says so.
    pub confinement: Option<String>,
    /// Whether it runs the newest configuration that concerns it.
    pub live: bool,
    /// The generation up to which it runs everything that concerns it.
    pub settled_generation: u64,
    /// Its resource types.
    pub types: Vec<TypeStatus>,
    /// What it held other than it was sent.
    pub divergence: Option<Divergence>,
}

/// One resource type of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeStatus {
    /// `CDS`, `EDS`, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether everything of the type is subscribed to.
    pub wildcard: bool,
    /// Names subscribed to.
    pub names: usize,
    /// Generation of the last response that the client accepted.
    pub acked_version: Option<u64>,
    /// Generation of the response that is not answered yet.
    pub in_flight_version: Option<u64>,
    /// Responses sent.
    pub pushes: u64,
    /// Resources in them.
    pub resources_sent: u64,
    /// Bytes of those resources, encoded.
    pub bytes_sent: u64,
    /// Responses refused.
    pub rejects: u64,
    /// The present refusal, if any.
    pub nack: Option<Nack>,
    /// What it holds.
    pub state: State,
    /// How long the client has left a response unanswered, in milliseconds.
    pub waiting_ms: Option<u64>,
    /// The ages of changes when they were applied.
    pub ages_ms: Option<Ages>,
}

/// What a proxy holds of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It has refused a resource.
    #[serde(rename = "NACKED")]
    Nacked,
    /// It has been sent nothing.
    #[default]
    #[serde(rename = "NOT SENT")]
    NotSent,
    /// A response is not answered yet.
    #[serde(rename = "STALE")]
    Stale,
    /// It has everything.
    #[serde(rename = "SYNCED")]
    Synced,
}

impl State {
    /// As on the page.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nacked => "NACKED",
            Self::NotSent => "NOT SENT",
            Self::Stale => "STALE",
            Self::Synced => "SYNCED",
        }
    }
}

/// A refusal of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nack {
    /// The client's reason.
    pub message: String,
    /// Generation of the refused response.
    pub version: String,
    /// The refused resources; during a search, all that may be bad.
    pub resources: Vec<NackedResource>,
    /// Whether the search for the bad ones continues.
    pub searching: bool,
}

/// One resource of a refused response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NackedResource {
    /// Its name.
    pub name: String,
    /// The position in the user's files that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// How often this version was rejected.
    pub times: u32,
}

/// Ages of changes, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ages {
    /// How many changes.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

/// A client held something else than it had been sent; it was corrected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Divergence {
    /// The number of divergences on the stream, including this one.
    pub number: u64,
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The names, sorted.
    pub names: Vec<String>,
}

/// A workload that wanted to register itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotRegistered {
    /// Its node id.
    pub proxy: String,
    /// Why it was refused.
    pub reason: String,
}

/// A program or proxy of a replica that keeps ending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failing {
    /// POD.NAMESPACE.
    pub replica: String,
    /// `program` or `proxy`.
    pub part: String,
    /// Whether it is running.
    pub runs: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// How it ended the last time.
    pub last_end: String,
    /// When, in seconds before now.
    pub seconds_ago: u64,
}

impl Proxy {
    /// POD.NAMESPACE.
    pub fn name(&self) -> &str {
        pod(&self.proxy)
    }

    /// Whether a stream is a proxy's. An agent has a stream of its own under the proxy's node id, on which it asks only for DNS names.
    pub fn is_proxy(&self) -> bool {
        self.types.is_empty() || self.types.iter().any(|status| COLUMNS.contains(&&*status.kind))
    }

    /// The status of a type.
    pub fn of(&self, kind: &str) -> Option<&TypeStatus> {
        self.types.iter().find(|status| status.kind == kind)
    }

    /// The types of which it refuses something.
    pub fn refused(&self) -> impl Iterator<Item = Refusal<'_>> {
        let kinds = self.types.iter().filter_map(|status| Some((&*status.kind, status.nack.as_ref()?)));
        kinds.map(|(kind, nack)| Refusal { kind, nack })
    }

    /// The age of the type that took longest, in milliseconds.
    pub fn slowest(&self, age: Quantile) -> Option<f64> {
        self.types.iter().filter_map(|status| status.ages_ms.as_ref().map(age)).reduce(f64::max)
    }
}

/// One of the ages.
pub type Quantile = fn(&Ages) -> f64;

/// The columns of [`Ages`] with their heads.
pub const QUANTILES: [(&str, Quantile); 3] =
    [("p50", |ages| ages.p50), ("p99", |ages| ages.p99), ("max", |ages| ages.max)];

/// What a proxy refuses of a type.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// `CDS`, `EDS`, ….
    pub kind: &'a str,
    /// Why.
    pub nack: &'a Nack,
}

/// `LDS 0.0.0.0_80 (from gateway.yaml:3:1): the reason`.
impl std::fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resources = self.nack.resources.iter().map(|resource| match &resource.origin {
            Some(origin) => format!("{} (from {origin})", resource.name),
            None => resource.name.clone(),
        });
        write!(f, "{} {}: {}", self.kind, resources.collect::<Vec<_>>().join(", "), self.nack.message)
    }
}

/// POD.NAMESPACE of a node id.
pub fn pod(node: &str) -> &str {
    node.split('~').nth(2).unwrap_or(node)
}

/// `1.3 ms`, `20 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}
