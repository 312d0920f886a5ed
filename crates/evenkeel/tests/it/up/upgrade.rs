//! Agents of a running mesh are replaced by newer ones, as an upgrade does it, and no caller notices.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use evenkeel_testkit::load::Stop;
use evenkeel_testkit::{Process, eventually};

use super::load::{Kept, ask_again_and_again};
use super::processes::Running;
use super::user::User;
use super::{MACHINE, url, wait_ready};
use crate::manager::Listening;

/// An agent like the running one of that workload, started beside it in the replica.
fn newer(user: &User, running: &Running, manager: &Listening) -> Process {
    let pod = running.argument("--id").split('.').next().expect("POD.NAMESPACE").to_owned();
    let state = user.state.path().display().to_string();
    let mut command: Command = user.evenkeel(&["exec", &pod, "--state", &state, "--"]);
    command.arg(&user.binary).args(running.arguments()).env("NOTIFY_SOCKET", manager.path());
    Process::spawn(&mut command)
}

/// The one process that runs this workload's agent, if it is one.
fn agent(state: &Path, workload: &str) -> Option<Running> {
    let all = Running::all_of(state);
    let mut agents = all.into_iter().filter(|process| process.is_agent_of(workload));
    let one = agents.next()?;
    agents.next().is_none().then_some(one)
}

#[test]
fn agents_and_their_proxies_are_replaced_under_load_and_no_replica_stops_being_ready() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let user = User::present();
    let mut up = Process::spawn(&mut user.up(&[]));
    wait_ready(&mut up, 5);
    let url = url(&mut up);
    super::endings::served(&url, "/api/capitals/Iceland");

    let manager = Listening::new();
    let (stop, asked, failures) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let _ending = Stop(&stop);
        for kept in [Kept::Yes, Kept::No] {
            let (url, stop, asked, failures) = (&url, &stop, &asked, &failures);
            scope.spawn(move || ask_again_and_again(url, kept, stop, asked, failures));
        }
        for workload in ["capitals-web", "capitals-info-v2", "istio-ingressgateway"] {
            let running = agent(user.state.path(), workload).expect("one agent");
            let mut next = newer(&user, &running, &manager);
            // `up` starts another one for the one that has ended, and that takes over in turn.
            let status = next.wait_for_exit(super::PATIENCE);
            assert_eq!(status.code(), Some(0), "{workload}: {}", next.output());
            assert!(next.output().contains("took over from the process before"), "{workload}: {}", next.output());
            manager.hears("READY=1", &next);
            let last = eventually("one agent that is left", || agent(user.state.path(), workload));
            assert_ne!(last.pid, running.pid, "{workload}");
            manager.hears(&format!("MAINPID={}", last.pid_inside()), &next);
            manager.hears_nothing();
            let before = asked.load(Ordering::Relaxed);
            eventually("load", || (asked.load(Ordering::Relaxed) > before + 40).then_some(()));
        }
    });
    assert_eq!(failures.into_inner().expect("no panic"), [""; 0], "{}", up.output());
    let told = up.output();
    assert!(!told.contains("not ready"), "{told}");
    up.signal(libc::SIGINT);
    assert!(up.wait_for_exit(super::PATIENCE).success(), "{}", up.output());
}
