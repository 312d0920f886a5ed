//! Recorded values: an HDR histogram, from which percentiles come, and Fortio's ranges of it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Largest value, in units: an hour of nanoseconds. Larger ones count as this.
const MAX_UNITS: u64 = 3_600_000_000_000;
/// Values are distinguished to a thousandth.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The ends of Fortio's ranges, in multiples of the resolution.
const RANGE_ENDS: [u32; 55] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 120, 140,
    160, 180, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000, 2000, 3000, 4000, 5000, 7500, 10_000,
    20_000, 30_000, 40_000, 50_000, 75_000,
];
/// The end of the last range that has one.
const LAST_END: u32 = 100_000;

/// Collects values.
#[derive(Debug, Clone)]
pub struct Recorder {
    histogram: Histogram<u64>,
    /// Units of the histogram in one unit of the results.
    scale: f64,
    sum: f64,
    sum_of_squares: f64,
    min: f64,
    max: f64,
    count: u64,
}

impl Recorder {
    /// For durations in seconds.
    pub fn of_seconds() -> Self {
        Self::new(1e9)
    }

    /// For numbers of bytes.
    pub fn of_bytes() -> Self {
        Self::new(1.0)
    }

    fn new(scale: f64) -> Self {
        let histogram = Histogram::new_with_max(MAX_UNITS, SIGNIFICANT_DIGITS).expect("bounds that it allows");
        Self { histogram, scale, sum: 0.0, sum_of_squares: 0.0, min: f64::INFINITY, max: 0.0, count: 0 }
    }

    /// Adds one value in units: nanoseconds or bytes.
    pub fn record(&mut self, units: u64) {
        self.histogram.saturating_record(units);
        let value = units as f64 / self.scale;
        self.sum += value;
        self.sum_of_squares += value * value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.count += 1;
    }

    /// Adds what another one has recorded.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        self.histogram.add(&other.histogram).expect("the same bounds");
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count += other.count;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value below which this share of all values is, in per cent.
    pub fn percentile(&self, percentile: f64) -> f64 {
        let units = self.histogram.value_at_percentile(percentile.clamp(0.0, 100.0));
        (units as f64 / self.scale).clamp(self.min.min(self.max), self.max)
    }

    /// The results, with values in ranges as Fortio makes them.
    pub fn export(&self, ranges: &Ranges, percentiles: &[f64]) -> HistogramData {
        if self.count == 0 {
            return HistogramData::default();
        }
        let percentiles =
            percentiles.iter().map(|&percentile| Percentile { percentile, value: self.percentile(percentile) });
        let average = self.sum / self.count as f64;
        let variance = self.sum_of_squares / self.count as f64 - average * average;
        HistogramData {
            count: self.count,
            min: self.min,
            max: self.max,
            sum: self.sum,
            avg: average,
            std_dev: variance.max(0.0).sqrt(),
            data: Some(self.intervals(ranges)),
            percentiles: percentiles.collect(),
        }
    }

    fn intervals(&self, ranges: &Ranges) -> Vec<Interval> {
        let mut counts = vec![0_u64; RANGE_ENDS.len() + 2];
        for step in self.histogram.iter_recorded() {
            // The lowest of the values that are not distinguished, so that what was on a border stays below it.
            let units = self.histogram.lowest_equivalent(step.value_iterated_to());
            let value = (units as f64 / self.scale).clamp(self.min, self.max);
            counts[ranges.index(value)] += step.count_at_value();
        }
        let (mut intervals, mut below) = (Vec::<Interval>::new(), 0);
        for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            below += count;
            let start = if intervals.is_empty() { self.min } else { ranges.end(index - 1) };
            let percent = 100.0 * below as f64 / self.count as f64;
            intervals.push(Interval { start, end: ranges.end(index), percent, count });
        }
        if let Some(last) = intervals.last_mut() {
            last.end = self.max;
        }
        intervals
    }
}

/// How values are put into ranges.
#[derive(Debug, Clone, Copy)]
pub struct Ranges {
    /// Width of the smallest ranges.
    pub resolution: f64,
    /// Where the first range begins.
    pub offset: f64,
}

impl Ranges {
    fn index(&self, value: f64) -> usize {
        let scaled = (value - self.offset) / self.resolution;
        // A value on the border belongs to the lower range; the border itself may be off by a rounding.
        RANGE_ENDS
            .iter()
            .chain([&LAST_END])
            .position(|&end| scaled <= f64::from(end) + 1e-9)
            .unwrap_or(RANGE_ENDS.len() + 1)
    }

    fn end(&self, index: usize) -> f64 {
        let end = RANGE_ENDS.get(index).copied().unwrap_or(LAST_END);
        f64::from(end) * self.resolution + self.offset
    }
}

/// A histogram as in Fortio's JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HistogramData {
    /// Number of values.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Their sum.
    pub sum: f64,
    /// Their mean.
    pub avg: f64,
    /// Their standard deviation.
    pub std_dev: f64,
    /// The ranges that have values; `null` without values.
    pub data: Option<Vec<Interval>>,
    /// The percentiles that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub percentiles: Vec<Percentile>,
}

/// A range of values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Interval {
    /// Where it begins.
    pub start: f64,
    /// Where it ends, inclusive.
    pub end: f64,
    /// Share of all values up to its end, in per cent.
    pub percent: f64,
    /// Number of its values.
    pub count: u64,
}

/// A percentile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Percentile {
    /// In per cent.
    pub percentile: f64,
    /// The value.
    pub value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_fortios_ranges() {
        let mut recorder = Recorder::of_seconds();
        for microseconds in [90, 500, 1_000, 1_001, 1_200, 60_000, 200_000_000] {
            recorder.record(microseconds * 1_000);
        }
        let data = recorder.export(&Ranges { resolution: 0.001, offset: 0.0 }, &[50.0]);
        let found: Vec<_> = data.data.unwrap().iter().map(|range| (range.start, range.end, range.count)).collect();
        let expected = [(0.000_09, 0.001, 3), (0.001, 0.002, 2), (0.05, 0.06, 1), (100.0, 200.0, 1)];
        assert_eq!(found, expected);
        assert_eq!((data.count, data.max), (7, 200.0));
        let median = data.percentiles[0].value;
        assert!((median - 0.001_001).abs() < 0.000_002, "{median}");
    }

    #[test]
    fn parts_make_the_same_whole() {
        let (mut whole, mut first, mut second) = (Recorder::of_bytes(), Recorder::of_bytes(), Recorder::of_bytes());
        for value in 1..=100 {
            whole.record(value);
            if value % 3 == 0 { first.record(value) } else { second.record(value) }
        }
        first.add(&second);
        let ranges = Ranges { resolution: 5.0, offset: 0.0 };
        assert_eq!(first.export(&ranges, &[75.0]), whole.export(&ranges, &[75.0]));
        assert_eq!(whole.percentile(75.0), 75.0);
        assert_eq!(Recorder::of_bytes().export(&ranges, &[75.0]), HistogramData::default());
    }
}
