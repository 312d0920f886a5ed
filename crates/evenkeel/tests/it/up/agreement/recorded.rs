//! The meshes of the tables of decisions and the calls that the tables make in them, as `crates/translate/tests/it/recorded.rs`
//! records them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::workspace;

/// Where an earlier run of the tables has recorded (`scripts/test.py`).
const RECORDED: &str = "EVENKEEL_TEST_RECORDED";
/// Where the tables record.
const RECORD: &str = "EVENKEEL_TEST_RECORD";

/// A mesh of a table.
#[derive(Debug, Default)]
pub struct RecordedMesh {
    /// Its YAML.
    pub text: String,
    /// Calls in plain text: from where, to where, and the request (none: bytes), as `METHOD HOST PATH [NAME=VALUE]`.
    pub calls: Vec<(SocketAddr, SocketAddr, String)>,
}

/// All meshes, in the order of their texts: tables run in any order.
pub fn meshes() -> Vec<RecordedMesh> {
    let record = match std::env::var_os(RECORDED) {
        Some(path) => std::fs::read_to_string(Path::new(&path)).expect("a record"),
        None => recorded_now(),
    };
    let mut all: BTreeMap<String, RecordedMesh> = BTreeMap::new();
    for line in record.lines() {
        if let Some(json) = line.strip_prefix("mesh ") {
            let (hash, text): (String, String) = serde_json::from_str(json).expect("a mesh");
            all.entry(hash).or_default().text = text;
        } else if let Some(json) = line.strip_prefix("call ") {
            let (hash, from, to, request) = serde_json::from_str(json).expect("a call");
            let calls = &mut all.entry(hash).or_default().calls;
            if !calls.contains(&(from, to, String::clone(&request))) {
                calls.push((from, to, request));
            }
        }
    }
    let mut meshes: Vec<RecordedMesh> = all.into_values().filter(|mesh| !mesh.text.is_empty()).collect();
    meshes.sort_by(|a, b| a.text.cmp(&b.text));
    meshes
}

/// Lets cargo run the tables, as nobody has said where they have recorded.
fn recorded_now() -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("record");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace::root()).env(RECORD, &path);
    cargo.args(["test", "--package", "evenkeel-translate", "--test", "it", "--", "decisions", "--test-threads", "2"]);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    std::fs::read_to_string(path).expect("a record")
}
