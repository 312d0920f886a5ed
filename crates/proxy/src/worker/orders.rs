//! Selects which connections of a worker move when it has to give load or connections away.

use std::cmp::Reverse;

use super::roster::Roster;
use super::work::{Cause, Order};
use crate::balance::{Level, LoadTransfer};

/// Maximum number of candidates. The first ones found are assumed to include enough of the most expensive, or coldest.
const MAX_CANDIDATES: usize = 16 * 1024;
/// Maximum number of connections told to move at once.
const MAX_MOVES: usize = 512;
/// Looks for which a connection must have been here before it moves for the sake of counts: a newer one may soon be
/// closed.
const MIN_AGE: u32 = 5;

impl Roster {
    /// Tells connections to move, the most expensive first, so that the load gets as close to the mean as they allow. A
    /// move that would merely swap the heavier and the lighter worker is not made.
    pub(super) fn shed(&self, shed: &LoadTransfer, epoch: u32) {
        // Earlier orders are void: they were based on another load.
        self.connections.borrow_mut().iter_mut().for_each(|(_, entry)| entry.order = None);
        let (total, mut dearest) = self.weigh(epoch, |work, _| work > 0);
        dearest.sort_unstable_by_key(|(work, _, key)| Reverse((*work, *key)));
        self.order(shed.choose(shares(dearest, total, shed.load)), Cause::Load, epoch);
    }

    /// Tells connections to move, the coldest first; among equals, those that have been idle the longest.
    pub(super) fn level(&self, level: &Level, epoch: u32) {
        let (total, mut coldest) = self.weigh(epoch, |_, age| age >= MIN_AGE);
        coldest.sort_unstable_by_key(|(work, idle, key)| (*work, Reverse(*idle), *key));
        self.order(level.choose(shares(coldest, total, level.load)), Cause::Count, epoch);
    }

    /// The worker's recent work, including that of connections closed since, and the candidates: connections that can
    /// move, have no pending order, and satisfy `may` (called with work and age). For each: its work, the samples since
    /// its last work, and its key.
    fn weigh(&self, epoch: u32, may: impl Fn(u32, u32) -> bool) -> (u64, Vec<(u32, u32, usize)>) {
        let (mut total, mut candidates) = (u64::from(self.short_lived.get().at(epoch)), Vec::new());
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

/// The cost of each candidate, as its share of the worker's load.
fn shares(candidates: Vec<(u32, u32, usize)>, total: u64, load: f64) -> impl Iterator<Item = (f64, usize)> {
    let total = total.max(1) as f64;
    candidates.into_iter().map(move |(work, _, key)| (f64::from(work) / total * load, key))
}
