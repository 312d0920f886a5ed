//! The project's limits ("bars") for the control plane.

use std::collections::BTreeMap;

use crate::changes::ChangeKind;
use crate::results::{KindSummary, Labels, Results};
use evenkeel_measure::Distribution;

/// Results, by the name of the run.
pub type RunResults = BTreeMap<String, Results>;

/// What one bar promises: a measurement and the limit that it must not exceed.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// The measurement.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The limit; `None` if the value is only recorded.
    pub limit: Option<f64>,
    /// Computes the value from the runs; `None` if its run is missing.
    pub measure: fn(&RunResults) -> Option<f64>,
}

const fn bar(what: &'static str, unit: &'static str, limit: f64, measure: fn(&RunResults) -> Option<f64>) -> Promise {
    Promise { what, unit, limit: Some(limit), measure }
}

const fn record(what: &'static str, unit: &'static str, measure: fn(&RunResults) -> Option<f64>) -> Promise {
    Promise { what, unit, limit: None, measure }
}

/// All promises; docs/scale.md shows them in this order.
pub const PROMISES: &[Promise] = &[
    bar("service added → last of 200 sidecars and a gateway ACKed, p50 (ServiceEntry)", "ms", 10.0, |p| {
        Some(added(p, "full")?.p50)
    }),
    bar("… p99", "ms", 50.0, |p| Some(added(p, "full")?.p99)),
    bar("… max", "ms", 200.0, |p| Some(added(p, "full")?.max)),
    bar("the same as Service and EndpointSlice, p50", "ms", 10.0, |p| Some(added(p, "full-service")?.p50)),
    bar("… p99", "ms", 50.0, |p| Some(added(p, "full-service")?.p99)),
    bar("… max", "ms", 200.0, |p| Some(added(p, "full-service")?.max)),
    bar("route ready through a real gateway, 1,400 services in sequence, p100", "ms", 1000.0, |p| {
        Some(of_kind(p, "route-ready", ChangeKind::AddService)?.ready_ms?.max)
    }),
    bar("endpoint change → all holders ACKed, p99 (ServiceEntry)", "ms", 20.0, |p| {
        Some(endpoints(p, "endpoints")?.p99)
    }),
    bar("… (Service and EndpointSlice)", "ms", 20.0, |p| Some(endpoints(p, "endpoints-service")?.p99)),
    bar("a VirtualService changed among 10,000 services: CPU of the control plane", "ms", 5.0, |p| {
        p.get("routes")?.cost.cpu_ms_per_change
    }),
    record("… → gateway and holders ACKed, p50", "ms", |p| {
        Some(of_kind(p, "routes", ChangeKind::EditRoutes)?.last_ack_ms?.p50)
    }),
    bar("CPU per service added, 200 sidecars, learned scope", "ms", 3.0, |p| p.get("learned")?.cost.cpu_ms_per_change),
    bar("CPU per service added, 200 sidecars that hold everything", "ms", 30.0, |p| {
        p.get("full")?.cost.cpu_ms_per_change
    }),
    bar("bytes to 200 sidecars that do not use the added service, learned scope", "B", 0.0, |p| {
        Some(p.get("learned")?.cost.sidecar_bytes_per_change)
    }),
    bar("bytes to 200 sidecars and a gateway that all hold it", "B", 1e6, |p| {
        let cost = &p.get("full")?.cost;
        Some(cost.sidecar_bytes_per_change + cost.gateway_bytes_per_change)
    }),
    bar("start to 200 sidecars fully configured with 1,400 services", "ms", 3000.0, |p| {
        Some(p.get("full")?.start.all_configured_ms)
    }),
    bar("resident memory, 1,400 services and 200 sidecars", "MB", 150.0, |p| resident_mb(p, "full")),
    bar("memory after deleting 1,300 of 1,400 services ÷ fresh start", "", 1.15, |p| {
        let shrink = p.get("shrink")?.shrink.as_ref()?;
        Some(shrink.shrunk_mib / shrink.fresh_mib)
    }),
    bar("sidecar memory, 10,000 services, 5 in use", "MB", 15.0, |p| {
        Some(p.get("sidecar")?.sidecar.as_ref()?.after_mib * MB_PER_MIB)
    }),
    bar("5,000 proxies connecting at once: connections that failed", "", 0.0, |p| {
        Some(p.get("storm")?.start.failures as f64)
    }),
    bar("… memory at most", "MB", 1500.0, |p| Some(p.get("storm")?.start.server?.peak_mib * MB_PER_MIB)),
    record("… all configured after", "ms", |p| Some(p.get("storm")?.start.configured_ms?.max)),
    bar("plain Envoy clients, service added → last ACK, p50", "ms", 600.0, |p| Some(added(p, "envoy")?.p50)),
    bar("… CPU per service added", "ms", 600.0, |p| p.get("envoy")?.cost.cpu_ms_per_change),
    bar("… resident memory", "MB", 400.0, |p| resident_mb(p, "envoy")),
    record("first use of a service, learned scope: request to configured, p99", "ms", |p| {
        Some(of_kind(p, "learned", ChangeKind::AddService)?.first_use_ms?.p99)
    }),
    record("first request through a real sidecar, 10,000 services, max", "ms", |p| {
        Some(p.get("sidecar")?.sidecar.as_ref()?.first_answer_ms?.max)
    }),
    record("growth of the p50 from 100 to 5,600 services", "×", |p| {
        Some(added(p, "services-5600")?.p50 / added(p, "services-100")?.p50)
    }),
    record("growth of the CPU per service added from 100 to 5,600 services", "×", |p| {
        Some(p.get("services-5600")?.cost.cpu_ms_per_change? / p.get("services-100")?.cost.cpu_ms_per_change?)
    }),
    record("restart: resources sent again needlessly", "", |p| {
        Some(p.get("restart")?.restart.as_ref()?.resources_again as f64)
    }),
    record("restart: resources taken from proxies", "", |p| Some(p.get("restart")?.restart.as_ref()?.removed as f64)),
    bar(
        "a Service created through an API server → served by a gateway, debounce 10 ms, p50 of 200",
        "ms",
        30.0,
        |p| Some(ready(p, "cluster-served")?.p50),
    ),
    bar("… p99", "ms", 100.0, |p| Some(ready(p, "cluster-served")?.p99)),
    bar("1,400 services in sequence through an API server, p100", "ms", 1000.0, |p| {
        Some(ready(p, "cluster-sequence")?.max)
    }),
    bar("resident memory beside an API server, 1,000 services and 2,000 endpoints", "MB", 200.0, |p| {
        Some(p.get("cluster-labels")?.start.server?.resident_mib * MB_PER_MIB)
    }),
    bar("10,000 changes of labels: bytes to proxies", "B", 0.0, |p| Some(labels(p)?.bytes as f64)),
    bar("… CPU of the control plane for each", "ms", 0.2, |p| labels(p)?.cpu_ms_per_change),
    bar("… list requests meanwhile", "", 0.0, |p| {
        Some(labels(p)?.lists.as_ref()?.iter().map(|lists| lists.count).sum())
    }),
    bar("start beside an API server with 10,000 services → its proxies configured", "ms", 3000.0, |p| {
        Some(p.get("cluster-start")?.start.all_configured_ms)
    }),
    record("at rest: CPU per second", "ms", |p| {
        let cost = &p.get("idle")?.cost;
        Some(cost.cpu_s? * 1000.0 / cost.seconds)
    }),
];

