//! `evenkeel proxy-status`: what each proxy holds of what it should hold, and how old that was when it was applied.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context;
use serde_json::Value;

use crate::admin;

/// Types with a column of their own: those istioctl shows, and ours.
const COLUMNS: [&str; 5] = ["CDS", "LDS", "EDS", "RDS", "VHDS"];

/// How to print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For reading.
    Table,
    /// What the control plane says, unchanged.
    Json,
}

/// Prints the status of every proxy connected to a control plane.
pub fn run(control_plane: SocketAddr, output: Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let body = admin::get(control_plane, "/debug/syncz")
        .with_context(|| format!("asking the control plane's HTTP port {control_plane}"))?;
    match output {
        Output::Json => out.write_all(&body)?,
        Output::Table => {
            let page = serde_json::from_slice(&body).context("the control plane's answer is not JSON")?;
            out.write_all(table(&page).as_bytes())?;
        }
    }
    Ok(())
}

fn table(page: &Value) -> String {
    let mut rows = vec![["NAME", "KIND"].iter().chain(&COLUMNS).map(ToString::to_string).collect::<Vec<_>>()];
    if let Some(head) = rows.first_mut() {
        head.extend(["AGE p50", "p99", "max", "PROGRAM", "CONTROL PLANE"].map(str::to_owned));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let control_plane = text(&page["control_plane"]);
    let mut notes = Vec::new();
    for proxy in page["proxies"].as_array().into_iter().flatten().filter(|proxy| is_proxy(proxy)) {
        let name = pod(proxy["proxy"].as_str().unwrap_or_default());
        let types: Vec<&Value> = proxy["types"].as_array().into_iter().flatten().collect();
        let mut row = vec![name.clone(), text(&proxy["kind"])];
        for column in COLUMNS {
            let state = types.iter().find(|status| status["type"] == column).map(|status| text(&status["state"]));
            row.push(state.unwrap_or_else(|| "-".to_owned()));
        }
        for quantile in ["p50", "p99", "max"] {
            let worst = types.iter().filter_map(|status| status["ages_ms"][quantile].as_f64()).reduce(f64::max);
            row.push(worst.map_or_else(|| "-".to_owned(), milliseconds));
        }
        row.extend([text(&proxy["program"]), control_plane.clone()]);
        rows.push(row);
        for status in types.iter().filter(|status| !status["nack"].is_null()) {
            notes.push(refusal(&name, status));
        }
        if let Some(names) = proxy["divergence"]["names"].as_array() {
            let of = text(&proxy["divergence"]["type"]);
            notes.push(format!("{name} held other {of} resources than it was sent; healed: {}\n", list(names.iter())));
        }
    }
    let mut printed = aligned(&rows);
    if !notes.is_empty() {
        printed.push('\n');
        printed.extend(notes);
    }
    printed
}

/// An agent's own stream, on which it asks for DNS names alone, is no proxy of its own; it comes from the proxy's node.
fn is_proxy(stream: &Value) -> bool {
    let mut types = stream["types"].as_array().into_iter().flatten().peekable();
    types.peek().is_none() || types.any(|status| COLUMNS.iter().any(|column| status["type"] == *column))
}

/// `sidecar~IP~POD.NAMESPACE~DOMAIN` as POD.NAMESPACE.
fn pod(node: &str) -> String {
    node.split('~').nth(2).unwrap_or(node).to_owned()
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1e3),
    }
}

/// What a proxy refuses, and where the user wrote it.
fn refusal(name: &str, status: &Value) -> String {
    let nack = &status["nack"];
    let resources: Vec<Value> = nack["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|resource| {
            let origin = resource["origin"].as_str().map(|origin| format!(" (from {origin})")).unwrap_or_default();
            Value::String(format!("{}{origin}", resource["name"].as_str().unwrap_or_default()))
        })
        .collect();
    let (kind, message) = (status["type"].as_str().unwrap_or_default(), nack["message"].as_str().unwrap_or_default());
    format!("{name} refuses {kind} {}: {message}\n", list(resources.iter()))
}

fn list<'a>(values: impl Iterator<Item = &'a Value>) -> String {
    values.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: String = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}   ")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_a_row_for_each_proxy_and_what_is_wrong() {
        let page = json!({
            "control_plane": "evenkeel/0.1.0 host.1",
            "proxies": [
                {
                    "proxy": "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local",
                    "kind": "sidecar",
                    "program": "evenkeel 0.1.0",
                    "types": [
                        {"type": "CDS", "state": "SYNCED", "ages_ms": {"p50": 1.26, "p99": 4.0, "max": 12.4}},
                        {"type": "EDS", "state": "STALE", "ages_ms": {"p50": 2.0, "p99": 3.0, "max": 20000.0}},
                        {"type": "RDS", "state": "NACKED", "nack": {
                            "message": "no such cluster",
                            "resources": [{"name": "80", "origin": "routes.yaml:3:1"}],
                        }},
                    ],
                },
                {"proxy": "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local", "kind": "sidecar",
                 "program": "evenkeel-agent", "types": [{"type": "NDS", "state": "SYNCED"}]},
                {"proxy": "router~10.0.0.2~gw.shop~x", "kind": "router", "program": "envoy 1.40.0", "types": [],
                 "divergence": {"type": "CDS", "names": ["a", "b"]}},
            ],
        });
        let expected = "\
NAME         KIND      CDS      LDS   EDS     RDS      VHDS   AGE p50   p99      max    PROGRAM          CONTROL PLANE
web-0.shop   sidecar   SYNCED   -     STALE   NACKED   -      2.0 ms    4.0 ms   20 s   evenkeel 0.1.0   evenkeel/0.1.0 host.1
gw.shop      router    -        -     -       -        -      -         -        -      envoy 1.40.0     evenkeel/0.1.0 host.1

web-0.shop refuses RDS 80 (from routes.yaml:3:1): no such cluster
gw.shop held other CDS resources than it was sent; healed: a, b
";
        assert_eq!(table(&page), expected);
    }
}
