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
