//! Values of metrics: at a scrape, and those that another process counted.

use std::collections::HashMap;

use crate::histogram::HistogramSnapshot;

/// One metric's value at a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Envoy's name: `cluster.NAME.upstream_rq_total`.
    pub name: String,
    /// The value over all shards.
    pub value: Value,
}

/// One metric's value at a scrape, with the tags taken out of its name.
#[derive(Debug, Clone, PartialEq)]
pub struct TaggedSample {
    /// The name with its tags, which no other metric has.
    pub full_name: String,
    /// Envoy's name without its tags: `cluster.upstream_rq_total`.
    pub name: String,
    /// The tags, by the names of Prometheus' labels: `envoy_cluster_name`.
    pub labels: Vec<(String, String)>,
    /// The value over all shards.
    pub value: Value,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(i64),
    /// Distribution.
    Histogram(Box<HistogramSnapshot>),
}

impl Value {
    /// Whether nothing was counted, or a gauge went down as much as up.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Counter(value) => *value == 0,
            Self::Gauge(value) => *value == 0,
            Self::Histogram(histogram) => histogram.count() == 0,
        }
    }
}

/// Decides by a metric's name in `/stats` whether it is reported.
pub(crate) type Keeps = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Settings and carried values that a metric's reported value depends on.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) carried: &'a Carried,
    /// `None`: all metrics are reported.
    pub(crate) keeps: Option<&'a Keeps>,
    /// Whether histograms have their native buckets.
    pub(crate) natively: bool,
}

/// Values that another process counted before, by the metrics' full names.
#[derive(Default, Clone)]
pub(crate) struct Carried {
    pub(crate) counters: HashMap<String, u64>,
    pub(crate) gauges: HashMap<String, i64>,
}

impl Carried {
    pub(crate) fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.gauges.is_empty()
    }

    pub(crate) fn counter(&self, name: impl FnOnce() -> String) -> u64 {
        if self.counters.is_empty() { 0 } else { self.counters.get(&name()).copied().unwrap_or(0) }
    }

    pub(crate) fn gauge(&self, name: impl FnOnce() -> String) -> i64 {
        if self.gauges.is_empty() { 0 } else { self.gauges.get(&name()).copied().unwrap_or(0) }
    }
}
