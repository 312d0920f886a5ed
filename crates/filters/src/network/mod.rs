//! The network filters of one filter chain, in order. To add one: a folder in this crate, and one line in [`filters!`] below.
//!
//! [`filter`] has the trait that each implements; [`contract`] defines what a filter sees and returns; [`chain`] calls the
//! filters' hooks. With the feature `test-filter` a test may register a filter of its own (`test_filter`).

mod chain;
mod contract;
mod custom;
mod filter;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(feature = "test-filter")]
pub mod test_filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::listener;
use evenkeel_runtime_config::view::ConnectionView;

use crate::format::Record;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;
use crate::{connection_limit, dynamic_forward_proxy, ext_authz, istio_stats, peer_metadata, rbac};

pub use chain::{Direction, FilteredConnection, NetworkFilters};
pub use contract::{Close, ClosedBy, ConnectionContext, ConnectionFacts, Data, Decision, End, Surroundings};
pub use custom::{CustomFactory, CustomFilter};
pub(crate) use filter::Filter;
pub use filter::{Hooks, Setup, Since};

/// The registry of filters, each under its name in [`listener::NetworkFilterConfig`].
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// A filter of any kind, with this worker's statistics.
        #[derive(Debug)]
        pub(crate) enum NetworkFilter {
            $($(#[$doc])* $name($filter),)*
            /// A filter that is not in this table.
            Custom(custom::NetworkFilter),
        }

        /// A filter's state for one connection.
        pub(crate) enum Slot {
            $($name(<$filter as Filter>::State),)*
            Custom(custom::State),
        }

        impl NetworkFilter {
            fn new(filter: &listener::NetworkFilter, setup: &Setup<'_>) -> Self {
                #[cfg(feature = "test-filter")]
                if let Some(filter) = test_filter::registered(&filter.name) {
                    return Self::Custom(filter);
                }
                match &filter.config {
                    $(listener::NetworkFilterConfig::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), setup))
                    })*
                    listener::NetworkFilterConfig::Custom(config) => {
                        Self::Custom(custom::NetworkFilter::new(config, setup))
                    }
                }
            }

            fn hooks(&self) -> Hooks {
                match self {
                    $(Self::$name(filter) => filter.hooks(),)*
                    Self::Custom(filter) => filter.hooks(),
                }
            }

            fn is_immediate(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$filter as Filter>::IMMEDIATE,)*
                    Self::Custom(_) => false,
                }
            }

            fn follows(&self, connection: &ConnectionView) -> bool {
                match self {
                    $(Self::$name(filter) => filter.follows(connection),)*
                    Self::Custom(_) => true,
                }
            }

            fn report_interval(&self) -> Option<Duration> {
                match self {
                    $(Self::$name(filter) => filter.report_interval(),)*
                    Self::Custom(_) => None,
                }
            }

            fn report(&self, record: &Record<'_>, since: &Since) {
                match self {
                    $(Self::$name(filter) => filter.report(record, since),)*
                    Self::Custom(_) => {}
                }
            }

            fn slot(&self) -> Slot {
                match self {
                    $(Self::$name(_) => Slot::$name(Default::default()),)*
                    Self::Custom(_) => Slot::Custom(None),
                }
            }
        }

        /// Who decides whether a connection passes a configured filter.
        pub fn verdict(config: &listener::NetworkFilterConfig) -> FilterVerdict<'_> {
            match config {
                $(listener::NetworkFilterConfig::$name(config) => <$filter as Filter>::verdict(config),)*
                listener::NetworkFilterConfig::Custom(_) => FilterVerdict::Outside,
            }
        }

        /// What an explanation shows of a configured filter for this connection ([`Filter::explain`]).
        pub(crate) fn explain(
            filter: &listener::NetworkFilter,
            connection: &ConnectionView,
            metadata: &mut DynamicMetadata,
        ) -> Option<Remark> {
            match &filter.config {
                $(listener::NetworkFilterConfig::$name(config) => {
                    <$filter as Filter>::explain(config, connection, metadata)
                })*
                listener::NetworkFilterConfig::Custom(_) => None,
            }
        }

        /// Calls a hook of a filter with its state. Filter and slot always match, since they are created in pairs;
        /// `else` covers the impossible mismatch.
        macro_rules! call {
            ($pair:expr, |$its:ident, $state:ident| $call:expr, else $other:expr) => {
                match $pair {
                    $((NetworkFilter::$name($its), Slot::$name($state)) => $call,)*
                    (NetworkFilter::Custom($its), Slot::Custom($state)) => $call,
                    _ => $other,
                }
            };
        }
    };
}

filters! {
    /// `envoy.filters.network.connection_limit`.
    ConnectionLimit => connection_limit::NetworkFilter,
    /// `envoy.filters.network.ext_authz`.
    ExtAuthz => ext_authz::NetworkFilter,
    /// `istio.stats`.
    IstioStats => istio_stats::NetworkFilter,
    /// Istio's `istio.metadata_exchange`.
    MetadataExchange => peer_metadata::NetworkFilter,
    /// `envoy.filters.network.rbac`.
    Rbac => rbac::NetworkFilter,
    /// `envoy.filters.network.sni_dynamic_forward_proxy`.
    SniDynamicForwardProxy => dynamic_forward_proxy::NetworkFilter,
}

impl NetworkFilter {
    fn new_connection(&self, slot: &mut Slot, context: &mut ConnectionContext<'_>) -> Decision {
        call!((self, slot), |filter, state| filter.new_connection(state, context), else Decision::broken())
    }

    fn data(&self, slot: &mut Slot, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        call!((self, slot), |filter, state| filter.data(state, data, context), else Decision::broken())
    }

    fn upstream_data(&self, slot: &mut Slot, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        call!((self, slot), |filter, state| filter.upstream_data(state, data, context), else Decision::broken())
    }

    fn complete(&self, slot: &mut Slot, end: &End, facts: &mut ConnectionFacts) {
        call!((self, slot), |filter, state| filter.complete(state, end, facts), else {});
    }
}
