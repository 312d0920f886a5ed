//! The HTTP filters of one connection manager, in order. To add one: a folder here, and one line in [`filters!`] below.
//!
//! [`filter`] has the trait that each implements; [`contract`] defines what a filter sees and returns; [`chain`] calls the
//! filters' hooks; filters leave results for others in [`StreamInfo`](crate::StreamInfo). With the feature `test-filter` a test may register a filter of its own (`test_filter`).

mod chain;
mod cluster_scope;
mod contract;
mod custom;
mod filter;
#[cfg(test)]
pub(crate) mod fixture;
mod head;
mod pause;
pub(crate) mod services;
#[cfg(feature = "test-filter")]
pub mod test_filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use evenkeel_runtime_config::hcm;

use crate::format::Record;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;
use crate::{
    alpn, buffer, compressor, cors, decompressor, dynamic_forward_proxy, ext_authz, fault, grpc_stats, grpc_web,
    header_mutation, istio_stats, jwt_authn, local_ratelimit, peer_metadata, ratelimit, rbac, stateful_session,
};

pub(crate) use chain::FilterDecision;
pub use chain::{FilterStreams, HttpFilters};
pub use cluster_scope::ClusterScope;
pub use contract::{
    BadBody, Body, Data, Decision, Flow, Reply, RequestContext, RequestFacts, RequestTrailersContext, ResponseContext,
    ResponseDecision, RouteContext, TrailersContext,
};
pub use custom::{CustomFactory, CustomFilter};
pub(crate) use filter::Filter;
pub use filter::{Hooks, Setup};
pub use head::HeadView;
pub use pause::{MAX_HELD_BYTES, Pause, Wait, Woken};
pub use services::{Clock, Clusters, Names, Services, SystemClock, Tasks};

/// The registry of filters, each under its name in [`hcm::HttpFilterConfig`], called by static dispatch; and the open arm.
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// A filter of any kind, with this worker's statistics.
        #[derive(Debug)]
        pub(crate) enum HttpFilter {
            $($(#[$doc])* $name($filter),)*
            /// A filter that is not in this table.
            Custom(custom::HttpFilter),
        }

        /// A filter's state for one request.
        pub(crate) enum Slot {
            $($name(<$filter as Filter>::State),)*
            Custom(custom::State),
        }

        impl HttpFilter {
            fn new(filter: &hcm::HttpFilter, setup: &Setup<'_>) -> Self {
                #[cfg(feature = "test-filter")]
                if let Some(filter) = test_filter::registered(&filter.name) {
                    return Self::Custom(filter);
                }
                match &filter.config {
                    $(hcm::HttpFilterConfig::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), setup))
                    })*
                    hcm::HttpFilterConfig::Custom(config) => Self::Custom(custom::HttpFilter::new(config, setup)),
                }
            }

            fn hooks(&self) -> Hooks {
                match self {
                    $(Self::$name(_) => <$filter as Filter>::HOOKS,)*
                    Self::Custom(filter) => filter.hooks(),
                }
            }

            fn slot(&self) -> Slot {
                match self {
                    $(Self::$name(_) => Slot::$name(Default::default()),)*
                    Self::Custom(_) => Slot::Custom(None),
                }
            }
        }

        /// Who decides whether a request passes a configured filter.
        pub fn verdict(config: &hcm::HttpFilterConfig) -> FilterVerdict<'_> {
            match config {
                $(hcm::HttpFilterConfig::$name(config) => <$filter as Filter>::verdict(config),)*
                hcm::HttpFilterConfig::Custom(_) => FilterVerdict::Outside,
            }
        }

        /// Calls a hook of a filter with its state. Filter and slot always match, since they are created in pairs;
        /// `else` covers the impossible mismatch.
        macro_rules! call {
            ($pair:expr, |$its:ident, $state:ident| $call:expr, else $other:expr) => {
                match $pair {
                    $((HttpFilter::$name($its), Slot::$name($state)) => $call,)*
                    (HttpFilter::Custom($its), Slot::Custom($state)) => $call,
                    _ => $other,
                }
            };
        }
    };
}

filters! {
    /// Istio's `istio.alpn`.
    Alpn => alpn::HttpFilter,
    /// `envoy.filters.http.buffer`.
    Buffer => buffer::HttpFilter,
    /// `envoy.filters.http.compressor`.
    Compressor => compressor::HttpFilter,
    /// `envoy.filters.http.cors`.
    Cors => cors::HttpFilter,
    /// `envoy.filters.http.decompressor`.
    Decompressor => decompressor::HttpFilter,
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
    /// `istio.stats`.
    IstioStats => istio_stats::HttpFilter,
    /// `envoy.filters.http.jwt_authn`.
    JwtAuthn => jwt_authn::HttpFilter,
    /// `envoy.filters.http.local_ratelimit`.
    LocalRateLimit => local_ratelimit::HttpFilter,
    /// `envoy.filters.http.peer_metadata`.
    PeerMetadata => peer_metadata::HttpFilter,
    /// `envoy.filters.http.ratelimit`.
    RateLimit => ratelimit::HttpFilter,
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

    fn request_data(&self, slot: &mut Slot, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        call!((self, slot), |filter, state| filter.request_data(state, data), else Ok(Flow::Continue))
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

    fn complete(&self, slot: &mut Slot, end: &Record<'_>) {
        call!((self, slot), |filter, state| filter.complete(state, end), else {});
    }
}
