//! The registry's open arm: filters that the registry does not know by name, called by dynamic dispatch. Requests that pass none of them
//! pay nothing for it.

use std::any::Any;
use std::fmt;
use std::ops::Deref;

use evenkeel_runtime_config::custom as config;

use super::{
    BadBody, Data, Decision, Flow, Hooks, Reply, RequestContext, RequestTrailersContext, ResponseContext,
    ResponseDecision, Setup, TrailersContext,
};
use crate::format::Record;
use crate::info::ResponseFlags;
use crate::remark::Remark;

/// A custom filter's state for one request: whatever the filter puts there.
pub type State = Option<Box<dyn Any>>;

/// An HTTP filter that is not in the registry. Each worker has its own. The hooks are those of the registry's filters, see
/// docs/contributing/how-to-add.md, "How to add a filter".
#[allow(missing_docs)]
pub trait CustomFilter {
    /// The hooks it has; the others are never called.
    fn hooks(&self) -> Hooks {
        Hooks::ALL
    }

    fn request_head(&self, _state: &mut State, _context: &mut RequestContext<'_>) -> Decision {
        Decision::Continue
    }

    fn remark(&self, _state: &State, _context: &RequestContext<'_>) -> Option<Remark> {
        None
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

/// Creates a worker's filter. It is the `factory` of a configured [custom filter](config::CustomFilter).
pub struct CustomFactory(Box<Create>);

type Create = dyn Fn(&Setup<'_>) -> Box<dyn CustomFilter> + Send + Sync;

impl CustomFactory {
    /// Wraps the function that creates a worker's filter.
    pub fn new(create: impl Fn(&Setup<'_>) -> Box<dyn CustomFilter> + Send + Sync + 'static) -> Self {
        Self(Box::new(create))
    }
}

impl fmt::Debug for CustomFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomFactory")
    }
}

/// A worker's custom filter.
pub(crate) struct HttpFilter(Box<dyn CustomFilter>);

impl HttpFilter {
    pub(super) fn new(config: &config::CustomFilter, setup: &Setup<'_>) -> Self {
        match config.factory.downcast_ref::<CustomFactory>() {
            Some(factory) => Self((factory.0)(setup)),
            None if config.factory.is::<config::MissingConfig>() => Self(Box::new(Missing)),
            None => Self(Box::new(Broken)),
        }
    }

    #[cfg(feature = "test-filter")]
    pub(super) fn of(filter: impl CustomFilter + 'static) -> Self {
        Self(Box::new(filter))
    }
}

impl Deref for HttpFilter {
    type Target = dyn CustomFilter;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for HttpFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpFilter")
    }
}

/// Stands for a filter whose configuration has no [`CustomFactory`]: no request passes it.
struct Broken;

impl CustomFilter for Broken {
    fn request_head(&self, _: &mut State, _: &mut RequestContext<'_>) -> Decision {
        Decision::Reply(Reply::broken())
    }
}

/// Stands for a filter whose configuration has not arrived: no request passes it.
struct Missing;

impl CustomFilter for Missing {
    fn request_head(&self, _: &mut State, _: &mut RequestContext<'_>) -> Decision {
        let flags = ResponseFlags::NO_FILTER_CONFIG_FOUND;
        Decision::Reply(Reply { flags, ..Reply::new(500, "", "extension_config_missing") })
    }
}
