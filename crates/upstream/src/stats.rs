//! Envoy's cluster statistics (`cluster.NAME.`).

use evenkeel_stats::{Layout, Registry, Scope, ScopeName};

evenkeel_stats::layout! {
    /// Statistics of a cluster.
    pub mod cluster {
        counters {
            upstream_cx_total, upstream_cx_http1_total, upstream_cx_http2_total, upstream_cx_connect_fail, upstream_cx_connect_timeout,
            upstream_cx_destroy, upstream_cx_overflow, upstream_cx_pool_overflow, upstream_cx_none_healthy,
            upstream_cx_idle_timeout, upstream_cx_max_requests, upstream_cx_max_duration_reached, upstream_cx_rx_bytes_total, upstream_cx_tx_bytes_total,
            upstream_cx_protocol_error, upstream_rq_total, upstream_rq_completed, upstream_rq_1xx,
            upstream_rq_2xx, upstream_rq_3xx, upstream_rq_4xx, upstream_rq_5xx, upstream_rq_cancelled,
            upstream_rq_timeout, upstream_rq_per_try_timeout,
            upstream_rq_per_try_idle_timeout, upstream_rq_retry_backoff_exponential,
            upstream_rq_retry_backoff_ratelimited, upstream_rq_rx_reset, upstream_rq_tx_reset,
            upstream_rq_pending_total, upstream_rq_pending_overflow, upstream_rq_pending_failure_eject,
            upstream_rq_retry, upstream_rq_retry_success, upstream_rq_retry_overflow,
            upstream_rq_retry_limit_exceeded, retry_or_shadow_abandoned, lb_healthy_panic, lb_subsets_selected, lb_subsets_fallback,
            lb_subsets_fallback_panic, lb_subsets_created, lb_subsets_removed, upstream_rq_drop_overload,
            membership_change, update_success,
        }
        gauges {
            upstream_cx_active, upstream_rq_active, upstream_rq_pending_active, membership_total, membership_healthy,
            membership_degraded, lb_subsets_active,
        }
        histograms { upstream_rq_time, upstream_cx_connect_ms, upstream_cx_length_ms }
        statuses Some("upstream_rq_")
    }
}

evenkeel_stats::layout! {
    /// Statistics of zone-aware routing, of the clusters that use it.
    pub mod zone {
        counters {
            lb_recalculate_zone_structures, lb_local_cluster_not_ok, lb_zone_cluster_too_small,
            lb_zone_routing_all_directly, lb_zone_routing_sampled, lb_zone_routing_cross_zone, lb_zone_no_capacity_left,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

evenkeel_stats::layout! {
    /// Statistics of a cluster's UDP sessions (`cluster.NAME.udp.`).
    pub mod udp {
        counters {
            sess_rx_datagrams, sess_rx_datagrams_dropped, sess_rx_errors, sess_tx_datagrams, sess_tx_errors,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// The name of a cluster's statistics of UDP sessions.
pub fn udp_name(cluster: &str) -> ScopeName {
    let outer = ScopeName::tagged("cluster", "envoy_cluster_name", cluster);
    ScopeName { dotted: format!("{}udp.", outer.dotted), family: format!("{}udp_", outer.family), tags: outer.tags }
}

/// The cluster's scope in the registry.
pub fn scope<L: Layout>(registry: &Registry, name: &str) -> Scope<L> {
    registry.scope(ScopeName::tagged("cluster", "envoy_cluster_name", name))
}
