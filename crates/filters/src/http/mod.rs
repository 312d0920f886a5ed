//! The HTTP filters of one connection manager, in order. To add one: a folder here, and one line in [`filters!`] below.
//!
//! [`contract`] defines what a filter sees and returns; [`chain`] calls the filters' hooks; filters leave results for
//! others in [`StreamInfo`]. With the feature `test-filter` a test may register a filter of its own (`test_filter`).

mod chain;
mod cluster_scope;
mod contract;
#[cfg(test)]
pub(crate) mod fixture;
mod head;
#[cfg(feature = "test-filter")]
pub mod test_filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use evenkeel_runtime_config::hcm;
use evenkeel_stats::{Registry, ScopeName};

use crate::info::StreamInfo;
use crate::{
    buffer, cors, dynamic_forward_proxy, ext_authz, fault, grpc_stats, grpc_web, header_mutation, jwt_authn, rbac,
    stateful_session,
};

pub(crate) use chain::Asked;
pub use chain::{FilterStreams, HttpFilters};
pub use cluster_scope::ClusterScope;
pub use contract::{
    BadBody, Body, Data, Decision, Flow, Pause, Remark, Reply, RequestContext, RequestFacts, RequestTrailersContext,
    ResponseContext, ResponseDecision, RouteContext, Services, TrailersContext, Wait, Woken,
};
pub use head::HeadView;

/// The hooks a filter has; requests pay nothing for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks(u8);

impl Hooks {
    pub(crate) const REQUEST_HEAD: Self = Self(1);
    pub(crate) const REQUEST_DATA: Self = Self(1 << 1);
    pub(crate) const REQUEST_TRAILERS: Self = Self(1 << 2);
    pub(crate) const RESPONSE_HEAD: Self = Self(1 << 3);
    pub(crate) const RESPONSE_DATA: Self = Self(1 << 4);
    pub(crate) const RESPONSE_TRAILERS: Self = Self(1 << 5);
    pub(crate) const COMPLETE: Self = Self(1 << 6);

    /// The union of both.
    pub(crate) const fn and(self, other: Self) -> Self {
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
/// too, except those to requests that no filter has seen.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;
    /// Its state for one request.
    type State: Default;
    /// The hooks it has.
    const HOOKS: Hooks;

    /// Creates one worker's filter.
    fn new(config: Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// Called when the request's route is chosen, or none was found. To wait, return [`Decision::Pause`]; the hook is
    /// called again afterwards. To get the body, return [`Decision::Collect`] while it is [`Body::Coming`]; the hook is
    /// called again with all of it.
    fn request_head(&self, _state: &mut Self::State, _context: &mut RequestContext<'_>) -> Decision {
        Decision::Continue
    }

    /// What the decision about the request's head does not show, for explanations. Called after the decision.
    fn remark(&self, _state: &Self::State, _context: &RequestContext<'_>) -> Option<Remark> {
        None
    }

    /// A piece of the request's body; what is left in `data` is passed on. A collected body comes in one piece, after
    /// the last filter let the request pass. An error ends the request.
    fn request_data(&self, _state: &mut Self::State, _data: &mut Data<'_>) -> Result<(), BadBody> {
        Ok(())
    }

    /// Called when the request ends with trailers.
    fn request_trailers(&self, _state: &mut Self::State, _context: &mut RequestTrailersContext<'_>) {}

    /// Called for the response's head, which may be changed. Waiting and collecting the body work as for a request; to
    /// replace the response, return [`ResponseDecision::Reply`].
    fn response_head(&self, _state: &mut Self::State, _context: &mut ResponseContext<'_>) -> ResponseDecision {
        ResponseDecision::Continue
    }

    /// A piece of the response's body; what is left in `data` is passed on. A filter that holds some back tells when to
    /// call it again, which happens without new data. Until then nothing more is read.
    fn response_data(&self, _state: &mut Self::State, _data: &mut Data<'_>) -> Flow {
        Flow::Continue
    }

    /// The response ends, with or without trailers; the filter may add to its body. Not called for local replies.
    fn response_trailers(&self, _state: &mut Self::State, _context: &mut TrailersContext<'_>) {}

    /// The request is complete, however it ended; its access log entry follows.
    fn complete(&self, _state: &mut Self::State, _info: &mut StreamInfo) {}
}

/// The registry of filters, each under its name in [`hcm::HttpFilterConfig`].
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// A filter of any kind, with this worker's statistics.
        #[derive(Debug)]
        pub(crate) enum HttpFilter {
            $($(#[$doc])* $name($filter),)*
            #[cfg(feature = "test-filter")]
            Test(test_filter::HttpFilter),
        }

        /// A filter's state for one request.
        pub(crate) enum Slot {
            $($name(<$filter as Filter>::State),)*
            #[cfg(feature = "test-filter")]
            Test(<test_filter::HttpFilter as Filter>::State),
        }

        impl HttpFilter {
            fn new(filter: &hcm::HttpFilter, setup: &Setup<'_>) -> Self {
                #[cfg(feature = "test-filter")]
                if let Some(filter) = test_filter::HttpFilter::registered(&filter.name) {
                    return Self::Test(filter);
                }
                match &filter.config {
                    $(hcm::HttpFilterConfig::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), setup))
                    })*
                }
            }

            fn hooks(&self) -> Hooks {
                match self {
                    $(Self::$name(_) => <$filter as Filter>::HOOKS,)*
                    #[cfg(feature = "test-filter")]
                    Self::Test(_) => <test_filter::HttpFilter as Filter>::HOOKS,
                }
            }

            fn slot(&self) -> Slot {
                match self {
                    $(Self::$name(_) => Slot::$name(Default::default()),)*
                    #[cfg(feature = "test-filter")]
                    Self::Test(_) => Slot::Test(Default::default()),
                }
            }
        }

        /// Calls a hook of a filter with its state. Filter and slot always match, since they are created in pairs;
        /// `else` covers the impossible mismatch.
        macro_rules! call {
            ($pair:expr, |$its:ident, $state:ident| $call:expr, else $other:expr) => {
                match $pair {
                    $((HttpFilter::$name($its), Slot::$name($state)) => $call,)*
                    #[cfg(feature = "test-filter")]
                    (HttpFilter::Test($its), Slot::Test($state)) => $call,
                    _ => $other,
                }
            };
        }
    };
}

