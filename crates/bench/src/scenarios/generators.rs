//! What a request costs those who send it: `evenkeel load`, Fortio and wrk against one backend, without a proxy.

use std::time::Duration;

use anyhow::Result;
use evenkeel_load::Work;
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Contest, Findings};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::{Context, Scenario};
use crate::load::fortio;
use crate::load::wrk::Wrk;
use crate::peers::Backend;
use crate::process::PROXY_CORE;

/// The case: enough connections that a generator always has something to do.
pub const CASE: &str = "32 connections";
const CONNECTIONS: usize = 32;

/// This project's generator.
pub const EVENKEEL_LOAD: &str = "evenkeel load";
/// Fortio.
pub const FORTIO: &str = "fortio";
/// wrk.
pub const WRK: &str = "wrk";

/// The scenario.
pub const SCENARIO: Scenario =
    Scenario { name: "generators", title: "Load generators, HTTP/1.1", bases: &[FORTIO, WRK], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let wrk = Wrk::new(cx.setup.folder())?.on_core(PROXY_CORE);
    let peers: Vec<&str> = [EVENKEEL_LOAD, FORTIO, WRK].into_iter().filter(|name| cx.setup.is_wanted(name)).collect();
    let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: peers.clone() };
    findings.measure(&contest, cx.plan, cx.progress, |index, time| {
        values(|| match peers[index] {
            EVENKEEL_LOAD => fortio::run(&cx.setup.evenkeel, upstream, CONNECTIONS, time),
            FORTIO => fortio::run(cx.setup.fortio()?, upstream, CONNECTIONS, time),
            _ => wrk.run(upstream, CONNECTIONS, time),
        })
    })
}

/// Values a load by what its program spent: the processes that end meanwhile.
fn values(load: impl FnOnce() -> Result<Work>) -> Result<Values> {
    let before = spent_by_children()?;
    let work = load()?;
    let spent = spent_by_children()?.saturating_sub(before);
    let mut values = Values::from([
        (Metric::CpuUsPerRequest, spent.as_secs_f64() * 1e6 / work.count as f64),
        (Metric::RequestsPerSecond, work.count as f64 / work.time.as_secs_f64()),
    ]);
    if let Some((p50, p99)) = work.latency {
        values.extend([(Metric::P50Us, p50.as_secs_f64() * 1e6), (Metric::P99Us, p99.as_secs_f64() * 1e6)]);
    }
    Ok(values)
}

/// User and system time of all children that have ended.
fn spent_by_children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = |value: TimeVal| {
        let (seconds, micros) = (u64::try_from(value.tv_sec())?, u64::try_from(value.tv_usec())?);
        anyhow::Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    };
    Ok(time(usage.user_time())? + time(usage.system_time())?)
}
