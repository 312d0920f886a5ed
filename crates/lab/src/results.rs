//! What a scenario measured, as it stands in the JSON file. docs/scale.md documents the keys; a test holds the two together.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::changes::ChangeKind;
use crate::mesh::ServiceKind;
use crate::options::Options;
use crate::process::Usage;
use crate::proxy::{Role, Scope};
use crate::statistics::Distribution;

/// One run of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Its name.
    pub scenario: String,
    /// What was asked for.
    pub mesh: MeshFacts,
    /// On what.
    pub machine: Machine,
    /// How the mesh came up.
    pub start: Start,
    /// Each change.
    pub changes: Vec<ChangeRecord>,
    /// The changes by kind.
    pub summary: Vec<KindSummary>,
    /// What the scenario's own part cost the server.
    pub cost: Cost,
    /// What the killed and restarted server did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Memory before and after most services went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink: Option<Shrink>,
    /// A real sidecar that used a few services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<Sidecar>,
    /// Each proxy.
    pub proxies: Vec<ProxyRecord>,
    /// The server over time.
    pub samples: Vec<Sample>,
}

/// The mesh and the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshFacts {
    /// Services at the start.
    pub services: usize,
    /// Sidecars.
    pub proxies: usize,
    /// Of them, those that stopped reading.
    pub stuck: usize,
    /// Gateways among the simulated proxies.
    pub gateways: usize,
    /// What they asked for.
    pub scope: Scope,
    /// How services were written.
    pub kind: ServiceKind,
    /// `delta` or `sotw`.
    pub protocol: String,
    /// Between two changes, in milliseconds.
    pub interval_ms: f64,
    /// Address of an external server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xds: Option<String>,
}

impl MeshFacts {
    /// From the flags.
    pub fn new(options: &Options) -> Self {
        Self {
            services: options.services,
            proxies: options.proxies,
            stuck: options.stuck,
            gateways: 1,
            scope: options.scope,
            kind: options.kind,
            protocol: if options.sotw { "sotw" } else { "delta" }.to_owned(),
            interval_ms: ms(options.interval),
            xds: options.xds.map(|address| address.to_string()),
        }
    }
}

/// Where it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The kernel's version.
    pub kernel: String,
    /// 1-minute load average at the start: more than a little says that others were at work.
    pub load: f64,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        Self {
            cpu: cpu.unwrap_or("unknown").trim_matches([' ', '\t', ':']).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }
}

/// From nothing to all proxies configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// From exec of the server until it takes connections, in milliseconds; 0 for an external one.
    pub server_ready_ms: f64,
    /// From exec of the server until the last proxy held all it is to hold, in milliseconds.
    pub all_configured_ms: f64,
    /// From the moment the proxies were let connect until each held all, in milliseconds.
    pub configured_ms: Option<Distribution>,
    /// Bytes that arrived on all proxies' sockets.
    pub bytes: u64,
    /// Resources they received.
    pub resources: u64,
    /// Connections refused or ended by the server.
    pub failures: u64,
    /// What the server had used by then.
    pub server: Option<Usage>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// What it did.
    pub kind: ChangeKind,
    /// To which service.
    pub host: String,
    /// When, in milliseconds from the server's start.
    pub at_ms: f64,
    /// Proxies it concerned, all of which acknowledged it.
    pub holders: usize,
    /// From the change until the acknowledgement, over the proxies, in milliseconds.
    pub ack_ms: Option<Distribution>,
    /// From the change until a request through the real gateway was answered by the service, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
    /// From a workload's first call until its proxy had what the call needs, in milliseconds (learned scope).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_use_ms: Option<f64>,
}

/// All changes of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindSummary {
    /// Which.
    pub kind: ChangeKind,
    /// How many.
    pub changes: usize,
    /// From each change until the last proxy's acknowledgement, in milliseconds.
    pub last_ack_ms: Option<Distribution>,
    /// From each change until the first answer through the real gateway, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<Distribution>,
    /// From first use until configured, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_use_ms: Option<Distribution>,
}

/// What the server spent from the first change until the last had arrived everywhere.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How long that took, in seconds.
    pub seconds: f64,
    /// Changes made.
    pub changes: usize,
    /// CPU seconds; none if the server's process is not known.
    pub cpu_s: Option<f64>,
    /// CPU milliseconds per change.
    pub cpu_ms_per_change: Option<f64>,
    /// Bytes that arrived on all simulated proxies' sockets.
    pub bytes: u64,
    /// Bytes of responses to the sidecars, per change: without HTTP/2's own frames.
    pub sidecar_bytes_per_change: f64,
    /// Bytes of responses to the simulated gateway, per change.
    pub gateway_bytes_per_change: f64,
    /// Resources received, per change and proxy.
    pub resources_per_change_and_proxy: f64,
    /// The server's use at the end.
    pub server: Option<Usage>,
    /// The real gateway's use at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Usage>,
}

/// A kill and a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// How long the server was away, in milliseconds.
    pub away_ms: f64,
    /// From its start until all proxies had a stream again, in milliseconds.
    pub reconnected_ms: f64,
    /// From its start until all proxies had acknowledged what changed while it was away, in milliseconds.
    pub caught_up_ms: f64,
    /// Changes made while it was away.
    pub changes_while_away: usize,
    /// Bytes sent to all proxies from the start until then.
    pub bytes: u64,
    /// Resources sent to all proxies from the start until then.
    pub resources: u64,
    /// Of them, those that proxies held in the same version: needless.
    pub resources_again: u64,
    /// Resources taken from proxies: of what the mesh still has, none should be.
    pub removed: u64,
}

/// Most services go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shrink {
    /// Services left.
    pub kept: usize,
    /// Resident memory with all of them, in MiB.
    pub full_mib: f64,
    /// After the others went, in MiB.
    pub shrunk_mib: f64,
    /// Of a server started with those left, in MiB.
    pub fresh_mib: f64,
}

/// A real sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// Services its workload called.
    pub used: usize,
    /// From the first request to each until its answer, in milliseconds.
    pub first_answer_ms: Option<Distribution>,
    /// Resident memory before any was called, in MiB.
    pub before_mib: f64,
    /// After all were, in MiB.
    pub after_mib: f64,
}

/// One proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyRecord {
    /// Its node id.
    pub node: String,
    /// Sidecar or gateway.
    pub role: Role,
    /// From the moment it was let connect until it held all, in milliseconds.
    pub configured_ms: Option<f64>,
    /// Over the changes that concerned it, in milliseconds.
    pub ack_ms: Option<Distribution>,
    /// Bytes that arrived on its sockets.
    pub bytes: u64,
    /// Streams it opened.
    pub connects: u64,
    /// Connections refused or ended by the server.
    pub failures: u64,
    /// Responses, all acknowledged.
    pub responses: u64,
    /// Resources received.
    pub resources: u64,
    /// Resources it holds at the end, all types.
    pub held: usize,
}

/// The server at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds from the server's start.
    pub at_ms: f64,
    /// CPU seconds so far.
    pub cpu_s: f64,
    /// Resident memory, in MiB.
    pub resident_mib: f64,
    /// Bytes that arrived on all simulated proxies' sockets so far.
    pub bytes: u64,
}

/// Milliseconds, to a thousandth: more digits say nothing and fill the file.
pub fn ms(duration: Duration) -> f64 {
    round(duration.as_secs_f64() * 1000.0)
}

/// To a thousandth.
pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
