//! `envoy.filters.network.connection_limit`, compiled: limits the connections of a filter chain.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_limits::Places;
use evenkeel_xds::pb::envoy::extensions::filters::network::connection_limit::v3 as filter;

use crate::compile::{Cx, runtime};
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, extension};

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

pub(crate) fn connection_limit(cx: &mut Cx<'_>, config: &filter::ConnectionLimit) -> Option<ConnectionLimit> {
    let stat_prefix = cx.non_empty("stat_prefix", &config.stat_prefix)?.into();
    let max_connections = match cx.required("max_connections", config.max_connections.as_ref())?.value {
        0 => return cx.fail_at("max_connections", "must be at least 1"),
        max_connections => max_connections,
    };
    let delay = cx.duration("delay", config.delay.as_ref()).unwrap_or_default();
    let enabled = runtime::flag(cx, config.runtime_enabled.as_ref(), true);
    Some(ConnectionLimit::new(stat_prefix, max_connections, delay, enabled))
}

/// The supported fields of the network filter.
#[rustfmt::skip]
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
        &["stat_prefix", "max_connections", "delay", "runtime_enabled"]),
];
