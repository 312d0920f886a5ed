//! A limit on the number of objects that exist at once, counted over all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit and how much of it is used.
#[derive(Debug)]
pub(crate) struct Limit {
    max: u64,
    used: AtomicU64,
}

/// One unit of a limit; dropping it releases the unit.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Limit>);

/// The limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Limit {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicU64::new(0) })
    }

    /// Takes a unit even beyond the limit: for objects that already exist, which have to be counted, too.
    pub(crate) fn acquire_anyway(self: &Arc<Self>) -> Permit {
        self.used.fetch_add(1, Ordering::Relaxed);
        Permit(Arc::clone(self))
    }

    /// Takes a unit if the limit allows.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Result<Permit, Exhausted> {
        // A single addition in the usual case; a compare-and-swap loop would contend with other workers for the
        // counter.
        if self.used.fetch_add(1, Ordering::Relaxed) < self.max {
            return Ok(Permit(Arc::clone(self)));
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        Err(Exhausted)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_ever_exist() {
        let limit = Limit::new(10);
        let most = std::thread::scope(|scope| {
            let take =
                || (0..1000).map(|_| (0..10).filter_map(|_| limit.try_acquire().ok()).collect::<Vec<_>>().len()).max();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).max()
        });
        assert!(most <= Some(10));
        let all: Vec<_> = (0..10).map(|_| limit.try_acquire()).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(limit.try_acquire().err(), Some(Exhausted));
        drop(all);
        assert!(limit.try_acquire().is_ok());
        let more: Vec<_> = (0..11).map(|_| limit.acquire_anyway()).collect();
        assert!(limit.try_acquire().is_err());
        drop(more);
        assert!(limit.try_acquire().is_ok());
    }
}
