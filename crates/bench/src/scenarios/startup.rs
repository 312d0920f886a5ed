//! Time from exec until `/ready` answers 200, of a proxy with the one-hop file, and of the example's sidecar, which gets
//! certificate and configuration from a control plane first; and that sidecar's resident memory once its start is over.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use evenkeel_ca::files::CA_CERT_FILE;
use evenkeel_ca::tokens::{TokenKey, Workload};
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, SETTLING, Scenario, pause};
use crate::config::{Protocol, Proxy};
use crate::peers::{ENVOY, EVENKEEL, Setup, free_address};
use crate::process::{LOAD_CORE, PROXY_CORE, Pinned};

/// The row of Evenkeel with the example's configuration, which the bars are about.
pub const SIDECAR: &str = "evenkeel sidecar of the example";

const NAMESPACE: &str = "capitals";
const ACCOUNT: &str = "capitals-web";
/// Its replicas in the control plane's configuration: name, app, version, account, address.
const PODS: [[&str; 5]; 4] = [
    ["capitals-web-1", "capitals-web", "v1", "capitals-web", "10.244.0.2"],
    ["capitals-info-v1-1", "capitals-info", "v1", "capitals-info", "10.244.0.3"],
    ["capitals-info-v1-2", "capitals-info", "v1", "capitals-info", "10.244.0.4"],
    ["capitals-info-v2-1", "capitals-info", "v2", "capitals-info", "10.244.0.5"],
];

/// The only table.
pub const CASE: &str = "from exec to ready";

/// The scenario.
pub const SCENARIO: Scenario = Scenario { name: "startup", title: "Start", bases: &[], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let setup = cx.setup;
    let mut peers: Vec<&'static str> = [EVENKEEL, ENVOY].into_iter().filter(|name| setup.is_wanted(name)).collect();
    let control_plane = if setup.is_wanted(SIDECAR) { Some(ControlPlane::start(setup, &cx.example)?) } else { None };
    peers.extend(control_plane.is_some().then_some(SIDECAR));
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: peers.clone() };
    findings.measure(&contest, cx.plan, cx.progress, |index, _| match &control_plane {
        Some(control_plane) if peers[index] == SIDECAR => control_plane.start_sidecar(setup),
        _ => start_proxy(setup, peers[index]),
    })
}

fn start_proxy(setup: &Setup, name: &str) -> Result<Values> {
    let admin = free_address()?;
    let file = format!("{name}-startup");
    let proxy = Proxy {
        id: name,
        listen: free_address()?,
        admin,
        upstream: free_address()?,
        protocol: Protocol::Http1,
        downstream_tls: None,
        upstream_tls: None,
        rules: 0,
        authorization: None,
        issuer: None,
        log: setup.file(&format!("{file}.log")),
    };
    let start = Instant::now();
    let mut process = setup.start_proxy(name, &file, &proxy)?;
    process.wait_until_ready(admin)?;
    Ok(Values::from([(Metric::ReadyMs, start.elapsed().as_secs_f64() * 1e3)]))
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
    fn start_sidecar(&self, setup: &Setup) -> Result<Values> {
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
            ("--status-port", free_address()?.port().to_string()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        let start = Instant::now();
        let mut process = Pinned::start(PROXY_CORE, &setup.evenkeel, &args, &setup.file("agent.out"))?;
        process.wait_until_ready(admin)?;
        let ready = start.elapsed().as_secs_f64() * 1e3;
        pause(SETTLING);
        let resident = process.resident_kib()? as f64 / 1024.0;
        Ok(Values::from([(Metric::ReadyMs, ready), (Metric::ResidentMib, resident)]))
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
