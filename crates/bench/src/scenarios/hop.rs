//! One plain HTTP/1.1 hop with everything that a request needs: routing, statistics, request id, access log.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, Scenario, Unit, connections_case, names, under_load};
use crate::config::Protocol;
use crate::load::wrk::Wrk;
use crate::peers::{Backend, DIRECT, ENVOY, EVENKEEL, HAPROXY, NGINX, RELAY, Role};

/// The scenario.
pub const SCENARIO: Scenario = Scenario { name: "hop", title: "One plain hop, HTTP/1.1", bases: &[RELAY, ENVOY], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let wrk = Wrk::new(cx.setup.folder())?;
    let peers = cx.setup.start_all(
        SCENARIO.name,
        &[DIRECT, RELAY, EVENKEEL, ENVOY, HAPROXY, NGINX],
        findings,
        |name| match name {
            DIRECT => Ok(cx.setup.direct(upstream)),
            _ => cx.setup.start_hop(name, upstream, Role::plain(Protocol::Http1)),
        },
    );
    for &connections in &cx.plan.connections {
        let case = connections_case(connections);
        let contest = Contest { scenario: SCENARIO.name, case: &case, peers: names(&peers) };
        findings.measure(&contest, cx.plan, cx.progress, |index, time| {
            let peer = &peers[index];
            under_load(peer, Unit::Request, || wrk.run(peer.entry, connections, time))
        })?;
    }
    Ok(())
}
