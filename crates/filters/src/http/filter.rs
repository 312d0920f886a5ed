//! The trait of an HTTP filter, and what a filter is created with.

use std::sync::Arc;

use evenkeel_stats::{Registry, ScopeName};

use super::contract::{
    BadBody, Data, Decision, Flow, RequestContext, RequestTrailersContext, ResponseContext, ResponseDecision,
    TrailersContext,
};
use crate::format::Record;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// The hooks a filter has; requests pay nothing for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks(u8);

impl Hooks {
    #[allow(missing_docs)]
    pub const REQUEST_HEAD: Self = Self(1);
    #[allow(missing_docs)]
    pub const REQUEST_DATA: Self = Self(1 << 1);
    #[allow(missing_docs)]
    pub const REQUEST_TRAILERS: Self = Self(1 << 2);
    #[allow(missing_docs)]
    pub const RESPONSE_HEAD: Self = Self(1 << 3);
    #[allow(missing_docs)]
    pub const RESPONSE_DATA: Self = Self(1 << 4);
    #[allow(missing_docs)]
    pub const RESPONSE_TRAILERS: Self = Self(1 << 5);
    #[allow(missing_docs)]
    pub const COMPLETE: Self = Self(1 << 6);
    /// All hooks.
    pub const ALL: Self = Self((1 << 7) - 1);

    /// The union of both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those of `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any of `other` is among these.
    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a filter is created with.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'s> {
    /// The registry of its statistics.
    pub registry: &'s Arc<Registry>,
    /// The connection manager's statistics scope (`http.PREFIX.`).
    pub outer: &'s ScopeName,
}

/// An HTTP filter. It lists its hooks in [`Filter::HOOKS`]; the others are never called.
///
/// Request hooks are called in the order of the filters, response hooks in reverse. Response hooks see local replies
/// too, also those to requests that no filter has seen: the filter's state is the default then.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;
    /// Its state for one request.
    type State: Default;
    /// The hooks it has.
    const HOOKS: Hooks;

    /// Who decides whether a call passes the filter. Without a default: who adds a filter says so, and `prove` has to judge it.
    fn verdict(config: &Self::Config) -> FilterVerdict<'_>;

    /// Creates one worker's filter.
    fn new(config: Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// Called when the request's route is chosen, or none was found. To wait, return [`Decision::Pause`]; the hook is
    /// called again afterwards. To get the body, return [`Decision::Collect`] while it is [`Body::Coming`](super::Body::Coming); the hook is
    /// called again with all of it.
    fn request_head(&self, _state: &mut Self::State, _context: &mut RequestContext<'_>) -> Decision {
        Decision::Continue
    }

    /// What the decision about the request's head does not show, for explanations. Called after the decision.
    fn remark(&self, _state: &Self::State, _context: &RequestContext<'_>) -> Option<Remark> {
        None
    }

    /// A piece of the request's body; what is left in `data` is passed on. A collected body comes in one piece, after
    /// the last filter let the request pass. A filter that holds some back tells when to call it again, which happens
    /// without new data. Until then nothing more is read from the client, unless the filter goes on [holding](super::Pause::holding)
    /// more: it may hand pieces to another service and release others for them later, in order. It clears `data.ends` while it holds the end. An
    /// error ends the request.
    fn request_data(&self, _state: &mut Self::State, _data: &mut Data<'_>) -> Result<Flow, BadBody> {
        Ok(Flow::Continue)
    }

    /// Called when the request ends with trailers.
    fn request_trailers(&self, _state: &mut Self::State, _context: &mut RequestTrailersContext<'_>) {}

    /// Called for the response's head, which may be changed. Waiting and collecting the body work as for a request; to
    /// replace the response, return [`ResponseDecision::Reply`].
    fn response_head(&self, _state: &mut Self::State, _context: &mut ResponseContext<'_>) -> ResponseDecision {
        ResponseDecision::Continue
    }

    /// A piece of the response's body; what is left in `data` is passed on. A filter that holds some back tells when to
    /// call it again, which happens without new data. Until then nothing more is read, unless it is [holding](super::Pause::holding) more.
    fn response_data(&self, _state: &mut Self::State, _data: &mut Data<'_>) -> Flow {
        Flow::Continue
    }

    /// The response ends, with or without trailers; the filter may add to its body. Not called for local replies.
    fn response_trailers(&self, _state: &mut Self::State, _context: &mut TrailersContext<'_>) {}

    /// The request is complete, however it ended. `end`: what the access log, which follows, has of it, too.
    fn complete(&self, _state: &mut Self::State, _end: &Record<'_>) {}
}
