//! A filter defined by a test: it replaces the configured filter with the name it is registered under.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ConnectionContext, ConnectionFacts, Data, Decision, End, Filter, Hooks, Setup};
use crate::verdict::FilterVerdict;

/// A test filter's state for one connection.
pub type State = Option<Box<dyn Any>>;

/// A test's filter, with all hooks.
#[allow(missing_docs)]
pub trait TestFilter: Send + Sync {
    fn new_connection(&self, _state: &mut State, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    fn data(&self, _state: &mut State, _data: &mut Data<'_>, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    fn upstream_data(
        &self,
        _state: &mut State,
        _data: &mut Data<'_>,
        _context: &mut ConnectionContext<'_>,
    ) -> Decision {
        Decision::Continue
    }

    fn complete(&self, _state: &mut State, _end: &End, _facts: &mut ConnectionFacts) {}
}

static REGISTERED: Mutex<BTreeMap<String, Arc<dyn TestFilter>>> = Mutex::new(BTreeMap::new());

/// Replaces filters that are configured under this name from now on, whatever their type.
pub fn register(name: &str, filter: impl TestFilter + 'static) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.to_owned(), Arc::new(filter));
}

/// A test's filter as a `Filter`.
pub struct NetworkFilter(Arc<dyn TestFilter>);

impl NetworkFilter {
    pub(super) fn registered(name: &str) -> Option<Self> {
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().map(Self)
    }
}

impl fmt::Debug for NetworkFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkFilter")
    }
}

/// Test filters come from the table of registered ones and have no configuration.
#[derive(Debug)]
pub enum Unconfigured {}

impl Filter for NetworkFilter {
    type Config = Unconfigured;
    type State = State;

    fn verdict(config: &Unconfigured) -> FilterVerdict<'_> {
        match *config {}
    }

    fn new(config: Arc<Unconfigured>, _: &Setup<'_>) -> Self {
        match *config {}
    }

    fn hooks(&self) -> Hooks {
        Hooks::NEW_CONNECTION.and(Hooks::DATA).and(Hooks::UPSTREAM_DATA).and(Hooks::COMPLETE)
    }

    fn new_connection(&self, state: &mut State, context: &mut ConnectionContext<'_>) -> Decision {
        self.0.new_connection(state, context)
    }

    fn data(&self, state: &mut State, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        self.0.data(state, data, context)
    }

    fn upstream_data(&self, state: &mut State, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        self.0.upstream_data(state, data, context)
    }

    fn complete(&self, state: &mut State, end: &End, facts: &mut ConnectionFacts) {
        self.0.complete(state, end, facts);
    }
}
