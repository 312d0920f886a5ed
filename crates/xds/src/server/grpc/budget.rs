//! Limits on memory that clients can make the server use: bytes of incomplete messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An amount of memory that several streams share. Bytes taken from it are also taken from the budget that it is a part
/// of.
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    taken: AtomicUsize,
    whole: Option<Arc<Budget>>,
}

impl Budget {
    /// Creates a budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, taken: AtomicUsize::new(0), whole: None })
    }

    /// Creates a budget of at most `max_bytes` within `self`.
    pub fn part(self: &Arc<Self>, max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, taken: AtomicUsize::new(0), whole: Some(self.clone()) })
    }

    /// Bytes that are taken now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.max_bytes);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return false;
        }
        let granted = self.whole.as_ref().is_none_or(|whole| whole.take(bytes));
        if !granted {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        granted
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

/// The bytes that one stream has taken from a budget; returned when dropped.
#[derive(Debug)]
pub(super) struct BudgetShare {
    budget: Arc<Budget>,
    bytes: usize,
}

impl BudgetShare {
    /// A share of no bytes.
    pub(super) fn of(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Sets the size of the share; returns false and changes nothing if the budget is exhausted.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let granted = match bytes.checked_sub(self.bytes) {
            Some(more) => more == 0 || self.budget.take(more),
            None => {
                self.budget.give_back(self.bytes - bytes);
                true
            }
        };
        if granted {
            self.bytes = bytes;
        }
        granted
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_of_the_whole_and_no_more_than_it_may() {
        let whole = Budget::new(100);
        let (mut a, mut b) = (BudgetShare::of(whole.part(60)), BudgetShare::of(whole.part(60)));
        assert!(a.set(60) && !a.set(61), "its own limit");
        assert!(!b.set(41), "what is left of the whole");
        assert!(b.set(40));
        assert_eq!(whole.taken(), 100);
        assert!(a.set(10) && b.set(60));
        drop(a);
        assert_eq!(whole.taken(), 60);
        drop(b);
        assert_eq!(whole.taken(), 0);
    }
}
