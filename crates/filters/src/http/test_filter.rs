//! Filters defined by tests: custom filters that replace the configured filter with the name they are registered under.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::custom::HttpFilter;
pub use super::custom::{CustomFilter, State};
use super::{
    BadBody, Data, Decision, Flow, Hooks, RequestContext, RequestTrailersContext, ResponseContext, ResponseDecision,
    TrailersContext,
};
use crate::format::Record;

/// A filter that all workers share.
#[derive(Clone)]
struct Shared(Arc<dyn CustomFilter + Send + Sync>);

static REGISTERED: Mutex<BTreeMap<String, Shared>> = Mutex::new(BTreeMap::new());

/// Replaces filters that are configured under this name from now on, whatever their type.
pub fn register(name: &str, filter: impl CustomFilter + Send + Sync + 'static) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.to_owned(), Shared(Arc::new(filter)));
}

pub(super) fn registered(name: &str) -> Option<HttpFilter> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().map(HttpFilter::of)
}

impl CustomFilter for Shared {
    fn hooks(&self) -> Hooks {
        self.0.hooks()
    }

    fn request_head(&self, state: &mut State, context: &mut RequestContext<'_>) -> Decision {
        self.0.request_head(state, context)
    }

    fn request_data(&self, state: &mut State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        self.0.request_data(state, data)
    }

    fn request_trailers(&self, state: &mut State, context: &mut RequestTrailersContext<'_>) {
        self.0.request_trailers(state, context);
    }

    fn response_head(&self, state: &mut State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        self.0.response_head(state, context)
    }

    fn response_data(&self, state: &mut State, data: &mut Data<'_>) -> Flow {
        self.0.response_data(state, data)
    }

    fn response_trailers(&self, state: &mut State, context: &mut TrailersContext<'_>) {
        self.0.response_trailers(state, context);
    }

    fn complete(&self, state: &mut State, end: &Record<'_>) {
        self.0.complete(state, end);
    }
}
