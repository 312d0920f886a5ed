//! The scenario, as root and as an ordinary user.

use std::sync::PoisonError;

use evenkeel_testkit::Process;

use super::user::{User, is_root};
use super::{KEPT, MACHINE, PATIENCE, entries};

/// Fewer would mean that the scenario was cut short.
const LINES: usize = 21;

pub fn scenario_holds(user: &User) {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let mut up = Process::spawn(&mut user.up(&["--check"]));
    let status = up.wait_for_exit(PATIENCE);
    let output = up.output();
    assert!(status.success(), "{status}:\n{output}");
    let held = output.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(held >= LINES && !output.contains("FAIL"), "{held} lines held:\n{output}");
    assert_eq!(entries(user.state.path()), KEPT);
}

#[test]
fn the_scenario_holds() {
    scenario_holds(&User::present());
}

#[test]
fn of_another_directory_only_start_and_removal_are_checked() {
    let (user, folder) = (User::present(), super::state());
    let run = "exec python3 -m http.server --bind 0.0.0.0 8000";
    std::fs::write(folder.path().join("files.yaml"), super::deployment("files", 2, run)).expect("it can be written");
    let mut command = user.evenkeel(&["up", "--check"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    let status = up.wait_for_exit(PATIENCE);
    let output = up.output();
    assert!(status.success(), "{output}");
    assert!(output.contains("all 2 replicas ready") && output.contains("not the capitals example"), "{output}");
    assert_eq!(entries(user.state.path()), KEPT);
}

#[test]
fn the_scenario_holds_without_privileges_or_up_says_what_to_enable() {
    let user = User::unprivileged();
    if user.may_isolate() {
        return scenario_holds(&user);
    }
    assert!(is_root(), "neither root nor user namespaces: `evenkeel up` cannot be tested on this machine");
    let mut up = Process::spawn(&mut user.up(&["--check"]));
    assert!(!up.wait_for_exit(PATIENCE).success());
    let output = up.output();
    let last = output.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: this system does not let"), "{output}");
    assert!(last.contains("sysctl") || last.contains("run it as root"), "{output}");
}
