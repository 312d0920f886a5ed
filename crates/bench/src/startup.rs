//! Time from exec until `/ready` answers 200, and resident memory at that moment and once start-up is over: of a proxy with the one-hop file, and of
//! the example's sidecar, which gets certificate and configuration from a control plane first.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use evenkeel_ca::authority::CA_CERT_FILE;
use evenkeel_ca::tokens::{TokenKey, Workload};
use serde_json::{Value, json};

use crate::config::Hop;
use crate::measure::Spread;
use crate::peers::{ENVOY, EVENKEEL, Setup, free_address};
use crate::process::{LOAD_CORE, PROXY_CORE, Pinned};

/// When what only starting up needed is given back, after ready.
const SETTLING: Duration = Duration::from_secs(3);

/// The row of Evenkeel with the example's configuration, which the bars are about.
pub const SIDECAR: &str = "evenkeel, sidecar of the example";

const NAMESPACE: &str = "capitals";
const ACCOUNT: &str = "capitals-web";
/// Its replicas as the control plane is told of them: name, app, version, account, address.
const PODS: [[&str; 5]; 4] = [
    ["capitals-web-1", "capitals-web", "v1", "capitals-web", "10.244.0.2"],
    ["capitals-info-v1-1", "capitals-info", "v1", "capitals-info", "10.244.0.3"],
    ["capitals-info-v1-2", "capitals-info", "v1", "capitals-info", "10.244.0.4"],
    ["capitals-info-v2-1", "capitals-info", "v2", "capitals-info", "10.244.0.5"],
];

/// One proxy's start-up, over the rounds.
pub struct Startup {
    /// Which proxy.
    pub peer: &'static str,
    /// Milliseconds from exec to ready.
    pub ready_millis: Spread,
    /// Resident MiB when ready.
    pub ready_mib: Spread,
    /// Resident MiB three seconds later.
    pub settled_mib: Spread,
}

impl Startup {
    /// The figures as JSON.
    pub fn json(&self) -> Value {
        let spread = |of: Spread| json!({"median": of.median, "min": of.min, "max": of.max});
        json!({
            "peer": self.peer,
            "ready_ms": spread(self.ready_millis),
            "resident_mib_when_ready": spread(self.ready_mib),
            "resident_mib_settled": spread(self.settled_mib),
        })
    }
}

/// One start: milliseconds until ready, MiB then, MiB later.
type Start = [f64; 3];

