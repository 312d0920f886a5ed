//! The cost of verifying a token (JWT): a proxy that does and one that does not, side by side. The key is in the
//! configuration, and all requests carry the same token.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings, Plan};

use super::{Context, Scenario, Unit, names, under_load};
use crate::config::Protocol;
use crate::config::jwt::Issuer;
use crate::load::wrk::Wrk;
use crate::peers::{Backend, Role};

/// Evenkeel with and without the check.
pub const EVENKEEL_TOKENS: [&str; 2] = ["evenkeel, token checked", "evenkeel, token unread"];
/// Envoy.
pub const ENVOY_TOKENS: [&str; 2] = ["envoy, token checked", "envoy, token unread"];
/// The only table.
pub const CASE: &str = "32 connections";

const CONNECTIONS: usize = 32;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "jwt",
    title: "One proxy with and without the check of a token (JWT, RS256)",
    bases: &[EVENKEEL_TOKENS[1], ENVOY_TOKENS[1]],
    run,
};

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let issuer = Issuer::new()?;
    let wrk = Wrk::new(cx.setup.folder())?.with_header(&format!("authorization: Bearer {}", issuer.token));
    let all = [EVENKEEL_TOKENS, ENVOY_TOKENS].concat();
    let peers = cx.setup.start_all(SCENARIO.name, &all, findings, |name| {
        let issuer = name.ends_with("checked").then_some(&issuer);
        cx.setup.start_hop(name, upstream, Role { issuer, ..Role::plain(Protocol::Http1) })
    });
    // Differences of a few microseconds: half as long a turn, twice as many rounds.
    let plan = Plan { rounds: cx.plan.rounds * 2, time: cx.plan.time / 2, connections: Vec::new() };
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: names(&peers) };
    findings.measure(&contest, &plan, cx.progress, |index, time| {
        let peer = &peers[index];
        under_load(peer, Unit::Request, || wrk.run(peer.entry, CONNECTIONS, time))
    })
}
