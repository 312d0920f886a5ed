//! When something was noticed.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment, by two clocks: one to measure with and one to show.
#[derive(Debug, Clone, Copy)]
pub struct Noticed {
    /// By the monotonic clock.
    pub instant: Instant,
    /// By the wall clock.
    pub time: SystemTime,
}

impl Noticed {
    /// Returns the current moment.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    /// Returns the time in microseconds since 1970.
    pub fn unix_micros(self) -> u64 {
        self.time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}
