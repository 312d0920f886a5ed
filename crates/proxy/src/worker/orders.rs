//! Which connections of a worker move when it is to give load or connections away.

use std::cmp::Reverse;

use super::roster::Roster;
use super::work::{Cause, Order};
use crate::balance::{Level, Shed};

/// Connections considered; the dearest, or coldest, of a worker's are among the first to be found.
const MAX_CANDIDATES: usize = 16 * 1024;
/// Connections told to move at once.
const MAX_MOVES: usize = 512;
/// Looks at the load for which a connection must have been here to move for the sake of counts: it may soon be gone.
const MIN_AGE: u32 = 5;

impl Roster {
    /// Tells connections to move, the dearest first, so that the load comes as near to its mean as they allow. A move that
    /// would only exchange the heavier and the lighter worker is not made.
    pub(super) fn shed(&self, shed: &Shed, epoch: u32) {
        // What was said before does not hold any more: the load was another.
        self.connections.borrow_mut().iter_mut().for_each(|(_, entry)| entry.order = None);
        let (total, mut dearest) = self.weigh(epoch, |work, _| work > 0);
        dearest.sort_unstable_by_key(|(work, _, key)| Reverse((*work, *key)));
        self.order(shed.choose(shares(dearest, total, shed.load)), Cause::Load, epoch);
    }

    /// Tells connections to move, the coldest first and of these those that have had nothing to do for the longest time.
    pub(super) fn level(&self, level: &Level, epoch: u32) {
        let (total, mut coldest) = self.weigh(epoch, |_, age| age >= MIN_AGE);
        coldest.sort_unstable_by_key(|(work, idle, key)| (*work, Reverse(*idle), *key));
        self.order(level.choose(shares(coldest, total, level.load)), Cause::Count, epoch);
    }

    /// What was done lately, also by connections that have closed since; and of those that can move, have no order to, and may
    /// by their work and age: the work, for how many looks there was none, and the key.
    fn weigh(&self, epoch: u32, may: impl Fn(u32, u32) -> bool) -> (u64, Vec<(u32, u32, usize)>) {
        let (mut total, mut candidates) = (u64::from(self.fleeting.get().at(epoch)), Vec::new());
        for (key, entry) in self.connections.borrow().iter() {
            let (work, age) = (entry.work.at(epoch), epoch.wrapping_sub(entry.since));
            total += u64::from(work);
            let free = entry.movable && entry.order.and_then(|order| order.at(epoch)).is_none();
            if free && may(work, age) && candidates.len() < MAX_CANDIDATES {
                let idle = entry.work.last().map_or(age, |last| epoch.wrapping_sub(last));
                candidates.push((work, idle, key));
            }
        }
        (total, candidates)
    }

    fn order(&self, moves: impl Iterator<Item = (usize, usize)>, cause: Cause, epoch: u32) {
        let mut connections = self.connections.borrow_mut();
        for (key, to) in moves.take(MAX_MOVES) {
            if let (Some(entry), Ok(to)) = (connections.get_mut(key), u16::try_from(to)) {
                entry.order = Some(Order { to, cause, epoch });
                if let Some(waker) = &entry.waker {
                    waker.wake_by_ref();
                }
            }
        }
    }
}

/// What each candidate costs, as its part of the worker's load.
fn shares(candidates: Vec<(u32, u32, usize)>, total: u64, load: f64) -> impl Iterator<Item = (f64, usize)> {
    let total = total.max(1) as f64;
    candidates.into_iter().map(move |(work, _, key)| (f64::from(work) / total * load, key))
}
