//! Two results side by side: which differences are more than noise.

use std::io::{self, Write};

use crate::histogram::HistogramData;
use crate::results::RunResult;

/// Standard errors from which a difference is no noise: chance alone makes one in 370 comparisons differ so much.
const SIGMAS: f64 = 3.0;

/// A quantity in both results.
#[derive(Debug, Clone, PartialEq)]
struct Difference {
    name: String,
    before: f64,
    after: f64,
    is_beyond_noise: bool,
}

/// Writes what differs; whether anything does beyond noise.
///
/// # Errors
/// Nobody reads it.
pub fn run(before: &RunResult, after: &RunResult, out: &mut dyn Write) -> io::Result<bool> {
    let differences = differences(before, after);
    writeln!(out, "{:<12} {:>12} {:>12} {:>9}", "", "before", "after", "change")?;
    for difference in &differences {
        let Difference { name, before, after, is_beyond_noise } = difference;
        let change = if *before == 0.0 { "-".to_owned() } else { format!("{:+.1} %", (after / before - 1.0) * 100.0) };
        let verdict = if *is_beyond_noise { "differs" } else { "noise" };
        writeln!(out, "{name:<12} {before:>12.3} {after:>12.3} {change:>9}  {verdict}")?;
    }
    let differs = differences.iter().any(|difference| difference.is_beyond_noise);
    let same = "Nothing differs beyond noise";
    writeln!(out, "{}", if differs { "Something differs beyond noise" } else { same })?;
    Ok(differs)
}

fn differences(before: &RunResult, after: &RunResult) -> Vec<Difference> {
    let (first, second) = (&before.duration_histogram, &after.duration_histogram);
    let mut all = vec![errors(before, after), mean(first, second)];
    let percentiles = first.percentiles.iter().map(|percentile| percentile.percentile);
    all.extend(percentiles.map(|percentile| at(percentile, first, second)));
    all
}

/// The share of failed calls: a test of two proportions.
fn errors(before: &RunResult, after: &RunResult) -> Difference {
    let failed = [before, after].map(|result| result.errors_duration_histogram.count as f64);
    let count = [before, after].map(|result| (result.duration_histogram.count as f64).max(1.0));
    let (first, second) = (failed[0] / count[0], failed[1] / count[1]);
    let pooled = (failed[0] + failed[1]) / (count[0] + count[1]);
    let error = (pooled * (1.0 - pooled) * (1.0 / count[0] + 1.0 / count[1])).sqrt();
    let is_beyond_noise = (first - second).abs() > SIGMAS * error;
    Difference { name: "errors %".to_owned(), before: first * 100.0, after: second * 100.0, is_beyond_noise }
}

/// The means: Welch's test.
fn mean(first: &HistogramData, second: &HistogramData) -> Difference {
    let variance = |data: &HistogramData| data.std_dev.powi(2) / (data.count as f64).max(1.0);
    let error = (variance(first) + variance(second)).sqrt();
    let is_beyond_noise = (first.avg - second.avg).abs() > SIGMAS * error;
    Difference { name: "mean ms".to_owned(), before: first.avg * 1e3, after: second.avg * 1e3, is_beyond_noise }
}

/// A percentile: the intervals in which it is, by the binomial distribution of its rank, do not overlap.
fn at(percentile: f64, first: &HistogramData, second: &HistogramData) -> Difference {
    let (of_first, of_second) = (interval(percentile, first), interval(percentile, second));
    let is_beyond_noise = of_first.high < of_second.low || of_second.high < of_first.low;
    let value = |data: &HistogramData| {
        let known = data.percentiles.iter().find(|known| known.percentile == percentile);
        known.map_or_else(|| value_at(percentile, data), |known| known.value) * 1e3
    };
    Difference { name: format!("p{percentile} ms"), before: value(first), after: value(second), is_beyond_noise }
}

/// Where a percentile is, for so many values. Beyond the smallest or the largest value nothing is known.
fn interval(percentile: f64, data: &HistogramData) -> Interval {
    let share = percentile / 100.0;
    let error = SIGMAS * (share * (1.0 - share) / (data.count as f64).max(1.0)).sqrt();
    let (low, high) = (share - error, share + error);
    Interval {
        low: if low > 0.0 { value_at(low * 100.0, data) } else { f64::NEG_INFINITY },
        high: if high < 1.0 { value_at(high * 100.0, data) } else { f64::INFINITY },
    }
}

struct Interval {
    low: f64,
    high: f64,
}

/// The value at a percentile, from the ranges: between their ends it is as if values were spread evenly.
fn value_at(percentile: f64, data: &HistogramData) -> f64 {
    let mut below = 0.0;
    for range in data.data.iter().flatten() {
        if percentile <= range.percent {
            let part = ((percentile - below) / (range.percent - below)).clamp(0.0, 1.0);
            return range.start + part * (range.end - range.start);
        }
        below = range.percent;
    }
    data.max
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::{Ranges, Recorder};

    /// A result with `count` calls of 1 to 2 ms, later by `shift` microseconds, of which some failed.
    fn result(count: u64, shift: u64, failed: u64) -> RunResult {
        let (mut durations, mut errors) = (Recorder::of_seconds(), Recorder::of_seconds());
        for call in 0..count {
            let nanoseconds = (1_000 + shift + call * 7 % 1_000) * 1_000;
            durations.record(nanoseconds);
            if call < failed {
                errors.record(nanoseconds);
            }
        }
        let export =
            |recorder: &Recorder| recorder.export(&Ranges { resolution: 0.000_01, offset: 0.0 }, &[50.0, 99.0]);
        RunResult {
            duration_histogram: export(&durations),
            errors_duration_histogram: export(&errors),
            ..RunResult::default()
        }
    }

    #[test]
    fn only_what_is_more_than_noise_differs() {
        let check = |before: RunResult, after: RunResult, expected: &[&str]| {
            let all = differences(&before, &after);
            let found = all.iter().filter(|difference| difference.is_beyond_noise);
            assert_eq!(found.map(|difference| difference.name.as_str()).collect::<Vec<_>>(), expected);
        };
        check(result(1000, 0, 0), result(1000, 0, 0), &[]);
        check(result(1000, 0, 0), result(1000, 200, 0), &["mean ms", "p50 ms", "p99 ms"]);
        // The same shift with few calls may be chance.
        check(result(20, 0, 0), result(20, 30, 0), &[]);
        check(result(1000, 0, 5), result(1000, 0, 6), &[]);
        check(result(1000, 0, 5), result(1000, 0, 100), &["errors %"]);
    }

    #[test]
    fn the_table_has_a_verdict_for_each_quantity() {
        let mut out = Vec::new();
        assert!(run(&result(1000, 0, 0), &result(1000, 200, 0), &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().count() == 6 && text.ends_with("Something differs beyond noise\n"), "{text}");
    }
}
