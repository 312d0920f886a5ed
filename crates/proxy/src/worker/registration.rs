//! A connection's handle of its entry in the worker's roster: through it the connection reports its work, and learns
//! what to do at its next message boundary.

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

/// Body bytes that cost as much as a request's head.
const BYTES_PER_UNIT: u64 = 16 * 1024;
/// Maximum units counted for one message, so that sums do not overflow.
const MAX_UNITS: u32 = 1 << 16;

/// What a connection has to do at its next message boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Directive {
    /// Continue.
    Stay,
    /// Move to that worker, for this cause.
    MoveTo(usize, Cause),
    /// Be handed over to the successor process.
    HandOver,
    /// Close: the process, the listener or the filter chain is draining.
    Drain,
}

/// A connection's handle of its entry in its worker's roster.
pub(crate) struct Registration {
    worker: Rc<Worker>,
    key: usize,
    /// The count of drains at the last check, and the result of that check.
    seen_drains: Cell<u32>,
    drains: Cell<bool>,
    /// Request limit of the listener that serves the connection.
    requests: OnceCell<Arc<Limit>>,
    /// Memory limit of the listener that accepted the connection.
    memory: OnceCell<Arc<MemoryLimit>>,
}

impl Worker {
    /// Makes the roster entry of a connection accepted by `listener`.
    pub(crate) fn register(self: &Rc<Self>, listener: &str) -> Rc<Registration> {
        self.register_under(self.overload.memory_limit(listener))
    }

    /// Makes the roster entry of a connection whose buffers count against `memory`.
    pub(crate) fn register_under(self: &Rc<Self>, memory: Option<Arc<MemoryLimit>>) -> Rc<Registration> {
        let registration = Registration::new(self);
        if let Some(limit) = memory {
            registration.limit_memory(limit);
        }
        Rc::new(registration)
    }
}

impl Registration {
    fn new(worker: &Rc<Worker>) -> Self {
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

    /// Sets the filter chain that serves this connection, and its listener's direction.
    pub(crate) fn served_by(&self, chain: &Arc<FilterChain>, direction: TrafficDirection) {
        self.with(|entry| {
            entry.chain = Some(Arc::clone(chain));
            entry.direction = direction;
        });
        self.look_at_drains();
    }

    /// Sets the limit that requests of this connection count against.
    pub(crate) fn limit_requests(&self, limit: Arc<Limit>) {
        _ = self.requests.set(limit);
    }

    /// The limit that requests of this connection count against.
    pub(crate) fn request_limit(&self) -> Option<Arc<Limit>> {
        self.requests.get().cloned()
    }

    /// Sets the limit that this connection's buffers count against.
    pub(crate) fn limit_memory(&self, limit: Arc<MemoryLimit>) {
        self.with(|entry| entry.memory = Some(Arc::clone(&limit)));
        _ = self.memory.set(limit);
    }

    /// The limit that this connection's buffers count against.
    pub(crate) fn memory_limit(&self) -> Option<Arc<MemoryLimit>> {
        self.memory.get().cloned()
    }

    /// Adds `bytes` (may be negative) to what this connection's buffers hold.
    pub(crate) fn hold(&self, bytes: i64) {
        self.with(|entry| entry.held += bytes);
    }

    /// Bytes that this connection's buffers hold.
    pub(crate) fn held(&self) -> i64 {
        self.with(|entry| entry.held).unwrap_or(0)
    }

    /// Counts that the connection pauses reading because its listener's memory is scarce.
    pub(crate) fn count_pause(&self, limit: &Arc<MemoryLimit>) {
        self.worker.count_for_memory(limit, listener::Counter::downstream_cx_memory_paused, 1);
    }

    /// Closes the connections of this worker that hold the most, because the limit is exceeded by `bytes`.
    pub(crate) fn relieve(&self, limit: &Arc<MemoryLimit>, bytes: u64) {
        let cut = self.worker.roster.relieve(limit, bytes);
        if cut > 0 {
            tracing::warn!(count = cut, "memory limit: connections that hold the most are closed");
            self.worker.count_for_memory(limit, listener::Counter::downstream_cx_memory_cut, cut);
        }
    }

    /// Declares that the task checks [`Registration::is_cut`] whenever it is woken.
    pub(crate) fn ends_itself(&self) {
        self.with(|entry| entry.ends_itself = true);
    }

    /// Whether the connection has to end at once.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.with(|entry| entry.cut) == Some(true)
    }

    /// Admits a request if the listener's limits allow another.
    #[inline]
    pub(crate) fn admit_request(&self) -> Result<Option<Permit>, Exhausted> {
        if self.memory.get().is_some_and(|memory| memory.is_reached()) {
            return Err(Exhausted);
        }
        self.requests.get().map(Limit::try_acquire).transpose()
    }

    /// Declares that this connection can move to another worker at a message boundary.
    pub(crate) fn set_movable(&self) {
        self.with(|entry| entry.movable = true);
    }

    /// Sets whether this connection can be handed over to another process.
    pub(crate) fn set_travels(&self, travels: bool) {
        self.with(|entry| entry.travels = travels);
        self.look_at_drains();
    }

    /// Whether this connection is to be handed over to a successor.
    #[inline]
    pub(crate) fn is_awaited_by_successor(&self) -> bool {
        self.worker.drains.giving_away() && !self.drains() && self.with(|entry| entry.travels) == Some(true)
    }

    /// Registers the waker that is called when there is a directive. Cheap to call at every poll: a task's waker stays
    /// the same.
    #[inline]
    pub(crate) fn watch(&self, waker: &Waker) {
        self.with(|entry| {
            if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                entry.waker = Some(waker.clone());
            }
        });
    }

    /// Counts a message served on this connection, with this many body bytes.
    #[inline]
    pub(crate) fn worked(&self, body_bytes: u64) {
        let units = 1 + u32::try_from(body_bytes / BYTES_PER_UNIT).unwrap_or(u32::MAX).min(MAX_UNITS);
        let epoch = self.worker.balance.epoch();
        // Work in a connection's first sample is not attributed to it, as it may never recur: many new connections with
        // one request each are no load that could be moved.
        let counted = self.with(|entry| {
            let stays = entry.since != epoch;
            if stays {
                entry.work.add(units, epoch);
            }
            stays
        });
        if counted != Some(true) {
            let mut short_lived = self.worker.roster.short_lived.get();
            short_lived.add(units, epoch);
            self.worker.roster.short_lived.set(short_lived);
        }
        self.worker.stats.add(Counter::work_total, u64::from(units));
    }

    /// What this connection has to do at its next message boundary.
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

    /// Whether this connection has to close at its next message boundary.
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

    /// Cancels the order to move: the connection stays.
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
        // A connection that was told to move takes its work along.
        let leaves = |entry: &Entry| entry.order.is_some_and(|order| order.at(epoch).is_some());
        let removed = roster.connections.borrow_mut().try_remove(self.key);
        if let Some(entry) = removed.filter(|entry| !leaves(entry)) {
            let mut short_lived = roster.short_lived.get();
            short_lived.absorb(entry.work, epoch);
            roster.short_lived.set(short_lived);
        }
    }
}
