//! One worker's network filters of one filter chain: the hooks of each, and the order in which they are called.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::listener;
use evenkeel_runtime_config::view::ConnectionView;

use super::contract::{Close, ConnectionContext, ConnectionFacts, Data, Decision, End, Surroundings};
use super::{Hooks, NetworkFilter, Setup, Since, Slot};
use crate::format::Record;
use crate::http::{Services, Woken};

/// One worker's network filters of one filter chain, without the terminal one.
#[derive(Debug)]
pub struct NetworkFilters {
    filters: Vec<Entry>,
    /// The union of the filters' hooks.
    hooks: Hooks,
    /// Whether all filters decide about a new connection immediately, and keep no state.
    immediate: bool,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    hooks: Hooks,
    filter: NetworkFilter,
}

/// The filters' state of one connection, and its position in the chain.
#[derive(Default)]
pub struct FilteredConnection {
    /// One for each filter; empty before the connection's first hook and after its last one.
    slots: Vec<Slot>,
    /// What the filters leave for others.
    pub facts: ConnectionFacts,
    /// The number of filters that have admitted the connection.
    admitted: usize,
    /// The number of filters that have seen the current data from the client.
    read: usize,
    /// The number of filters, from the last, that have seen the current data to the client.
    written: usize,
    /// How the last pause in each direction ended; a new connection uses the first.
    woken: [Option<Woken>; 2],
}

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client; also used for new connections.
    Up = 0,
    /// To the client.
    Down = 1,
}

impl FilteredConnection {
    /// Ends the pause of the filter to be called next.
    pub fn wake(&mut self, direction: Direction, woken: Woken) {
        self.woken[direction as usize] = Some(woken);
    }
}

impl NetworkFilters {
    /// Creates a worker's filters.
    pub fn new(filters: &[listener::NetworkFilter], setup: &Setup<'_>) -> Self {
        let entry = |config: &listener::NetworkFilter| {
            let filter = NetworkFilter::new(config, setup);
            Entry { name: Arc::clone(&config.name), hooks: filter.hooks(), filter }
        };
        let filters: Vec<_> = filters.iter().map(entry).collect();
        let hooks = filters.iter().fold(Hooks::default(), |all, entry| all.and(entry.hooks));
        let all_immediate = filters.iter().all(|entry| entry.filter.is_immediate());
        Self { immediate: all_immediate && !hooks.has(Hooks::LATER), filters, hooks }
    }

    /// Whether there are no filters.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Whether [`NetworkFilters::admit`] is all there is to call.
    pub fn are_immediate(&self) -> bool {
        self.immediate
    }

    /// Whether any filter has hooks that are called after the connection was admitted.
    pub fn follow(&self) -> bool {
        self.hooks.has(Hooks::LATER)
    }

    /// Whether any filter has such hooks for this connection.
    pub fn follow_this(&self, connection: &ConnectionView) -> bool {
        self.filters.iter().any(|entry| entry.hooks.has(Hooks::LATER) && entry.filter.follows(connection))
    }

    /// Whether any filter still inspects the connection's data.
    pub fn see_more(&self, facts: &ConnectionFacts) -> bool {
        let inspect = self.filters.iter().filter(|entry| entry.hooks.has(Hooks::DATA.and(Hooks::UPSTREAM_DATA)));
        inspect.count() > facts.finished
    }

    /// Whether any filter inspects what the client sends.
    pub fn see_data(&self) -> bool {
        self.hooks.has(Hooks::DATA)
    }

    /// Whether any filter inspects what is sent to the client.
    pub fn see_upstream_data(&self) -> bool {
        self.hooks.has(Hooks::UPSTREAM_DATA)
    }

    /// Calls filters that are immediate for a new connection. Also returns what they leave for others.
    pub fn admit(
        &self,
        connection: &ConnectionView,
        services: &dyn Services,
        now: std::time::Instant,
    ) -> (ConnectionFacts, Result<(), Close>) {
        let mut facts = ConnectionFacts::default();
        let around = Surroundings { connection, services, now };
        let closed = self.filters.iter().find_map(|entry| {
            let mut context = around.context(entry, &mut facts, None);
            match entry.filter.new_connection(&mut entry.filter.slot(), &mut context) {
                Decision::Continue => None,
                Decision::Close(close) => Some(close),
                // Filters that pause are not immediate.
                Decision::Pause(_) => Some(Close::new("filter_waits")),
            }
        });
        (facts, closed.map_or(Ok(()), Err))
    }

