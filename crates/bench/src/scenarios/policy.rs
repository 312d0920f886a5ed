//! The cost of an authorization policy of 100 rules: a sidecar pair with it and without it, side by side.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings, Plan};

use super::pair::role;
use super::{Context, Scenario, Unit, names, under_load};
use crate::load::wrk::Wrk;
use crate::peers::{Backend, Role};

/// Evenkeel's pair without rules and with 100.
pub const EVENKEEL_RULES: [&str; 2] = ["evenkeel mesh, no rules", "evenkeel mesh, 100 rules"];
/// Envoy's.
pub const ENVOY_RULES: [&str; 2] = ["envoy h1, no rules", "envoy h1, 100 rules"];
/// The only table.
pub const CASE: &str = "32 connections";

const CONNECTIONS: usize = 32;
const RULES: usize = 100;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "policy",
    title: "Sidecar pair with and without an authorization policy of 100 rules",
    bases: &[EVENKEEL_RULES[0], ENVOY_RULES[0]],
    run,
};

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let wrk = Wrk::new(cx.setup.folder())?;
    let tls = cx.setup.certificates()?;
    let all = [EVENKEEL_RULES, ENVOY_RULES].concat();
    let peers = cx.setup.start_all(SCENARIO.name, &all, findings, |name| {
        let rules = if name.ends_with("100 rules") { RULES } else { 0 };
        cx.setup.start_pair(name, upstream, Role { rules, ..role(super::pair::EVENKEEL_MESH, &tls) })
    });
    // A difference of a few per cent: half as long a turn, twice as many rounds.
    let plan = Plan { rounds: cx.plan.rounds * 2, time: cx.plan.time / 2, connections: Vec::new() };
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: names(&peers) };
    findings.measure(&contest, &plan, cx.progress, |index, time| {
        let peer = &peers[index];
        under_load(peer, Unit::Request, || wrk.run(peer.entry, CONNECTIONS, time))
    })
}
