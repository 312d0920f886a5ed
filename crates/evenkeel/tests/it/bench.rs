//! `evenkeel bench` from its flags to its files, with a real mesh.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use evenkeel_testkit::{Process, Signal, envoy};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `evenkeel bench` with these arguments, in this folder.
    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.arg("bench").args(arguments).current_dir(self.0.path());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.bench(arguments).output().expect("bench runs")
    }
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("a result")).expect("JSON")
}

fn samples(record: &Value) -> usize {
    let cells = record["cells"].as_array().into_iter().flatten();
    cells.map(|cell| cell["samples"].as_array().map_or(0, Vec::len)).sum()
}

#[test]
fn latency_is_measured_drawn_and_compared() {
    let folder = Folder::new();
    let envoy = envoy().display().to_string();
    let output = folder.output(&[
        "latency",
        "--quick",
        "--only",
        "GET, batches",
        "--rounds",
        "2",
        "--seconds",
        "0.2",
        "--envoy",
        &envoy,
        "--html",
        "page.html",
        "--svg",
        "bars.svg",
    ]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    for row in [
        "direct",
        "Evenkeel, mesh",
        "Evenkeel, mesh with authorization",
        "Envoy, mesh",
        "Envoy, mesh with authorization",
    ] {
        assert!(text.lines().any(|line| line.starts_with(&format!("| {row} "))), "{row} is missing in\n{text}{errors}");
    }
    let record = read(&folder.file("bench-latency.json"));
    assert_eq!(samples(&record), 10, "{record}");
    for cell in record["cells"].as_array().expect("cells") {
        let values = &cell["samples"][0]["values"];
        assert!(values["p50_ms"].as_f64() > Some(0.0) && values["stddev_ms"].is_number(), "{cell}");
        assert_eq!(values["cpu_us"].as_f64() > Some(0.0), cell["row"] != "direct", "{cell}");
        assert_eq!(values["busy_max_mean_server"].is_number(), cell["row"] != "direct", "{cell}");
    }
    let page = std::fs::read_to_string(folder.file("page.html")).expect("a page");
    assert!(
        page.contains("<svg") && page.contains("Envoy, mesh with authorization") && !page.contains("<script"),
        "{page}"
    );
    assert!(std::fs::read_to_string(folder.file("bars.svg")).expect("charts").starts_with("<svg"));
    let same = folder.output(&["compare", "bench-latency.json", "bench-latency.json"]);
    assert!(same.status.success(), "{same:?}");
    assert!(String::from_utf8_lossy(&same.stdout).starts_with("0 of "), "{same:?}");
}

#[test]
fn balance_is_that_of_workers() {
    let folder = Folder::new();
    let envoy = envoy().display().to_string();
    let only = ["--only", "400 connections, 4 workers", "--rounds", "1", "--seconds", "0.8", "--envoy", &envoy];
    let output = folder.output(&[&["balance", "--quick"][..], &only].concat());
    assert!(output.status.success(), "{output:?}");
    let record = read(&folder.file("bench-balance.json"));
    let value = |row: &str, key: &str| {
        let cells = record["cells"].as_array().into_iter().flatten();
        let values = cells.filter(|cell| cell["row"] == row).map(|cell| cell["samples"][0]["values"][key].as_f64());
        values.flatten().next().unwrap_or_else(|| panic!("no {key} of {row} in {record}"))
    };
    // 1 is even. Evenkeel balances as it is; Envoy where it is told to.
    assert!(value("Evenkeel", "connections_max_mean_client") < 1.05);
    assert!(value("Envoy, exact balance", "connections_max_mean_server") < 1.05);
    assert!(value("Evenkeel", "requests_max_mean_server") >= 1.0);
    assert!(value("Envoy", "connections_max_mean_client") >= 1.0);
}

#[test]
fn statistics_cost_cpu_time() {
    let folder = Folder::new();
    let only = ["--only", "Evenkeel, statistics", "--rounds", "1", "--seconds", "0.3", "--envoy", "/bin/false"];
    let output = folder.output(&[&["telemetry", "--quick"][..], &only].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text.lines().filter(|line| line.starts_with("| Evenkeel, statistics")).count(), 4, "{text}");
    assert_eq!(samples(&read(&folder.file("bench-telemetry.json"))), 4);
}

#[test]
fn an_interrupted_experiment_is_resumed() {
    let folder = Folder::new();
    let only = ["--only", "Evenkeel, mesh with"];
    let mut bench = Process::spawn(folder.bench(&["latency", "--rounds", "3", "--seconds", "0.5"]).args(only));
    let file = folder.file("bench-latency.json");
    bench.wait_for("a sample", |_| (file.exists() && samples(&read(&file)) > 0).then_some(()));
    bench.signal(Signal::SIGINT);
    let status = bench.wait_for_exit(PATIENCE);
    assert!(!status.success() && bench.output().contains("--resume bench-latency.json"), "{}", bench.output());
    let before = read(&file);
    assert!(samples(&before) < 6, "{before}");
    let output = folder.output(&["latency", "--resume", "bench-latency.json", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let after: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(samples(&after), 6, "{after}");
    assert_eq!(after["cells"][0]["samples"][0], before["cells"][0]["samples"][0]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = Folder::new();
    let check = |arguments: &[&str], expected: &str| {
        let output = folder.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{arguments:?}: {errors}");
    };
    check(&["latency", "--only", "nothing"], "--only nothing: no table or row contains it");
    check(&["latency", "--seconds", "0"], "`0` is no number of seconds");
    check(&["latency", "--envoy", "/nowhere/envoy"], "/nowhere/envoy: No such file");
    check(&["latency", "--json", "/nowhere/result.json"], "/nowhere/result.json");
    check(&["latency", "--only", "direct", "--program", "/bin/false"], "`evenkeel up` ended (exit status: 1)");
    check(&["latency", "--resume", "absent.json"], "absent.json: No such file");
    std::fs::write(folder.file("other.json"), "{\"schema\": 7}").expect("it can be written");
    check(&["compare", "other.json", "other.json"], "its format is 7, and this program reads 1");
    check(&["report", "-o", "json", "other.json"], "it prints results that are JSON");
}
