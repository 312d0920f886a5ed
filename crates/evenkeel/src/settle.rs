//! Waits until every proxy runs the configuration as written.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_admin::settle::{self, Ticket};
use evenkeel_admin::syncz::pod;
use evenkeel_local::exec;

use crate::admin;

/// The first pause between two questions, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The generation of the configuration that proxies run.
    pub generation: u64,
    /// What prevents the mesh from running the configuration in the files, one line each; empty: nothing.
    pub problems: Vec<String>,
}

/// Waits until the ports of Gateways are open on this machine and their gateways are ready, then until every proxy runs the
/// current files.
pub fn wait(state: &Path, control_plane: SocketAddr, patience: Duration) -> anyhow::Result<Settled> {
    let deadline = Instant::now() + patience;
    let mut waiting = exec::settle(state)?;
    while !waiting.is_empty() && Instant::now() < deadline {
        waiting = exec::settle(state)?;
    }
    // A proxy that does not answer is named, even if the time is over.
    let mut settled = wait_until(control_plane, deadline, patience)?;
    let seconds = patience.as_secs();
    settled
        .problems
        .extend(waiting.into_iter().map(|name| format!("the gateway {name} is not ready after {seconds} s")));
    Ok(settled)
}

/// Waits until the control plane has read the current files, and until every proxy concerned runs them.
fn wait_until(control_plane: SocketAddr, deadline: Instant, patience: Duration) -> anyhow::Result<Settled> {
    let Ticket { ticket } = admin::read(control_plane, settle::PATH)?;
    let path = format!("{}?ticket={ticket}", settle::PATH);
    let mut pause = PAUSES.0;
    loop {
        let page: settle::Settled = admin::read(control_plane, &path)?;
        if page.read && page.behind.is_empty() {
            return Ok(Settled { generation: page.generation, problems: problems(&page) });
        }
        if Instant::now() >= deadline {
            let mut problems = problems(&page);
            let seconds = patience.as_secs();
            let behind = page.behind.iter().map(|node| pod(node));
            problems.extend(behind.map(|proxy| format!("{proxy} has not answered within {seconds} s")));
            if !page.read {
                problems.push(format!("the control plane has not read the files within {seconds} s"));
            }
            return Ok(Settled { generation: 0, problems });
        }
        rest(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[expect(clippy::disallowed_methods, reason = "another process is asked, which tells nobody when it is done")]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

/// Resources that proxies refuse, and files that the control plane refuses.
fn problems(page: &settle::Settled) -> Vec<String> {
    let refusing = page.refusing.iter().flat_map(|proxy| {
        let name = pod(&proxy.proxy);
        proxy.refused().map(move |refused| format!("{name} refuses {refused}"))
    });
    let refused = page.refused.iter().map(|finding| format!("not in force: {finding}"));
    refusing.chain(refused).collect()
}
