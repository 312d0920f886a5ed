//! The lifetime of a series.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

/// The lifetime of a series. A series is *idle* when it has been unused for long enough: then it is not reported, and workers
/// release it at their next look-up. It *ends* when it is idle and has no holder. A holder of an idle series may count in it;
/// it is then reported again, so that nothing is lost. Counting does not need the time.
#[derive(Debug)]
pub(crate) struct Lifetime {
    /// Number of writers that hold it, or [`ENDED`].
    holders: AtomicUsize,
    idle: AtomicBool,
    /// The series' `ScopeCore::activity` when last observed, and since when it has had that value, in milliseconds.
    seen: AtomicU64,
    since: AtomicU64,
    /// Whether it counts toward the limit.
    pub(crate) limited: bool,
}

impl Lifetime {
    /// Creates the lifetime of a series that its creator holds.
    pub(crate) fn new(limited: bool) -> Self {
        Self {
            holders: AtomicUsize::new(1),
            idle: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            since: AtomicU64::new(NEVER),
            limited,
        }
    }

    /// Adds a holder, unless the series has ended.
    pub(crate) fn join(&self) -> bool {
        let more = |holders: usize| (holders != ENDED).then(|| holders + 1);
        self.holders.fetch_update(AcqRel, Acquire, more).is_ok()
    }

    /// Removes a holder.
    pub(crate) fn leave(&self) {
        self.holders.fetch_sub(1, AcqRel);
    }

    pub(crate) fn end(&self) -> bool {
        self.holders.compare_exchange(0, ENDED, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Relaxed)
    }

    pub(crate) fn is_reported(&self, activity: Option<u64>) -> bool {
        !self.is_idle() || activity != Some(self.seen.load(Relaxed))
    }

    /// Records the series' [`ScopeCore::activity`](crate::scope::ScopeCore::activity); returns true when the series becomes
    /// idle.
    pub(crate) fn observe(&self, activity: Option<u64>, now: Duration, after: Duration) -> bool {
        let now = u64::try_from(now.as_millis()).unwrap_or(NEVER - 1);
        let since = self.since.load(Relaxed);
        if since == NEVER || activity != Some(self.seen.load(Relaxed)) {
            self.seen.store(activity.unwrap_or_default(), Relaxed);
            self.since.store(now, Relaxed);
            self.idle.store(false, Relaxed);
            return false;
        }
        u128::from(now.saturating_sub(since)) >= after.as_millis() && !self.idle.swap(true, Relaxed)
    }
}

const ENDED: usize = usize::MAX;

/// Not observed yet.
const NEVER: u64 = u64::MAX;
