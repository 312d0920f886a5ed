//! The network filters of one filter chain, in order. To add one: a folder in this crate, and one line in [`filters!`] below.
//!
//! [`contract`] defines what a filter sees and returns; [`chain`] calls the filters' hooks. With the feature
//! `test-filter` a test may register a filter of its own (`test_filter`).

mod chain;
mod contract;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(feature = "test-filter")]
pub mod test_filter;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use evenkeel_runtime_config::listener;
use evenkeel_stats::Registry;

use crate::{connection_limit, dynamic_forward_proxy, ext_authz, rbac};

pub use chain::{FilteredConnection, NetworkFilters, Way};
pub use contract::{Close, ClosedBy, ConnectionContext, ConnectionFacts, Data, Decision, End, Surroundings};

/// The hooks a filter has; connections pay nothing for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks(u8);

impl Hooks {
    pub(crate) const NEW_CONNECTION: Self = Self(1);
    pub(crate) const DATA: Self = Self(1 << 1);
    pub(crate) const UPSTREAM_DATA: Self = Self(1 << 2);
    pub(crate) const COMPLETE: Self = Self(1 << 3);

    /// The union of both.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
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
}

/// A network filter. It lists its hooks; the others are never called.
///
/// Hooks for data from the client are called in the order of the filters, hooks for data to the client in reverse.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;
    /// Its state for one connection.
    type State: Default;
    /// The filter decides about a new connection immediately and keeps no state of it. If all filters of a connection
    /// are like that, and inspect none of its bytes, it proceeds as if there were none.
    const IMMEDIATE: bool = false;

    /// Creates one worker's filter.
    fn new(config: Arc<Self::Config>, setup: &Setup<'_>) -> Self;

    /// Its hooks, given its configuration.
    fn hooks(&self) -> Hooks;

    /// The connection is established: after the TLS handshake, before any of its bytes are inspected and before the
    /// next filter is called. To wait, return [`Decision::Pause`]; the hook is called again afterwards.
    fn new_connection(&self, _state: &mut Self::State, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    /// The client has sent data, or ended its direction; what is left in `data` is passed on. After [`Decision::Pause`]
    /// the hook is called again with the same data; until then nothing more is read.
    fn data(&self, _state: &mut Self::State, _data: &mut Data<'_>, _context: &mut ConnectionContext<'_>) -> Decision {
        Decision::Continue
    }

    /// The same for data to the client, from the upstream or from the proxy itself.
    fn upstream_data(
        &self,
        _state: &mut Self::State,
        _data: &mut Data<'_>,
        _context: &mut ConnectionContext<'_>,
    ) -> Decision {
        Decision::Continue
    }

    /// A connection for which the filter was called has ended, for whatever reason. If a TCP proxy logs it, the log entry follows.
    fn complete(&self, _state: &mut Self::State, _end: &End, _facts: &mut ConnectionFacts) {}
}

/// The registry of filters, each under its name in [`listener::NetworkFilterConfig`].
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// A filter of any kind, with this worker's statistics.
        #[derive(Debug)]
        pub(crate) enum NetworkFilter {
            $($(#[$doc])* $name($filter),)*
            #[cfg(feature = "test-filter")]
            Test(test_filter::NetworkFilter),
        }

        /// A filter's state for one connection.
        pub(crate) enum Slot {
            $($name(<$filter as Filter>::State),)*
            #[cfg(feature = "test-filter")]
            Test(<test_filter::NetworkFilter as Filter>::State),
        }

        impl NetworkFilter {
            fn new(filter: &listener::NetworkFilter, setup: &Setup<'_>) -> Self {
                #[cfg(feature = "test-filter")]
                if let Some(filter) = test_filter::NetworkFilter::registered(&filter.name) {
                    return Self::Test(filter);
                }
                match &filter.config {
                    $(listener::NetworkFilterConfig::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), setup))
                    })*
                }
            }

            fn hooks(&self) -> Hooks {
                match self {
                    $(Self::$name(filter) => filter.hooks(),)*
                    #[cfg(feature = "test-filter")]
                    Self::Test(filter) => filter.hooks(),
                }
            }

            fn is_immediate(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$filter as Filter>::IMMEDIATE,)*
                    #[cfg(feature = "test-filter")]
                    Self::Test(_) => false,
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
                    $((NetworkFilter::$name($its), Slot::$name($state)) => $call,)*
                    #[cfg(feature = "test-filter")]
                    (NetworkFilter::Test($its), Slot::Test($state)) => $call,
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
