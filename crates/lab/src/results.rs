//! The results of a scenario, as written to the JSON file. docs/scale.md documents the keys, and a test compares the
//! two.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::changes::ChangeKind;
use crate::mesh::ServiceKind;
use crate::options::Options;
use crate::process::Usage;
use crate::proxy::{Role, Scope};
use evenkeel_measure::Distribution;

/// One run of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Its name.
    pub scenario: String,
    /// The options of the run.
    pub mesh: MeshFacts,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The start of the mesh.
    pub start: Start,
    /// All changes.
    pub changes: Vec<ChangeRecord>,
    /// The changes by kind.
    pub summary: Vec<KindSummary>,
    /// The server's resource usage during the scenario, without the start.
    pub cost: Cost,
    /// The measurements of a restart of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Memory before and after most services were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink: Option<Shrink>,
    /// The real gateway's memory while services were added and removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provision: Option<Provision>,
    /// The measurements of a real sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<Sidecar>,
    /// Changes that no proxy can see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// All simulated proxies.
    pub proxies: Vec<ProxyRecord>,
    /// The server over time.
    pub samples: Vec<Sample>,
}

/// The mesh and the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshFacts {
    /// Services at the start.
    pub services: usize,
    /// The number of sidecars.
    pub proxies: usize,
    /// The number of sidecars that stopped reading.
    pub stuck: usize,
    /// Gateways among the simulated proxies.
    pub gateways: usize,
    /// The subscriptions of the proxies.
    pub scope: Scope,
    /// The kind of objects that defined the services.
    pub kind: ServiceKind,
    /// `delta` or `sotw`.
    pub protocol: String,
    /// The time between two changes, in milliseconds.
    pub interval_ms: f64,
    /// Address of an external server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xds: Option<String>,
}

impl MeshFacts {
    /// Takes the facts from the flags.
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

/// The machine that it was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The kernel's version.
    pub kernel: String,
    /// 1-minute load average at the start. A high value shows that other programs were running.
    pub load: f64,
}

impl Machine {
    /// Describes this machine.
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

/// The start of the mesh, until all proxies are configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// From exec of the server until it accepts connections, in milliseconds; 0 for an external server.
    pub server_ready_ms: f64,
    /// From exec of the server until the last proxy held its whole configuration, in milliseconds.
    pub all_configured_ms: f64,
    /// From the start of the connections until each proxy held its whole configuration, in milliseconds.
    pub configured_ms: Option<Distribution>,
    /// Bytes received on all proxies' sockets.
    pub bytes: u64,
    /// Resources that the proxies received.
    pub resources: u64,
    /// Connections that the server refused or closed.
    pub failures: u64,
    /// The server's usage at that time.
    pub server: Option<Usage>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// Its kind.
    pub kind: ChangeKind,
    /// The host of the changed service.
    pub host: String,
    /// The time of the change, in milliseconds from the server's start.
    pub at_ms: f64,
    /// The number of proxies that it concerned; all of them acknowledged it.
    pub holders: usize,
    /// From the change until each proxy's acknowledgement, in milliseconds.
    pub ack_ms: Option<Distribution>,
    /// From the change until the service answered a request through the real gateway, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
    /// From a workload's first call until its proxy had the resources that the call needs, in milliseconds (learned
    /// scope).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_use_ms: Option<f64>,
}

/// All changes of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindSummary {
    /// Its id.
    pub kind: ChangeKind,
    /// The number of changes.
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

/// The server's resource usage from the first change until all proxies had acknowledged the last one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The duration of that time, in seconds.
    pub seconds: f64,
    /// Changes made.
    pub changes: usize,
    /// CPU seconds; `None` if the server's process is unknown.
    pub cpu_s: Option<f64>,
    /// CPU milliseconds per change.
    pub cpu_ms_per_change: Option<f64>,
    /// Bytes received on all simulated proxies' sockets.
    pub bytes: u64,
    /// Bytes of responses to the sidecars per change, without HTTP/2 framing.
    pub sidecar_bytes_per_change: f64,
    /// Bytes of responses to the simulated gateway per change.
    pub gateway_bytes_per_change: f64,
    /// Resources received per change and proxy.
    pub resources_per_change_and_proxy: f64,
    /// The server's usage at the end.
    pub server: Option<Usage>,
    /// The real gateway's usage at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Usage>,
}

