//! Medians and percentiles, and a least-squares fit.

use serde::{Deserialize, Serialize};

/// The distribution of a set of values. Percentiles are by nearest rank, so each is a measured value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The number of values.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// 98th percentile.
    pub p98: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Distribution {
    /// The distribution of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |fraction: f64| nearest_rank(&values, fraction);
        Some(Self { count: values.len(), p50: at(0.50)?, p98: at(0.98)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

/// The smallest value that at least `fraction` of the sorted values do not exceed.
fn nearest_rank(sorted: &[f64], fraction: f64) -> Option<f64> {
    let rank = (fraction * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).or(sorted.last()).copied()
}

/// Median, least and greatest of a series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median; of an even number of values, the mean of the middle two.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// One value.
    pub fn one(value: f64) -> Self {
        Self { median: value, min: value, max: value }
    }

    /// `None` for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len() % 2 == 1 { upper } else { (upper + values.get(middle - 1)?) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// Formats a median with its spread, with `digits` digits after the point; a dash for none.
pub fn show(spread: Option<Spread>, digits: usize) -> String {
    match spread {
        None => "–".to_owned(),
        Some(one) if one.min == one.max => format!("{:.digits$}", one.median),
        Some(s) => format!("{:.digits$} ({:.digits$}–{:.digits$})", s.median, s.min, s.max),
    }
}

/// Formats a median with its spread, with significant digits only.
pub fn show_numbers(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if min == max { number(median) } else { format!("{} ({}–{})", number(median), number(min), number(max)) }
}

/// Formats a number with its significant digits only.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.2}"),
    }
}

/// Fits the plane `z = a + b·x + c·y` to the points by least squares of the relative error, so that a small mesh counts
/// as much as a large one. `None` if the points do not determine a plane.
pub fn plane(points: &[(f64, f64, f64)]) -> Option<[f64; 3]> {
    let mut equations = [[0.0f64; 4]; 3];
    for (x, y, z) in points.iter().filter(|(_, _, z)| *z > 0.0) {
        let row = [1.0 / z, x / z, y / z];
        for (equation, factor) in equations.iter_mut().zip(row) {
            for (cell, value) in equation.iter_mut().zip(row.into_iter().chain([1.0])) {
                *cell += factor * value;
            }
        }
    }
    solve(equations)
}

/// If elimination reduces a coefficient below this fraction, the equations are linearly dependent.
const SINGULAR: f64 = 1e-9;

/// Solves three equations for three unknowns, by Gaussian elimination with the largest pivot.
fn solve(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    let sizes = [0, 1, 2].map(|column| rows[column][column]);
    for column in 0..3 {
        let pivot = (column..3).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        let head = rows[column];
        if head[column].abs() <= SINGULAR * sizes[column] {
            return None;
        }
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column] / head[column];
            row.iter_mut().zip(head).for_each(|(cell, above)| *cell -= factor * above);
        }
    }
    Some([0, 1, 2].map(|index| rows[index][3] / rows[index][index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let check = |value, expected| assert_eq!(number(value), expected);
        check(0.0, "0");
        check(0.126, "0.13");
        check(12.34, "12.3");
        check(1234.5, "1234");
        check(12_345_678.0, "12.35M");
    }

    #[test]
    fn a_plane_is_found_again() {
        let points = [(100.0, 200.0), (350.0, 200.0), (1400.0, 50.0), (1400.0, 400.0), (5600.0, 200.0)];
        let on_plane = points.map(|(x, y)| (x, y, 2.0 + 0.001 * x + 0.02 * y));
        let [a, b, c] = plane(&on_plane).expect("five points");
        assert!((a - 2.0).abs() < 1e-6 && (b - 0.001).abs() < 1e-9 && (c - 0.02).abs() < 1e-9, "{a} {b} {c}");
        assert_eq!(plane(&on_plane[..2]), None);
        assert_eq!(plane(&[]), None);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let check = |values: Vec<f64>, expected: Option<[f64; 4]>| {
            let spread = Distribution::of(values.clone()).map(|s| [s.p50, s.p98, s.p99, s.max]);
            assert_eq!(spread, expected, "{values:?}");
        };
        check(vec![], None);
        check(vec![7.0], Some([7.0; 4]));
        check(vec![3.0, 1.0, 2.0], Some([2.0, 3.0, 3.0, 3.0]));
        check((1..=100).rev().map(f64::from).collect(), Some([50.0, 98.0, 99.0, 100.0]));
        check((1..=1000).map(f64::from).collect(), Some([500.0, 980.0, 990.0, 1000.0]));
    }

    #[test]
    fn median_of_odd_even_and_none() {
        let check = |values: &[f64], median: Option<f64>| {
            assert_eq!(Spread::of(values.iter().copied()).map(|spread| spread.median), median, "{values:?}");
        };
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 1.0, 2.0, 9.0], Some(3.0));
    }
}
