//! Agents of a running mesh are replaced by newer ones, as in an upgrade: no caller notices, and the newer ones stay.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testkit::{Process, Signal, eventually};

use super::PATIENCE;
use super::load::under_load;
use super::mesh::Mesh;
use super::processes::Running;

/// The same binary elsewhere, so that one can see which of them runs.
fn newer_version(folder: &Path) -> PathBuf {
    let binary = folder.join("evenkeel-newer");
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &binary).expect("the binary can be copied");
    binary
}

/// An agent of this binary like the one that runs, started beside it in the replica.
fn start(binary: &Path, running: &Running, mesh: &Mesh) -> Process {
    let state = mesh.state().display().to_string();
    let mut command: Command =
        mesh.user.evenkeel(&["exec", &pod(running), "-c", "istio-proxy", "--state", &state, "--"]);
    command.arg(binary).args(running.arguments());
    Process::spawn(&mut command)
}

/// The replica whose agent it is.
fn pod(agent: &Running) -> String {
    agent.argument("--id").split('.').next().expect("POD.NAMESPACE").to_owned()
}

/// The one process that runs this workload's agent, if it is one.
fn agent(mesh: &Mesh, workload: &str) -> Option<Running> {
    let mut agents = mesh.processes().into_iter().filter(|process| process.is_agent_of(workload));
    let one = agents.next()?;
    agents.next().is_none().then_some(one)
}

/// Has an agent of this binary take over from the one that runs, and returns the process that has started it when `up` knows.
fn upgrade(mesh: &mut Mesh, workload: &str, binary: &Path) -> Process {
    let running = agent(mesh, workload).expect("one agent");
    let told = format!("replaced   {}: ", pod(&running));
    let before = mesh.said(&told);
    let next = start(binary, &running, mesh);
    mesh.says_again(&told, before);
    assert!(next.output().contains("took over from the process before"), "{workload}: {}", next.output());
    let now = eventually("the one before has ended", || agent(mesh, workload));
    assert_ne!(now.pid, running.pid, "{workload}");
    assert_eq!(now.executable(), binary, "{workload}");
    next
}

#[test]
fn agents_are_replaced_under_load_and_the_newer_ones_stay_until_the_mesh_ends() {
    let mut mesh = Mesh::present();
    let folder = super::state();
    let binary = newer_version(folder.path());
    let workloads = ["capitals-web", "capitals-info-v2", "istio-ingressgateway"];
    let (mut replaced, mut newer) = (Vec::new(), Vec::new());
    let url = mesh.url.clone();
    let failures = under_load(&url, |account| {
        for workload in workloads {
            replaced.push(upgrade(&mut mesh, workload, &binary));
            // `up` knows of this one only by what the newer one says in its turn.
            newer.push(upgrade(&mut mesh, workload, &binary));
            account.answers(40);
        }
    });
    assert_eq!(failures, [""; 0], "{}", mesh.up.output());
    for process in &mut replaced {
        assert_eq!(process.wait_for_exit(PATIENCE).code(), Some(0), "{}", process.output());
    }
    let told = mesh.up.output();
    assert!(!told.contains("not ready") && !told.contains("restarted"), "{told}");
    mesh.end();
    for process in &mut newer {
        assert_eq!(process.wait_for_exit(PATIENCE).code(), Some(0), "not ended in order: {}", process.output());
    }
}

#[test]
fn a_newer_agent_that_ends_is_started_again_in_its_own_version() {
    let mut mesh = Mesh::present();
    let folder = super::state();
    let binary = newer_version(folder.path());
    let mut started = upgrade(&mut mesh, "capitals-web", &binary);
    let newer = agent(&mesh, "capitals-web").expect("one agent");
    // Whatever becomes of the file: what runs is what is started.
    std::fs::remove_file(&binary).expect("our own copy");
    for _ in 0..2 {
        let told = [format!("not ready  {}: proxy ", pod(&newer)), format!("ready      {} at ", pod(&newer))];
        let before = told.each_ref().map(|line| mesh.said(line));
        agent(&mesh, "capitals-web").expect("one agent").kill();
        told.iter().zip(before).for_each(|(line, before)| mesh.says_again(line, before));
        let again = agent(&mesh, "capitals-web").expect("one agent");
        assert_eq!(again.executable().display().to_string(), format!("{} (deleted)", binary.display()));
        assert_eq!(again.arguments().collect::<Vec<_>>(), newer.arguments().collect::<Vec<_>>());
    }
    assert_eq!(started.wait_for_exit(PATIENCE).code(), Some(128 + Signal::SIGKILL as i32), "{}", started.output());
    super::mesh::served(&mesh.url, "/api/capitals/Iceland");
    mesh.end();
    assert_eq!(super::entries(mesh.state()), super::KEPT);
}
