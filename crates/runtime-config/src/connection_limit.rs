//! `envoy.filters.network.connection_limit`, compiled: limits the connections of a filter chain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::filter_needs::FilterNeeds;

/// The limit, and the current connections. Shared by all workers; as in Envoy, the count restarts with a changed filter chain.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Statistics prefix `connection_limit.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// Maximum number of connections (`max_connections`).
    pub max_connections: u64,
    /// A connection over the limit is closed after this delay (`delay`).
    pub delay: Duration,
    /// Whether connections are counted and limited (`runtime_enabled`).
    pub enabled: bool,
    connections: AtomicU64,
}

impl FilterNeeds for ConnectionLimit {}

impl ConnectionLimit {
    /// A limit without connections.
    pub fn new(stat_prefix: Arc<str>, max_connections: u64, delay: Duration, enabled: bool) -> Self {
        Self { stat_prefix, max_connections, delay, enabled, connections: AtomicU64::new(0) }
    }

    /// Counts a connection; false if it is over the limit. It counts in any case until [`ConnectionLimit::leave`].
    pub fn enter(&self) -> bool {
        self.connections.fetch_add(1, Ordering::Relaxed) < self.max_connections
    }

    /// Uncounts a connection that has ended.
    pub fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
