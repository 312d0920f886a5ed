//! Each process of a running mesh is killed under load: what callers see of it, how long, and what the user reads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use evenkeel_testkit::load::Stop;
use evenkeel_testkit::{Process, eventually};

use super::load::{Kept, ask_again_and_again};
use super::processes::Running;
use super::user::User;
use super::{MACHINE, PATIENCE, url, wait_ready};

/// What callers see of a process that has ended: the proxy before it says that it is not there, or the gateway is not.
const FAILURES: [&str; 5] = [
    "503 no healthy upstream",
    "503 upstream connect error or disconnect/reset before headers",
    "Connection reset by peer",
    "Broken pipe",
    "the peer closed",
];

/// Requests that may fail where an Envoy is killed and another replica takes what finds nobody: it closes its sockets one after
/// the other, and what one of them lost may come back to the next.
const LOST_TWICE: usize = 2;

/// A process of the mesh.
struct Case {
    /// Which it is.
    what: &'static str,
    is: fn(&Running) -> bool,
    /// How many requests may fail. None where proxies go on with what they have, nor where another replica takes what finds
    /// nobody, or nobody any more.
    may_fail: usize,
    /// What the user reads when it ends, and when all is as before; of what an agent keeps running, in the agent's log.
    told: &'static [&'static str],
}

const CASES: [Case; 6] = [
    Case {
        what: "the control plane",
        is: Running::is_control_plane,
        may_fail: 0,
        told: &["the control plane killed by SIGKILL; ", "the control plane runs again"],
    },
    Case {
        what: "an agent with one of two replicas",
        is: |process| process.is_agent_of("capitals-info-v1"),
        may_fail: 0,
        told: &["not ready  capitals-info-v1-", "ready      capitals-info-v1-"],
    },
    Case {
        what: "the agent of the only replica",
        is: |process| process.is_agent_of("capitals-web"),
        may_fail: usize::MAX,
        told: &["not ready  capitals-web-", "ready      capitals-web-"],
    },
    Case {
        what: "the gateway",
        is: |process| process.is_agent_of("istio-ingressgateway"),
        may_fail: usize::MAX,
        told: &["not ready  istio-ingressgateway", "ready      istio-ingressgateway"],
    },
    Case {
        what: "one of two programs",
        is: |process| process.is_program_of("capitals-info-v1"),
        may_fail: usize::MAX,
        told: &["not ready  capitals-info-v1-", "ready      capitals-info-v1-"],
    },
    Case {
        what: "the only program",
        is: |process| process.is_program_of("capitals-web"),
        may_fail: usize::MAX,
        told: &["not ready  capitals-web-", "ready      capitals-web-"],
    },
];

#[test]
fn each_process_is_killed_under_load_and_all_is_soon_as_before() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let user = User::present();
    let mut up = Process::spawn(&mut user.up(&[]));
    wait_ready(&mut up, 5);
    let url = url(&mut up);
    super::endings::served(&url, "/api/capitals/Iceland");
    for case in &CASES {
        check(case, &mut up, user.state.path(), &url);
    }
    up.signal(libc::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

#[test]
fn an_envoy_is_killed_under_load_and_its_agent_starts_it_again() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let user = super::envoy::with_envoy("capitals-info.yaml");
    let mut up = Process::spawn(&mut user.up(&[]));
    wait_ready(&mut up, 5);
    let url = url(&mut up);
    super::endings::served(&url, "/api/capitals/Iceland");
    let case = Case {
        what: "one of two Envoys",
        is: |process| process.is_envoy_of("capitals-info-v1"),
        may_fail: LOST_TWICE,
        told: &["Envoy ended; starting it again status=signal: 9 (SIGKILL)"],
    };
    check(&case, &mut up, user.state.path(), &url);
    up.signal(libc::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// What the mesh has said, the logs of its agents after what `up` has.
fn said(up: &Process, state: &Path) -> String {
    let logs = std::fs::read_dir(state.join("logs")).expect("the logs are there").flatten();
    let agents = logs.filter(|log| log.file_name().to_string_lossy().ends_with(".proxy.log"));
    let texts = agents.map(|log| std::fs::read(log.path()).unwrap_or_default());
    texts.fold(up.output(), |all, text| all + &String::from_utf8_lossy(&text))
}

fn check(case: &Case, up: &mut Process, state: &Path, url: &str) {
    let (stop, asked, failures) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let failed = || failures.lock().expect("no panic").len();
    // Answers, and no failure, to so many requests.
    let flows = |count: usize| {
        let count = || (asked.load(Ordering::Relaxed) + count, failed());
        let (mut enough, mut before) = count();
        eventually("answers", || {
            if failed() > before {
                (enough, before) = count();
            }
            (asked.load(Ordering::Relaxed) >= enough).then_some(())
        });
    };
    let before: Vec<usize> = case.told.iter().map(|line| said(up, state).matches(line).count()).collect();
    std::thread::scope(|scope| {
        let _ending = Stop(&stop);
        for kept in [Kept::Yes, Kept::No] {
            let (stop, asked, failures) = (&stop, &asked, &failures);
            scope.spawn(move || ask_again_and_again(url, kept, stop, asked, failures));
        }
        flows(40);
        assert_eq!(failed(), 0, "{}: before it", case.what);
        let all = Running::all_of(state);
        let victim = all.iter().find(|process| (case.is)(process)).unwrap_or_else(|| panic!("no {}", case.what));
        victim.kill();
        for (line, before) in case.told.iter().zip(&before) {
            up.wait_for(line, |up| (said(up, state).matches(line).count() > *before).then_some(()));
        }
        flows(40);
        let until_then = failed();
        flows(100);
        assert_eq!(failed(), until_then, "{}: afterwards", case.what);
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.len() <= case.may_fail, "{}: {failures:#?}", case.what);
    let known = |failure: &&String| !FAILURES.iter().any(|known| failure.starts_with(known));
    assert_eq!(failures.iter().find(known), None, "{}", case.what);
    let told = said(up, state).matches(case.told[0]).count() - before[0];
    assert_eq!(told, 1, "{}: {}", case.what, up.output());
}
