//! Filters defined by tests: custom filters that replace the configured filter with the name they are registered under.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::custom::NetworkFilter;
pub use super::custom::{CustomFilter, State};
use super::{ConnectionContext, ConnectionFacts, Data, Decision, End, Hooks};

/// A filter that all workers share.
#[derive(Clone)]
struct Shared(Arc<dyn CustomFilter + Send + Sync>);

static REGISTERED: Mutex<BTreeMap<String, Shared>> = Mutex::new(BTreeMap::new());

/// Replaces filters that are configured under this name from now on, whatever their type.
pub fn register(name: &str, filter: impl CustomFilter + Send + Sync + 'static) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.to_owned(), Shared(Arc::new(filter)));
}

pub(super) fn registered(name: &str) -> Option<NetworkFilter> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().map(NetworkFilter::of)
}

impl CustomFilter for Shared {
    fn hooks(&self) -> Hooks {
        self.0.hooks()
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
