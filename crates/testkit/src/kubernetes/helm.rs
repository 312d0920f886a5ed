//! Helm, for tests of charts.

use std::path::Path;
use std::process::Command;

use crate::kubernetes::programs::Programs;

/// Renders a chart, and returns its objects as YAML, or Helm's error.
pub fn template(arguments: &[&str]) -> Result<String, String> {
    let home = tempfile::tempdir().expect("a directory");
    run(&[&["template"], arguments].concat(), home.path())
}

/// Runs Helm with a home directory of its own, and returns what it prints, or its error.
pub(super) fn run(arguments: &[&str], home: &Path) -> Result<String, String> {
    let output = Command::new(Programs::obtained().helm())
        .args(arguments)
        .env("HOME", home)
        .env("KUBECACHEDIR", home.join("cache"))
        .output()
        .expect("helm starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
