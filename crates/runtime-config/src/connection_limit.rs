//! `envoy.filters.network.connection_limit`, compiled: a filter chain has no more connections than this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limit, and the connections there are now. All workers share it; like Envoy's it begins anew with a changed filter chain.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Statistics prefix `connection_limit.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// Connections there may be (`max_connections`).
    pub max_connections: u64,
    /// A connection too many is closed after this (`delay`).
    pub delay: Duration,
    /// Connections are counted and limited (`runtime_enabled`).
    pub enabled: bool,
    connections: AtomicU64,
}

impl ConnectionLimit {
    /// A limit, and no connection yet.
    pub fn new(stat_prefix: Arc<str>, max_connections: u64, delay: Duration, enabled: bool) -> Self {
        Self { stat_prefix, max_connections, delay, enabled, connections: AtomicU64::new(0) }
    }

    /// Counts a connection; false: it is one too many. It counts until [`ConnectionLimit::leave`] all the same.
    pub fn enter(&self) -> bool {
        self.connections.fetch_add(1, Ordering::Relaxed) < self.max_connections
    }

    /// A connection has ended.
    pub fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
