//! What drains on one worker: everything, everything inbound, or the connections of filter chains that left the
//! configuration.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::listener::{FilterChain, TrafficDirection};
use tokio::time::Instant;

/// Which listeners, and the connections they accepted.
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
    /// Whether a listener is among them; `None` is a listener that is not known any more.
    pub fn covers(self, direction: Option<TrafficDirection>) -> bool {
        match self {
            Self::None => false,
            Self::Inbound => direction == Some(TrafficDirection::Inbound),
            Self::All => true,
        }
    }
}

/// What drains on one worker. Connections compare [`Drains::count`] with what they saw last, and look closer when it moved.
#[derive(Default)]
pub(super) struct Drains {
    scope: Cell<DrainScope>,
    /// A successor takes the connections that can travel; the others end.
    giving_away: Cell<bool>,
    /// By the chain's address, which the entry keeps taken. It does not keep the chain: every worker has such an entry.
    chains: RefCell<FastMap<usize, (Weak<FilterChain>, Instant)>>,
    count: Cell<u32>,
}

impl Drains {
    /// Changes whenever anything else here does.
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

    /// These chains have left the configuration; what they serve may last until `deadline`.
    pub(super) fn add<'c>(&self, chains: impl Iterator<Item = &'c Arc<FilterChain>>, deadline: Instant) {
        let entry = |chain: &Arc<FilterChain>| (Arc::as_ptr(chain).addr(), (Arc::downgrade(chain), deadline));
        self.chains.borrow_mut().extend(chains.map(entry));
        self.count.set(self.count.get().wrapping_add(1));
    }

    /// Whether connections of this chain are to end.
    pub(super) fn covers(&self, chain: &Arc<FilterChain>, direction: TrafficDirection) -> bool {
        self.scope.get().covers(Some(direction)) || self.chains.borrow().contains_key(&Arc::as_ptr(chain).addr())
    }

    /// Chains whose time is over by `now`; they are forgotten.
    pub(super) fn expired(&self, now: Instant) -> Vec<Arc<FilterChain>> {
        let mut chains = self.chains.borrow_mut();
        // A chain that nobody holds serves nobody.
        chains.retain(|_, (chain, _)| chain.strong_count() > 0);
        chains.extract_if(|_, (_, deadline)| *deadline <= now).filter_map(|(_, (chain, _))| chain.upgrade()).collect()
    }
}
