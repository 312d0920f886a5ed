//! Another certificate service signs for the mesh of `evenkeel up`. It is down when the mesh starts, and its root changes
//! later.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_ca::rotation::BUNDLE_FILE;
use evenkeel_ca::tokens::TOKEN_KEY_FILE;
use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::load::under_load;
use super::mesh::{REPLICAS, served};
use super::user::User;
use super::{MACHINE, PATIENCE, state, url, wait_ready};
use crate::mesh::Plane;

/// The machine's name inside the mesh.
const NAME: &str = "host.evenkeel.internal";

/// What `evenkeel ca status` says of the signer.
fn external(user: &User) -> Option<Value> {
    let path = user.state.path().display().to_string();
    let output = user.evenkeel(&["ca", "status", "-o", "json", "--state", &path]).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(status["external"].clone())
}

/// Starts another control plane, which knows the tokens of the mesh's workloads and nothing else of it.
fn start(signer: &Plane, mesh: &User) -> Process {
    fs::create_dir_all(signer.state()).expect("a folder");
    let key = Path::new("control").join(TOKEN_KEY_FILE);
    fs::copy(mesh.state.path().join(key), signer.state().join(TOKEN_KEY_FILE)).expect("the key of the mesh's tokens");
    signer.start_as(named)
}

fn named(command: &mut Command) {
    command.args(["--server-name", NAME]);
}

fn root(signer: &Plane) -> String {
    fs::read_to_string(signer.state().join(BUNDLE_FILE)).expect("its roots")
}

#[test]
fn another_service_signs_and_its_root_changes_without_a_failed_request() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let signer = Plane::new();
    // It makes its root, and goes away.
    drop(signer.start_as(named));
    let (folder, user) = (state(), User::present());
    let roots = folder.path().join("roots.pem");
    fs::write(&roots, root(&signer)).expect("a file");
    let (address, file) = (format!("{NAME}:{}", signer.secure), roots.display().to_string());
    let flags = ["--external-signer", &address, "--external-signer-ca", &file, "--external-signer-roots", &file];
    let mut up = Process::spawn(&mut user.up(&[&flags[..], &["--external-signer-forward-token"]].concat()));

    // Nothing signs in its place; the log names it.
    let log = user.state.path().join("logs/control-plane.log");
    eventually("the reason", || {
        let text = fs::read_to_string(&log).ok()?;
        text.lines().any(|line| line.contains(&address) && line.contains("refused")).then_some(())
    });
    assert!(!up.output().contains("ready "), "{}", up.output());
    let first = start(&signer, &user);
    wait_ready(&mut up, REPLICAS);
    let url = url(&mut up);
    served(&url, "/api/capitals/Iceland");
    let workloads = |signer: &Plane| signer.json("/debug/ca").map(|page| page["workloads"].clone());
    assert_eq!(workloads(&signer), Some(REPLICAS.into()), "the signer's ledger has every replica");

    // It comes back with another root, which the whole mesh knows before a certificate of it is used.
    let failures = under_load(&url, |account| {
        drop(first);
        account.answers(20);
        fs::rename(signer.state(), folder.path().join("old")).expect("its state is put away");
        let _second = start(&signer, &user);
        fs::write(&roots, fs::read_to_string(&roots).expect("a file") + &root(&signer)).expect("a file");
        eventually("both roots everywhere", || (external(&user)?["trusting"] == REPLICAS).then_some(()));
        let path = user.state.path().display().to_string();
        for workload in ["capitals-info-v2", "capitals-web"] {
            let output = user.evenkeel(&["restart", workload, "--state", &path]).output().expect("it runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            account.answers(20);
        }
        let count = workloads(&signer).and_then(|count| count.as_u64()).unwrap_or_default();
        assert!(count >= 2, "the new one has signed for {count} replicas");
    });
    assert_eq!(failures, [""; 0], "{}", up.output());
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

#[test]
fn a_signer_on_the_control_planes_own_loopback_interface_is_refused() {
    for address in ["127.0.0.1:8932", "localhost:8932", "[::1]:8932"] {
        let output = User::present().up(&["--external-signer", address]).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(&format!("--external-signer {address}")), "{error}");
        assert!(error.contains("host.evenkeel.internal:PORT"), "{error}");
    }
}