    /// Calls the filters for a new connection, in order from its position, until one returns anything but `Continue`.
    pub fn new_connection(&self, state: &mut FilteredConnection, around: Surroundings<'_>) -> Decision {
        if state.slots.is_empty() {
            state.slots.extend(self.filters.iter().map(|entry| entry.filter.slot()));
        }
        while let Some((entry, slot)) = self.filters.get(state.admitted).zip(state.slots.get_mut(state.admitted)) {
            if entry.hooks.has(Hooks::NEW_CONNECTION) {
                let woken = state.woken[Direction::Up as usize].take();
                let mut context = around.context(entry, &mut state.facts, woken);
                match entry.filter.new_connection(slot, &mut context) {
                    Decision::Continue => {}
                    stop @ (Decision::Close(_) | Decision::Pause(_)) => return stop,
                }
            }
            state.admitted += 1;
        }
        Decision::Continue
    }

    /// Passes data from the client through the filters, in order from its position, until one returns anything but `Continue`.
    pub fn data(&self, state: &mut FilteredConnection, data: &mut Data<'_>, around: Surroundings<'_>) -> Decision {
        while let Some((entry, slot)) = self.filters.get(state.read).zip(state.slots.get_mut(state.read)) {
            if entry.hooks.has(Hooks::DATA) {
                let woken = state.woken[Direction::Up as usize].take();
                let mut context = around.context(entry, &mut state.facts, woken);
                let decision = entry.filter.data(slot, data, &mut context);
                if !matches!(decision, Decision::Continue) {
                    return decision;
                }
                if data.bytes.is_empty() && !data.ends {
                    break;
                }
            }
            state.read += 1;
        }
        state.read = 0;
        Decision::Continue
    }

    /// Passes data to the client through the filters, in reverse order.
    pub fn upstream_data(
        &self,
        state: &mut FilteredConnection,
        data: &mut Data<'_>,
        around: Surroundings<'_>,
    ) -> Decision {
        while let Some(at) = self.filters.len().checked_sub(state.written + 1) {
            let Some((entry, slot)) = self.filters.get(at).zip(state.slots.get_mut(at)) else { break };
            if entry.hooks.has(Hooks::UPSTREAM_DATA) {
                let woken = state.woken[Direction::Down as usize].take();
                let mut context = around.context(entry, &mut state.facts, woken);
                let decision = entry.filter.upstream_data(slot, data, &mut context);
                if !matches!(decision, Decision::Continue) {
                    return decision;
                }
                if data.bytes.is_empty() && !data.ends {
                    break;
                }
            }
            state.written += 1;
        }
        state.written = 0;
        Decision::Continue
    }

    /// How often connections are reported; `None`: they are not.
    pub fn report_interval(&self) -> Option<Duration> {
        if !self.hooks.has(Hooks::REPORT) {
            return None;
        }
        self.filters.iter().filter_map(|entry| entry.filter.report_interval()).min()
    }

    /// Reports a connection.
    pub fn report(&self, record: &Record<'_>, since: &Since) {
        let reporting = self.filters.iter().filter(|entry| entry.hooks.has(Hooks::REPORT));
        reporting.for_each(|entry| entry.filter.report(record, since));
    }

    /// Tells the filters that were called for the connection that it has ended; once.
    pub fn complete(&self, state: &mut FilteredConnection, end: &End) {
        let mut slots = std::mem::take(&mut state.slots);
        // The first one that has not admitted it was called, too: it paused, or closed the connection.
        let asked = self.filters.iter().zip(&mut slots).take(state.admitted + 1);
        asked.filter(|(entry, _)| entry.hooks.has(Hooks::COMPLETE)).for_each(|(entry, slot)| {
            entry.filter.complete(slot, end, &mut state.facts);
        });
    }
}

impl Hooks {
    /// The hooks called after a connection was admitted.
    const LATER: Self = Self::DATA.and(Self::UPSTREAM_DATA).and(Self::COMPLETE);
}

impl<'c> Surroundings<'c> {
    fn context<'f>(
        self,
        entry: &'f Entry,
        facts: &'f mut ConnectionFacts,
        woken: Option<Woken>,
    ) -> ConnectionContext<'f>
    where
        'c: 'f,
    {
        let Self { connection, services, now } = self;
        ConnectionContext { connection, facts, services, now, woken, filter: &entry.name }
    }
}

impl ConnectionFacts {
    /// Whether the filters have left nothing.
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.dynamic_host.is_none()
    }

    /// Copies the facts into the connection's view.
    pub fn leave(&self, connection: &mut ConnectionView) {
        if self.dynamic_host.is_some() {
            connection.dynamic_host.clone_from(&self.dynamic_host);
        }
        if !self.metadata.is_empty() {
            connection.metadata = Some(Arc::new(self.metadata.clone()));
        }
    }
}
