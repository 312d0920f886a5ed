//! The HTTP filters of one connection manager, in order. To add one: a folder here, and one line in [`filters!`] below.
//!
//! [`contract`] is what a filter sees and says; [`chain`] runs the filters' hooks; [`facts`] is what they leave for others.

mod chain;
mod contract;
mod facts;
#[cfg(test)]
pub(crate) mod fixture;
mod head;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use evenkeel_http::Headers;
use evenkeel_runtime_config::hcm;
use evenkeel_stats::{Registry, ScopeName};

use crate::{buffer, cors, fault, grpc_stats, header_mutation, rbac, stateful_session};

pub(crate) use chain::Asked;
pub use chain::{FilterStreams, HttpFilters};
pub use contract::{
    Body, Data, Decision, Flow, Pause, Remark, Reply, RequestContext, ResponseContext, RouteContext, Services,
    TrailersContext, Wait, Woken,
};
pub use facts::{ClusterScope, FilterFacts, Form, HostOverride, StateObject};
pub use head::HeadView;

/// Which hooks a filter has: a request pays nothing for the others.
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

    /// These and those.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Any of those is among these.
    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a filter is made with.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'s> {
    /// Where it counts.
    pub registry: &'s Arc<Registry>,
    /// The connection manager's statistics (`http.PREFIX.`).
    pub outer: &'s ScopeName,
}

/// A filter's part in a request's life. It names its hooks in [`Filter::HOOKS`]; the others are never called.
///
/// Request hooks are called in the order of the filters, response hooks in reverse. Response hooks see the proxy's own answers, too,
/// except those to requests that no filter has seen.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;
    /// What it keeps of one request.
    type State: Default;
    /// The hooks it has.
    const HOOKS: Hooks;

    /// One worker's filter.
    fn new(config: Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// The request has a route, or has none. A filter that waits says [`Decision::Pause`], and is asked again afterwards; one that wants
    /// the body says [`Decision::Collect`] while it is [`Body::Coming`], and is asked again when all of it is there.
    fn request_head(&self, _state: &mut Self::State, _context: &mut RequestContext<'_>) -> Decision {
        Decision::Continue
    }

    /// What its decision about the request's head does not show, for explanations. Asked after it has decided.
    fn remark(&self, _state: &Self::State, _context: &RequestContext<'_>) -> Option<Remark> {
        None
    }

    /// A piece of the request's body goes by; a body that was collected in one piece, after the last filter let the request pass.
    fn request_data(&self, _state: &mut Self::State, _data: &[u8]) {}

    /// The request ends with these trailers.
    fn request_trailers(&self, _state: &mut Self::State, _trailers: &mut Headers) {}

    /// There is an answer; its head may be changed.
    fn response_head(&self, _state: &mut Self::State, _context: &mut ResponseContext<'_>) {}

    /// A piece of the answer's body; what stays in `data` goes on. A filter that keeps some of it back says when it is to be asked
    /// again, with no new data then. Until that time nothing more is read.
    fn response_data(&self, _state: &mut Self::State, _data: &mut Data<'_>) -> Flow {
        Flow::Continue
    }

    /// The answer ends, with these trailers or without. Not called for the proxy's own answers.
    fn response_trailers(&self, _state: &mut Self::State, _context: &mut TrailersContext<'_>) {}

    /// The request is over, however it ended; its log line comes next.
    fn complete(&self, _state: &mut Self::State, _facts: &mut FilterFacts) {}
}

/// The registry: the filters there are, each under its name in [`hcm::HttpFilterConfig`].
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// One filter, with what this worker counts for it.
        #[derive(Debug)]
        pub(crate) enum HttpFilter {
            $($(#[$doc])* $name($filter),)*
        }

        /// What a filter keeps of one request.
        pub(crate) enum Slot {
            $($name(<$filter as Filter>::State),)*
        }

        impl HttpFilter {
            fn new(config: &hcm::HttpFilterConfig, setup: &Setup<'_>) -> Self {
                match config {
                    $(hcm::HttpFilterConfig::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), setup))
                    })*
                }
            }

            fn hooks(&self) -> Hooks {
                match self {
                    $(Self::$name(_) => <$filter as Filter>::HOOKS,)*
                }
            }

            fn slot(&self) -> Slot {
                match self {
                    $(Self::$name(_) => Slot::$name(Default::default()),)*
                }
            }
        }

        // A slot is its filter's: they are made in pairs.
        impl HttpFilter {
            fn request_head(&self, slot: &mut Slot, context: &mut RequestContext<'_>) -> Decision {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::request_head(filter, state, context),)*
                    _ => Decision::Continue,
                }
            }

            fn remark(&self, slot: &Slot, context: &RequestContext<'_>) -> Option<Remark> {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::remark(filter, state, context),)*
                    _ => None,
                }
            }

            fn request_data(&self, slot: &mut Slot, data: &[u8]) {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::request_data(filter, state, data),)*
                    _ => {},
                }
            }

            fn request_trailers(&self, slot: &mut Slot, trailers: &mut Headers) {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::request_trailers(filter, state, trailers),)*
                    _ => {},
                }
            }

            fn response_head(&self, slot: &mut Slot, context: &mut ResponseContext<'_>) {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::response_head(filter, state, context),)*
                    _ => {},
                }
            }

            fn response_data(&self, slot: &mut Slot, data: &mut Data<'_>) -> Flow {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::response_data(filter, state, data),)*
                    _ => Flow::Continue,
                }
            }

            fn response_trailers(&self, slot: &mut Slot, context: &mut TrailersContext<'_>) {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::response_trailers(filter, state, context),)*
                    _ => {},
                }
            }

            fn complete(&self, slot: &mut Slot, facts: &mut FilterFacts) {
                match (self, slot) {
                    $((Self::$name(filter), Slot::$name(state)) => Filter::complete(filter, state, facts),)*
                    _ => {},
                }
            }
        }
    };
}

filters! {
    /// `envoy.filters.http.buffer`.
    Buffer => buffer::HttpFilter,
    /// `envoy.filters.http.cors`.
    Cors => cors::HttpFilter,
    /// `envoy.filters.http.fault`.
    Fault => fault::HttpFilter,
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats => grpc_stats::HttpFilter,
    /// `envoy.filters.http.header_mutation`.
    HeaderMutation => header_mutation::HttpFilter,
    /// `envoy.filters.http.rbac`.
    Rbac => rbac::HttpFilter,
    /// `envoy.filters.http.stateful_session`.
    StatefulSession => stateful_session::HttpFilter,
}
