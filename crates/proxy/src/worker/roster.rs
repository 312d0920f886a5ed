//! The open connections of one worker: the cost of each, and what it has to do at its next message boundary.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;

use evenkeel_runtime_config::listener::{FilterChain, TrafficDirection};
use slab::Slab;
use tokio::task::AbortHandle;

use super::work::{Order, Work};
use crate::overload::MemoryLimit;

/// All connections of a worker.
#[derive(Default)]
pub(crate) struct Roster {
    pub(super) connections: RefCell<Slab<Entry>>,
    /// Recent work that is part of the worker's load but cannot move with any connection: that of connections closed
    /// since, and that of others in the sample they arrived in.
    pub(super) short_lived: Cell<Work>,
}

#[derive(Default)]
pub(super) struct Entry {
    pub(super) waker: Option<Waker>,
    pub(super) task: Option<AbortHandle>,
    pub(super) work: Work,
    /// The sample in which it came to this worker.
    pub(super) since: u32,
    /// The filter chain that serves it, once chosen.
    pub(super) chain: Option<Arc<FilterChain>>,
    pub(super) direction: TrafficDirection,
    /// Its protocol has message boundaries at which it can move.
    pub(super) movable: bool,
    /// It can be handed over to another process.
    pub(super) travels: bool,
    /// A pending order to move.
    pub(super) order: Option<Order>,
    /// The memory limit its buffers count against, and the bytes they hold.
    pub(super) memory: Option<Arc<MemoryLimit>>,
    pub(super) held: i64,
    /// It has to end at once.
    pub(super) cut: bool,
    /// When cut, it ends by itself, so that it can write its log line first.
    pub(super) ends_itself: bool,
}

impl Entry {
    fn cut(&mut self) {
        self.cut = true;
        match (&self.waker, &self.task) {
            (Some(waker), _) if self.ends_itself => waker.wake_by_ref(),
            (_, Some(task)) => task.abort(),
            _ => {}
        }
    }
}

impl Roster {
    /// Wakes every connection, so that it checks its directive.
    pub(super) fn wake_all(&self) {
        self.connections.borrow().iter().filter_map(|(_, entry)| entry.waker.as_ref()).for_each(Waker::wake_by_ref);
    }

    /// Sets the task of an entry, so that it can be aborted. The task may have ended already, and its entry with it.
    pub(super) fn set_task(&self, key: usize, task: AbortHandle) {
        if let Some(entry) = self.connections.borrow_mut().get_mut(key).filter(|_| !task.is_finished()) {
            entry.task = Some(task);
        }
    }

    /// Ends the remaining connections of these filter chains at once.
    pub(super) fn cut(&self, chains: &[Arc<FilterChain>]) {
        let is_theirs = |entry: &Entry| {
            let chain = entry.chain.as_ref();
            chain.is_some_and(|chain| chains.iter().any(|theirs| Arc::ptr_eq(theirs, chain)))
        };
        let mut connections = self.connections.borrow_mut();
        connections.iter_mut().filter(|(_, entry)| is_theirs(entry)).for_each(|(_, entry)| entry.cut());
    }

    /// Ends all connections at once; false when none are left.
    pub(super) fn cut_all(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        connections.iter_mut().for_each(|(_, entry)| entry.cut());
        !connections.is_empty()
    }

    /// Ends the connections under `limit` that hold the most, until `bytes` have been freed; returns how many.
    pub(super) fn relieve(&self, limit: &Arc<MemoryLimit>, bytes: u64) -> u64 {
        let mut connections = self.connections.borrow_mut();
        let of_limit = |entry: &Entry| entry.memory.as_ref().is_some_and(|memory| Arc::ptr_eq(memory, limit));
        let theirs = || connections.iter().filter(|(_, entry)| of_limit(entry) && entry.held > 0);
        // Connections already being closed will free what they hold.
        let returning: i64 = theirs().filter(|(_, entry)| entry.cut).map(|(_, entry)| entry.held).sum();
        let mut left = i64::try_from(bytes).unwrap_or(i64::MAX) - returning;
        let others = theirs().filter(|(_, entry)| !entry.cut);
        let mut heaviest: Vec<(i64, usize)> = others.map(|(key, entry)| (entry.held, key)).collect();
        heaviest.sort_unstable_by(|a, b| b.cmp(a));
        let mut count = 0;
        for (held, key) in heaviest {
            if left <= 0 {
                break;
            }
            if let Some(entry) = connections.get_mut(key) {
                entry.cut();
                left -= held;
                count += 1;
            }
        }
        count
    }
}
