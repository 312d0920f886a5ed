//! The positions of values on an axis, and its tick labels.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis, before its range is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its label, with the unit.
    pub label: String,
    /// Its scale.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic.
    Log,
}

/// The approximate number of steps of a linear axis.
const STEPS: f64 = 5.0;
/// Smaller values are drawn at the lower end of a logarithmic axis.
const LEAST: f64 = 1e-3;

impl Axis {
    /// A linear axis, from 0.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log }
    }

    /// The range that contains all values, with round ends.
    pub fn ticks(&self, values: impl Iterator<Item = f64>) -> Ticks {
        let (least, greatest) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), v| (least.min(v), greatest.max(v)));
        let greatest = if greatest.is_finite() { greatest } else { 1.0 };
        match self.scale {
            Scale::Linear => linear_ticks(greatest.max(0.0)),
            Scale::Log => log_ticks(if least.is_finite() { least } else { 1.0 }, greatest),
        }
    }
}

fn linear_ticks(greatest: f64) -> Ticks {
    let step = round_step(greatest / STEPS);
    let steps = (greatest / step).ceil().max(1.0);
    let values = (0..=steps as usize).map(|n| n as f64 * step).collect();
    Ticks { scale: Scale::Linear, from: 0.0, to: steps * step, values }
}

fn log_ticks(least: f64, greatest: f64) -> Ticks {
    let (least, greatest) = (least.max(LEAST), greatest.max(LEAST));
    let first = least.log10().floor();
    let decades = (greatest.log10().ceil() - first).max(1.0) as i32;
    // Only an axis of few decades has room for ticks within a decade.
    let digits: &[f64] = if decades <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> = (0..=decades)
        .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powf(first + f64::from(decade))))
        .collect();
    // The tolerance is needed because 10^x is not exact.
    let from = all.iter().copied().rfind(|tick| *tick <= least * 1.000_001).unwrap_or(least);
    let to = all.iter().copied().find(|tick| *tick >= greatest / 1.000_001 && *tick > from).unwrap_or(greatest);
    let values = all.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
    Ticks { scale: Scale::Log, from, to, values }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    if least <= 0.0 {
        return 0.2;
    }
    let power = 10f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= least * 0.999_999);
    digit.unwrap_or(10.0) * power
}

/// An axis with its range.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticks {
    scale: Scale,
    from: f64,
    to: f64,
    values: Vec<f64>,
}

impl Ticks {
    /// The position of a value on the axis, from 0 to 1.
    pub fn fraction(&self, value: f64) -> f64 {
        let fraction = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log => (value.max(LEAST) / self.from).ln() / (self.to / self.from).ln(),
        };
        fraction.clamp(0.0, 1.0)
    }

    /// The values of the ticks and their labels.
    pub fn labels(&self) -> impl Iterator<Item = (f64, String)> {
        self.values.iter().map(|value| (*value, label(*value)))
    }
}

impl Ranged for Ticks {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.fraction(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.values.clone()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Ticks {
    fn format(value: &f64) -> String {
        label(*value)
    }
}

fn label(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{}G", short(v / 1e9)),
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

/// Formats a value with its significant digits only.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        let check = |axis: Axis, values: &[f64], expected: &[&str]| {
            let ticks = axis.ticks(values.iter().copied());
            let labels: Vec<String> = ticks.labels().map(|(_, label)| label).collect();
            assert_eq!(labels, expected, "{values:?}");
            for value in values {
                assert!((0.0..=1.0).contains(&ticks.fraction(*value)), "{value}");
            }
        };
        check(Axis::linear(""), &[0.0, 9.2], &["0", "2", "4", "6", "8", "10"]);
        check(Axis::linear(""), &[0.037], &["0", "0.01", "0.02", "0.03", "0.04"]);
        check(Axis::linear(""), &[], &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        check(Axis::linear(""), &[0.0], &["0", "0.2"]);
        check(Axis::linear(""), &[61_000.0], &["0", "20k", "40k", "60k", "80k"]);
        check(Axis::log(""), &[100.0, 5600.0], &["100", "200", "500", "1000", "2000", "5000", "10k"]);
        check(Axis::log(""), &[1.0, 1e6], &["1", "10", "100", "1000", "10k", "100k", "1M"]);
        check(Axis::log(""), &[5.0], &["5", "10"]);
    }

    #[test]
    fn places_are_even_by_value_or_by_logarithm() {
        let place = |axis: Axis, values: [f64; 2], value| axis.ticks(values.into_iter()).fraction(value);
        assert!((place(Axis::linear(""), [0.0, 10.0], 5.0) - 0.5).abs() < 1e-9);
        assert!((place(Axis::log(""), [1.0, 100.0], 10.0) - 0.5).abs() < 1e-9);
        assert!(place(Axis::log(""), [1.0, 100.0], 0.0).abs() < 1e-9);
    }
}
