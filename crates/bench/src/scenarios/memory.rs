//! Resident memory of an idle proxy, and per idle connection or stream.

use std::time::Duration;

use anyhow::Result;
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, SETTLING, Scenario, names, pause};
use crate::config::Protocol;
use crate::load::idle::Idle;
use crate::load::tls::{Client, Handshake};
use crate::peers::{Backend, ENVOY, EVENKEEL, Peer, Role};

/// An idle proxy.
pub const IDLE_CASE: &str = "idle proxy";
/// Each idle HTTP/1.1 connection.
pub const PLAIN_CASE: &str = "each idle HTTP/1.1 connection";
/// Each idle HTTP/1.1 connection with mutual TLS.
pub const TLS_CASE: &str = "each idle HTTP/1.1 connection, mutual TLS";
/// Each idle HTTP/2 stream.
pub const STREAM_CASE: &str = "each idle HTTP/2 stream";

/// Connections or streams that memory is divided by.
const COUNT: usize = 1000;
/// Number of connections opened and closed before, so that one-time allocations are done.
const WARM_UP_COUNT: usize = 100;
/// Memory hardly differs from round to round, and a round takes long.
const MOST_ROUNDS: usize = 3;
/// Time after which a proxy has released the memory of its last requests and connections.
const REST: Duration = Duration::from_millis(1500);

/// The scenario.
pub const SCENARIO: Scenario = Scenario { name: "memory", title: "Resident memory", bases: &[ENVOY], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_http1, http1) = cx.setup.start_backend(Backend::Http1)?;
    let (_http2, http2) = cx.setup.start_backend(Backend::HeldHttp2)?;
    let tls = cx.setup.certificates()?;
    let client = Client::new(&tls, Handshake::Full)?;
    let plain = Role::plain(Protocol::Http1);
    let cases = [
        (PLAIN_CASE, http1, plain),
        (TLS_CASE, http1, Role { tls: Some(&tls), ..plain }),
        (STREAM_CASE, http2, Role::plain(Protocol::Http2)),
    ];
    let rounds = cx.plan.rounds.min(MOST_ROUNDS);
    for round in 0..rounds {
        writeln!(cx.progress, "{}, round {} of {rounds}", SCENARIO.name, round + 1)?;
        // Memory does not mind company: all start together and are measured one after the other.
        let mut started = Vec::new();
        for (case, upstream, role) in &cases {
            let mut missing = Findings::default();
            let start = |name| cx.setup.start_hop(name, *upstream, *role);
            let peers = cx.setup.start_all(SCENARIO.name, &[EVENKEEL, ENVOY], &mut missing, start);
            if round == 0 {
                findings.absent.extend(missing.absent.into_iter().map(|absence| absence.of_case(case)));
            }
            started.push((*case, peers));
        }
        pause(SETTLING);
        for (case, peers) in &started {
            let contest = Contest { scenario: SCENARIO.name, case, peers: names(peers) };
            for (index, peer) in peers.iter().enumerate() {
                if *case == PLAIN_CASE {
                    let idle = Contest { case: IDLE_CASE, peers: names(peers), ..contest };
                    findings.add(&idle, index, round, Values::from([(Metric::ResidentMib, resident(peer)? / 1024.0)]));
                }
                match each(peer, case, &client) {
                    Ok(kib) => findings.add(&contest, index, round, Values::from([(Metric::KibEach, kib)])),
                    Err(reason) => findings.leave_out(&contest, index, &reason),
                }
            }
        }
    }
    Ok(())
}

/// KiB of each of [`COUNT`].
fn each(peer: &Peer, case: &str, client: &Client) -> Result<f64> {
    let open = |count| match case {
        TLS_CASE => Idle::tls(client, peer.entry, count),
        STREAM_CASE => Idle::streams(peer.entry, count),
        _ => Idle::plain(peer.entry, count),
    };
    drop(open(WARM_UP_COUNT)?);
    pause(REST);
    let before = resident(peer)?;
    let idle = open(COUNT)?;
    pause(REST);
    Ok((resident(peer)? - before) / idle.count() as f64)
}

fn resident(peer: &Peer) -> Result<f64> {
    Ok(peer.processes.iter().map(|process| process.resident_kib()).sum::<Result<u64>>()? as f64)
}
