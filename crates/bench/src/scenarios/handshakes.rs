//! New connections with mutual TLS 1.3, each carrying one request.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, Scenario, Unit, names, under_load};
use crate::config::Protocol;
use crate::load::tls::{Client, Handshake};
use crate::peers::{Backend, ENVOY, EVENKEEL, Role};

/// Both peers do the same arithmetic.
pub const X25519_CASE: &str = "full handshake, X25519";
/// By a ticket.
pub const RESUMED_CASE: &str = "resumed, X25519";

/// The last one shows what each makes of a client that prefers the hybrid; it is no bar, since peers may answer differently.
const CASES: [(Handshake, &str); 3] = [
    (Handshake::Full, X25519_CASE),
    (Handshake::Resumed, RESUMED_CASE),
    (Handshake::FullHybrid, "full handshake, X25519MLKEM768 offered"),
];

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "handshakes", title: "New mutual TLS connections, one request each", bases: &[ENVOY], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let tls = cx.setup.certificates()?;
    let role = Role { tls: Some(&tls), ..Role::plain(Protocol::Http1) };
    let peers = cx
        .setup
        .start_all(SCENARIO.name, &[EVENKEEL, ENVOY], findings, |name| cx.setup.start_hop(name, upstream, role));
    for (handshake, case) in CASES {
        let client = Client::new(&tls, handshake)?;
        let contest = Contest { scenario: SCENARIO.name, case, peers: names(&peers) };
        findings.measure(&contest, cx.plan, cx.progress, |index, time| {
            let peer = &peers[index];
            under_load(peer, Unit::Connection, || client.connect_again_and_again(peer.entry, time))
        })?;
    }
    Ok(())
}
