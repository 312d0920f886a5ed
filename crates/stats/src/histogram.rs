//! The cells of a histogram. A shard stores each histogram as a row of cells: a counter per bucket, a counter for values
//! beyond the last bound, and at the end the sum of all values.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::exemplar::SampledValue;
use crate::native::NativeBuckets;

/// Upper bounds of Envoy's default histogram buckets, in the histogram's unit (milliseconds for times). Istio's standard
/// metrics use the same.
pub const ENVOY_BUCKETS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Quantiles that Envoy prints in `/stats`.
const QUANTILES: [(f64, &str); 10] = [
    (0.0, "P0"),
    (0.25, "P25"),
    (0.5, "P50"),
    (0.75, "P75"),
    (0.9, "P90"),
    (0.95, "P95"),
    (0.99, "P99"),
    (0.995, "P99.5"),
    (0.999, "P99.9"),
    (1.0, "P100"),
];

/// Returns the index of the bucket of a value.
#[inline]
pub(crate) fn bucket_of(bounds: &[f64], value: f64) -> usize {
    bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len())
}

/// Records a value as the row's only writer, and returns the index of its bucket.
#[inline]
pub(crate) fn record(row: &[AtomicU64], bounds: &[f64], value: f64) -> usize {
    let at = bucket_of(bounds, value);
    if let (Some(bucket), Some(sum)) = (row.get(at), row.last()) {
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        sum.store((f64::from_bits(sum.load(Relaxed)) + value).to_bits(), Relaxed);
    }
    at
}

/// Adds values that were recorded elsewhere, as one of several writers: counts by bucket, and their sum.
pub(crate) fn merge(row: &[AtomicU64], counts: impl Iterator<Item = (usize, u64)>, more: f64) {
    let Some((sum, buckets)) = row.split_last() else { return };
    for (at, count) in counts.filter(|(_, count)| *count > 0) {
        if let Some(bucket) = buckets.get(at) {
            bucket.fetch_add(count, Relaxed);
        }
    }
    let added = sum.fetch_update(Relaxed, Relaxed, |sum| Some((f64::from_bits(sum) + more).to_bits()));
    debug_assert!(added.is_ok());
}

/// Returns the value below which the share `quantile` of the values in these buckets lies, by linear interpolation inside a
/// bucket; `None` without values. The last bucket has no bound.
pub fn quantile_of(bounds: &[f64], buckets: &[u64], quantile: f64) -> Option<f64> {
    let count: u64 = buckets.iter().sum();
    if count == 0 {
        return None;
    }
    let rank = quantile * count as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (at, &bucket) in buckets.iter().enumerate() {
        let through = below + bucket as f64;
        let upper = bounds.get(at).copied().unwrap_or(lower);
        if bucket > 0 && through >= rank {
            return Some(lower + (upper - lower) * ((rank - below) / bucket as f64).clamp(0.0, 1.0));
        }
        (below, lower) = (through, upper);
    }
    Some(lower)
}

/// A histogram's values over all shards.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bounds of the buckets, without the last, infinite one.
    pub bounds: &'static [f64],
    /// The number of values in each bucket, and beyond the last bound.
    pub buckets: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
    /// Native buckets, if they were asked for.
    pub(crate) native: Option<NativeBuckets>,
    /// The newest exemplar of each bucket.
    pub(crate) exemplars: Vec<Option<SampledValue>>,
}

impl HistogramSnapshot {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len() + 1], sum: 0.0, native: None, exemplars: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: &[AtomicU64]) {
        for (total, bucket) in self.buckets.iter_mut().zip(row) {
            *total = total.wrapping_add(bucket.load(Relaxed));
        }
        self.sum += row.last().map_or(0.0, |sum| f64::from_bits(sum.load(Relaxed)));
    }

    pub(crate) fn add_exemplar(&mut self, bucket: usize, taken: SampledValue) {
        self.exemplars.resize(self.buckets.len(), None);
        if let Some(newest) = self.exemplars.get_mut(bucket)
            && newest.is_none_or(|newest| newest.exemplar.unix_ms <= taken.exemplar.unix_ms)
        {
            *newest = Some(taken);
        }
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the value below which the share `quantile` of all values lies, by linear interpolation inside a bucket; `None`
    /// without values.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        quantile_of(self.bounds, &self.buckets, quantile)
    }

    /// Formats the quantiles as Envoy does: `P0(nan,1) P25(nan,2.5) …`, or `No recorded values`.
    pub fn summary(&self) -> String {
        let parts: Option<Vec<_>> = QUANTILES
            .iter()
            .map(|(q, name)| self.quantile(*q).map(|value| format!("{name}(nan,{value:.3})")))
            .collect();
        parts.map_or_else(|| "No recorded values".to_owned(), |parts| parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: usize) -> Vec<AtomicU64> {
        (0..cells).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn quantiles_interpolate_inside_a_bucket() {
        let row = row(ENVOY_BUCKETS.len() + 2);
        for value in [1.0, 2.0, 3.0, 4.0, 100.0] {
            record(&row, &ENVOY_BUCKETS, value);
        }
        let mut snapshot = HistogramSnapshot::new(&ENVOY_BUCKETS);
        snapshot.add(&row);
        assert_eq!((snapshot.count(), snapshot.sum), (5, 110.0));
        assert_eq!(snapshot.quantile(0.2), Some(1.0));
        assert_eq!(snapshot.quantile(0.8), Some(5.0));
        assert_eq!(snapshot.quantile(1.0), Some(100.0));
        assert_eq!(HistogramSnapshot::new(&ENVOY_BUCKETS).summary(), "No recorded values");
    }

    #[test]
    fn a_row_longer_than_the_buckets_keeps_its_sum_at_the_end() {
        const BOUNDS: &[f64] = &[1.0, 2.0];
        let row = row(8);
        assert_eq!([0.5, 1.0, 1.5, 9.0].map(|value| record(&row, BOUNDS, value)), [0, 0, 1, 2]);
        merge(&row, [(1, 3)].into_iter(), 4.5);
        let mut snapshot = HistogramSnapshot::new(BOUNDS);
        snapshot.add(&row);
        assert_eq!((&snapshot.buckets[..], snapshot.sum), (&[2, 4, 1][..], 16.5));
    }
}
