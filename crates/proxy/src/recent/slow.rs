//! The slowest requests of this minute and of the one before.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::explain::query::RecentRequest;
use tokio::time::Instant;

/// Requests that are kept of each minute.
const MOST: usize = 16;
/// A request that takes less time than this is not slow.
const LEAST: Duration = Duration::from_millis(10);
/// How long requests compete with each other.
const MINUTE: Duration = Duration::from_secs(60);

/// The slowest requests of one worker.
pub(super) struct Slowest {
    /// The time that requests take at least, when a minute begins.
    floor: Duration,
    /// A request that takes less time is not one of the slowest.
    least: Cell<Duration>,
    /// When this minute began.
    began: Cell<Instant>,
    present: RefCell<Vec<Arc<RecentRequest>>>,
    past: RefCell<Vec<Arc<RecentRequest>>>,
}

impl Slowest {
    /// None yet. `keeps`: otherwise none ever.
    pub(super) fn new(now: Instant, keeps: bool) -> Self {
        let floor = if keeps { LEAST } else { Duration::MAX };
        let (present, past) = (RefCell::default(), RefCell::default());
        Self { floor, least: Cell::new(floor), began: Cell::new(now), present, past }
    }

    /// The time that a request takes at least to be kept.
    #[inline]
    pub(super) fn least(&self) -> Duration {
        self.least.get()
    }

    /// Begins another minute, if this one is over.
    pub(super) fn turn(&self, now: Instant) {
        if now.saturating_duration_since(self.began.get()) >= MINUTE {
            self.began.set(now);
            self.past.replace(self.present.take());
            self.least.set(self.floor);
        }
    }

    /// Keeps a request that takes at least [`Slowest::least`].
    pub(super) fn keep(&self, request: &Arc<RecentRequest>) {
        let mut present = self.present.borrow_mut();
        present.push(Arc::clone(request));
        if present.len() <= MOST {
            return;
        }
        present.sort_by_key(|request| std::cmp::Reverse(request.duration_us));
        present.truncate(MOST);
        let least = present.last().map(|request| Duration::from_micros(request.duration_us));
        self.least.set(least.unwrap_or(LEAST).max(LEAST));
    }

    /// The requests of both minutes.
    pub(super) fn all(&self) -> Vec<Arc<RecentRequest>> {
        self.past.borrow().iter().chain(&*self.present.borrow()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(millis: u64) -> Arc<RecentRequest> {
        Arc::new(RecentRequest { duration_us: millis * 1000, ..RecentRequest::default() })
    }

    #[test]
    fn the_slowest_of_two_minutes_are_kept() {
        let start = Instant::now();
        let slowest = Slowest::new(start, true);
        assert_eq!(slowest.least(), LEAST);
        (10..100).for_each(|millis| slowest.keep(&request(millis)));
        assert_eq!(slowest.least(), Duration::from_millis(100 - MOST as u64));
        slowest.turn(start + MINUTE / 2);
        assert_eq!(slowest.all().len(), MOST);
        slowest.turn(start + MINUTE);
        assert_eq!(slowest.least(), LEAST, "another minute");
        slowest.keep(&request(12));
        assert_eq!(slowest.all().len(), MOST + 1);
        slowest.turn(start + MINUTE * 2);
        assert_eq!(slowest.all().len(), 1);
        assert_eq!(Slowest::new(start, false).least(), Duration::MAX);
    }
}
