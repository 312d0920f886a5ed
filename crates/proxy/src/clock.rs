//! Wall-clock times, computed from the monotonic clock: the one place where workers read the wall clock.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_upstream::turn;
use tokio::time::Instant;

/// How often the wall clock is compared with the monotonic one; in between it is computed.
const WALL_CLOCK_TRUSTED: Duration = Duration::from_secs(1);

thread_local! {
    static WALL: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
}

/// The wall-clock time at a recent moment of the monotonic clock.
pub(crate) fn wall_clock(at: Instant) -> SystemTime {
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

/// The present time, in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    wall_clock(turn::now()).duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

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
