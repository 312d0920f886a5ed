//! Changes since the previous flush: counters and histograms only grow, and sinks get the increase.

use std::collections::HashMap;

use evenkeel_stats::{TaggedSample, Value, quantile_of};

/// The values last sent to a sink, by the metrics' full names.
#[derive(Debug, Default)]
pub(super) struct Previous(HashMap<String, PreviousValue>);

#[derive(Debug, Clone)]
enum PreviousValue {
    Counter(u64),
    /// A gauge that is not 0, or was not once.
    Gauge,
    Histogram(Vec<u64>, f64),
}

/// A metric that was used since the start, and what has changed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// The total, and the increase since the last flush.
    Counter {
        value: u64,
        delta: u64,
    },
    Gauge(i64),
    Histogram(Interval),
}

/// The values that came since the last time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Interval {
    /// Upper bounds of the buckets, without the last, infinite one.
    pub(super) bounds: &'static [f64],
    /// The number of values in each bucket, and beyond the last bound.
    pub(super) buckets: Vec<u64>,
    /// Their sum.
    pub(super) sum: f64,
}

impl Interval {
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// As of a snapshot; NaN without values.
    pub(super) fn quantile(&self, quantile: f64) -> f64 {
        quantile_of(self.bounds, &self.buckets, quantile).unwrap_or(f64::NAN)
    }
}

impl Previous {
    /// Calls `each` with the metrics that were used since the start, as Envoy's sinks get only these; and remembers them.
    pub(super) fn update<'s>(&mut self, samples: &'s [TaggedSample], mut each: impl FnMut(&'s TaggedSample, Change)) {
        let mut before = std::mem::take(&mut self.0);
        for sample in samples {
            // Metrics that are no more are forgotten.
            let (name, told) =
                before.remove_entry(&sample.full_name).map_or((None, None), |(name, told)| (Some(name), Some(told)));
            if let Some((change, told)) = change(&sample.value, told) {
                self.0.insert(name.unwrap_or_else(|| sample.full_name.clone()), told);
                each(sample, change);
            }
        }
    }
}

/// Returns the change, and the value to remember; `None`: the metric was never used.
fn change(value: &Value, told: Option<PreviousValue>) -> Option<(Change, PreviousValue)> {
    match value {
        Value::Counter(0) => None,
        Value::Counter(value) => {
            let before = if let Some(PreviousValue::Counter(before)) = told { before } else { 0 };
            // A scope may go and come again, and counts from 0 then.
            let delta = value.checked_sub(before).unwrap_or(*value);
            Some((Change::Counter { value: *value, delta }, PreviousValue::Counter(*value)))
        }
        Value::Gauge(0) if told.is_none() => None,
        Value::Gauge(value) => Some((Change::Gauge(*value), PreviousValue::Gauge)),
        Value::Histogram(histogram) if histogram.count() == 0 => None,
        Value::Histogram(histogram) => {
            let (mut buckets, mut sum) = (histogram.buckets.clone(), histogram.sum);
            if let Some(PreviousValue::Histogram(before, sum_before)) = told
                && before.len() == buckets.len()
                && before.iter().zip(&buckets).all(|(before, now)| before <= now)
            {
                buckets.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
                sum -= sum_before;
            }
            let interval = Interval { bounds: histogram.bounds, buckets, sum };
            Some((Change::Histogram(interval), PreviousValue::Histogram(histogram.buckets.clone(), histogram.sum)))
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_stats::{Registry, ScopeName, layout};

    use super::*;

    layout! {
        /// A test scope.
        pub mod test {
            counters { a, b }
            gauges { c, d }
            histograms { e in [1.0, 5.0] }
            statuses None
        }
    }

    /// The changes since the last time, by names.
    fn changes(previous: &mut Previous, registry: &Registry) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        previous.update(&registry.tagged_samples(), |sample, change| changes.push((sample.full_name.clone(), change)));
        changes
    }

    #[test]
    fn metrics_that_were_used_are_told_with_what_has_changed() {
        let (registry, mut previous) = (Registry::new(), Previous::default());
        let scope = registry.scope::<test::Stats>(ScopeName::plain("t."));
        let writer = scope.writer();
        assert_eq!(changes(&mut previous, &registry), []);
        writer.add(test::Counter::a, 3);
        writer.set(test::Gauge::c, -2);
        writer.record(test::Histogram::e, 4);
        let name = |name: &str| format!("t.{name}");
        let interval =
            |buckets: &[u64], sum| Change::Histogram(Interval { bounds: &[1.0, 5.0], buckets: buckets.to_vec(), sum });
        let first = [
            (name("a"), Change::Counter { value: 3, delta: 3 }),
            (name("c"), Change::Gauge(-2)),
            (name("e"), interval(&[0, 1, 0], 4.0)),
        ];
        assert_eq!(changes(&mut previous, &registry), first);
        writer.add(test::Counter::a, 2);
        writer.set(test::Gauge::c, 0);
        writer.record(test::Histogram::e, 9);
        writer.record(test::Histogram::e, 1);
        let second = [
            (name("a"), Change::Counter { value: 5, delta: 2 }),
            (name("c"), Change::Gauge(0)),
            (name("e"), interval(&[1, 0, 1], 10.0)),
        ];
        assert_eq!(changes(&mut previous, &registry), second);
        drop((writer, scope));
        assert_eq!(changes(&mut previous, &registry), []);
        assert!(previous.0.is_empty(), "{previous:?}");
        let writer = registry.scope::<test::Stats>(ScopeName::plain("t.")).writer();
        writer.inc(test::Counter::a);
        assert_eq!(changes(&mut previous, &registry), [(name("a"), Change::Counter { value: 1, delta: 1 })]);
    }
}
