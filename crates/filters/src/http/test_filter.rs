//! A filter defined by a test: it replaces the configured filter with the name it is registered under.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    BadBody, Data, Decision, Filter, Flow, Hooks, RequestContext, RequestTrailersContext, ResponseContext,
    ResponseDecision, Setup, TrailersContext,
};
use crate::format::Record;
use crate::verdict::FilterVerdict;

/// A test filter's state for one request.
pub type State = Option<Box<dyn Any>>;

/// A test's filter, with all hooks.
#[allow(missing_docs)]
pub trait TestFilter: Send + Sync {
    fn request_head(&self, _state: &mut State, _context: &mut RequestContext<'_>) -> Decision {
        Decision::Continue
    }

    fn request_data(&self, _state: &mut State, _data: &mut Data<'_>) -> Result<Flow, BadBody> {
        Ok(Flow::Continue)
    }

    fn request_trailers(&self, _state: &mut State, _context: &mut RequestTrailersContext<'_>) {}

    fn response_head(&self, _state: &mut State, _context: &mut ResponseContext<'_>) -> ResponseDecision {
        ResponseDecision::Continue
    }

    fn response_data(&self, _state: &mut State, _data: &mut Data<'_>) -> Flow {
        Flow::Continue
    }

    fn response_trailers(&self, _state: &mut State, _context: &mut TrailersContext<'_>) {}

    fn complete(&self, _state: &mut State, _end: &Record<'_>) {}
}

static REGISTERED: Mutex<BTreeMap<String, Arc<dyn TestFilter>>> = Mutex::new(BTreeMap::new());

/// Replaces filters that are configured under this name from now on, whatever their type.
pub fn register(name: &str, filter: impl TestFilter + 'static) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.to_owned(), Arc::new(filter));
}

/// A test's filter as a `Filter`.
pub struct HttpFilter(Arc<dyn TestFilter>);

impl HttpFilter {
    pub(super) fn registered(name: &str) -> Option<Self> {
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().map(Self)
    }
}

impl fmt::Debug for HttpFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpFilter")
    }
}

/// Test filters come from the table of registered ones and have no configuration.
#[derive(Debug)]
pub enum Unconfigured {}

impl Filter for HttpFilter {
    type Config = Unconfigured;
    type State = State;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD
        .and(Hooks::REQUEST_DATA)
        .and(Hooks::REQUEST_TRAILERS)
        .and(Hooks::RESPONSE_HEAD)
        .and(Hooks::RESPONSE_DATA)
        .and(Hooks::RESPONSE_TRAILERS)
        .and(Hooks::COMPLETE);

    fn verdict(config: &Unconfigured) -> FilterVerdict<'_> {
        match *config {}
    }

    fn new(config: Arc<Unconfigured>, _: &Setup<'_>) -> Self {
        match *config {}
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
