//! The number of requests in the last interval, counted across all workers without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Parts of an interval: so precisely a request is forgotten, as in Envoy.
const PARTS: u64 = 10;
/// The parts of an interval, and the current part.
const SLOTS: usize = PARTS as usize + 1;

/// Number of requests that have begun, by parts of an interval.
#[derive(Debug, Default)]
pub(super) struct Recent {
    since: OnceLock<Instant>,
    /// Each has the number of its part in the upper half, and the requests of that part in the lower.
    slots: [AtomicU64; SLOTS],
}

impl Recent {
    /// Counts a request that begins now.
    pub(super) fn count(&self, now: Instant, interval: Duration) {
        let part = self.part(now, interval);
        let Some(slot) = self.slots.get(part as usize % SLOTS) else { return };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let count = if (held >> 32) as u32 == part { held as u32 } else { 0 };
            Some(u64::from(part) << 32 | u64::from(count.saturating_add(1)))
        });
    }

    /// The requests that have begun within the interval.
    pub(super) fn within(&self, now: Instant, interval: Duration) -> u32 {
        let part = self.part(now, interval);
        let held = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        let known = held.filter(|held| part.wrapping_sub((held >> 32) as u32) <= PARTS as u32);
        known.fold(0, |sum: u32, held| sum.saturating_add(held as u32))
    }

    /// Returns the number of the part that contains `now`. Numbers wrap after 2³² parts.
    fn part(&self, now: Instant, interval: Duration) -> u32 {
        let passed = now.saturating_duration_since(*self.since.get_or_init(|| now));
        let length = (interval.as_nanos() / u128::from(PARTS)).max(1);
        (passed.as_nanos() / length) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_for_an_interval_and_no_longer() {
        let (recent, start, interval) = (Recent::default(), Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(recent.within(at(0), interval), 0);
        for (seconds, requests) in [(0, 3), (5, 2), (9, 1)] {
            (0..requests).for_each(|_| recent.count(at(seconds), interval));
        }
        for (seconds, expected) in [(9, 6), (10, 6), (11, 3), (15, 3), (16, 1), (20, 0), (1_000, 0)] {
            assert_eq!(recent.within(at(seconds), interval), expected, "after {seconds} s");
        }
        recent.count(at(1_000), interval);
        assert_eq!(recent.within(at(1_000), interval), 1);
    }
}
