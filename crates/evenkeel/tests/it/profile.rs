//! `evenkeel profile` of live programs: the functions that work have names, also in a program that was stripped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Connection, Process, eventually, workspace};

const BOOTSTRAP: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            name: local
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

/// A proxy as it is released: its symbols are in a file beside it.
fn stripped_proxy(folder: &Path) -> (Process, SocketAddr) {
    let (program, bootstrap, address) =
        (folder.join("evenkeel-proxy"), folder.join("bootstrap.yaml"), folder.join("admin"));
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel-proxy"), &program).expect("room for a copy");
    let strip = Command::new(workspace::root().join("scripts/strip.sh")).arg(&program).status();
    assert!(strip.is_ok_and(|status| status.success()), "it is stripped");
    std::fs::write(&bootstrap, BOOTSTRAP).expect("a writable folder");
    let mut command = Command::new(&program);
    command.args(["--concurrency", "1", "-c"]).arg(bootstrap).arg("--admin-address-path").arg(&address);
    let process = Process::spawn(&mut command);
    let admin = eventually("the admin address", || std::fs::read_to_string(&address).ok()?.parse().ok());
    (process, admin)
}

fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let response = Connection::open(address).and_then(|mut open| open.get("localhost", path, "")).expect("it answers");
    (response.status, response.text())
}

fn profile(arguments: &[&str], output: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("profile").args(arguments).arg("--output").arg(output).output().expect("the program runs")
}

/// What Go's own tool says of a profile: functions with their parts.
fn top_of(file: &Path) -> String {
    let output = Command::new("go").args(["tool", "pprof", "-top", "-cum", "-nodecount=400"]).arg(file).output();
    let output = output.expect("go runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Records while `work` is done again and again; returns the picture and what Go's tool says.
fn recorded_during(arguments: &[&str], folder: &Path, work: impl Fn() + Sync) -> (String, String) {
    let (is_over, output) = (AtomicBool::new(false), folder.join(format!("{}", arguments.len())));
    let command = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                work();
            }
        });
        let command = profile(arguments, &output);
        is_over.store(true, Ordering::Relaxed);
        command
    });
    let printed = String::from_utf8_lossy(&command.stdout).into_owned();
    assert!(command.status.success(), "{printed}{}", String::from_utf8_lossy(&command.stderr));
    let paths: Vec<PathBuf> = printed.lines().take(2).map(PathBuf::from).collect();
    assert_eq!(paths, ["svg", "pb.gz"].map(|ending| output.with_extension(ending)));
    (std::fs::read_to_string(&paths[0]).expect("a picture"), top_of(&paths[1]))
}

#[test]
fn a_stripped_proxys_functions_have_names_in_its_profiles() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_proxy, admin) = stripped_proxy(folder.path());
    let web: SocketAddr = eventually("the listener", || {
        page(admin, "/listeners").1.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok())
    });
    let requests = || {
        let mut connection = Connection::open(web).expect("it accepts");
        (0..100).for_each(|_| assert_eq!(connection.get("web", "/", "").expect("it answers").status, 200));
    };
    let at = admin.to_string();
    let (picture, top) = recorded_during(&["--admin", &at, "--seconds", "2"], folder.path(), requests);
    for part in ["<title>worker-0 (", "<title>evenkeel_proxy::", "the samples have taken"] {
        assert!(picture.contains(part), "no {part:?} in {picture}");
    }
    assert!(top.contains("Type: cpu\n") && top.contains("evenkeel_proxy::"), "{top}");
    let pages = || assert_eq!(page(admin, "/stats?format=json").0, 200);
    let (picture, top) = recorded_during(&["--admin", &at, "--seconds", "3", "--heap"], folder.path(), pages);
    assert!(picture.contains(": inuse_space</text>"), "{picture}");
    assert!(top.contains("Type: inuse_space\n"), "{top}");
    let allocated = top_of_allocated(folder.path());
    assert!(allocated.contains("evenkeel_proxy::admin::"), "{allocated}");
}

fn top_of_allocated(folder: &Path) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-top", "-cum", "-nodecount=400", "-sample_index=alloc_space"]);
    let output = command.arg(folder.join("5.pb.gz")).output().expect("go runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_profile_is_recorded_at_a_time_and_queries_have_bounds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (bootstrap, address) = (folder.path().join("bootstrap.yaml"), folder.path().join("admin"));
    std::fs::write(&bootstrap, BOOTSTRAP).expect("a writable folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--concurrency", "1", "-c"]).arg(bootstrap).arg("--admin-address-path").arg(&address);
    let _proxy = Process::spawn(&mut command);
    let admin = eventually("the admin address", || std::fs::read_to_string(&address).ok()?.parse().ok());
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || page(admin, "/debug/pprof/profile?seconds=2&format=svg").0;
        [scope.spawn(ask), scope.spawn(ask)].map(|asked| asked.join().expect("an answer")).to_vec()
    });
    assert!(statuses.contains(&200) && statuses.contains(&409), "{statuses:?}");
    let check = |path: &str, expected: u16, part: &str| {
        let (status, text) = page(admin, path);
        assert!(status == expected && text.contains(part), "{path}: {status} {text}");
    };
    check("/debug/pprof/", 200, "/debug/pprof/heap");
    check("/debug/pprof/heap?seconds=0", 400, "from 1 to 120");
    check("/debug/pprof/profile?seconds=121", 400, "from 1 to 120");
    check("/debug/pprof/profile?seconds=1&format=png", 400, "pprof or svg");
    check("/debug/pprof/block", 404, "no such page");
}

#[test]
fn a_control_plane_is_profiled_through_its_http_port() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [configuration, state] = ["configuration", "state"].map(|name| folder.path().join(name));
    for new in [&configuration, &state] {
        std::fs::create_dir(new).expect("a new folder");
    }
    let port = evenkeel_testkit::free_port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("control-plane").arg("--config").arg(&configuration).arg("--state").arg(&state);
    command.args(["--grpc-address", "127.0.0.1:0", "--secure-grpc-address", "127.0.0.1:0"]);
    let _plane = Process::spawn(command.args(["--http-address", &format!("127.0.0.1:{port}")]));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    eventually("the control plane", || Connection::open(address).ok().map(drop));
    let pages = || assert_eq!(page(address, "/metrics").0, 200);
    let flag = format!("--control-plane={address}");
    let (picture, top) = recorded_during(&[&flag, "--seconds=2"], folder.path(), pages);
    assert!(picture.contains("control-plane, 2 s: cpu") && top.contains("evenkeel_control::"), "{top}");
}