/// Changes that no proxy can see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Labels {
    /// Changes made.
    pub changes: usize,
    /// Bytes of responses to all proxies.
    pub bytes: u64,
    /// CPU milliseconds of the control plane for each.
    pub cpu_ms_per_change: Option<f64>,
    /// List requests that the API server has answered meanwhile, by resource; `None` without an API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<Vec<Lists>>,
}

/// List requests of one resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lists {
    /// The resource, such as `services`.
    pub resource: String,
    /// Their number.
    pub count: f64,
}

/// A kill and a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// The time that the server was down, in milliseconds.
    pub away_ms: f64,
    /// From its start until all proxies had a stream again, in milliseconds.
    pub reconnected_ms: f64,
    /// From its start until all proxies had acknowledged the changes made while it was down, in milliseconds.
    pub caught_up_ms: f64,
    /// Changes made while the server was down.
    pub changes_while_away: usize,
    /// Bytes sent to all proxies in that time.
    pub bytes: u64,
    /// Resources sent to all proxies in that time.
    pub resources: u64,
    /// Resources among them that the proxies already held in the same version, so sent needlessly.
    pub resources_again: u64,
    /// Resources removed from proxies. None that the mesh still contains should be among them.
    pub removed: u64,
}

/// The removal of most services.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shrink {
    /// The number of services kept.
    pub kept: usize,
    /// Resident memory with all services, in MiB.
    pub full_mib: f64,
    /// Resident memory after the others were removed, in MiB.
    pub shrunk_mib: f64,
    /// Resident memory of a server started with only the kept services, in MiB.
    pub fresh_mib: f64,
}

/// The real gateway's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provision {
    /// Resident memory before the first service was added, in MiB.
    pub before_mib: f64,
    /// Resident memory with all added services, in MiB.
    pub with_all_mib: f64,
    /// Resident memory after all of them were removed, in MiB.
    pub after_mib: f64,
    /// What each added service took, in KiB.
    pub kib_per_service: f64,
}

/// A real sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// The number of services that its workload called.
    pub used: usize,
    /// From the first request to each service until its answer, in milliseconds.
    pub first_answer_ms: Option<Distribution>,
    /// Resident memory before the first call, in MiB.
    pub before_mib: f64,
    /// Resident memory after all calls, in MiB.
    pub after_mib: f64,
}

/// One proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyRecord {
    /// Its node id.
    pub node: String,
    /// Sidecar or gateway.
    pub role: Role,
    /// From the start of its connection until it held its whole configuration, in milliseconds.
    pub configured_ms: Option<f64>,
    /// The times until its acknowledgements of the changes that concerned it, in milliseconds.
    pub ack_ms: Option<Distribution>,
    /// Bytes received on its sockets.
    pub bytes: u64,
    /// Streams that it opened.
    pub connects: u64,
    /// Connections that the server refused or closed.
    pub failures: u64,
    /// Responses; it acknowledged all of them.
    pub responses: u64,
    /// Resources received.
    pub resources: u64,
    /// Resources of all types that it holds at the end.
    pub held: usize,
}

/// A sample of the server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds from the server's start.
    pub at_ms: f64,
    /// CPU seconds so far.
    pub cpu_s: f64,
    /// Resident memory, in MiB.
    pub resident_mib: f64,
    /// Bytes received on all simulated proxies' sockets so far.
    pub bytes: u64,
}

/// Converts to milliseconds, rounded to a thousandth. More digits are noise and enlarge the file.
pub fn ms(duration: Duration) -> f64 {
    round(duration.as_secs_f64() * 1000.0)
}

/// Rounds to a thousandth.
pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
