//! `envoy.filters.network.connection_limit`, compiled: limits the connections of a filter chain.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_limits::Places;

use crate::filter_needs::FilterNeeds;

/// The limit, and the current connections. Shared by all workers; as in Envoy, the count restarts with a changed filter chain.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Statistics prefix `connection_limit.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// The connections, and their maximum number (`max_connections`). A connection over the limit counts, too, until it is closed.
    pub connections: Places,
    /// A connection over the limit is closed after this delay (`delay`).
    pub delay: Duration,
    /// Whether connections are counted and limited (`runtime_enabled`).
    pub enabled: bool,
}

impl FilterNeeds for ConnectionLimit {}

impl ConnectionLimit {
    /// A limit without connections.
    pub fn new(stat_prefix: Arc<str>, max_connections: u64, delay: Duration, enabled: bool) -> Self {
        Self { stat_prefix, connections: Places::new(max_connections), delay, enabled }
    }
}
