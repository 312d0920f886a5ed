//! The time of day, which tokens refer to.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a reading of the system's clock is used; tokens count whole seconds.
const READING_LASTS: Duration = Duration::from_millis(500);

/// One worker's clock.
#[derive(Debug, Default)]
pub(super) struct Clock(Cell<Option<(Instant, u64)>>);

impl Clock {
    /// Seconds since 1970 at `now`.
    pub(super) fn seconds(&self, now: Instant) -> u64 {
        match self.0.get() {
            Some((read, seconds)) if now.saturating_duration_since(read) < READING_LASTS => seconds,
            _ => {
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                self.0.set(Some((now, seconds)));
                seconds
            }
        }
    }
}
