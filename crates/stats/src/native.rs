//! The buckets of Prometheus' native histograms: eight for each power of two (schema 3), so that a quantile is off by 4 % at most.
//!
//! A shard has them once a scraper has asked for the format; until then, its values count at the upper bounds of their classic buckets.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Prometheus' number for 2³ buckets per power of two.
pub(crate) const SCHEMA: i32 = 3;
/// Buckets per power of two.
const PER_OCTAVE: usize = 1 << SCHEMA;
/// Powers of two that are told apart: milliseconds of centuries, and a tebibyte.
const OCTAVES: usize = 44;
/// Upper bounds of the buckets of a power of two, as shares of the next one.
const BOUNDS: [f64; PER_OCTAVE] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    std::f64::consts::FRAC_1_SQRT_2,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_6,
    0.917_004_043_204_671_2,
];
/// Values up to this one count as zero: workers record whole numbers.
pub(crate) const ZERO_THRESHOLD: f64 = 0.5;

/// The buckets of one histogram, written by one thread.
pub(crate) struct NativeCells {
    zero: AtomicU64,
    /// By the power of two; few of them have values.
    octaves: [OnceLock<Box<[AtomicU64; PER_OCTAVE]>>; OCTAVES],
}

impl Default for NativeCells {
    fn default() -> Self {
        Self { zero: AtomicU64::new(0), octaves: std::array::from_fn(|_| OnceLock::new()) }
    }
}

impl NativeCells {
    /// Creates the buckets with the values that the classic ones have counted.
    pub(crate) fn seeded(bounds: &[f64], row: &[AtomicU64]) -> Self {
        let cells = Self::default();
        for (value, count) in seeds(bounds, row) {
            cells.add(value, count);
        }
        cells
    }

    /// Counts a value.
    pub(crate) fn add(&self, value: f64, count: u64) {
        let cell = match index_of(value) {
            None => &self.zero,
            Some(index) => {
                let octave = self.octaves.get(index / PER_OCTAVE).or(self.octaves.last());
                let octave = octave.map(|octave| octave.get_or_init(Box::default));
                let Some(cell) = octave.and_then(|octave| octave.get(index % PER_OCTAVE)) else { return };
                cell
            }
        };
        cell.store(cell.load(Relaxed).wrapping_add(count), Relaxed);
    }
}

/// A histogram's native buckets over all shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NativeBuckets {
    /// Number of values that count as zero.
    pub(crate) zero: u64,
    /// Number of values by bucket; those without any are left out.
    pub(crate) buckets: BTreeMap<usize, u64>,
}

/// Neighbouring buckets, as Prometheus' format has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Distance from the end of the previous span; of the first, from bucket 0.
    pub(crate) offset: i32,
    /// Number of buckets.
    pub(crate) length: u32,
}

impl NativeBuckets {
    pub(crate) fn add_cells(&mut self, cells: &NativeCells) {
        self.zero = self.zero.wrapping_add(cells.zero.load(Relaxed));
        for (octave, counts) in cells.octaves.iter().enumerate() {
            for (at, count) in counts.get().into_iter().flat_map(|counts| counts.iter()).enumerate() {
                self.add_at(octave * PER_OCTAVE + at, count.load(Relaxed));
            }
        }
    }

    /// Adds what the classic buckets of a shard have counted.
    pub(crate) fn add_classic(&mut self, bounds: &[f64], row: &[AtomicU64]) {
        for (value, count) in seeds(bounds, row) {
            match index_of(value) {
                None => self.zero = self.zero.wrapping_add(count),
                Some(index) => self.add_at(index, count),
            }
        }
    }

    fn add_at(&mut self, index: usize, count: u64) {
        if count > 0 {
            let bucket = self.buckets.entry(index).or_default();
            *bucket = bucket.wrapping_add(count);
        }
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.values().fold(self.zero, |all, count| all.wrapping_add(*count))
    }

