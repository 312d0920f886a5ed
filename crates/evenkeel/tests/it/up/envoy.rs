//! A stock Envoy as the sidecar of a workload, among Evenkeel's.

use std::fs;

use evenkeel_testkit::envoy;

use super::capitals;
use super::check::scenario_holds;
use super::user::User;

#[test]
fn the_scenario_holds_with_envoy_as_the_callers_sidecar() {
    scenario_holds(&with_envoy("capitals-web.yaml"));
}

#[test]
fn the_scenario_holds_with_envoy_as_the_services_sidecar() {
    scenario_holds(&with_envoy("capitals-info.yaml"));
}

/// The example in which the workloads of one file have Envoy for sidecar.
pub fn with_envoy(file: &str) -> User {
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
