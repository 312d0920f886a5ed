//! Paths in the checkout and its build directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checkout's root: the folder with `Cargo.lock`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit has two ancestors").to_path_buf()
}

/// The build directory, shared by all crates: `$CARGO_TARGET_DIR` or `target`.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// All Rust files under `folder`.
///
/// # Panics
/// If a folder cannot be read.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Lets `scripts/setup.sh` install a goal for a test that lacks it.
///
/// # Panics
/// When that fails: a test that needs a program fails, it is never skipped.
pub fn install(goal: &str) {
    let script = root().join("scripts/setup.sh");
    let output = Command::new("bash").arg(&script).arg(goal).stdin(Stdio::null()).output().expect("bash starts");
    assert!(
        output.status.success(),
        "{} {goal} failed ({}):\n{}{}",
        script.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
