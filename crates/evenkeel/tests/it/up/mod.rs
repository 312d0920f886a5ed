//! `evenkeel up` as users run it: the real binary, real namespaces, real traffic. Everything lives in namespaces that the
//! command creates itself; only free ports of the machine's loopback are used.

mod agreement;
mod asking;
mod authorization;
mod backend_tls;
mod bad_input;
mod bug_report;
mod changes;
mod check;
mod collector;
mod confinement;
mod crashes;
mod dashboard;
mod datagrams;
mod disks;
mod egress;
mod endings;
mod envoy;
mod failing;
mod gateways;
mod header_case;
mod isolation;
mod istio_metrics;
mod ledger;
mod load;
mod mesh;
mod metrics;
mod options;
mod past;
mod platform;
mod pods;
mod processes;
mod prometheus;
mod protocols;
mod proxy_settings;
mod rollouts;
mod rotation;
mod security;
mod sidecar_headers;
mod signer;
mod stateful_sets;
mod tap;
mod telemetry;
mod temporary;
mod terminal;
mod tokens;
mod tproxy;
mod uncaptured;
mod unchanged;
mod upgrade;
mod user;
mod volumes;
mod why;
mod workload_groups;

use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::Duration;

use evenkeel_testkit::{Process, workspace};

/// How long the whole scenario, or a start, may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// The scenario holds the mesh to times, so while one is played no other mesh runs; everything else runs together.
static MACHINE: RwLock<()> = RwLock::new(());

/// The example.
fn capitals() -> PathBuf {
    workspace::root().join("examples/capitals")
}

/// A state directory; its path is short, as sockets lie below it.
fn state() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ek").tempdir_in("/tmp").expect("/tmp can be written")
}

/// The gateway's address, as `http://HOST:PORT/`, without the path that `up` prints with it.
fn url(up: &mut Process) -> String {
    let line = up.wait_for("the gateway's address", |up| {
        let output = up.output();
        output.lines().map(str::trim).find(|line| line.starts_with("http://127.0.0.1:")).map(str::to_owned)
    });
    let (scheme, rest) = line.split_once("://").unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    format!("{scheme}://{host}/")
}

/// Waits until that many replicas (the gateway is one) have told that they are ready.
fn wait_ready(up: &mut Process, count: usize) {
    let ready = |up: &mut Process| {
        let output = up.output();
        (output.lines().filter(|line| line.starts_with("ready ")).count() >= count).then_some(())
    };
    up.wait_for(&format!("{count} ready replicas"), ready);
}

/// Starts `up` with these objects, whose programs run `server.py` of this folder, and waits for its replicas.
fn up_with(user: &user::User, folder: &Path, (server, objects): (&str, &str), replicas: usize) -> Process {
    std::fs::write(folder.join("server.py"), server).expect("it can be written");
    std::fs::write(folder.join("objects.yaml"), objects).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, replicas);
    up
}

/// What lies in a directory, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What may be left of a run, by the documentation.
const KEPT: [&str; 2] = ["control", "logs"];

/// A Deployment that runs a command and listens on port 8000.
fn deployment(name: &str, replicas: u32, run: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: {run:?}\n    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

/// The mesh's settings, which log accesses and say this.
fn settings(line: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         accessLogFile: /dev/stdout\n    {line}\n"
    )
}
