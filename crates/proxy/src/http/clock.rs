//! Time as a connection sees it: read once per turn of its task, not once per question.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The wall clock is compared with the monotonic one this often; in between it is calculated.
const WALL_CLOCK_TRUSTED: Duration = Duration::from_secs(1);

thread_local! {
    static WALL: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
}

/// A reading that holds until the task has waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    now: Instant,
    waited: bool,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { now: Instant::now(), waited: false }
    }

    /// The time of this turn.
    #[inline]
    pub(super) fn now(&mut self) -> Instant {
        if self.waited {
            *self = Self::new();
        }
        self.now
    }

    /// The task waited, or is about to: the next reading is a new one.
    #[inline]
    pub(super) fn wait(&mut self) {
        self.waited = true;
    }
}

/// The wall clock's time at a recent moment of the monotonic one.
pub(super) fn wall_clock(at: Instant) -> SystemTime {
    if let Some((then, wall)) = WALL.get() {
        match at.checked_duration_since(then) {
            Some(after) if after < WALL_CLOCK_TRUSTED => return wall + after,
            Some(_) => {}
            None => return wall - then.saturating_duration_since(at),
        }
    }
    let (then, wall) = (Instant::now(), SystemTime::now());
    WALL.set(Some((then, wall)));
    wall - then.saturating_duration_since(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_still_within_a_turn() {
        let mut clock = Clock::new();
        let first = clock.now();
        while Instant::now() == first {}
        assert_eq!(clock.now(), first);
        clock.wait();
        assert!(clock.now() > first);
    }

    #[test]
    fn the_wall_clock_follows() {
        let now = Instant::now();
        let wall = wall_clock(now);
        assert_eq!(
            wall_clock(now + Duration::from_millis(300)).duration_since(wall).ok(),
            Some(Duration::from_millis(300))
        );
        let off = SystemTime::now().duration_since(wall).unwrap_or_default();
        assert!(off < Duration::from_secs(60), "{off:?}");
    }
}
