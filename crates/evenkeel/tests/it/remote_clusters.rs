//! `evenkeel create-remote-secret` and `evenkeel remote-clusters` with two real API servers and a real control plane.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::{Process, free_ports, wait};
use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments).env_remove("KUBECONFIG").output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn control_plane(state: &Path, server: &ApiServer) -> (Process, SocketAddr) {
    let [grpc, secure, http] = free_ports().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["control-plane", "--grpc-address", &grpc.to_string(), "--secure-grpc-address", &secure.to_string()]);
    command.args(["--http-address", &http.to_string(), "--cluster", "east"]).arg("--state").arg(state);
    let mut process = Process::spawn(command.arg("--kubeconfig").arg(server.kubeconfig()));
    process.wait_for_port(http);
    (process, http)
}

#[test]
fn a_cluster_is_connected_by_the_secret_that_a_command_prints() {
    let (east, west) = (ApiServer::start(), ApiServer::start());
    east.kubectl(&["create", "namespace", "istio-system"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let kubeconfig = west.kubeconfig().display().to_string();
    let create = |more: &[&str]| run(&[&["create-remote-secret", "--kubeconfig", &kubeconfig], more].concat());
    let refused = |more: &[&str], expected: &str| {
        let output = create(more);
        assert!(!output.status.success() && text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    };
    refused(&["--name", "a/b"], "cannot be the name of a cluster");
    refused(&["--name", "west", "--server", "http://a:1"], "no address with https://");
    refused(&["--name", "west", "--type", "config"], "invalid value 'config'");
    let created = create(&["--name", "west", "--token-duration", "3600"]);
    assert!(created.status.success(), "{}", text(&created.stderr));
    let secret = text(&created.stdout);
    assert!(!secret.contains("exec"), "{secret}");
    east.apply(&secret);

    let (_process, http) = control_plane(&folder.path().join("state"), &east);
    let http = http.to_string();
    let status = || {
        let output = run(&["remote-clusters", "--control-plane", &http, "-o", "json"]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        let status = json[0]["clusters"][0]["syncStatus"].as_str().unwrap_or("none").to_owned();
        (status, output.status.code())
    };
    let until = |expected: &str, code: i32| {
        let is_so = || (status() == (expected.to_owned(), Some(code))).then_some(());
        assert!(wait::poll(Duration::from_secs(180), is_so).is_some(), "never {expected}: {:?}", status());
    };
    until("synced", 0);
    let table = text(&run(&["remote-clusters", "--control-plane", &http]).stdout);
    let row = table.lines().nth(1).expect("a row");
    assert!(row.starts_with("west   istio-system/istio-remote-secret-west   synced   "), "{table}");
    west.kill();
    until("outage", 1);
    // The configuration takes findings over a moment later.
    let is_named = || {
        let proxies = run(&["proxy-status", "--control-plane", &http]);
        let is_named = text(&proxies.stdout).contains("remote cluster `west`");
        (is_named && proxies.status.code() == Some(1)).then_some(())
    };
    assert!(wait::poll(Duration::from_secs(60), is_named).is_some(), "proxy-status does not name the outage");
    east.kubectl(&["delete", "secret", "istio-remote-secret-west", "-n", "istio-system"]);
    until("none", 0);
    let table = text(&run(&["remote-clusters", "--control-plane", &http]).stdout);
    assert!(table.contains("No Secret with the label istio/multiCluster=true"), "{table}");
}
