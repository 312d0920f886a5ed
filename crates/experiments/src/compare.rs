//! Two results of the same experiment: which differences are more than noise.

use std::fmt::Write as _;

use evenkeel_measure::markdown;

use crate::error::BenchError;
use crate::metric::METRICS;
use crate::record::{Measured, Record};

/// Rounds from which noise can be estimated.
const LEAST_ROUNDS: usize = 2;
/// Two-sided critical values of Student's distribution at 1 %, by degrees of freedom from 1.
const CRITICAL: [f64; 10] = [63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17];
/// The critical value of many degrees of freedom, with a margin for those between.
const CRITICAL_OF_MANY: f64 = 3.11;

/// How a quantity compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Differs,
    Noise,
    TooFewRounds,
}

impl Verdict {
    fn label(self) -> &'static str {
        match self {
            Self::Differs => "differs",
            Self::Noise => "noise",
            Self::TooFewRounds => "too few rounds",
        }
    }
}

/// The comparison as text, and whether anything differs.
pub struct Comparison {
    /// For readers.
    pub text: String,
    /// Whether a difference is beyond noise.
    pub differs: bool,
}

/// Compares the rows that both results have.
///
/// # Errors
/// They are of different experiments.
pub fn compare(before: &Record, after: &Record) -> Result<Comparison, BenchError> {
    if before.experiment != after.experiment {
        return Err(BenchError::Usage(format!(
            "the results are of different experiments: {} and {}",
            before.experiment.name(),
            after.experiment.name()
        )));
    }
    let mut text = String::new();
    if before.machine.cpu != after.machine.cpu || before.machine.cores != after.machine.cores {
        text.push_str("The machines differ, so differences may be those of the machines.\n\n");
    }
    let (mut rows, mut differs, mut equal, mut without) = (Vec::new(), false, 0, 0);
    for first in &before.cells {
        let Some(second) = counterpart(after, first) else { continue };
        for metric in METRICS {
            let (a, b) = (first.series(metric.key), second.series(metric.key));
            if a.is_empty() || b.is_empty() {
                continue;
            }
            match verdict(&a, &b) {
                Verdict::Noise => equal += 1,
                Verdict::TooFewRounds => without += 1,
                Verdict::Differs => {
                    differs = true;
                    let (x, y) = (mean(&a), mean(&b));
                    let change = if x == 0.0 { "–".to_owned() } else { format!("{:+.1} %", (y / x - 1.0) * 100.0) };
                    let name = format!("{}, {}", first.cell.table, first.cell.row);
                    let number = |value: f64| format!("{value:.*}", metric.digits);
                    rows.push(vec![name, metric.head.to_owned(), number(x), number(y), change]);
                }
            }
        }
    }
    if differs {
        text.push_str(&markdown::table(&["differs", "quantity", "before", "after", "change"], &rows));
    }
    let _ = writeln!(text, "{} of {} quantities differ beyond noise (1 %).", rows.len(), rows.len() + equal);
    if without > 0 {
        let label = Verdict::TooFewRounds.label();
        let _ = writeln!(text, "{without} could not be judged: {label} (at least {LEAST_ROUNDS} in both results).");
    }
    for line in unmatched(before, after) {
        let _ = writeln!(text, "{line}");
    }
    Ok(Comparison { text, differs })
}

/// The same row of another result.
fn counterpart<'a>(record: &'a Record, row: &Measured) -> Option<&'a Measured> {
    record.cells.iter().find(|other| other.cell.table == row.cell.table && other.cell.row == row.cell.row)
}

/// Rows of one result only.
fn unmatched(before: &Record, after: &Record) -> Vec<String> {
    let missing = |all: &Record, other: &Record, name: &str| {
        let is_alone = |row: &&Measured| {
            let is_measured = !row.samples.is_empty();
            is_measured && counterpart(other, row).is_none_or(|other| other.samples.is_empty())
        };
        let count = all.cells.iter().filter(is_alone).count();
        (count > 0).then(|| format!("{count} rows are in the {name} result only."))
    };
    [missing(before, after, "first"), missing(after, before, "second")].into_iter().flatten().collect()
}

/// Welch's test of the rounds' means.
fn verdict(before: &[f64], after: &[f64]) -> Verdict {
    if before.len() < LEAST_ROUNDS || after.len() < LEAST_ROUNDS {
        return Verdict::TooFewRounds;
    }
    let parts = [variance(before) / before.len() as f64, variance(after) / after.len() as f64];
    let error = (parts[0] + parts[1]).sqrt();
    let difference = (mean(before) - mean(after)).abs();
    if error == 0.0 {
        return if difference == 0.0 { Verdict::Noise } else { Verdict::Differs };
    }
    let squares = parts[0].powi(2) / (before.len() - 1) as f64 + parts[1].powi(2) / (after.len() - 1) as f64;
    let freedom = (parts[0] + parts[1]).powi(2) / squares;
    if difference > critical(freedom) * error { Verdict::Differs } else { Verdict::Noise }
}

/// The critical value; degrees of freedom between two entries count as the fewer.
fn critical(freedom: f64) -> f64 {
    let index = freedom.floor().max(1.0) as usize - 1;
    CRITICAL.get(index).copied().unwrap_or(CRITICAL_OF_MANY)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_more_than_noise_differs() {
        let check = |before: &[f64], after: &[f64], expected: Verdict| {
            assert_eq!(verdict(before, after), expected, "{before:?} {after:?}");
        };
        check(&[10.0, 11.0, 9.0, 10.5, 9.5], &[10.2, 9.8, 10.9, 9.1, 10.0], Verdict::Noise);
        check(&[10.0, 11.0, 9.0, 10.5, 9.5], &[15.0, 16.0, 14.0, 15.5, 14.5], Verdict::Differs);
        // The same distance is noise where rounds spread as much.
        check(&[10.0, 21.0, 2.0, 14.5, 5.5], &[15.0, 26.0, 7.0, 19.5, 10.5], Verdict::Noise);
        // Two rounds need a large distance.
        check(&[10.0, 11.0], &[15.0, 16.0], Verdict::Noise);
        check(&[10.0, 10.1], &[15.0, 15.1], Verdict::Differs);
        check(&[10.0], &[99.0], Verdict::TooFewRounds);
        check(&[1.0, 1.0], &[1.0, 1.0], Verdict::Noise);
        check(&[1.0, 1.0], &[2.0, 2.0], Verdict::Differs);
    }
}
