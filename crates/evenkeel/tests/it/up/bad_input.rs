//! Errors in the user's input are reported in one line, with a fix, before anything starts.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_testkit::Process;

use super::user::{User, open_to_all};
use super::{PATIENCE, capitals, entries, state};

/// Runs `up` on a directory with these files and expects it to refuse in these words.
fn check(files: &[(&str, &str)], more: &[&str], expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("it can be written");
    }
    refuses(folder.path(), more, expected);
}

fn refuses(directory: &Path, more: &[&str], expected: &[&str]) {
    let (user, state) = (User::present(), state());
    let mut command = user.evenkeel(&["up"]);
    command.arg(directory).arg("--state").arg(state.path()).args(more);
    let mut up = Process::spawn(&mut command);
    let status = up.wait_for_exit(PATIENCE);
    let output = up.output();
    assert_eq!(status.code(), Some(1), "{output}");
    for part in expected {
        assert!(output.contains(part), "{part:?} is not in:\n{output}");
    }
    assert!(!output.contains("panicked"), "{output}");
    assert_eq!(entries(state.path()), Vec::<String>::new(), "something was started");
}

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  selector:\n    \
     matchLabels: {app: web}\n  template:\n    metadata:\n      labels: {app: web}\n    spec:\n      containers:\n        - name: web\n";

#[test]
fn a_directory_that_is_none() {
    refuses(Path::new("/nowhere/at/all"), &[], &["error: /nowhere/at/all is not a directory with YAML files"]);
    refuses(&capitals().join("gateway.yaml"), &[], &["name the directory it is in"]);
}

/// What is in it may be what closes a workload: neither command takes the rest for all.
#[test]
fn a_directory_within_that_cannot_be_read() {
    let (user, folder) = (User::unprivileged(), tempfile::tempdir().expect("a temporary directory"));
    let closed = folder.path().join("policies");
    fs::create_dir(&closed).expect("our own folder");
    fs::write(folder.path().join("web.yaml"), DEPLOYMENT).expect("our own folder");
    open_to_all(folder.path());
    open_to_all(&folder.path().join("web.yaml"));
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).expect("our own folder");
    let directory = folder.path().display().to_string();
    for arguments in [vec!["validate", &directory], vec!["up", &directory, "--state", "STATE"]] {
        let state = user.state.path().display().to_string();
        let arguments: Vec<_> =
            arguments.into_iter().map(|word| if word == "STATE" { &*state } else { word }).collect();
        let mut process = Process::spawn(&mut user.evenkeel(&arguments));
        let status = process.wait_for_exit(PATIENCE);
        let output = process.output();
        assert_eq!(status.code(), Some(1), "{output}");
        assert!(output.contains("error[unreadable-file]: cannot read the directory: Permission denied"), "{output}");
        assert!(output.contains(&*closed.to_string_lossy()), "{output}");
        assert_eq!(entries(user.state.path()), Vec::<String>::new(), "something was started");
    }
}

#[test]
fn nothing_to_run() {
    check(&[], &[], &["no Deployment in", "local.evenkeel.dev/run: COMMAND"]);
    let expected = ["web.yaml:4:9", "no-local-command", "no Deployment in", "local.evenkeel.dev/run: COMMAND"];
    check(&[("web.yaml", DEPLOYMENT)], &[], &expected);
}

#[test]
fn mistakes_in_files_have_a_place() {
    check(&[("a.yaml", "kind: [\n")], &[], &["a.yaml:", "error", "nothing was started"]);
    let unknown = DEPLOYMENT.replace("  selector:", "  replicaz: 2\n  selector:");
    check(&[("web.yaml", &unknown)], &[], &["web.yaml:6:3", "replicaz", "1 error in", "nothing was started"]);
    let kind = "apiVersion: v1\nkind: Sevice\nmetadata: {name: web}\n";
    check(&[("svc.yaml", kind)], &[], &["svc.yaml:2:7", "Sevice", "nothing was started"]);
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let expected = [&*format!("127.0.0.1:{port}"), "another program uses it", "gateway.yaml:", "--gateway-port 8080="];
    refuses(&capitals(), &["--gateway-port", &port], &expected);
}
