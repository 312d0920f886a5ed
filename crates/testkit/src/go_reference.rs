//! Programs in Go that tell how another reader reads something: `scripts/NAME`, a line of JSON for each line of JSON.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace;

/// Asks the program of this name, and returns one answer for each question.
///
/// # Panics
/// If the program cannot be built, or fails.
pub fn ask(name: &str, arguments: &[&Path], questions: &[Value]) -> Vec<Value> {
    let mut command = Command::new(program(name));
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut input = child.stdin.take().expect("its input is a pipe");
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("no panic").expect("the program reads its input");
    assert!(output.status.success(), "the program failed: {}", output.status);
    let answers = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.len(), questions.len(), "one answer for each question");
    answers
}

fn program(name: &str) -> PathBuf {
    let path = workspace::target_dir().join("tools/bin").join(name);
    let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if written(&path) < written(&workspace::root().join("scripts").join(name).join("main.go")) {
        workspace::install(name);
    }
    path
}