/// Starts each in turn, `rounds` times.
pub fn measure(setup: &Setup, example: &Path, rounds: usize) -> Result<Vec<Startup>> {
    let control_plane = match setup.is_wanted(EVENKEEL) {
        true => Some(ControlPlane::start(setup, example)?),
        false => None,
    };
    let mut rows: [(&'static str, Vec<Start>); 3] = [(EVENKEEL, vec![]), (ENVOY, vec![]), (SIDECAR, vec![])];
    for _ in 0..rounds {
        for (name, starts) in &mut rows {
            match &control_plane {
                Some(control_plane) if *name == SIDECAR => starts.push(control_plane.start_sidecar(setup)?),
                _ if setup.is_wanted(name) && *name != SIDECAR => starts.push(start_proxy(setup, name)?),
                _ => {}
            }
        }
    }
    let row = |(peer, starts): (&'static str, Vec<Start>)| {
        let spread = |column: usize| Spread::of(starts.iter().map(|start| start[column]));
        Some(Startup { peer, ready_millis: spread(0)?, ready_mib: spread(1)?, settled_mib: spread(2)? })
    };
    Ok(rows.into_iter().filter_map(row).collect())
}

fn start_proxy(setup: &Setup, name: &str) -> Result<Start> {
    let (listen, admin, upstream) = (free_address()?, free_address()?, free_address()?);
    let file = format!("{name}-startup");
    let log = setup.file(&format!("{file}.log"));
    let hop = Hop { id: name, listen, admin, upstream, downstream_tls: None, upstream_tls: None, log };
    let start = Instant::now();
    let process = setup.start_proxy(name, &file, &hop)?;
    ready(start, process, admin)
}

fn ready(start: Instant, mut process: Pinned, admin: SocketAddr) -> Result<Start> {
    process.wait_until_ready(admin)?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    let mib = || process.resident_kib().map(|kib| kib as f64 / 1024.0);
    let when_ready = mib()?;
    let settled = Instant::now() + SETTLING;
    while let Some(rest) = settled.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        std::thread::park_timeout(rest);
    }
    Ok([millis, when_ready, mib()?])
}

/// A control plane with the example's files and four replicas.
struct ControlPlane {
    _process: Pinned,
    address: SocketAddr,
}

impl ControlPlane {
    fn start(setup: &Setup, example: &Path) -> Result<Self> {
        let (state, runtime) = (setup.file("state"), setup.file("runtime"));
        std::fs::create_dir_all(&runtime)?;
        std::fs::create_dir_all(&state)?;
        std::fs::write(runtime.join("pods.yaml"), PODS.map(|pod| render(&pod)).concat())?;
        let (address, plain, http) = (free_address()?, free_address()?, free_address()?);
        let mut args = vec!["control-plane".to_owned()];
        for (flag, value) in [
            ("--config", example.display().to_string()),
            ("--config", runtime.display().to_string()),
            ("--state", state.display().to_string()),
            ("--grpc-address", plain.to_string()),
            ("--secure-grpc-address", address.to_string()),
            ("--http-address", http.to_string()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        let mut process = Pinned::start(LOAD_CORE, &setup.evenkeel, &args, &setup.file("control-plane.out"))?;
        process.wait_until_ready(http)?;
        let key = TokenKey::open(&state).context("the token key")?;
        let pod = PODS[0][0].to_owned();
        let workload = Workload { namespace: NAMESPACE.to_owned(), service_account: ACCOUNT.to_owned(), pod };
        let token = key.mint(&workload, Duration::from_secs(3600), SystemTime::now()).context("the token")?;
        std::fs::write(setup.file("token"), token)?;
        Ok(Self { _process: process, address })
    }

    /// From exec, over key, certificate and configuration, to ready.
    fn start_sidecar(&self, setup: &Setup) -> Result<Start> {
        let [pod, app, version, account, ip] = PODS[0];
        let admin = free_address()?;
        let mut args = vec!["agent".to_owned(), "sidecar".to_owned(), "--no-capture".to_owned()];
        for (flag, value) in [
            ("--id", format!("{pod}.{NAMESPACE}")),
            ("--namespace", NAMESPACE.to_owned()),
            ("--service-account", account.to_owned()),
            ("--ip", ip.to_owned()),
            ("--labels", format!("app={app}")),
            ("--labels", format!("version={version}")),
            ("--token", setup.file("token").display().to_string()),
            ("--root-cert", setup.file("state").join(CA_CERT_FILE).display().to_string()),
            ("--discovery-address", self.address.to_string()),
            ("--state", setup.file("agent").display().to_string()),
            ("--concurrency", "1".to_owned()),
            ("--admin-port", admin.port().to_string()),
            ("--readiness-port", free_address()?.port().to_string()),
            ("--stats-port", free_address()?.port().to_string()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        let start = Instant::now();
        let process = Pinned::start(PROXY_CORE, &setup.evenkeel, &args, &setup.file("agent.out"))?;
        ready(start, process, admin)
    }
}

fn render([name, app, version, account, ip]: &[&str; 5]) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {NAMESPACE}
  labels: {{app: {app}, version: {version}}}
spec:
  serviceAccountName: {account}
  containers: [{{name: app, ports: [{{name: http, containerPort: 8080}}]}}]
status:
  phase: Running
  podIP: {ip}
  podIPs: [{{ip: {ip}}}]
  conditions: [{{type: Ready, status: \"True\"}}]
"
    )
}
