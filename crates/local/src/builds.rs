//! The build steps of `evenkeel.yaml`, which run on the machine itself before anything else.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use evenkeel_base::Span;

use crate::workloads::Build;

/// Why a build failed, so that nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("{place}: the build step `{run}` {reason}; nothing was started")]
pub struct BuildError {
    /// Where it is written.
    place: Span,
    /// The command.
    run: String,
    /// The error.
    reason: String,
}

/// Runs the steps one after the other, with access to the terminal; stops at the first that fails.
pub fn run(builds: &[Build], out: &mut dyn Write) -> Result<(), BuildError> {
    for build in builds {
        let failed = |reason: String| BuildError { place: build.span.clone(), run: build.run.clone(), reason };
        // A failure to print does not matter.
        let _ = writeln!(out, "building   {} (in {})", build.run, build.directory.display()).and_then(|()| out.flush());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &build.run]).current_dir(&build.directory).stdin(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(format!("failed ({status})"))),
            Err(error) => {
                return Err(failed(format!("cannot be run in {}: {}", build.directory.display(), plain(&error))));
            }
        }
    }
    Ok(())
}

fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_where_they_are_to_and_the_first_failure_is_said_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let step = |run: &str| Build {
            directory: folder.path().to_owned(),
            run: run.to_owned(),
            span: Span::at("evenkeel.yaml", 3, 12),
        };
        let mut out = Vec::new();
        assert!(run(&[step("echo one > built")], &mut out).is_ok());
        assert!(folder.path().join("built").exists() && String::from_utf8_lossy(&out).contains("echo one > built"));
        let refused = run(&[step("exit 3"), step("touch not")], &mut out).map_err(|error| error.to_string());
        let said = refused.expect_err("it fails");
        assert_eq!(said, "evenkeel.yaml:3:12: the build step `exit 3` failed (exit status: 3); nothing was started");
        assert!(!folder.path().join("not").exists());
        let nowhere = Build { directory: folder.path().join("nowhere"), ..step("true") };
        let said = run(&[nowhere], &mut out).expect_err("it fails").to_string();
        assert!(said.contains("nowhere: there is no such directory"), "{said}");
    }
}
