//! Overload protection: actions of the overload manager, and fixed limits.
//!
//! The control thread's [`monitor`] measures each resource and derives one number per action, which workers read
//! without a lock at accept and at the start of a request. Limits are counted exactly, over all workers.

mod limit;
mod memory;
pub(crate) mod monitor;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::overload::{Action, Overload as Config, PrematureResets};
use evenkeel_upstream::random::Random;

pub(crate) use limit::{Exhausted, Limit, Permit};
pub(crate) use memory::MemoryLimit;

/// The extent of an action that is fully active.
const FULL: u32 = 1_000_000;

/// The overload state shared by all threads.
#[derive(Debug, Default)]
pub struct Overload {
    /// The extent to which each action is active, in millionths, indexed by [`Action`] in its order of declaration.
    extents: [AtomicU32; Action::ALL.len()],
    /// Incremented each time the heap should be shrunk.
    shrinks: AtomicU64,
    /// Limit of downstream connections of the process.
    connections: Option<Arc<Limit>>,
    listeners: FastMap<Arc<str>, ListenerLimits>,
    premature_resets: PrematureResets,
}

/// The limits of one listener.
#[derive(Debug, Default)]
struct ListenerLimits {
    /// Open connections.
    connections: Option<Arc<Limit>>,
    /// Requests in flight.
    requests: Option<Arc<Limit>>,
    /// Bytes in its connections' buffers.
    memory: Option<Arc<MemoryLimit>>,
}

/// A connection's units of the connection limits, held until it is closed.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    _process: Option<Permit>,
    _listener: Option<Permit>,
}

/// Why a connection is reset instead of served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The listener has reached its connection limit (`downstream_cx_overflow`).
    Listener,
    /// The listener's connections have reached its memory limit (`downstream_cx_memory_overflow`).
    Memory,
    /// The process has reached its connection limit (`downstream_global_cx_overflow`).
    Process,
    /// `envoy.overload_actions.reject_incoming_connections` (`downstream_cx_overload_reject`).
    Overload,
}