    /// Returns which buckets have values, and the difference of each one's number from that of the one before.
    pub(crate) fn spans(&self) -> (Vec<Span>, Vec<i64>) {
        let (mut spans, mut deltas): (Vec<Span>, _) = (Vec::new(), Vec::new());
        let (mut next, mut before) = (0_i64, 0_i64);
        for (&index, &count) in &self.buckets {
            let (index, count) = (index as i64, i64::try_from(count).unwrap_or(i64::MAX));
            match spans.last_mut() {
                Some(span) if index == next => span.length += 1,
                _ => spans.push(Span { offset: i32::try_from(index - next).unwrap_or(i32::MAX), length: 1 }),
            }
            deltas.push(count.wrapping_sub(before));
            (next, before) = (index + 1, count);
        }
        (spans, deltas)
    }
}

/// The values that stand for those in classic buckets: the upper bounds, and beyond the last one its double.
fn seeds<'a>(bounds: &'a [f64], row: &'a [AtomicU64]) -> impl Iterator<Item = (f64, u64)> + use<'a> {
    let beyond = bounds.last().map_or(1.0, |last| last * 2.0);
    let counts = row.iter().map(|count| count.load(Relaxed));
    bounds.iter().copied().chain([beyond]).zip(counts).filter(|(_, count)| *count > 0)
}

/// Returns the index of a value's bucket: bucket i has the values from 2^((i-1)/8), without it, to 2^(i/8). `None`: it counts as zero.
fn index_of(value: f64) -> Option<usize> {
    // Of a value above the threshold, the exponent is at least -1.
    if value.is_nan() || value <= ZERO_THRESHOLD {
        return None;
    }
    let bits = value.to_bits();
    let exponent = (bits >> 52) as i64 - 1022;
    let share = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52));
    let within = BOUNDS.iter().position(|bound| share <= *bound).unwrap_or(PER_OCTAVE) as i64;
    let index = (exponent - 1) * PER_OCTAVE as i64 + within;
    usize::try_from(index).ok().map(|index| index.min(OCTAVES * PER_OCTAVE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_prometheus_ones() {
        for value in [0.0, -3.0, 0.5, f64::NAN] {
            assert_eq!(index_of(value), None, "{value}");
        }
        let mut last = 0;
        for value in 1..100_000_u32 {
            let index = index_of(f64::from(value)).expect("a bucket");
            // The definition of the format.
            let upper = 2_f64.powf(index as f64 / 8.0) * (1.0 + 1e-12);
            let lower = 2_f64.powf((index as f64 - 1.0) / 8.0) * (1.0 - 1e-12);
            assert!(f64::from(value) <= upper && f64::from(value) > lower, "{value}: {index}");
            assert!(index >= last, "{value}");
            last = index;
        }
        assert_eq!([1.0, 2.0, 4.0, 1024.0].map(index_of), [Some(0), Some(8), Some(16), Some(80)]);
        assert_eq!(index_of(1e300), Some(OCTAVES * PER_OCTAVE - 1));
        assert_eq!(index_of(f64::INFINITY), Some(OCTAVES * PER_OCTAVE - 1));
    }

    #[test]
    fn spans_name_neighbours_and_gaps() {
        let cells = NativeCells::default();
        for value in [0.0, 1.0, 1.05, 1.05, 2.0, 64.0] {
            cells.add(value, 1);
        }
        let mut buckets = NativeBuckets::default();
        buckets.add_cells(&cells);
        let (spans, deltas) = buckets.spans();
        let expected = [(0, 2), (6, 1), (39, 1)];
        assert_eq!(spans, expected.map(|(offset, length)| Span { offset, length }));
        assert_eq!(deltas, [1, 1, -1, 0]);
        assert_eq!((buckets.zero, buckets.count()), (1, 6));
    }

    #[test]
    fn earlier_values_count_at_the_bounds_of_their_buckets() {
        let row: Vec<AtomicU64> = [3, 2, 1, 0].map(AtomicU64::new).into();
        let bounds = [0.5, 4.0];
        let mut buckets = NativeBuckets::default();
        buckets.add_classic(&bounds, &row);
        assert_eq!((buckets.zero, &buckets.buckets), (3, &BTreeMap::from([(16, 2), (24, 1)])));
        let mut from_cells = NativeBuckets::default();
        from_cells.add_cells(&NativeCells::seeded(&bounds, &row));
        assert_eq!(from_cells, buckets);
    }
}
