//! `evenkeel-lab` on small meshes: every scenario end to end, with a real control plane.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use evenkeel_testkit::{Signal, kubernetes, workspace};
use serde_json::Value;

/// Services and sidecars of these meshes.
const SERVICES: u64 = 20;
const PROXIES: u64 = 10;

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-lab"));
    command.args(arguments).args(["--patience", "60s"]);
    command.output().expect("the lab runs")
}

/// Plays a scenario, and yields its JSON.
fn play(scenario: &str, flags: &[&str]) -> Value {
    let sizes = ["--services", "20", "--proxies", "10", "-o", "json"];
    let output = lab(&[&[scenario][..], &sizes, flags].concat());
    assert!(output.status.success(), "{scenario} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

/// What holds of every run: all proxies were configured, and every change reached all of them.
fn check_common(results: &Value, changes: usize) {
    let proxies = results["proxies"].as_array().expect("a list");
    assert_eq!(proxies.len() as u64, PROXIES + 1);
    for proxy in proxies {
        assert!(proxy["configured_ms"].is_number() && proxy["bytes"].as_u64() > Some(0), "{proxy}");
    }
    let made = results["changes"].as_array().expect("a list");
    assert_eq!(made.len(), changes);
    for change in made {
        let (holders, acks) = (change["holders"].as_u64(), number(change, "/ack_ms/count"));
        assert_eq!(holders.map(|holders| holders as f64), Some(acks), "{change}");
        assert!(number(change, "/ack_ms/p50") <= number(change, "/ack_ms/max"), "{change}");
    }
    check_documented(results);
    assert!(number(results, "/cost/server/resident_mib") > 1.0);
    assert!(!results["samples"].as_array().expect("a list").is_empty());
}

#[test]
fn services_are_added_and_served() {
    for kind in ["service-entry", "service"] {
        let results = play("services", &["--scope", "envoy", "--changes", "3", "--interval", "20ms", "--kind", kind]);
        check_common(&results, 3);
        for change in results["changes"].as_array().expect("a list") {
            assert_eq!(change["holders"].as_u64(), Some(PROXIES + 1));
            assert!(number(change, "/ready_ms") > 0.0, "{change}");
        }
        assert!(number(&results, "/start/bytes") > 100_000.0);
    }
}

#[test]
fn the_memory_of_the_gateway_is_measured_while_services_come_and_go() {
    let results =
        play("provision", &["--scope", "envoy", "--changes", "3", "--interval", "20ms", "--debounce", "50ms"]);
    check_common(&results, 6);
    assert!(number(&results, "/provision/before_mib") > 1.0 && number(&results, "/provision/with_all_mib") > 1.0);
    assert!(number(&results, "/provision/after_mib") > 1.0 && results["provision"]["kib_per_service"].is_number());
}

#[test]
fn published_runs_are_presets() {
    let folder = tempfile::tempdir().expect("a directory");
    let out = folder.path().display().to_string();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-lab"));
        command.args(["published", "--out", &out]).args(more);
        command.output().expect("the lab runs")
    };
    let listed = String::from_utf8_lossy(&run(&["--list"]).stdout).into_owned();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["800", "1000", "1400", "800-debounce-1s", "800-sotw"]);
    let short = ["800-sotw", "--divide", "400", "--proxies", "3", "--interval", "20ms"];
    let played = run(&short);
    assert!(played.status.success(), "{played:?}");
    let file = std::fs::read(folder.path().join("800-sotw.json")).expect("a result");
    let results: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!((results["mesh"]["protocol"].as_str(), results["cost"]["changes"].as_u64()), (Some("sotw"), Some(2)));
    assert!(String::from_utf8_lossy(&run(&short).stdout).contains("remove it to measure again"));
    let unknown = run(&["900"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no run is called 900"), "{unknown:?}");
}

#[test]
fn the_state_of_the_world_is_measured_too() {
    let results =
        play("services", &["--scope", "envoy", "--sotw", "--no-gateway", "--changes", "2", "--interval", "20ms"]);
    check_common(&results, 2);
    // Every cluster again, for each of them.
    assert!(number(&results, "/cost/resources_per_change_and_proxy") > SERVICES as f64 / 2.0);
}

#[test]
fn endpoints_and_routes_are_replaced_and_services_go() {
    check_common(&play("rollout", &["--scope", "envoy", "--no-gateway", "--changes", "8", "--interval", "10ms"]), 8);
    check_common(&play("routes", &["--scope", "learned", "--changes", "8", "--interval", "10ms"]), 8);
    check_common(&play("churn", &["--scope", "envoy", "--no-gateway", "--changes", "20", "--interval", "10ms"]), 20);
    let results = play("shrink", &["--scope", "envoy", "--keep", "5"]);
    check_common(&results, 15);
    assert!(number(&results, "/shrink/fresh_mib") > 1.0);
}

#[test]
fn who_stops_reading_delays_nobody() {
    let flags = ["--scope", "envoy", "--no-gateway", "--changes", "5", "--interval", "10ms", "--stuck", "4"];
    let results = play("services", &flags);
    check_common(&results, 5);
    for change in results["changes"].as_array().expect("a list") {
        assert_eq!(change["holders"].as_u64(), Some(PROXIES + 1 - 4));
    }
}

#[test]
fn what_nobody_uses_is_sent_to_nobody() {
    let results = play("services", &["--scope", "learned", "--no-gateway", "--changes", "5", "--interval", "20ms"]);
    check_common(&results, 5);
    assert_eq!(number(&results, "/cost/sidecar_bytes_per_change"), 0.0);
    for change in results["changes"].as_array().expect("a list") {
        // The gateway.
        assert_eq!(change["holders"].as_u64(), Some(1));
        assert!(number(change, "/first_use_ms") > 0.0, "{change}");
    }
}

#[test]
fn a_service_more_is_sent_alone() {
    let results = play("services", &["--scope", "full", "--changes", "5", "--interval", "20ms"]);
    check_common(&results, 5);
    for change in results["changes"].as_array().expect("a list") {
        assert_eq!(change["holders"].as_u64(), Some(PROXIES + 1));
        assert!(number(change, "/ready_ms") > 0.0, "{change}");
    }
    // Its cluster, endpoints, virtual host and name.
    assert!(number(&results, "/cost/resources_per_change_and_proxy") <= 4.0);
}

#[test]
fn a_real_sidecar_gets_what_it_uses() {
    let results = play("sidecar", &["--scope", "learned", "--used", "2"]);
    check_common(&results, 2);
    assert_eq!(number(&results, "/sidecar/used"), 2.0);
    assert_eq!(number(&results, "/sidecar/first_answer_ms/count"), 2.0);
    assert!(number(&results, "/sidecar/after_mib") > 1.0);
}

#[test]
fn a_restart_loses_nothing() {
    let results = play("restart", &["--scope", "envoy", "--changes", "4", "--interval", "20ms", "--pause", "200ms"]);
    // Four as asked for, and those while the control plane was away.
    check_common(&results, 9);
    assert_eq!(number(&results, "/restart/removed"), 0.0);
    for proxy in results["proxies"].as_array().expect("a list") {
        assert_eq!(proxy["connects"].as_u64(), Some(2), "{proxy}");
    }
}

/// A real API server: Services become routes of a real gateway, and changes of labels reach nobody.
#[test]
fn the_mesh_can_be_written_through_an_api_server() {
    let programs = kubernetes::programs();
    let through =
        ["--kubernetes", programs.to_str().expect("a path in UTF-8"), "--kind", "service", "--scope", "learned"];
    let results = play("services", &[&through[..], &["--changes", "4", "--interval", "50ms"]].concat());
    check_common(&results, 4);
    for change in results["changes"].as_array().expect("a list") {
        assert!(change["ready_ms"].as_f64() > Some(0.0), "{change}");
    }
    let results = play("labels", &[&through[..], &["--changes", "60", "--interval", "0s"]].concat());
    check_common(&results, 0);
    assert_eq!((&results["labels"]["changes"], &results["labels"]["bytes"]), (&60.into(), &0.into()));
    assert_eq!(results["labels"]["lists"], serde_json::json!([]));
}

#[test]
fn what_is_written_is_documented_and_drawn() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (json, svg) = (path("storm.json"), path("storm.svg"));
    let output =
        lab(&["storm", "--scope", "envoy", "--services", "20", "--proxies", "10", "--json", &json, "--svg", &svg]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("all configured") && table.contains("MiB resident"), "{table}");
    let svg = std::fs::read_to_string(svg).expect("a figure");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let results: Value = serde_json::from_str(&std::fs::read_to_string(json).expect("results")).expect("JSON");
    check_common(&results, 0);
}

/// Every key stands in docs/scale.md.
fn check_documented(results: &Value) {
    let page = std::fs::read_to_string(workspace::root().join("docs/scale.md")).expect("the page");
    let mut keys = BTreeSet::new();
    collect_keys(results, &mut keys);
    for key in keys {
        assert!(
            page.contains(&format!("`{key}`")) || page.contains(&format!("`{key}[]`")),
            "docs/scale.md does not name {key}"
        );
    }
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            keys.extend(fields.keys().cloned());
            fields.values().for_each(|value| collect_keys(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

#[test]
fn mistakes_are_explained() {
    let check = |arguments: &[&str], expected: &str| {
        let output = lab(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
    };
    check(&["services", "--proxies", "0"], "have to be at least 1");
    check(&["services", "--sotw", "--scope", "full"], "--sotw needs --scope envoy");
    check(&["restart", "--xds", "127.0.0.1:1", "--config", "/tmp/x"], "leave --xds away");
    check(&["services", "--proxies", "3", "--stuck", "3"], "--stuck has to be less than --proxies");
    check(&["idle", "--program", "/nowhere/evenkeel"], "starting the control plane (/nowhere/evenkeel): No such file");
    // Known before the run, not at its end.
    check(&["idle", "--program", "/nowhere", "--json", "/nowhere/x.json"], "writing /nowhere/x.json: No such file");
}

/// Processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn a_signal_ends_everything() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-lab"));
    command.args(["idle", "--scope", "envoy", "--services", "3", "--proxies", "2", "--pause", "60s"]);
    let mut lab = command.stderr(std::process::Stdio::null()).spawn().expect("the lab runs");
    let control_plane = evenkeel_testkit::eventually("a control plane", || children(lab.id()).first().copied());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(lab.id().cast_signed()), Signal::SIGINT).expect("it runs");
    assert!(!lab.wait().expect("an end").success());
    assert!(!Path::new(&format!("/proc/{control_plane}")).exists(), "the control plane runs on");
}
