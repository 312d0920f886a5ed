//! What is draining on one worker: everything, everything inbound, or the connections of filter chains that were
//! removed from the configuration.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::listener::{FilterChain, TrafficDirection};
use tokio::time::Instant;

/// A set of listeners, with the connections they accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum DrainScope {
    /// None.
    #[default]
    None,
    /// Those whose `traffic_direction` is `INBOUND`.
    Inbound,
    /// All.
    All,
}

impl DrainScope {
    /// Whether the scope contains a listener with this direction; `None` if the listener is no longer known.
    pub fn covers(self, direction: Option<TrafficDirection>) -> bool {
        match self {
            Self::None => false,
            Self::Inbound => direction == Some(TrafficDirection::Inbound),
            Self::All => true,
        }
    }
}

/// What is draining on one worker. Connections remember the last [`Drains::count`] and check again only when it has
/// changed.
#[derive(Default)]
pub(super) struct Drains {
    scope: Cell<DrainScope>,
    /// A successor takes the connections that can be handed over; the others are drained.
    giving_away: Cell<bool>,
    /// Removed chains, keyed by address. A `Weak` keeps the address from being reused but not the chain alive: every
    /// worker has such an entry.
    chains: RefCell<FastMap<usize, (Weak<FilterChain>, Instant)>>,
    count: Cell<u32>,
}

impl Drains {
    /// Changes whenever anything else in here does.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count.get()
    }

    pub(super) fn set_scope(&self, scope: DrainScope) {
        self.scope.set(scope);
        self.count.set(self.count.get().wrapping_add(1));
    }

    pub(super) fn set_giving_away(&self, giving_away: bool) {
        self.giving_away.set(giving_away);
        self.count.set(self.count.get().wrapping_add(1));
    }

    pub(super) fn giving_away(&self) -> bool {
        self.giving_away.get()
    }

    /// Records chains removed from the configuration; their connections may stay open until `deadline`.
    pub(super) fn add<'c>(&self, chains: impl Iterator<Item = &'c Arc<FilterChain>>, deadline: Instant) {
        let entry = |chain: &Arc<FilterChain>| (Arc::as_ptr(chain).addr(), (Arc::downgrade(chain), deadline));
        self.chains.borrow_mut().extend(chains.map(entry));
        self.count.set(self.count.get().wrapping_add(1));
    }

    /// Whether connections of this chain are draining.
    pub(super) fn covers(&self, chain: &Arc<FilterChain>, direction: TrafficDirection) -> bool {
        self.scope.get().covers(Some(direction)) || self.chains.borrow().contains_key(&Arc::as_ptr(chain).addr())
    }

    /// Removes and returns the chains whose deadline has passed at `now`.
    pub(super) fn expired(&self, now: Instant) -> Vec<Arc<FilterChain>> {
        let mut chains = self.chains.borrow_mut();
        // A chain that nothing refers to has no connections.
        chains.retain(|_, (chain, _)| chain.strong_count() > 0);
        chains.extract_if(|_, (_, deadline)| *deadline <= now).filter_map(|(_, (chain, _))| chain.upgrade()).collect()
    }
}
