//! `evenkeel history`: what a proxy ran at some time, and which changes made it so.

use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use evenkeel_local::cleanup::StateDir;
use serde_json::Value;

use crate::admin;

/// How long the control plane may take to replay its log; other requests take precedence.
const PATIENCE: Duration = Duration::from_secs(120);

/// Flags of `evenkeel history`.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// The proxy: its xDS node id, POD.NAMESPACE, POD, the beginning of a pod's name, or a workload (the replica seen last).
    proxy: String,

    /// A time (2026-11-21T10:00:00Z; UTC unless it has an offset), or a duration before now (90s, 5m, 2h, 3d) [default: now].
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// HTTP port of the control plane to query [default: that of the running `up`, or else 127.0.0.1:15014].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with = "state")]
    control_plane: Option<SocketAddr>,

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

/// Prints what the proxy ran.
pub fn run(arguments: &HistoryArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let past = match &arguments.state {
        Some(state) => evenkeel_control::history::answer(&control(state), &arguments.proxy, arguments.at.as_deref())?,
        None => ask(arguments)?,
    };
    match arguments.output {
        Output::Table => out.write_all(table(&past).as_bytes())?,
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
    let mut page = format!("/debug/history?proxyID={}", escaped(&arguments.proxy));
    if let Some(at) = &arguments.at {
        page += &format!("&at={}", escaped(at));
    }
    let control_plane = admin::control_plane(arguments.control_plane, None)?;
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

fn table(past: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut out = format!("{} ran generation {}:\n", text(&past["proxy"]), past["generation"]);
    for resource in items(&past["resources"]) {
        let (kind, name, version) = (text(&resource["type"]), text(&resource["name"]), text(&resource["version"]));
        let refused =
            if resource["refused"] == true { "  refused: it keeps the previous version, if it has one" } else { "" };
        _ = writeln!(out, "  {kind:<10} {name}  {version}{refused}");
        if resource["generation"].is_u64() {
            let causes: Vec<String> = items(&resource["causes"]).iter().map(text).collect();
            let (generation, at) = (&resource["generation"], text(&resource["changed_at"]));
            _ = writeln!(out, "             by generation {generation} at {at}: {}", causes.join(", "));
        } else if let Some(origin) = resource["origin"].as_str() {
            _ = writeln!(out, "             from {origin}");
        }
    }
    let (since, changes) = (items(&past["since"]), items(&past["changes"]));
    _ = match (since.len(), changes.len()) {
        (0, 0) => writeln!(out, "since then: nothing has changed"),
        (0, 1..) => writeln!(out, "since then: what has changed is as it was then again"),
        (1, _) => writeln!(out, "since then: 1 resource has changed"),
        (more, _) => writeln!(out, "since then: {more} resources have changed"),
    };
    let line = |difference: &Value| {
        format!("{:<8} {:<10} {}", text(&difference["what"]), text(&difference["type"]), text(&difference["name"]))
    };
    for difference in &since {
        _ = writeln!(out, "  {}", line(difference));
    }
    if !changes.is_empty() {
        out += "changes since then:\n";
    }
    for change in &changes {
        let causes: Vec<String> = items(&change["causes"]).iter().map(text).collect();
        _ = writeln!(
            out,
            "  {}  generation {}: {}",
            text(&change["changed_at"]),
            change["generation"],
            causes.join(", ")
        );
        for difference in items(&change["resources"]) {
            _ = writeln!(out, "      {}", line(&difference));
        }
        if let Some(more @ 1..) = change["more"].as_u64() {
            _ = writeln!(out, "      and {more} more");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_what_made_each_resource_and_what_came_since() {
        let past = json!({
            "proxy": "web-0.shop",
            "generation": 12,
            "resources": [
                {"type": "CDS", "name": "a", "version": "9c1d", "origin": "a.yaml:1:1", "generation": 9,
                 "changed_at": "2026-11-21T09:58:31Z", "causes": ["DestinationRule shop/a (a.yaml:3:9)"]},
                {"type": "LDS", "name": "b", "version": "77aa", "origin": "b.yaml:1:1", "generation": null},
                {"type": "LDS", "name": "c", "version": "0001", "origin": null, "generation": null,
                 "refused": true},
            ],
            "since": [{"what": "changed", "type": "CDS", "name": "a"}],
        });
        let expected = "\
web-0.shop ran generation 12:
  CDS        a  9c1d
             by generation 9 at 2026-11-21T09:58:31Z: DestinationRule shop/a (a.yaml:3:9)
  LDS        b  77aa
             from b.yaml:1:1
  LDS        c  0001  refused: it keeps the previous version, if it has one
since then: 1 resource has changed
  changed  CDS        a
";
        assert_eq!(table(&past), expected);
        let change = |generation: u64, what: &str| {
            json!({"generation": generation, "changed_at": "2026-11-21T10:00:00Z", "causes": ["a.yaml"], "more": generation,
                   "resources": [{"what": what, "type": "CDS", "name": "a"}]})
        };
        let past =
            json!({"proxy": "web-0.shop", "generation": 12, "changes": [change(0, "removed"), change(14, "added")]});
        let expected = "\
web-0.shop ran generation 12:
since then: what has changed is as it was then again
changes since then:
  2026-11-21T10:00:00Z  generation 0: a.yaml
      removed  CDS        a
  2026-11-21T10:00:00Z  generation 14: a.yaml
      added    CDS        a
      and 14 more
";
        assert_eq!(table(&past), expected);
    }

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
