//! Latency at a fixed rate far below the capacity of any peer, which is how most services run: the latency that a sidecar
//! pair adds.

use anyhow::Result;
use evenkeel_load::open_loop;
use evenkeel_measure::rounds::{Contest, Findings, Plan};

use super::pair::{ENVOY_HTTP1, ENVOY_HTTP2, EVENKEEL_HTTP1, EVENKEEL_MESH, role};
use super::{Context, Scenario, Unit, names, under_load};
use crate::peers::{Backend, DIRECT};

/// Requests per second.
const RATE: u32 = 1000;
/// Connections the requests are spread over.
const CONNECTIONS: usize = 16;
/// The only table.
pub const CASE: &str = "1,000 requests/s over 16 connections";

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "latency", title: "Sidecar pair, open loop", bases: &[ENVOY_HTTP1], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let tls = cx.setup.certificates()?;
    let peers = cx.setup.start_all(
        SCENARIO.name,
        &[DIRECT, EVENKEEL_MESH, EVENKEEL_HTTP1, ENVOY_HTTP1, ENVOY_HTTP2],
        findings,
        |name| match name {
            DIRECT => Ok(cx.setup.direct(upstream)),
            _ => cx.setup.start_pair(name, upstream, role(name, &tls)),
        },
    );
    // 3,000 requests a turn at the usual two seconds: the 99th percentile rests on 30 of them.
    let plan = Plan { rounds: cx.plan.rounds, time: cx.plan.time * 3 / 2, connections: Vec::new() };
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: names(&peers) };
    findings.measure(&contest, &plan, cx.progress, |index, time| {
        let peer = &peers[index];
        under_load(peer, Unit::Request, || Ok(open_loop::run(peer.entry, CONNECTIONS, RATE, time)?.work()?))
    })
}
