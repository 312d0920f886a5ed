//! Ages of changes: the time from when the control plane notices a change until a proxy applies it. The proxy collects
//! them and sends them in its reports. Clocks of different machines differ, so a negative age counts as zero.

use crate::evenkeel;

/// Upper bounds of the buckets, in microseconds; one more bucket has the longer ones.
pub const BOUNDS_US: [u64; 16] = [
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    3_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
];

/// Maximum number of ages kept individually between two reports, for the quantiles; then new ones replace the oldest.
const MAX_SAMPLES: usize = 1024;

/// Ages collected since the last report.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    samples: Vec<u64>,
    next: usize,
    count: u64,
    sum_us: u64,
    buckets: [u64; BOUNDS_US.len() + 1],
}

impl Ages {
    /// Records that a change of `cause_us` was applied at `now_us`, both in microseconds since 1970. An unknown cause
    /// (0) is not counted.
    pub fn record(&mut self, cause_us: u64, now_us: u64) {
        if cause_us == 0 {
            return;
        }
        let age = now_us.saturating_sub(cause_us);
        match self.samples.get_mut(self.next) {
            Some(oldest) => *oldest = age,
            None => self.samples.push(age),
        }
        self.next = (self.next + 1) % MAX_SAMPLES;
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(age);
        let bucket = BOUNDS_US.iter().position(|bound| age <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket] += 1;
    }

    /// Returns the collected ages and starts over; `None` if there are none.
    pub fn take(&mut self) -> Option<evenkeel::Ages> {
        let mut ages = std::mem::take(self);
        ages.samples.sort_unstable();
        let last = ages.samples.len().checked_sub(1)?;
        let quantile = |percent: usize| ages.samples.get((last * percent).div_ceil(100)).copied().unwrap_or_default();
        Some(evenkeel::Ages {
            count: ages.count,
            sum_us: ages.sum_us,
            p50_us: quantile(50),
            p99_us: quantile(99),
            max_us: quantile(100),
            buckets: ages.buckets.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_buckets() {
        let mut ages = Ages::default();
        assert_eq!(ages.take(), None);
        for age in (1..=100).rev() {
            ages.record(1_000_000, 1_000_000 + age * 1_000);
        }
        ages.record(0, 5);
        ages.record(2_000_000, 1_000_000);
        let taken = ages.take().expect("ages");
        assert_eq!((taken.count, taken.p50_us, taken.p99_us, taken.max_us), (101, 50_000, 99_000, 100_000));
        assert_eq!(taken.buckets.iter().sum::<u64>(), 101);
        assert_eq!(taken.buckets.get(..5), Some(&[1, 1, 1, 3, 5][..]));
        assert_eq!(ages.take(), None);
        (0..3000).for_each(|_| ages.record(1, 11));
        assert_eq!(ages.take().map(|ages| (ages.count, ages.max_us)), Some((3000, 10)));
    }
}
