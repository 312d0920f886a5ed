//! Histograms with Envoy's default buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of Envoy's default histogram buckets, in the histogram's unit (milliseconds for times).
pub const BUCKET_BOUNDS: [f64; 19] = [
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

/// Quantiles Envoy prints in `/stats`.
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

/// One shard of a histogram: the buckets of [`BUCKET_BOUNDS`] and one beyond, and the sum of values.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKET_BOUNDS.len() + 1],
    sum: AtomicU64,
}

impl Histogram {
    /// Records a value. Only the shard's one writer calls this.
    #[inline]
    pub(crate) fn record(&self, value: u64) {
        let at = BUCKET_BOUNDS.iter().position(|bound| value as f64 <= *bound).unwrap_or(BUCKET_BOUNDS.len());
        let bucket = &self.buckets[at];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        self.sum.store(self.sum.load(Relaxed).wrapping_add(value), Relaxed);
    }

    pub(crate) fn add_to(&self, snapshot: &mut HistogramSnapshot) {
        for (total, bucket) in snapshot.buckets.iter_mut().zip(&self.buckets) {
            *total += bucket.load(Relaxed);
        }
        snapshot.sum += self.sum.load(Relaxed);
    }
}

/// A histogram's values over all shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// How many values fell into each bucket of [`BUCKET_BOUNDS`], and beyond the last.
    pub buckets: [u64; BUCKET_BOUNDS.len() + 1],
    /// Sum of all values.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The value below which the share `quantile` of all values lies, by linear interpolation inside a bucket; `None`
    /// without values.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = quantile * count as f64;
        let mut below = 0.0;
        for (at, &bucket) in self.buckets.iter().enumerate() {
            let through = below + bucket as f64;
            if bucket > 0 && through >= rank {
                let lower = if at == 0 { 0.0 } else { BUCKET_BOUNDS[at - 1] };
                let upper = BUCKET_BOUNDS.get(at).copied().unwrap_or(lower);
                return Some(lower + (upper - lower) * ((rank - below) / bucket as f64).clamp(0.0, 1.0));
            }
            below = through;
        }
        BUCKET_BOUNDS.last().copied()
    }

    /// Envoy's text form: `P0(nan,1) P25(nan,2.5) …`, or `No recorded values`.
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

    #[test]
    fn quantiles_interpolate_inside_a_bucket() {
        let histogram = Histogram::default();
        for value in [1, 2, 3, 4, 100] {
            histogram.record(value);
        }
        let mut snapshot = HistogramSnapshot::default();
        histogram.add_to(&mut snapshot);
        assert_eq!((snapshot.count(), snapshot.sum), (5, 110));
        assert_eq!(snapshot.quantile(0.2), Some(1.0));
        assert_eq!(snapshot.quantile(0.8), Some(5.0));
        assert_eq!(snapshot.quantile(1.0), Some(100.0));
        assert_eq!(HistogramSnapshot::default().summary(), "No recorded values");
    }
}
