//! What the rest of a configuration has to know of a filter's settings without knowing the filter.

use std::sync::Arc;

/// Implemented by each filter's compiled type; the registries ([`crate::http_filters`], [`crate::network_filters`]) pass it on.
pub(crate) trait FilterNeeds {
    /// Clusters that the filter calls. They are requested along with the listener.
    fn clusters(&self) -> Vec<&Arc<str>> {
        Vec::new()
    }

    /// Whether the filter sends the client's certificate to another service.
    fn sends_certificate(&self) -> bool {
        false
    }

    /// Whether the filter may also be an upstream HTTP filter (`HttpProtocolOptions.http_filters`): those that Envoy accepts there.
    fn may_stand_upstream(&self) -> bool {
        false
    }

    /// Whether its decision may depend on the value of this header, or of the query parameter NAME for `?NAME`. Filters that ask a
    /// service, or that draw random numbers, tell so when they decide.
    fn reads(&self, _name: &str) -> bool {
        false
    }

    /// Why a connection manager may have only one such filter, if that is so.
    fn why_once(&self) -> Option<&'static str> {
        None
    }
}