filters! {
    /// `envoy.filters.http.buffer`.
    Buffer => buffer::HttpFilter,
    /// `envoy.filters.http.cors`.
    Cors => cors::HttpFilter,
    /// `envoy.filters.http.dynamic_forward_proxy`.
    DynamicForwardProxy => dynamic_forward_proxy::HttpFilter,
    /// `envoy.filters.http.ext_authz`.
    ExtAuthz => ext_authz::HttpFilter,
    /// `envoy.filters.http.fault`.
    Fault => fault::HttpFilter,
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats => grpc_stats::HttpFilter,
    /// `envoy.filters.http.grpc_web`.
    GrpcWeb => grpc_web::HttpFilter,
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation => header_mutation::HttpFilter,
    /// `envoy.filters.http.jwt_authn`.
    JwtAuthn => jwt_authn::HttpFilter,
    /// `envoy.filters.http.rbac`.
    Rbac => rbac::HttpFilter,
    /// `envoy.filters.http.stateful_session`.
    StatefulSession => stateful_session::HttpFilter,
}

impl HttpFilter {
    fn request_head(&self, slot: &mut Slot, context: &mut RequestContext<'_>) -> Decision {
        call!((self, slot), |filter, state| filter.request_head(state, context), else Decision::Reply(Reply::broken()))
    }

    fn remark(&self, slot: &Slot, context: &RequestContext<'_>) -> Option<Remark> {
        call!((self, slot), |filter, state| filter.remark(state, context), else None)
    }

    fn request_data(&self, slot: &mut Slot, data: &mut Data<'_>) -> Result<(), BadBody> {
        call!((self, slot), |filter, state| filter.request_data(state, data), else Ok(()))
    }

    fn request_trailers(&self, slot: &mut Slot, context: &mut RequestTrailersContext<'_>) {
        call!((self, slot), |filter, state| filter.request_trailers(state, context), else {});
    }

    fn response_head(&self, slot: &mut Slot, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let broken = || ResponseDecision::Reply(Reply::broken());
        call!((self, slot), |filter, state| filter.response_head(state, context), else broken())
    }

    fn response_data(&self, slot: &mut Slot, data: &mut Data<'_>) -> Flow {
        call!((self, slot), |filter, state| filter.response_data(state, data), else Flow::Continue)
    }

    fn response_trailers(&self, slot: &mut Slot, context: &mut TrailersContext<'_>) {
        call!((self, slot), |filter, state| filter.response_trailers(state, context), else {});
    }

    fn complete(&self, slot: &mut Slot, info: &mut StreamInfo) {
        call!((self, slot), |filter, state| filter.complete(state, info), else {});
    }
}
