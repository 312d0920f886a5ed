//! `evenkeel inject` and `evenkeel istio-iptables`.

use std::process::{Command, Output};

use evenkeel_testkit::kubernetes::ApiServer;

const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {proxy.istio.io/config: '{concurrency: 1}'}}
    spec:
      containers:
      - name: web
        image: none
        args: ['yes', '0x1', '$(POD_NAME)']
        livenessProbe: {grpc: {port: 7}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
";

fn evenkeel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_api_server_takes_injected_manifests() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("app.yaml");
    std::fs::write(&file, APP).expect("a file");
    let file = file.to_str().expect("a path");
    let output = evenkeel(&["inject", "-f", file, "--proxy-image", "registry.example/evenkeel:1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let injected = text(&output.stdout);
    let again = folder.path().join("again.yaml");
    std::fs::write(&again, &injected).expect("a file");
    let twice =
        evenkeel(&["inject", "-f", again.to_str().expect("a path"), "--proxy-image", "registry.example/evenkeel:1"]);
    assert_eq!(text(&twice.stdout), injected);
    let api = ApiServer::shared();
    let namespace = api.namespace("manifests");
    api.kubectl(&["apply", "--namespace", &namespace, "-f", again.to_str().expect("a path")]);
    let query = |path: &str| {
        let output = format!("jsonpath={{.spec.template.spec.{path}}}");
        api.kubectl(&["get", "deployment", "web", "--namespace", &namespace, "-o", &output])
    };
    assert_eq!(query("initContainers[*].image"), "registry.example/evenkeel:1 registry.example/evenkeel:1");
    assert_eq!(query("containers[0].args"), r#"["yes","0x1","$(POD_NAME)"]"#);
    assert_eq!(query("containers[0].livenessProbe.httpGet.path"), "/app-health/web/livez");
    assert_eq!(
        api.kubectl(&["get", "service", "web", "--namespace", &namespace, "-o", "jsonpath={.spec.ports[0].port}"]),
        "80"
    );
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let folder = tempfile::tempdir().expect("a directory");
    let check = |text_of_file: &str, expected: &str| {
        let file = folder.path().join("app.yaml");
        std::fs::write(&file, text_of_file).expect("a file");
        let output = evenkeel(&["inject", "-f", file.to_str().expect("a path")]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        let error = text(&output.stderr);
        assert!(error.contains(expected) && error.contains("app.yaml"), "{error}");
    };
    check(&APP.replace("name: web\n        image", "name: We b\n        image"), "We b");
    check("a: [", "app.yaml");
    let missing = evenkeel(&["inject", "-f", "/nonexistent.yaml"]);
    assert!(text(&missing.stderr).contains("/nonexistent.yaml"), "{}", text(&missing.stderr));
}

/// The init container runs in the network of its Pod, and again when it is restarted.
#[test]
fn capture_rules_are_loaded_and_replaced() {
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let flags = "-p 15001 -z 15006 -u 1337 -m TPROXY -i '*' -x '' -b '*' -d 15090,15021,15020 --redirect-dns";
    let load = format!("'{program}' istio-iptables {flags}");
    let other = load.replace("15020", "15020,22");
    let list = "nft list table ip evenkeel && ip rule list && ip route show table all type local";
    let run = |script: &str| {
        let script = format!("PATH=$PATH:/usr/sbin; ip link set lo up && {script}");
        let output = Command::new("unshare").args(["--net", "--map-root-user", "sh", "-c", &script]).output();
        let output = output.expect("unshare");
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let once = run(&format!("{load} && {list}"));
    assert!(once.contains("15006") && once.contains("fwmark"), "{once}");
    assert_eq!(run(&format!("{load} && {load} && {list}")), once);
    let changed = run(&format!("{load} && {other} && {list}"));
    assert!(changed.contains("22") && changed != once, "{changed}");
    let printed = text(&evenkeel(&["istio-iptables", "--dry-run", "-p", "15001", "-u", "1337"]).stdout);
    assert!(printed.starts_with("table ip evenkeel {"), "{printed}");
    let wrong = evenkeel(&["istio-iptables", "-m", "MAGIC"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("MAGIC"), "{}", text(&wrong.stderr));
}
