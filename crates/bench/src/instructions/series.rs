//! The cost of metrics: creating a scope or a series must cost the same with none and with ten thousand others, and counting
//! must cost next to nothing.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use evenkeel_stats::{
    Exemplar, Families, FamiliesOptions, Registry, Reported, Scope, ScopeName, SeriesHandles, Writer, layout,
};

use super::Counts;

/// Calls that are counted.
pub const ITERATIONS: u64 = 100;
const MANY: u64 = 10_000;
/// Names of the functions below in the record: a scope without others.
pub const FIRST_SCOPE: &str = "stats: a scope beside none";
/// A scope with many others.
pub const LATER_SCOPE: &str = "stats: a scope beside 10000";
/// A series without others.
pub const FIRST_SERIES: &str = "stats: a series of 25 labels beside none";
/// A series with many others.
pub const LATER_SERIES: &str = "stats: a series of 25 labels beside 10000";
/// Finding a known series.
pub const KNOWN: &str = "stats: find a series the worker knows";
/// Counting.
pub const COUNT: &str = "stats: count in a series";
/// Recording a value.
pub const RECORD: &str = "stats: record a value in a series";
/// Recording a value with an exemplar.
pub const RECORD_TRACED: &str = "stats: record a value with an exemplar in a series";
/// Growth from few to many that is allowed: some share a bucket of the index.
const GROWTH: f64 = 1.2;

layout! {
    /// As Istio's standard metrics.
    pub mod edge {
        counters { requests_total }
        gauges { requests_active }
        histograms { request_duration_milliseconds, request_bytes, response_bytes }
        statuses None
    }
}

const OPTIONS: FamiliesOptions = FamiliesOptions {
    name: "edges",
    prefix: "istio_",
    labels: &[
        "reporter", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "a11", "a12", "a13", "a14", "a15",
        "a16", "a17", "a18", "a19", "a20", "a21", "a22", "a23", "a24",
    ],
    max_series: 20_000,
    expire_after: None,
    reported: Reported::Everywhere,
};

/// Returns complaints about how the counts grow with the number of scopes and series.
pub fn complaints(counts: &Counts) -> Vec<String> {
    let pairs = [(FIRST_SCOPE, LATER_SCOPE), (FIRST_SERIES, LATER_SERIES)];
    let grown = pairs.iter().filter_map(|(first, later)| {
        let (first_count, later_count) = (*counts.get(*first)?, *counts.get(*later)?);
        let grows = later_count as f64 > first_count as f64 * GROWTH;
        grows.then(|| format!("{later}: {later_count}, more than {GROWTH} times the {first_count} of {first}"))
    });
    grown.collect()
}

/// Makes all calls; what callgrind looks at.
pub fn run() -> Result<()> {
    scopes();
    let registry = Registry::new();
    let (few, many) = (registry.families(OPTIONS), registry.families(FamiliesOptions { name: "many", ..OPTIONS }));
    let mut held: Vec<Writer<edge::Stats>> = Vec::new();
    for number in 0..MANY {
        held.push(series(&many, &format!("old {number}")).context("room")?);
    }
    for number in 0..ITERATIONS {
        let name = format!("new {number}");
        held.push(first_series(&few, black_box(&name)).context("room")?);
        held.push(later_series(&many, black_box(&name)).context("room")?);
    }
    let handles = few.handles::<u64>();
    let writer = handles.get(&7, |labels| OPTIONS.labels.iter().for_each(|name| labels.push(name)));
    let exemplar = Exemplar { trace_id: [7; 16], span_id: [7; 8], unix_ms: 7 };
    // The first exemplar makes room for all; what that takes depends on the heap.
    writer.record_traced(edge::Histogram::request_duration_milliseconds, 12, &exemplar);
    for _ in 0..ITERATIONS {
        ensure!(Rc::ptr_eq(&find(&handles, black_box(7)), &writer), "it is known");
        count(black_box(&writer));
        record(black_box(&writer), black_box(12));
        record_traced(black_box(&writer), black_box(12), &exemplar);
    }
    Ok(())
}

fn scopes() {
    let (few, many) = (Registry::new(), Registry::new());
    let name = |number: u64| ScopeName::tagged("cluster", "envoy_cluster_name", &format!("outbound|80||{number}.shop"));
    let mut held: Vec<Scope<edge::Stats>> = (0..MANY).map(|number| many.scope(name(number))).collect();
    for number in MANY..MANY + ITERATIONS {
        held.push(first_scope(&few, black_box(name(number))));
        held.push(later_scope(&many, black_box(name(number))));
    }
    black_box(held);
}

#[inline(never)]
fn first_scope(registry: &Registry, name: ScopeName) -> Scope<edge::Stats> {
    registry.scope(name)
}

#[inline(never)]
fn later_scope(registry: &Registry, name: ScopeName) -> Scope<edge::Stats> {
    registry.scope(name)
}

#[inline(never)]
fn first_series(families: &Families<edge::Stats>, name: &str) -> Option<Writer<edge::Stats>> {
    series(families, name)
}

#[inline(never)]
fn later_series(families: &Families<edge::Stats>, name: &str) -> Option<Writer<edge::Stats>> {
    series(families, name)
}

fn series(families: &Families<edge::Stats>, name: &str) -> Option<Writer<edge::Stats>> {
    families.series(&[name; OPTIONS.labels.len()])
}

#[inline(never)]
fn find(handles: &SeriesHandles<u64, edge::Stats>, key: u64) -> Rc<Writer<edge::Stats>> {
    handles.get(&key, |_| black_box(()))
}

#[inline(never)]
fn count(series: &Writer<edge::Stats>) {
    series.inc(edge::Counter::requests_total);
}

#[inline(never)]
fn record(series: &Writer<edge::Stats>, value: u64) {
    series.record(edge::Histogram::request_duration_milliseconds, value);
}

#[inline(never)]
fn record_traced(series: &Writer<edge::Stats>, value: u64, exemplar: &Exemplar) {
    series.record_traced(edge::Histogram::request_duration_milliseconds, value, exemplar);
}
