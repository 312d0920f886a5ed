//! Waits until every proxy runs the configuration as written.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use evenkeel_local::exec;
use serde_json::Value;

use crate::{admin, proxy_status};

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
    let ticket =
        ask(control_plane, "/debug/settle")?["ticket"].as_u64().context("the control plane gives no ticket")?;
    let mut pause = PAUSES.0;
    loop {
        let page = ask(control_plane, &format!("/debug/settle?ticket={ticket}"))?;
        let behind: Vec<String> = texts(&page["behind"]).map(proxy_status::pod).collect();
        let is_read = page["read"] == true;
        if is_read && behind.is_empty() {
            return Ok(Settled { generation: page["generation"].as_u64().unwrap_or(0), problems: problems(&page) });
        }
        if Instant::now() >= deadline {
            let mut problems = problems(&page);
            problems
                .extend(behind.iter().map(|proxy| format!("{proxy} has not answered within {} s", patience.as_secs())));
            if !is_read {
                problems.push(format!("the control plane has not read the files within {} s", patience.as_secs()));
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

fn ask(control_plane: SocketAddr, page: &str) -> anyhow::Result<Value> {
    let body = admin::get(admin::CONTROL_PLANE, control_plane, page)?;
    match serde_json::from_slice(&body) {
        Ok(page) => Ok(page),
        Err(_) => bail!("{control_plane} is not the HTTP port of Evenkeel's control plane"),
    }
}

/// Resources that proxies refuse, and files that the control plane refuses.
fn problems(page: &Value) -> Vec<String> {
    let refusing = page["refusing"].as_array().into_iter().flatten().flat_map(|proxy| {
        let name = proxy_status::pod(proxy["proxy"].as_str().unwrap_or_default());
        let types = proxy["types"].as_array().cloned().unwrap_or_default();
        types.into_iter().map(move |status| proxy_status::refusal(&name, &status).trim_end().to_owned())
    });
    let refused = texts(&page["refused"]).map(|finding| format!("not in force: {finding}"));
    refusing.chain(refused).collect()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}
