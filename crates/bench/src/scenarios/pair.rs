//! A sidecar pair: HTTP/1.1 in, mutual TLS 1.3 between with HTTP/1.1 or HTTP/2, HTTP/1.1 out; access log, statistics and an
//! authorization policy.

use anyhow::Result;
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, Scenario, Unit, connections_case, names, under_load};
use crate::config::{MutualTls, Protocol};
use crate::load::wrk::Wrk;
use crate::peers::{Backend, DIRECT, Role};

/// Evenkeel's pair as the control plane sets it up: requests share HTTP/2 connections.
pub const EVENKEEL_MESH: &str = "evenkeel mesh";
/// Evenkeel's pair, one request at a time on each connection between, as with another mesh's sidecar.
pub const EVENKEEL_HTTP1: &str = "evenkeel h1";
/// Envoy's pair as Istio sets it up for HTTP/1.1 applications, from the same file as [`EVENKEEL_MESH`].
pub const ENVOY_HTTP1: &str = "envoy h1";
/// Envoy's pair, HTTP/2 between.
pub const ENVOY_HTTP2: &str = "envoy h2";

/// Rules of the policy at the server's side.
pub const RULES: usize = 4;

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "pair", title: "Sidecar pair, mutual TLS 1.3", bases: &[ENVOY_HTTP1, ENVOY_HTTP2], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let wrk = Wrk::new(cx.setup.folder())?;
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

/// Returns the setup of both proxies of the pair called `name`.
pub fn role<'a>(name: &str, tls: &'a MutualTls) -> Role<'a> {
    let protocol = match name {
        EVENKEEL_MESH | ENVOY_HTTP1 => Protocol::Mesh,
        ENVOY_HTTP2 => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Role { protocol, to_backend: Protocol::Http1, tls: Some(tls), rules: RULES, authorization: None, issuer: None }
}
