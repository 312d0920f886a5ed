//! Percentiles of what was measured.

use serde::{Deserialize, Serialize};

/// How a set of values is spread. Percentiles are by nearest rank: each is a value that was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many values.
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

impl Spread {
    /// Of these values; `None` if there are none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let check = |values: Vec<f64>, expected: Option<[f64; 4]>| {
            let spread = Spread::of(values.clone()).map(|s| [s.p50, s.p98, s.p99, s.max]);
            assert_eq!(spread, expected, "{values:?}");
        };
        check(vec![], None);
        check(vec![7.0], Some([7.0; 4]));
        check(vec![3.0, 1.0, 2.0], Some([2.0, 3.0, 3.0, 3.0]));
        check((1..=100).rev().map(f64::from).collect(), Some([50.0, 98.0, 99.0, 100.0]));
        check((1..=1000).map(f64::from).collect(), Some([500.0, 980.0, 990.0, 1000.0]));
    }
}
