//! A limit on the bytes held by the buffers of a listener's connections, counted over all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A limit and how much of it is used. Workers add the change caused by each poll of a task, in one step.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    max: i64,
    held: AtomicI64,
}

impl MemoryLimit {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max: i64::try_from(max).unwrap_or(i64::MAX), held: AtomicI64::new(0) })
    }

    /// Adds `bytes` (may be negative); returns by how much the limit is now exceeded.
    pub(crate) fn add(&self, bytes: i64) -> u64 {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        u64::try_from(held.saturating_sub(self.max)).unwrap_or(0)
    }

    /// Whether the limit is reached: no more connections or requests are accepted.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.max
    }

    /// Whether little is left (a quarter or less): connections that hold much are slowed down, so that others need not
    /// be closed.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        self.held.load(Ordering::Relaxed) / 3 >= self.max / 4
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> i64 {
        self.held.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_by_how_much_it_is_passed() {
        let limit = MemoryLimit::new(100);
        assert_eq!((limit.add(70), limit.is_scarce()), (0, false));
        assert_eq!((limit.add(5), limit.is_scarce()), (0, true));
        assert_eq!((limit.add(24), limit.is_reached()), (0, false));
        assert_eq!((limit.add(1), limit.is_reached()), (0, true));
        assert_eq!(limit.add(30), 30);
        assert_eq!((limit.add(-31), limit.is_reached(), limit.held()), (0, false, 99));
    }
}
