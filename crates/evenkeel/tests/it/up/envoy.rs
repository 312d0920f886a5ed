//! A stock Envoy as the sidecar of a workload, among Evenkeel's.

use std::fs;

use evenkeel_testkit::{Process, envoy};

use super::user::User;
use super::{PATIENCE, capitals};

/// One side of every call between the two programs is Envoy, in both directions of the exchange.
#[test]
fn envoy_and_evenkeel_sidecars_serve_each_other() {
    for envoy_beside in ["capitals-web.yaml", "capitals-info.yaml"] {
        let user = with_envoy(envoy_beside);
        let mut up = Process::spawn(&mut user.up(&["--check"]));
        let status = up.wait_for_exit(PATIENCE);
        assert!(status.success(), "Envoy beside {envoy_beside}: {status}:\n{}", up.output());
    }
}

/// The example in which the workloads of one file have Envoy for sidecar.
fn with_envoy(file: &str) -> User {
    let folder = super::state();
    let copied = std::process::Command::new("cp").arg("-r").arg(capitals()).arg(folder.path()).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let example = folder.path().join("capitals");
    let text = fs::read_to_string(example.join(file)).expect("the example has it");
    let annotations = format!(
        "      annotations:\n        local.evenkeel.dev/proxy: envoy\n        local.evenkeel.dev/envoy-path: {}\n",
        envoy().display()
    );
    fs::write(example.join(file), text.replace("      annotations:\n", &annotations)).expect("our own copy");
    User::present().with_example(example, folder)
}