impl Overload {
    /// Limits as configured, with no action active.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let limit = |max: Option<u64>| max.map(Limit::new);
        let of_listener = |(name, limits): (&Arc<str>, &evenkeel_runtime_config::overload::ListenerLimits)| {
            let limits = ListenerLimits {
                connections: limit(limits.connections),
                requests: limit(limits.requests),
                memory: limits.memory_bytes.map(MemoryLimit::new),
            };
            (Arc::clone(name), limits)
        };
        Arc::new(Self {
            connections: limit(config.max_connections),
            listeners: config.listeners.iter().map(of_listener).collect(),
            premature_resets: config.premature_resets,
            ..Self::default()
        })
    }

    /// Whether an action applies to the object at hand; one that is partly active applies to that share of them, at
    /// random.
    #[inline]
    pub(crate) fn is_on(&self, action: Action, random: &Random) -> bool {
        match self.extents[action as usize].load(Ordering::Relaxed) {
            0 => false,
            FULL => true,
            extent => random.next() % u64::from(FULL) < u64::from(extent),
        }
    }

    /// Whether an action is active to any extent.
    pub(crate) fn is_on_at_all(&self, action: Action) -> bool {
        self.extents[action as usize].load(Ordering::Relaxed) > 0
    }

    /// Sets the extent to which an action is active, 0–1.
    pub(crate) fn set_extent(&self, action: Action, extent: f64) {
        let millionths = (extent.clamp(0.0, 1.0) * f64::from(FULL)) as u32;
        self.extents[action as usize].store(millionths, Ordering::Relaxed);
        if action == Action::ShrinkHeap && millionths == FULL {
            self.shrinks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many times the heap should have been shrunk; a thread that sees a change returns memory.
    pub(crate) fn shrinks(&self) -> u64 {
        self.shrinks.load(Ordering::Relaxed)
    }

    /// The criteria of premature HTTP/2 resets.
    pub(crate) fn premature_resets(&self) -> PrematureResets {
        self.premature_resets
    }

    /// The limit of requests in flight of a listener, if it has one.
    pub(crate) fn request_limit(&self, listener: &str) -> Option<Arc<Limit>> {
        self.limits(listener)?.requests.clone()
    }

    /// The memory limit of a listener's connections, if it has one.
    pub(crate) fn memory_limit(&self, listener: &str) -> Option<Arc<MemoryLimit>> {
        self.limits(listener)?.memory.clone()
    }

    /// Whether any listener has a memory limit.
    pub(crate) fn limits_memory(&self) -> bool {
        self.listeners.values().any(|limits| limits.memory.is_some())
    }

    fn limits(&self, listener: &str) -> Option<&ListenerLimits> {
        if self.listeners.is_empty() { None } else { self.listeners.get(listener) }
    }

    /// Admits a new connection, or returns why not. `exempt`: the process's limit does not concern the listener.
    pub(crate) fn admit(&self, (listener, exempt): (&str, bool), random: &Random) -> Result<Admission, Refused> {
        if self.is_on(Action::RejectIncomingConnections, random) {
            return Err(Refused::Overload);
        }
        let take = |limit: Option<&Arc<Limit>>| limit.map(Limit::try_acquire).transpose();
        let limits = self.limits(listener);
        if limits.and_then(|limits| limits.memory.as_ref()).is_some_and(|memory| memory.is_reached()) {
            return Err(Refused::Memory);
        }
        let of_listener = limits.and_then(|limits| limits.connections.as_ref());
        let of_listener = take(of_listener).map_err(|_| Refused::Listener)?;
        let of_process = take(self.process_limit(exempt)).map_err(|_| Refused::Process)?;
        Ok(Admission { _process: of_process, _listener: of_listener })
    }

    /// Counts a connection that was admitted by another process.
    pub(crate) fn admit_anyway(&self, (listener, exempt): (&str, bool)) -> Admission {
        let take = |limit: Option<&Arc<Limit>>| limit.map(Limit::acquire_anyway);
        let of_listener = self.limits(listener).and_then(|limits| limits.connections.as_ref());
        Admission { _process: take(self.process_limit(exempt)), _listener: take(of_listener) }
    }

    /// The process's limit of connections, unless the listener is exempt from it.
    fn process_limit(&self, exempt: bool) -> Option<&Arc<Limit>> {
        self.connections.as_ref().filter(|_| !exempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overload() -> Arc<Overload> {
        let limits = evenkeel_runtime_config::overload::ListenerLimits {
            connections: Some(2),
            requests: Some(1),
            memory_bytes: Some(100),
        };
        let listeners = [("small".into(), limits)].into_iter().collect();
        Overload::new(&Config { max_connections: Some(3), listeners, ..Config::default() })
    }

    #[test]
    fn connections_are_admitted_up_to_both_limits() {
        let (overload, random) = (overload(), Random::from_system());
        let admit = |listener| overload.admit((listener, false), &random);
        let first = [admit("small"), admit("small")];
        assert!(first.iter().all(Result::is_ok));
        assert_eq!(admit("small").err(), Some(Refused::Listener));
        let third = admit("large");
        assert!(third.is_ok());
        assert_eq!(admit("large").err(), Some(Refused::Process));
        // An exempt listener is not refused, and its connections do not count.
        let exempt: Vec<_> = (0..5).map(|_| overload.admit(("exempt", true), &random)).collect();
        assert!(exempt.iter().all(Result::is_ok));
        drop(first);
        // A rejected connection does not use up the limit of its listener.
        let again = [admit("small"), admit("large"), admit("small")];
        assert_eq!(again.map(|admitted| admitted.err()), [None, None, Some(Refused::Process)]);
        assert!(admit("small").is_ok() && admit("small").is_ok());
    }

    #[test]
    fn connections_of_another_process_count_and_are_not_refused() {
        let (overload, random) = (overload(), Random::from_system());
        let adopted: Vec<_> = (0..4).map(|_| overload.admit_anyway(("small", false))).collect();
        assert_eq!(overload.admit(("small", false), &random).err(), Some(Refused::Listener));
        assert_eq!(overload.admit(("large", false), &random).err(), Some(Refused::Process));
        drop(adopted);
        assert!(overload.admit(("small", false), &random).is_ok());
    }

    #[test]
    fn a_listener_whose_connections_hold_too_much_takes_no_more() {
        let (overload, random) = (overload(), Random::from_system());
        let memory = overload.memory_limit("small").expect("it has one");
        memory.add(100);
        assert_eq!(overload.admit(("small", false), &random).err(), Some(Refused::Memory));
        assert!(overload.admit(("large", false), &random).is_ok());
        memory.add(-1);
        assert!(overload.admit(("small", false), &random).is_ok());
    }

    #[test]
    fn an_action_in_part_is_on_for_that_share() {
        let (overload, random) = (overload(), Random::from_system());
        let count = |action| (0..10_000).filter(|_| overload.is_on(action, &random)).count();
        assert_eq!(count(Action::StopAcceptingRequests), 0);
        overload.set_extent(Action::StopAcceptingRequests, 0.25);
        // The bounds are 40 standard deviations away.
        assert!((800..4200).contains(&count(Action::StopAcceptingRequests)));
        overload.set_extent(Action::StopAcceptingRequests, 1.0);
        assert_eq!(count(Action::StopAcceptingRequests), 10_000);
        overload.set_extent(Action::RejectIncomingConnections, 1.0);
        assert_eq!(overload.admit(("large", false), &random).err(), Some(Refused::Overload));
    }
}
