//! Recent requests, which each worker keeps for `evenkeel why`, `evenkeel explain --last` and `evenkeel plan`: their heads
//! without secrets, what became of them, and where their time went.
//!
//! It is a sample at a bounded rate. A request that comes when none is due costs one comparison. A request that fails is
//! kept even if none was due, at a bounded rate of its own, and so are the slowest of each minute; their heads are then as
//! their routes have left them.

mod capture;
mod notes;
mod phases;
pub(crate) mod redact;
mod slow;

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::explain::query::RecentRequest;
use tokio::time::Instant;

pub(crate) use capture::{RecentRecorder, captured};
pub(crate) use notes::{Notes, Span};
pub use redact::is_secret;
use slow::Slowest;

/// Requests that each worker keeps, unless the options say otherwise.
pub const DEFAULT_LIMIT: usize = 256;
/// Maximum number of requests that the options allow.
const MAX_LIMIT: usize = 4096;
/// Failed requests that are kept in addition, as a share of the limit: one in this many.
const FAILURES_SHARE: usize = 4;
/// Time in which one request is kept, if more come; about 10 in a second.
const INTERVAL: Duration = Duration::from_millis(100);
/// Requests that may be kept at once after a pause.
const BURST: u32 = 64;
/// A time that is never reached.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Which recent requests a worker keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The most; 0: none.
    pub limit: usize,
    /// Names of listeners whose requests are not kept.
    pub except: Vec<String>,
}

/// The recent requests of one worker.
pub(crate) struct Recent {
    worker: usize,
    limit: usize,
    except: Vec<String>,
    sample: Rate,
    failures: Rate,
    kept: RefCell<VecDeque<Arc<RecentRequest>>>,
    failed: RefCell<VecDeque<Arc<RecentRequest>>>,
    slow: Slowest,
    number: Cell<u64>,
}

/// Why a request is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// It is part of the sample.
    pub(crate) is_sampled: bool,
    /// It is one of the slowest.
    pub(crate) is_slow: bool,
    /// It failed.
    pub(crate) has_failed: bool,
}

/// A rate of one per [`INTERVAL`], and [`BURST`] after a pause.
struct Rate {
    /// The next is due from then on.
    due: Cell<Instant>,
}

impl Rate {
    #[inline]
    fn is_due(&self, now: Instant) -> bool {
        now >= self.due.get()
    }

    /// Records that one was taken.
    fn take(&self, now: Instant) {
        let burst = INTERVAL * BURST;
        // Unused time counts for so long.
        let earliest = now.checked_sub(burst).unwrap_or(now);
        self.due.set(self.due.get().max(earliest) + INTERVAL);
    }
}

impl Recent {
    /// Keeps none yet.
    pub(crate) fn new(worker: usize, Options { limit, except }: Options, now: Instant) -> Self {
        let due = match limit {
            0 => now.checked_add(NEVER).unwrap_or(now),
            _ => now.checked_sub(INTERVAL * BURST).unwrap_or(now),
        };
        let rate = || Rate { due: Cell::new(due) };
        let (kept, failed) = (RefCell::default(), RefCell::default());
        let slow = Slowest::new(now, limit > 0);
        Self { worker, limit, except, sample: rate(), failures: rate(), kept, failed, slow, number: Cell::new(0) }
    }

