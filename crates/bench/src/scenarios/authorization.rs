//! The cost of asking an authorization server about every request: one hop with it, by gRPC and by HTTP, and without it.

use anyhow::{Context as _, Result};
use evenkeel_measure::rounds::{Contest, Findings, Plan};

use super::{Context, Scenario, Unit, names, under_load};
use crate::config::{Asks, Protocol};
use crate::load::wrk::Wrk;
use crate::peers::{Backend, Role};

/// Evenkeel without a server, and asking one by gRPC and by HTTP.
pub const EVENKEEL_ASKS: [&str; 3] = ["evenkeel asking nobody", "evenkeel asking by gRPC", "evenkeel asking by HTTP"];
/// Envoy's.
pub const ENVOY_ASKS: [&str; 3] = ["envoy asking nobody", "envoy asking by gRPC", "envoy asking by HTTP"];
/// The only table.
pub const CASE: &str = "32 connections";

const CONNECTIONS: usize = 32;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "authorization",
    title: "One plain hop with and without external authorization",
    bases: &[EVENKEEL_ASKS[0], ENVOY_ASKS[0]],
    run,
};

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let (_server, ways) = cx.setup.start_authz_server()?;
    let wrk = Wrk::new(cx.setup.folder())?;
    let all = [EVENKEEL_ASKS, ENVOY_ASKS].concat();
    let peers = cx.setup.start_all(SCENARIO.name, &all, findings, |name| {
        let asks = match name.rsplit(' ').next() {
            Some("gRPC") => Some(Asks::Grpc),
            Some("HTTP") => Some(Asks::Http),
            _ => None,
        };
        let way = |asks| ways.into_iter().find(|(way, _)| *way == asks).context("a way to ask");
        let authorization = asks.map(way).transpose()?;
        cx.setup.start_hop(name, upstream, Role { authorization, ..Role::plain(Protocol::Http1) })
    });
    // The added cost is a difference of two measurements, so turns are half as long and rounds twice as many.
    let plan = Plan { rounds: cx.plan.rounds * 2, time: cx.plan.time / 2, connections: Vec::new() };
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: names(&peers) };
    findings.measure(&contest, &plan, cx.progress, |index, time| {
        let peer = &peers[index];
        under_load(peer, Unit::Request, || wrk.run(peer.entry, CONNECTIONS, time))
    })
}
