//! `evenkeel top`: the traffic that each workload of the running mesh receives, as the dashboard knows it.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use evenkeel_admin::client;
use evenkeel_admin::dashboard::{GRAPH, Graph, Health, Node, Traffic};
use evenkeel_explain::columns::columns_within;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::dashboard;

use crate::dashboard::is_of_cluster;
use crate::formats::{Output, width};
use crate::in_cluster::ControlPlaneChoice;

/// How often the table is drawn.
const PERIOD: Duration = Duration::from_secs(2);
/// How often the dashboard is asked until it has rates.
const FIRST_PERIOD: Duration = Duration::from_millis(250);
/// The shortest window, in seconds, whose rates are shown.
const LEAST_WINDOW_S: f64 = 2.0;
/// How long the dashboard may take to have rates.
const PATIENCE: Duration = Duration::from_secs(10);
/// Moves to the first line and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The heads of the table.
const HEADS: [&str; 9] = ["WORKLOAD", "READY", "HEALTH", "REQ/S", "5XX %", "4XX %", "P50 ms", "P95 ms", "P99 ms"];

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Only workloads of this namespace.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Print the table once, as soon as there are rates of two seconds, and end.
    #[arg(long)]
    once: bool,

    /// The mesh of a cluster [default: the mesh that runs on this machine, or else that of the cluster that kubectl would use].
    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the workloads, the busiest first; again and again unless once is enough.
pub fn run(arguments: &TopArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let address = if is_of_cluster(&arguments.in_cluster, arguments.state.as_ref()) {
        crate::dashboard::serve(&arguments.in_cluster, arguments.namespace.as_deref())?
    } else {
        let state = arguments.state.clone().unwrap_or_else(StateDir::default_path);
        dashboard::of_run(&state)
            .with_context(|| format!("no mesh is running with the state directory {}", state.display()))?
    };
    let mut graph = first(address)?;
    let clear = if io::stdout().is_terminal() && !arguments.once { CLEAR } else { "" };
    loop {
        select(&mut graph, arguments.namespace.as_deref());
        match arguments.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string(&graph)?)?,
            Output::Text => write!(out, "{clear}{}", text(&graph, width()))?,
        }
        out.flush()?;
        if arguments.once {
            return Ok(0);
        }
        pause(PERIOD);
        graph = fetch(address)?;
    }
}

#[allow(clippy::disallowed_methods, reason = "the dashboard's page has nothing to wait for")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The first graph with rates: the dashboard reads proxies only while somebody looks.
fn first(address: SocketAddr) -> anyhow::Result<Graph> {
    let end = Instant::now() + PATIENCE;
    loop {
        let graph = fetch(address)?;
        if graph.window_s >= LEAST_WINDOW_S {
            return Ok(graph);
        }
        if Instant::now() >= end {
            let notes: String =
                graph.notes.iter().map(|note| format!("; {}: {}", note.subject, note.message)).collect();
            bail!("the dashboard has no rates after {} s{notes}", PATIENCE.as_secs());
        }
        pause(FIRST_PERIOD);
    }
}

fn fetch(address: SocketAddr) -> anyhow::Result<Graph> {
    let context = || format!("asking the dashboard {address}");
    let response = client::blocking_page(&address.into(), GRAPH, None, PATIENCE).with_context(context)?;
    if !client::is_page(&response) {
        bail!("the dashboard {address} answers {}", response.status().as_u16());
    }
    serde_json::from_slice(response.body()).context("it is another version of Evenkeel")
}

/// Leaves the workloads of the namespace, the busiest first. Edges are the dashboard's matter.
fn select(graph: &mut Graph, namespace: Option<&str>) {
    graph.edges.clear();
    graph.nodes.retain(|node| node.replicas > 0 && namespace.is_none_or(|namespace| node.namespace == namespace));
    let rate = |node: &Node| node.inbound.map_or(-1.0, |inbound| inbound.requests);
    graph.nodes.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.id.cmp(&b.id)));
}

fn text(graph: &Graph, width: usize) -> String {
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(graph.nodes.iter().map(|node| row(node).to_vec()));
    let mut text = columns_within(&rows, 2, width);
    for note in &graph.notes {
        text += &format!("not known: {}: {}\n", note.subject, note.message);
    }
    text
}

fn row(node: &Node) -> [String; 9] {
    let health = match node.health {
        Health::Unknown => "unknown",
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Failing => "failing",
    };
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let traffic = |value: fn(Traffic) -> Option<f64>| cell(node.inbound.and_then(value));
    [
        node.id.clone(),
        format!("{}/{}", node.ready, node.replicas),
        health.to_owned(),
        traffic(|traffic| Some(traffic.requests)),
        traffic(|traffic| Some(traffic.error_share * 100.0)),
        traffic(|traffic| Some(traffic.client_error_share * 100.0)),
        traffic(|traffic| traffic.p50_ms),
        traffic(|traffic| traffic.p95_ms),
        traffic(|traffic| traffic.p99_ms),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, requests: Option<f64>) -> Node {
        let inbound =
            requests.map(|requests| Traffic { requests, error_share: 0.25, p50_ms: Some(1.26), ..Traffic::default() });
        let namespace = id.split('/').next().unwrap_or_default().to_owned();
        Node { id: id.to_owned(), namespace, replicas: 2, ready: 1, inbound, ..Node::default() }
    }

    #[test]
    fn the_busiest_workload_comes_first() {
        let check = |namespace: Option<&str>, expected: &[&str]| {
            let outside = Node { replicas: 0, ..node("outside", Some(99.0)) };
            let nodes = vec![node("shop/b", None), node("shop/a", Some(2.0)), node("front/c", Some(7.5)), outside];
            let mut graph = Graph { nodes, ..Graph::default() };
            select(&mut graph, namespace);
            let text = text(&graph, usize::MAX);
            let rows: Vec<String> =
                text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            assert_eq!(&rows[1..], expected, "{text}");
        };
        let (a, b) = ("shop/a 1/2 unknown 2.0 25.0 0.0 1.3 - -", "shop/b 1/2 unknown - - - - - -");
        check(None, &["front/c 1/2 unknown 7.5 25.0 0.0 1.3 - -", a, b]);
        check(Some("shop"), &[a, b]);
    }
}
