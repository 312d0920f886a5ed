//! A connection's entry in its worker's roster, held by the connection: what it reports, and what it is asked to do at its
//! next message boundary.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use evenkeel_runtime_config::listener::{FilterChain, TrafficDirection};

use super::Worker;
use super::roster::Entry;
use super::work::Cause;
use crate::overload::{Exhausted, Limit, MemoryLimit, Permit};
use crate::stats::listener;
use crate::stats::worker::Counter;

/// Bytes of bodies that cost as much as a request's head.
const BYTES_PER_UNIT: u64 = 16 * 1024;
/// Units that one message counts for at most, so that sums do not overflow.
const MAX_UNITS: u32 = 1 << 16;

/// What a connection is to do at its next message boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Directive {
    /// Go on.
    Stay,
    /// Go to that worker, for this cause.
    MoveTo(usize, Cause),
    /// Go to the process that takes over from this one.
    HandOver,
    /// End: the process, the listener or the filter chain drains.
    Drain,
}

/// A connection's entry in its worker's roster.
pub(crate) struct Registration {
    worker: Rc<Worker>,
    key: usize,
    /// The count of drains at the last look, and what it showed.
    seen_drains: Cell<u32>,
    drains: Cell<bool>,
    /// The limit of requests of the listener that serves it.
    requests: OnceCell<Arc<Limit>>,
    /// The limit of memory of the listener that accepted it.
    memory: OnceCell<Arc<MemoryLimit>>,
}

impl Registration {
    pub(super) fn new(worker: &Rc<Worker>) -> Self {
        let entry = Entry { since: worker.balance.epoch(), ..Entry::default() };
        let key = worker.roster.connections.borrow_mut().insert(entry);
        Self {
            worker: Rc::clone(worker),
            key,
            seen_drains: Cell::new(0),
            drains: Cell::new(false),
            requests: OnceCell::new(),
            memory: OnceCell::new(),
        }
    }

    pub(super) fn key(&self) -> usize {
        self.key
    }

    /// Names the chain that serves this connection, and its listener's direction.
    pub(crate) fn served_by(&self, chain: &Arc<FilterChain>, direction: TrafficDirection) {
        self.with(|entry| {
            entry.chain = Some(Arc::clone(chain));
            entry.direction = direction;
        });
        self.look_at_drains();
    }

    /// Names the limit that requests of this connection count against.
    pub(crate) fn limit_requests(&self, limit: Arc<Limit>) {
        _ = self.requests.set(limit);
    }

    /// That limit.
    pub(crate) fn request_limit(&self) -> Option<Arc<Limit>> {
        self.requests.get().cloned()
    }

    /// Names the limit that this connection's buffers count against.
    pub(crate) fn limit_memory(&self, limit: Arc<MemoryLimit>) {
        self.with(|entry| entry.memory = Some(Arc::clone(&limit)));
        _ = self.memory.set(limit);
    }

    /// That limit.
    pub(crate) fn memory_limit(&self) -> Option<Arc<MemoryLimit>> {
        self.memory.get().cloned()
    }

    /// This connection's buffers hold so many bytes more, or fewer.
    pub(crate) fn hold(&self, bytes: i64) {
        self.with(|entry| entry.held += bytes);
    }

    /// What they hold.
    pub(crate) fn held(&self) -> i64 {
        self.with(|entry| entry.held).unwrap_or(0)
    }

    /// The connection does not read for a while, because its listener's memory is scarce.
    pub(crate) fn count_pause(&self, limit: &Arc<MemoryLimit>) {
        self.worker.count_for_memory(limit, listener::Counter::downstream_cx_memory_paused, 1);
    }

    /// The limit is passed by so many bytes: connections of this worker that hold much end.
    pub(crate) fn relieve(&self, limit: &Arc<MemoryLimit>, bytes: u64) {
        let cut = self.worker.roster.relieve(limit, bytes);
        if cut > 0 {
            tracing::warn!(count = cut, "memory limit: connections that hold the most are closed");
            self.worker.count_for_memory(limit, listener::Counter::downstream_cx_memory_cut, cut);
        }
    }

    /// Says that this task looks at [`Registration::is_cut`] whenever it is woken.
    pub(crate) fn ends_itself(&self) {
        self.with(|entry| entry.ends_itself = true);
    }

