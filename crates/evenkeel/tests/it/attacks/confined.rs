//! What the running servers have given up, as the kernel tells it and as they tell it themselves.

use std::process::Command;

use evenkeel_testkit::{Connection, Process, eventually};

use crate::mesh::Plane;

/// A line of `/proc/PID/status`.
fn status(process: &Process, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

/// Every thread of a process is confined.
fn is_confined(process: &Process) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs").flatten();
    let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let mut all: Vec<bool> = statuses
        .map(|status| ["Seccomp:\t2", "NoNewPrivs:\t1"].iter().all(|line| status.lines().any(|it| it == *line)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all == [true]
}

fn proxy(more: &[&str]) -> (Process, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = folder.path().join("admin");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let bootstrap = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}";
    command.args(["proxy", "--concurrency", "2", "--config-yaml", bootstrap, "--admin-address-path"]).arg(&address);
    let mut process = Process::spawn(command.args(more));
    process.wait_for_line("LIVE");
    let admin = eventually("the admin address", || std::fs::read_to_string(&address).ok()?.parse().ok());
    let response = Connection::open(admin).and_then(|mut connection| connection.get("localhost", "/server_info", ""));
    let info = serde_json::from_slice(&response.expect("an answer").body).expect("JSON");
    (process, info)
}

#[test]
fn servers_cannot_run_programs() {
    let (process, info) = proxy(&[]);
    assert!(is_confined(&process), "{}", status(&process, "Seccomp"));
    let said = info["confinement"].as_str().expect("text").to_owned();
    assert!(said.starts_with("seccomp=on"), "{said}");
    assert!(process.output().contains(&said), "{}", process.output());
    drop(process);
    let (process, info) = proxy(&["--no-confinement"]);
    assert_eq!((status(&process, "Seccomp"), info["confinement"].as_str()), ("0".to_owned(), Some("off")));
    assert!(process.output().contains("not confined"), "{}", process.output());
    drop(process);
    let plane = Plane::new();
    let control = plane.start();
    assert!(is_confined(&control), "{}", control.output());
    assert!(control.output().contains("seccomp=on"), "{}", control.output());
}
