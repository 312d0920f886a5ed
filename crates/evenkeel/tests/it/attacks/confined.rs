//! The confinement of the running servers, as the kernel reports it and as they report it themselves.

use std::process::Command;

use evenkeel_testkit::{Connection, Process, eventually};

use crate::mesh::{Plane, Proxy};

/// A line of `/proc/PID/status`.
fn status(process: &Process, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

/// `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_NET_BIND_SERVICE`, `CAP_NET_ADMIN` and `CAP_NET_RAW`.
const KEPT: u64 = 1 << 1 | 1 << 2 | 1 << 10 | 1 << 12 | 1 << 13;

/// The capabilities that a process has, and those that it can get back.
fn capabilities(process: &Process) -> [u64; 3] {
    ["CapEff", "CapPrm", "CapInh"].map(|set| u64::from_str_radix(&status(process, set), 16).expect("a number"))
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
    assert_eq!(capabilities(&process).map(|set| set & !KEPT), [0; 3], "{said}");
    let names = if capabilities(&process)[1] == 0 { "capabilities=none" } else { "NET_BIND_SERVICE" };
    assert!(said.contains(names), "{said}");
    drop(process);
    let (process, info) = proxy(&["--no-confinement"]);
    assert_eq!((status(&process, "Seccomp"), info["confinement"].as_str()), ("0".to_owned(), Some("off")));
    assert!(process.output().contains("not confined"), "{}", process.output());
    drop(process);
    let plane = Plane::new();
    let control = plane.start();
    // The control plane tells of each proxy what it has said of itself.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own = Proxy::start(&plane, folder.path(), "web-0", "full", 1);
    let told = |pod: &str| {
        eventually(pod, || {
            let proxies = plane.json("/debug/syncz")?["proxies"].as_array()?.clone();
            let is_it = |proxy: &&serde_json::Value| proxy["proxy"].as_str().is_some_and(|node| node.contains(pod));
            Some(proxies.iter().find(is_it)?["confinement"].as_str()?.to_owned())
        })
    };
    let said = told("web-0");
    assert!(said.starts_with("seccomp=on landlock=") && said.contains(" user="), "{said}");
    if !said.contains("partly") && !said.contains("=off") {
        assert!(!plane.proxy_status(&[]).contains("confined"), "{}", plane.proxy_status(&[]));
    }
    drop(own);
    let _open = Proxy::start_with(&plane, folder.path(), "web-1", "full", 1, &["--no-confinement"]);
    told("web-1");
    let status = plane.proxy_status(&[]);
    assert!(status.contains("web-1.shop is not confined: seccomp=off (not asked for)"), "{status}");
    assert!(is_confined(&control), "{}", control.output());
    assert!(control.output().contains("seccomp=on"), "{}", control.output());
    assert_eq!(capabilities(&control).map(|set| set & !KEPT), [0; 3], "{}", control.output());
}