    /// Whether a request that begins now is due to be kept.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.sample.is_due(now)
    }

    /// Whether a request that begins now, when one is due, is kept; records that it was.
    pub(crate) fn takes(&self, connection: &ConnectionInfo, now: Instant) -> bool {
        let takes = self.is_for(connection);
        if takes {
            self.sample.take(now);
            self.slow.turn(now);
        }
        takes
    }

    /// Whether requests of this connection may be kept.
    pub(crate) fn is_for(&self, connection: &ConnectionInfo) -> bool {
        let listener = connection.listener.as_ref();
        listener.is_none_or(|listener| !self.except.iter().any(|except| **except == *listener.name))
    }

    /// Whether a request that ends now is one of the slowest of this minute.
    #[inline]
    pub(crate) fn is_slow(&self, started: Instant, now: Instant) -> bool {
        now.saturating_duration_since(started) >= self.slow.least()
    }

    /// The reasons that hold for a request that ends now; `None`: it is not kept.
    pub(crate) fn reasons_to_keep(
        &self,
        mut reasons: Reasons,
        connection: &ConnectionInfo,
        now: Instant,
    ) -> Option<Reasons> {
        if !reasons.is_sampled {
            if !self.is_for(connection) {
                return None;
            }
            reasons.has_failed &= self.failures.is_due(now);
            if reasons.has_failed {
                self.failures.take(now);
            }
        }
        self.slow.turn(now);
        (reasons != Reasons::default()).then_some(reasons)
    }

    /// Keeps a request that has ended.
    pub(crate) fn keep(&self, mut request: RecentRequest, reasons: Reasons) {
        if self.limit == 0 {
            return;
        }
        let number = self.number.get();
        self.number.set(number + 1);
        if request.id.is_empty() {
            request.id = format!("{}-{number}", self.worker);
        }
        request.worker = self.worker;
        let request = Arc::new(request);
        if reasons.is_slow {
            self.slow.keep(&request);
        }
        let add = |ring: &RefCell<VecDeque<_>>, most: usize| {
            let mut ring = ring.borrow_mut();
            if ring.len() >= most {
                ring.pop_front();
            }
            ring.push_back(Arc::clone(&request));
        };
        if reasons.is_sampled {
            add(&self.kept, self.limit);
        }
        if reasons.has_failed {
            add(&self.failed, (self.limit / FAILURES_SHARE).max(1));
        }
    }

    /// Returns the requests that are kept.
    pub(crate) fn kept(&self) -> Vec<Arc<RecentRequest>> {
        let (sampled, failed) = (self.kept.borrow(), self.failed.borrow());
        let slow = self.slow.all();
        let mut known = HashSet::new();
        let mut all: Vec<_> = sampled.iter().chain(&*failed).chain(&slow).cloned().collect();
        // A request may be kept for several reasons.
        all.retain(|request| known.insert(Arc::as_ptr(request)));
        all
    }
}

/// Reads the option.
pub fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(limit) if limit <= MAX_LIMIT => Ok(limit),
        _ => Err(format!("expected a number from 0 (none) to {MAX_LIMIT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(recent: &Recent, times: impl Iterator<Item = Instant>) -> usize {
        let take = |now: &Instant| {
            let is_due = recent.is_due(*now);
            if is_due {
                recent.sample.take(*now);
            }
            is_due
        };
        times.filter(take).count()
    }

    #[test]
    fn the_rate_is_bounded_and_a_burst_is_kept() {
        let start = Instant::now();
        let of = |limit| Options { limit, except: Vec::new() };
        let check = |limit: usize, every_us: u64, seconds: u64, expected: usize| {
            let recent = Recent::new(0, of(limit), start);
            let times = (0..seconds * 1_000_000 / every_us).map(|n| start + Duration::from_micros(n * every_us));
            let count = taken(&recent, times);
            assert!(count.abs_diff(expected) <= 1, "{count} instead of {expected}: one in {every_us} us");
        };
        check(256, 500_000, 60, 120);
        check(256, 100_000, 60, 600);
        // Thousands a second: ten a second are kept.
        check(256, 100, 10, 100 + BURST as usize);
        check(0, 100_000, 10, 0);
        // After a pause, those that come at once.
        let (recent, later) = (Recent::new(0, of(256), start), start + Duration::from_secs(60));
        assert_eq!(taken(&recent, (0..1000).map(|n| later + Duration::from_micros(n))), BURST as usize + 1);
    }

    #[test]
    fn the_oldest_make_room_and_failures_have_their_own() {
        let recent = Recent::new(3, Options { limit: 8, except: Vec::new() }, Instant::now());
        let request = |id: &str, edited| RecentRequest { id: id.to_owned(), edited, ..RecentRequest::default() };
        let (sampled, failed) =
            (Reasons { is_sampled: true, ..Reasons::default() }, Reasons { has_failed: true, ..Reasons::default() });
        (0..20).for_each(|n| recent.keep(request(&n.to_string(), false), sampled));
        (0..20).for_each(|_| recent.keep(request("", true), failed));
        let ids: Vec<String> = recent.kept().iter().map(|request| request.id.clone()).collect();
        assert_eq!(ids, ["12", "13", "14", "15", "16", "17", "18", "19", "3-38", "3-39"]);
        let off = Recent::new(0, Options::default(), Instant::now());
        off.keep(request("x", true), failed);
        assert!(off.kept().is_empty());
    }
}
