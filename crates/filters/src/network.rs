//! The network filters of one filter chain that decide before a byte is forwarded.

use std::sync::Arc;

use evenkeel_runtime_config::listener;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::Registry;

use crate::rbac;

/// One worker's network filters of one filter chain, before the terminal one.
#[derive(Debug)]
pub struct NetworkFilters {
    filters: Vec<NetworkFilter>,
}

/// One filter, with what this worker counts for it.
#[derive(Debug)]
pub enum NetworkFilter {
    /// `envoy.filters.network.rbac`.
    Rbac(rbac::NetworkFilter),
}

/// The connection is closed, for this reason (`%CONNECTION_TERMINATION_DETAILS%`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The reason.
    pub details: String,
}

impl NetworkFilters {
    /// Makes a worker's filters.
    pub fn new(filters: &[listener::NetworkFilter], registry: &Registry) -> Self {
        let filters = filters
            .iter()
            .map(|filter| match filter {
                listener::NetworkFilter::Rbac(config) => {
                    NetworkFilter::Rbac(rbac::NetworkFilter::new(Arc::clone(config), registry))
                }
            })
            .collect();
        Self { filters }
    }

    /// Asks every filter, when the connection is established: after the TLS handshake, before the first byte is read.
    pub fn on_connection(&self, connection: &ConnectionView) -> Result<(), Closed> {
        self.filters.iter().try_for_each(|filter| match filter {
            NetworkFilter::Rbac(filter) => filter.on_connection(connection),
        })
    }
}