/// The limits are in decimal megabytes, the measurements in MiB.
pub const MB_PER_MIB: f64 = 1.048_576;

/// Resident memory after the changes.
fn resident_mb(played: &RunResults, run: &str) -> Option<f64> {
    Some(played.get(run)?.cost.server?.resident_mib * MB_PER_MIB)
}

fn of_kind<'a>(played: &'a RunResults, run: &str, kind: ChangeKind) -> Option<&'a KindSummary> {
    played.get(run)?.summary.iter().find(|summary| summary.kind == kind)
}

/// The time from adding a service to the last acknowledgement.
pub fn added(played: &RunResults, run: &str) -> Option<Distribution> {
    of_kind(played, run, ChangeKind::AddService)?.last_ack_ms
}

/// The time from adding a service until a real gateway serves it.
fn ready(played: &RunResults, run: &str) -> Option<Distribution> {
    of_kind(played, run, ChangeKind::AddService)?.ready_ms
}

fn labels(played: &RunResults) -> Option<&Labels> {
    played.get("cluster-labels")?.labels.as_ref()
}

/// The time from adding or removing an endpoint to the last acknowledgement.
fn endpoints(played: &RunResults, run: &str) -> Option<Distribution> {
    let results: &Results = played.get(run)?;
    Distribution::of(results.changes.iter().filter_map(|change| Some(change.ack_ms?.max)))
}
