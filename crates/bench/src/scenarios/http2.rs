//! HTTP/2 on both sides of one hop, and gRPC unary calls over it.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, Scenario, Unit, names, under_load};
use crate::config::Protocol;
use crate::load::h2load::{Call, H2Load};
use crate::peers::{Backend, DIRECT, ENVOY, EVENKEEL, Role};

/// Connections of the load.
const CONNECTIONS: usize = 4;
/// Requests in flight on each.
const STREAMS: usize = 8;

/// `GET` with an answer of 1 KiB.
pub const HTTP_CASE: &str = "HTTP/2, 4 connections × 8 streams";
/// A gRPC message each way, status in trailers.
pub const GRPC_CASE: &str = "gRPC unary, 4 connections × 8 streams";

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "http2", title: "One plain hop, HTTP/2 both sides", bases: &[ENVOY], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http2)?;
    let h2load = H2Load::new(cx.setup)?;
    let peers = cx.setup.start_all(SCENARIO.name, &[DIRECT, EVENKEEL, ENVOY], findings, |name| match name {
        DIRECT => Ok(cx.setup.direct(upstream)),
        _ => cx.setup.start_hop(name, upstream, Role::plain(Protocol::Http2)),
    });
    for (case, call) in [(HTTP_CASE, Call::Get), (GRPC_CASE, Call::GrpcUnary)] {
        let contest = Contest { scenario: SCENARIO.name, case, peers: names(&peers) };
        findings.measure(&contest, cx.plan, cx.progress, |index, time| {
            let peer = &peers[index];
            under_load(peer, Unit::Request, || h2load.run(peer.entry, call, (CONNECTIONS, STREAMS), time))
        })?;
    }
    Ok(())
}
