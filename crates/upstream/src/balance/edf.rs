//! Earliest deadline first scheduling: turns in proportion to weights that may change from turn to turn.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A queue of turns over items `0..n`. An item's next turn comes 1 ÷ weight after its last.
#[derive(Debug)]
pub(super) struct Edf {
    queue: RefCell<BinaryHeap<Deadline>>,
    queued: Cell<u64>,
}

/// When an item's turn comes. Items with equal deadlines go in the order they were queued.
#[derive(Debug, PartialEq)]
struct Deadline {
    at: f64,
    queued: u64,
    item: usize,
}

impl Eq for Deadline {}

impl Ord for Deadline {
    /// Reversed: the heap's greatest element is the earliest deadline.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then_with(|| other.queued.cmp(&self.queued))
    }
}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Edf {
    /// A queue over `items` items in the state after `turns` turns: workers and proxies that start with different
    /// numbers do not all serve the same item at the same time.
    pub fn new(items: usize, turns: u32, weight: impl Fn(usize) -> f64) -> Self {
        let edf = Self { queue: RefCell::new(BinaryHeap::with_capacity(items)), queued: Cell::new(items as u64) };
        let total: f64 = (0..items).map(&weight).map(positive).sum();
        // Whole rounds are computed directly; the remaining turns are fewer than the items.
        let mut left = u64::from(turns);
        for item in 0..items {
            let weight = positive(weight(item));
            let taken = (f64::from(turns) * weight / total).floor();
            left = left.saturating_sub(taken as u64);
            edf.queue.borrow_mut().push(Deadline { at: (taken + 1.0) / weight, queued: item as u64, item });
        }
        for _ in 0..left.min(items as u64) {
            edf.next(&weight);
        }
        edf
    }

    /// The item whose turn it is.
    pub fn next(&self, weight: impl Fn(usize) -> f64) -> Option<usize> {
        let mut queue = self.queue.borrow_mut();
        // Changed in place: one sift down the heap instead of a pop and a push.
        let mut due = queue.peek_mut()?;
        let item = due.item;
        due.at += 1.0 / positive(weight(item));
        due.queued = self.queued.replace(self.queued.get() + 1);
        Some(item)
    }
}

/// A weight made safe to divide by.
fn positive(weight: f64) -> f64 {
    weight.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[f64], skipped: u32, count: usize) -> Vec<usize> {
        let edf = Edf::new(weights.len(), skipped, |item| weights[item]);
        (0..count).filter_map(|_| edf.next(|item| weights[item])).collect()
    }

    #[test]
    fn turns_follow_the_weights_exactly() {
        assert_eq!(turns(&[1.0, 2.0], 0, 6), [1, 0, 1, 1, 0, 1]);
        assert_eq!(turns(&[1.0, 1.0, 1.0], 0, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns(&[], 5, 3), [] as [usize; 0]);
        let weights = [1.0, 2.0, 7.0];
        let mut seen = [0; 3];
        turns(&weights, 0, 1000).into_iter().for_each(|item| seen[item] += 1);
        assert_eq!(seen, [100, 200, 700]);
    }

    #[test]
    fn a_late_start_skips_turns() {
        for skipped in [0, 1, 2, 3, 7, 19, 20, 1003] {
            let weights = [1.0, 2.0, 7.0];
            let all = turns(&weights, 0, skipped as usize + 10);
            let mut counts = [0_usize; 3];
            all[skipped as usize..].iter().for_each(|item| counts[*item] += 1);
            let mut late = [0_usize; 3];
            turns(&weights, skipped, 10).into_iter().for_each(|item| late[item] += 1);
            // Turns with equal deadlines may be in another order.
            let close = late.iter().zip(counts).all(|(late, count): (&usize, usize)| late.abs_diff(count) <= 1);
            assert!(close, "{skipped} turns skipped: {late:?}, not {counts:?}");
        }
    }
}
