//! Each process of a running mesh is killed under load: how callers are affected, for how long, and the messages to the user.

use super::load::{CALLERS, under_load};
use super::mesh::Mesh;
use super::processes::Running;

/// What callers see of a process that has ended: the proxy before it says that it is not there, or the gateway is not.
const FAILURES: [&str; 5] = [
    "503 no healthy upstream",
    "503 upstream connect error or disconnect/reset before headers",
    "Connection reset by peer",
    "Broken pipe",
    "the peer closed",
];

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
        // What it had been asked and not answered are GETs: they are asked of the other.
        may_fail: 0,
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
    let mut mesh = Mesh::present();
    for case in &CASES {
        check(case, &mut mesh);
    }
    mesh.end();
}

#[test]
fn an_envoy_is_killed_under_load_and_its_agent_starts_it_again() {
    let mut mesh = Mesh::of(super::envoy::with_envoy("capitals-info.yaml"));
    let case = Case {
        what: "one of two Envoys",
        is: |process| process.is_envoy_of("capitals-info-v1"),
        // Nobody can save what it has taken and not answered. A GET is sent once more, but the system closes a killed process's
        // sockets one after the other: the second may be lost with the next socket. So one of each caller, which asks again
        // only after an answer, and by then finds all closed.
        may_fail: CALLERS,
        told: &["Envoy ended; starting it again status=signal: 9 (SIGKILL)"],
    };
    check(&case, &mut mesh);
    mesh.end();
}

fn check(case: &Case, mesh: &mut Mesh) {
    let before: Vec<usize> = case.told.iter().map(|line| mesh.said(line)).collect();
    let url = mesh.url.clone();
    let failures = under_load(&url, |account| {
        account.answers(40);
        assert_eq!(account.failures(), [""; 0], "{}: before it", case.what);
        let all = mesh.processes();
        let victim = all.iter().find(|process| (case.is)(process)).unwrap_or_else(|| panic!("no {}", case.what));
        victim.kill();
        for (line, before) in case.told.iter().zip(&before) {
            mesh.says_again(line, *before);
        }
        account.answers(40);
        let until_then = account.failures();
        account.answers(100);
        assert_eq!(account.failures(), until_then, "{}: afterwards", case.what);
    });
    assert!(failures.len() <= case.may_fail, "{}: {failures:#?}", case.what);
    let known = |failure: &&String| !FAILURES.iter().any(|known| failure.starts_with(known));
    assert_eq!(failures.iter().find(known), None, "{}", case.what);
    assert_eq!(mesh.said(case.told[0]) - before[0], 1, "{}: {}", case.what, mesh.up.output());
}
