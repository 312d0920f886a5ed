//! Instructions per request do not grow unnoticed.

use std::process::Command;

#[test]
fn instruction_counts_are_those_recorded() {
    let mut counts = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"));
    counts.args(["instructions", "--file", concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.tsv")]);
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        counts.arg("--bless");
    }
    let output = counts.output().expect("the program runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