    /// Whether the connection is to end where it stands.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.with(|entry| entry.cut) == Some(true)
    }

    /// Lets a request in, if its listener's limits allow another.
    #[inline]
    pub(crate) fn admit_request(&self) -> Result<Option<Permit>, Exhausted> {
        if self.memory.get().is_some_and(|memory| memory.is_reached()) {
            return Err(Exhausted);
        }
        self.requests.get().map(Limit::try_acquire).transpose()
    }

    /// Says that this connection can move to another worker at a message boundary.
    pub(crate) fn set_movable(&self) {
        self.with(|entry| entry.movable = true);
    }

    /// Says that this connection can go to another process.
    pub(crate) fn set_travels(&self, travels: bool) {
        self.with(|entry| entry.travels = travels);
        self.look_at_drains();
    }

    /// Whether a successor is waiting for this connection.
    #[inline]
    pub(crate) fn is_awaited_by_successor(&self) -> bool {
        self.worker.drains.giving_away() && !self.drains() && self.with(|entry| entry.travels) == Some(true)
    }

    /// Wakes this task when there is a directive for it. Cheap to call at every poll: a task's waker stays the same.
    #[inline]
    pub(crate) fn watch(&self, waker: &Waker) {
        self.with(|entry| {
            if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                entry.waker = Some(waker.clone());
            }
        });
    }

    /// Counts a message served on this connection, with so many bytes of bodies.
    #[inline]
    pub(crate) fn worked(&self, body_bytes: u64) {
        let units = 1 + u32::try_from(body_bytes / BYTES_PER_UNIT).unwrap_or(u32::MAX).min(MAX_UNITS);
        let epoch = self.worker.balance.epoch();
        // What it does first it may never do again: many connections that come and have one request each are no load to move.
        let counted = self.with(|entry| {
            let stays = entry.since != epoch;
            if stays {
                entry.work.add(units, epoch);
            }
            stays
        });
        if counted != Some(true) {
            let mut fleeting = self.worker.roster.fleeting.get();
            fleeting.add(units, epoch);
            self.worker.roster.fleeting.set(fleeting);
        }
        self.worker.stats.add(Counter::work_total, u64::from(units));
    }

    /// What is asked of this connection.
    #[inline]
    pub(crate) fn directive(&self) -> Directive {
        if self.drains() {
            return Directive::Drain;
        }
        if self.is_awaited_by_successor() {
            return Directive::HandOver;
        }
        let order = self.with(|entry| entry.order).flatten().and_then(|order| order.at(self.worker.balance.epoch()));
        order.map_or(Directive::Stay, |(to, cause)| Directive::MoveTo(to, cause))
    }

    /// Whether this connection is to end at its next message boundary.
    #[inline]
    pub(crate) fn drains(&self) -> bool {
        if self.seen_drains.get() != self.worker.drains.count() {
            self.look_at_drains();
        }
        self.drains.get()
    }

    fn look_at_drains(&self) {
        let drains = &self.worker.drains;
        self.seen_drains.set(drains.count());
        let covered = |entry: &mut Entry| {
            let (chain, direction) = (entry.chain.as_ref(), entry.direction);
            let stays_behind = drains.giving_away() && !entry.travels;
            stays_behind || chain.is_some_and(|chain| drains.covers(chain, direction))
        };
        self.drains.set(self.with(covered).unwrap_or(false));
    }

    /// The connection stays where it is after all.
    pub(crate) fn forget_order(&self) {
        self.with(|entry| entry.order = None);
    }

    #[inline]
    fn with<T>(&self, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.worker.roster.connections.borrow_mut().get_mut(self.key).map(change)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (roster, epoch) = (&self.worker.roster, self.worker.balance.epoch());
        // One that was told to move goes on elsewhere, with its work.
        let leaves = |entry: &Entry| entry.order.is_some_and(|order| order.at(epoch).is_some());
        let removed = roster.connections.borrow_mut().try_remove(self.key);
        if let Some(entry) = removed.filter(|entry| !leaves(entry)) {
            let mut fleeting = roster.fleeting.get();
            fleeting.absorb(entry.work, epoch);
            roster.fleeting.set(fleeting);
        }
    }
}
