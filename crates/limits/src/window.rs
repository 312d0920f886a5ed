//! A limit for each window of time, as rate limit services count: windows begin at multiples of their length since 1970, so that all that
//! count agree on them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Counts in the current window.
#[derive(Debug)]
pub struct Window {
    most: u32,
    length: u64,
    /// The number of the window in the upper half, what it has counted in the lower one.
    state: AtomicU64,
}

/// The outcome of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Whether it is within the limit.
    pub fits: bool,
    /// What the window has left afterwards.
    pub left: u32,
    /// The time until the next window begins.
    pub resets_in: Duration,
}

impl Window {
    /// At most `most` in each window of `length`, which counts in whole seconds, one at least.
    pub fn new(most: u32, length: Duration) -> Self {
        Self { most, length: length.as_secs().max(1), state: AtomicU64::new(0) }
    }

    /// Counts `count` if they fit into the window of `now`; else nothing is counted.
    pub fn take(&self, count: u32, now: SystemTime) -> Used {
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = since_1970.as_secs() / self.length;
        // Two windows whose numbers agree in 32 bits are decades apart.
        let window = number as u32;
        let mut used = 0;
        let changed = self.state.fetch_update(Relaxed, Relaxed, |state| {
            let (known, counted) = ((state >> 32) as u32, state as u32);
            // A thread whose clock lags counts in the newer window.
            let is_older = known.wrapping_sub(window) as i32 >= 0;
            let (current, counted) = if is_older { (known, counted) } else { (window, 0) };
            used = counted;
            let sum = counted.checked_add(count).filter(|sum| *sum <= self.most)?;
            used = sum;
            Some(u64::from(current) << 32 | u64::from(sum))
        });
        let next = Duration::from_secs((number + 1) * self.length);
        Used { fits: changed.is_ok(), left: self.most.saturating_sub(used), resets_in: next.saturating_sub(since_1970) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_its_own_count() {
        let window = Window::new(3, Duration::from_secs(60));
        let check = |second: u64, count: u32, expected: (bool, u32, u64)| {
            let used = window.take(count, UNIX_EPOCH + Duration::from_secs(1_700_000_040 + second));
            assert_eq!((used.fits, used.left, used.resets_in.as_secs()), expected, "{count} in second {second}");
        };
        // 1,700,000,040 is a multiple of 60.
        check(0, 1, (true, 2, 60));
        check(59, 2, (true, 0, 1));
        check(59, 1, (false, 0, 1));
        check(60, 3, (true, 0, 60));
        // A clock that lags gets nothing of the window that is over.
        check(59, 1, (false, 0, 1));
        check(120, 4, (false, 3, 60));
        check(120, u32::MAX, (false, 3, 60));
        check(120, 3, (true, 0, 60));
    }

    #[test]
    fn threads_share_it_exactly() {
        let window = Window::new(1_000, Duration::from_secs(1));
        let fits = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for step in 0..4_000_u64 {
                        let now = UNIX_EPOCH + Duration::from_millis(1_000_000 + step);
                        fits.fetch_add(u64::from(window.take(1, now).fits), Relaxed);
                    }
                });
            }
        });
        // Four windows; one that a thread is late for is counted in the next.
        assert_eq!(fits.into_inner(), 4_000);
    }
}
