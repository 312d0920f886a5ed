//! `h2spec`, the conformance suite of HTTP/2.

use std::process::{Command, Stdio};
use std::sync::Once;

use crate::workspace;

/// Number of its tests, including the strict ones.
const TESTS: usize = 146;
/// The path that it requests: the path of a gRPC method, so that a gRPC server has a service to call.
const PATH: &str = "/test.Calls/Hello";

/// Runs all tests against a server on a port of loopback; `tls`: over TLS, with any certificate.
///
/// # Panics
/// When a test fails, with the whole report; when h2spec is missing and cannot be installed.
pub fn assert_h2spec_passes(port: u16, tls: bool) {
    static INSTALLED: Once = Once::new();
    let path = workspace::target_dir().join("tools/bin/h2spec");
    INSTALLED.call_once(|| {
        if !path.exists() {
            workspace::install("h2spec");
        }
    });
    let mut command = Command::new(&path);
    command.args(["--strict", "--host", "127.0.0.1", "--timeout", "5", "--port", &port.to_string(), "--path", PATH]);
    if tls {
        command.args(["--tls", "--insecure"]);
    }
    let output = command.stdin(Stdio::null()).output().expect("h2spec starts");
    let report = String::from_utf8_lossy(&output.stdout);
    let summary = report.lines().find(|line| line.contains("tests,")).unwrap_or_default().trim();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(summary, format!("{TESTS} tests, {TESTS} passed, 0 skipped, 0 failed"), "{report}{errors}");
}
