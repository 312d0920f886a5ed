//! Samples by their names in `/stats`, and that page.

use std::fmt::Write;

use crate::layout::Metric;
use crate::sample::{Reading, Sample, TaggedSample, Value};
use crate::scope::ScopeCore;
use crate::shard::{FIRST_STATUS, STATUSES};
use crate::tags::{Name, Tagging};

/// One of a scope's metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell {
    Counter(usize),
    Gauge(usize),
    Histogram(usize),
    /// From [`FIRST_STATUS`].
    Status(usize),
}

impl Cell {
    /// A scope's metrics but for statuses, in the order in which they are shown.
    pub(crate) fn of(scope: &ScopeCore) -> impl Iterator<Item = Self> + use<> {
        let shape = scope.shape;
        let counters = (0..shape.counters.len()).map(Self::Counter);
        let gauges = (0..shape.gauges.len()).map(Self::Gauge);
        counters.chain(gauges).chain((0..shape.histograms.len()).map(Self::Histogram))
    }

    /// Returns the statuses that were counted.
    pub(crate) fn statuses(scope: &ScopeCore, reading: &Reading<'_>) -> Vec<usize> {
        if scope.shape.status_prefix.is_none() || reading.carried.is_empty() && !scope.has_statuses() {
            return Vec::new();
        }
        (0..STATUSES).filter(|at| Self::Status(*at).value(scope, reading).is_some()).collect()
    }

    /// Returns its name after the scope's prefix.
    pub(crate) fn name(self, scope: &ScopeCore) -> String {
        match self {
            Self::Status(at) => {
                format!("{}{}", scope.shape.status_prefix.unwrap_or_default(), at + usize::from(FIRST_STATUS))
            }
            _ => self.metric(scope).map_or_else(String::new, |metric| metric.name.to_owned()),
        }
    }

    /// Returns its declaration; statuses have none.
    pub(crate) fn metric(self, scope: &ScopeCore) -> Option<&'static Metric> {
        match self {
            Self::Counter(at) => scope.shape.counters.get(at),
            Self::Gauge(at) => scope.shape.gauges.get(at),
            Self::Histogram(at) => scope.shape.histograms.get(at),
            Self::Status(_) => None,
        }
    }

    /// Returns its value, or `None` if it is not reported: a status that was never counted, in some scopes any metric that
    /// was never counted, and metrics that the process does not keep.
    pub(crate) fn value(self, scope: &ScopeCore, reading: &Reading<'_>) -> Option<Value> {
        let name = || scope.name_of(&self.name(scope));
        if reading.keeps.is_some_and(|keeps| !keeps(&name())) {
            return None;
        }
        let carried = reading.carried;
        let value = match self {
            Self::Counter(at) => Value::Counter(scope.counter(at).wrapping_add(carried.counter(name))),
            Self::Status(at) => Value::Counter(scope.status(at).wrapping_add(carried.counter(name))),
            Self::Gauge(at) => Value::Gauge(scope.gauge(at).wrapping_add(carried.gauge(name))),
            Self::Histogram(at) => Value::Histogram(Box::new(scope.histogram(at, reading.natively))),
        };
        let once_counted = scope.shape.once_counted || matches!(self, Self::Status(_));
        (!once_counted || !value.is_zero()).then_some(value)
    }
}

/// Appends the value of each of a scope's metrics.
pub(crate) fn samples(scope: &ScopeCore, reading: &Reading<'_>, samples: &mut Vec<Sample>) {
    let statuses = Cell::statuses(scope, reading).into_iter().map(Cell::Status);
    samples.extend(Cell::of(scope).chain(statuses).filter_map(|cell| {
        let value = cell.value(scope, reading)?;
        Some(Sample { name: scope.name_of(&cell.name(scope)), value })
    }));
}

/// Like [`samples`], with the tags taken out of the names.
pub(crate) fn tagged_samples(
    scope: &ScopeCore,
    reading: &Reading<'_>,
    tagging: &Tagging,
    samples: &mut Vec<TaggedSample>,
) {
    let own = Name::of(scope);
    let statuses = Cell::statuses(scope, reading).into_iter().map(Cell::Status);
    samples.extend(Cell::of(scope).chain(statuses).filter_map(|cell| {
        let (value, metric) = (cell.value(scope, reading)?, cell.name(scope));
        let full_name = scope.name_of(&metric);
        let (name, labels) = tagging.take(scope, own.as_ref(), metric);
        Some(TaggedSample { full_name, name, labels, value })
    }));
}

/// Renders Envoy's `/stats`.
pub(crate) fn text(mut samples: Vec<Sample>) -> String {
    samples.sort_by(|a, b| {
        (matches!(a.value, Value::Histogram(_)), &a.name).cmp(&(matches!(b.value, Value::Histogram(_)), &b.name))
    });
    let mut out = String::new();
    for sample in samples {
        // Writing to a String cannot fail.
        let _ = match sample.value {
            Value::Counter(value) => writeln!(out, "{}: {value}", sample.name),
            Value::Gauge(value) => writeln!(out, "{}: {value}", sample.name),
            Value::Histogram(value) => writeln!(out, "{}: {}", sample.name, value.summary()),
        };
    }
    out
}
