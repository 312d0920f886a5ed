//! Bytes through TCP proxies: plain through one hop, and through a pair with mutual TLS between.

use anyhow::Result;
use evenkeel_load::streams;
use evenkeel_measure::rounds::{Contest, Findings, Plan};

use super::{Context, Scenario, Unit, names, under_load};
use crate::config::Protocol;
use crate::peers::{Backend, ENVOY, EVENKEEL, RELAY, Role};

/// Concurrent streams, with the tables' names for one plain hop and for a pair.
pub const CASES: [(usize, &str, &str); 2] =
    [(1, "1 stream, plain", "1 stream, mutual TLS"), (64, "64 streams, plain", "64 streams, mutual TLS")];

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "tcp", title: "TCP proxying: one hop plain, a pair with mutual TLS", bases: &[RELAY, ENVOY], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_source, upstream) = cx.setup.start_backend(Backend::Source)?;
    let tls = cx.setup.certificates()?;
    let plain = Role::plain(Protocol::Tcp);
    let hops = cx.setup.start_all(SCENARIO.name, &[RELAY, EVENKEEL, ENVOY], findings, |name| {
        cx.setup.start_hop(name, upstream, plain)
    });
    let pairs = cx.setup.start_all(SCENARIO.name, &[EVENKEEL, ENVOY], findings, |name| {
        cx.setup.start_pair(name, upstream, Role { tls: Some(&tls), ..plain })
    });
    // Gigabytes a second: half a turn is plenty.
    let plan = Plan { rounds: cx.plan.rounds, time: cx.plan.time / 2, connections: Vec::new() };
    for (streams, plain, mutual) in CASES {
        for (case, peers) in [(plain, &hops), (mutual, &pairs)] {
            let contest = Contest { scenario: SCENARIO.name, case, peers: names(peers) };
            findings.measure(&contest, &plan, cx.progress, |index, time| {
                let peer = &peers[index];
                under_load(peer, Unit::Byte, || Ok(streams::run(peer.entry, streams, time)?))
            })?;
        }
    }
    Ok(())
}
