//! `evenkeel history`: which changes there were, what they changed in files and at a proxy, and what a proxy ran at some time.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use evenkeel_control::history::HistoryQuery;
use evenkeel_local::cleanup::StateDir;
use serde_json::Value;

use self::text::Style;
use crate::admin;
use crate::in_cluster::ControlPlaneChoice;

mod text;

/// How long the control plane may take to replay its log; other requests take precedence.
const PATIENCE: Duration = Duration::from_secs(120);
/// Changes that are shown.
const USUAL_CHANGES: usize = 20;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel history
  evenkeel history web.shop --since 2h
  evenkeel history web.shop --at 2026-11-21T10:00:00Z -o json";

/// Flags of `evenkeel history`.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// Only what changed this proxy: its xDS node id, POD.NAMESPACE, POD, the beginning of a pod's name, or a workload (the replica
    /// seen last).
    proxy: Option<String>,

    /// What the proxy ran at a time (2026-11-21T10:00:00Z; UTC unless it has an offset), or a duration before now (90s, 5m, 2h,
    /// 3d), and the changes since then.
    #[arg(long, value_name = "TIME", requires = "proxy")]
    at: Option<String>,

    /// Only changes since this time.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Only this many of the latest changes.
    #[arg(short = 'n', long, value_name = "N", default_value_t = USUAL_CHANGES)]
    max_count: usize,

    /// Without what changed in the files.
    #[arg(short = 's', long)]
    no_patch: bool,

    /// Also the changes that nobody wrote: replicas that started and ended, fetched keys, registered workloads.
    #[arg(long, conflicts_with = "proxy")]
    all: bool,

    /// HTTP port of the control plane to query [default: that of the running `up`, one at 127.0.0.1:15014, or else one in the cluster
    /// that kubectl would use].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["state", "kubeconfig", "context"])]
    control_plane: Option<SocketAddr>,

    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// Read the history from this state directory of a control plane or of `up`, which need not be running.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Prints the changes, and what the proxy ran.
pub fn run(arguments: &HistoryArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let asked = HistoryQuery {
        proxy: arguments.proxy.as_deref(),
        at: arguments.at.as_deref(),
        since: arguments.since.as_deref(),
    };
    let past = match &arguments.state {
        Some(state) => evenkeel_control::history::answer(&control(state), asked)?,
        None => ask(arguments)?,
    };
    match arguments.output {
        Output::Table => {
            let style = Style {
                is_terminal: io::stdout().is_terminal(),
                patches: !arguments.no_patch,
                observed: arguments.all || arguments.proxy.is_some(),
                max: arguments.max_count,
            };
            out.write_all(text::of(&past, arguments.at.is_some(), &style).as_bytes())?;
        }
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&past)?)?,
    }
    Ok(())
}

/// The control plane's part of the state directory of `up`, as the other commands take it, or else the directory itself.
fn control(state: &Path) -> PathBuf {
    let part = StateDir::new(state).map(|state| state.control()).ok();
    part.filter(|control| control.is_dir()).unwrap_or_else(|| state.to_owned())
}

fn ask(arguments: &HistoryArguments) -> anyhow::Result<Value> {
    let parameters = [("proxyID", &arguments.proxy), ("at", &arguments.at), ("since", &arguments.since)];
    let given = parameters.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escaped(value.as_ref()?))));
    let page = format!("/debug/history?{}", given.collect::<Vec<_>>().join("&"));
    let control_plane = admin::control_plane(arguments.control_plane, None, &arguments.in_cluster)?;
    let body = admin::get_within(PATIENCE, admin::CONTROL_PLANE, control_plane, &page)?;
    serde_json::from_slice(&body).context("the control plane's answer is not JSON")
}

/// Escapes a value for a query (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => _ = write!(out, "%{other:02X}"),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_up_holds_that_of_its_control_plane() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(control(folder.path()), folder.path());
        std::fs::create_dir(folder.path().join("control")).expect("a folder");
        assert_eq!(control(folder.path()), folder.path().join("control"));
    }

    #[test]
    fn escapes_what_a_query_cannot_hold() {
        assert_eq!(escaped("a~1.b 2026-11-21T10:00:00+01:00"), "a~1.b%202026-11-21T10%3A00%3A00%2B01%3A00");
    }
}
