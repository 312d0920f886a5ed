//! What the data path counts, under Envoy's names.

use evenkeel_stats::{ScopeName, layout};

layout! {
    /// `cluster.NAME.`
    pub mod cluster {
        counters {
            upstream_cx_total, upstream_cx_http1_total, upstream_cx_connect_fail, upstream_cx_connect_timeout,
            upstream_cx_overflow, upstream_cx_pool_overflow, upstream_cx_destroy, upstream_cx_destroy_remote_with_active_rq,
            upstream_cx_idle_timeout, upstream_cx_max_requests, upstream_cx_none_healthy, upstream_cx_protocol_error,
            upstream_cx_rx_bytes_total, upstream_cx_tx_bytes_total,
            upstream_rq_total, upstream_rq_completed, upstream_rq_2xx, upstream_rq_3xx, upstream_rq_4xx, upstream_rq_5xx,
            upstream_rq_timeout, upstream_rq_per_try_timeout, upstream_rq_pending_total, upstream_rq_pending_overflow,
            upstream_rq_retry, upstream_rq_retry_success, upstream_rq_retry_overflow, upstream_rq_retry_limit_exceeded,
            upstream_rq_rx_reset, upstream_rq_tx_reset, lb_healthy_panic, update_success, ssl_connection_error, ssl_handshake
        }
        gauges {
            upstream_cx_active, upstream_rq_active, upstream_rq_pending_active, membership_total, membership_healthy,
            membership_degraded
        }
        histograms { upstream_rq_time, upstream_cx_connect_ms }
        statuses Some("upstream_rq_")
    }
}

layout! {
    /// `http.PREFIX.`
    pub mod http {
        counters {
            downstream_cx_total, downstream_cx_http1_total, downstream_cx_ssl_total, downstream_cx_destroy,
            downstream_cx_destroy_remote_active_rq, downstream_cx_idle_timeout, downstream_cx_drain_close,
            downstream_cx_max_requests_reached, downstream_cx_protocol_error, downstream_cx_upgrades_total,
            downstream_cx_rx_bytes_total, downstream_cx_tx_bytes_total,
            downstream_rq_total, downstream_rq_http1_total, downstream_rq_completed, downstream_rq_1xx, downstream_rq_2xx,
            downstream_rq_3xx, downstream_rq_4xx, downstream_rq_5xx, downstream_rq_timeout, downstream_rq_header_timeout,
            downstream_rq_idle_timeout, downstream_rq_rx_reset, downstream_rq_tx_reset, downstream_rq_non_relative_path,
            no_route, no_cluster, rq_total, rq_direct_response, rq_redirect
        }
        gauges { downstream_cx_active, downstream_cx_http1_active, downstream_cx_ssl_active, downstream_cx_upgrades_active,
            downstream_rq_active }
        histograms { downstream_rq_time, downstream_cx_length_ms }
        statuses None
    }
}

layout! {
    /// `http.PREFIX.rbac.` and `tcp.PREFIX.rbac.`: answers of RBAC filters.
    pub mod rbac {
        counters { allowed, denied, shadow_allowed, shadow_denied }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `listener.ADDRESS.`
    pub mod listener {
        counters {
            downstream_cx_total, downstream_cx_destroy, downstream_cx_overflow, downstream_pre_cx_timeout,
            downstream_listener_filter_error, no_filter_chain_match, ssl_connection_error, ssl_handshake
        }
        gauges { downstream_cx_active, downstream_pre_cx_active }
        histograms { downstream_cx_length_ms }
        statuses None
    }
}

layout! {
    /// `listener.ADDRESS.worker_N.`
    pub mod listener_worker {
        counters { downstream_cx_total }
        gauges { downstream_cx_active }
        histograms {}
        statuses None
    }
}

layout! {
    /// `tcp.PREFIX.`
    pub mod tcp {
        counters {
            downstream_cx_total, downstream_cx_no_route, downstream_cx_rx_bytes_total, downstream_cx_tx_bytes_total,
            idle_timeout, max_downstream_connection_duration
        }
        gauges { downstream_cx_active }
        histograms {}
        statuses None
    }
}

layout! {
    /// One endpoint, for `/clusters`; not in `/stats`.
    pub mod endpoint {
        counters { cx_total, cx_connect_fail, rq_total, rq_success, rq_error, rq_timeout }
        gauges { cx_active }
        histograms {}
        statuses None
    }
}

layout! {
    /// One worker, for `/workers`; not in `/stats`.
    pub mod worker {
        counters { connections_total, requests_total }
        gauges {}
        histograms {}
        statuses None
    }
}

/// `cluster.NAME.`
pub fn cluster_name(name: &str) -> ScopeName {
    ScopeName::tagged("cluster", "envoy_cluster_name", name)
}

/// `http.PREFIX.`
pub fn http_name(prefix: &str) -> ScopeName {
    ScopeName::tagged("http", "envoy_http_conn_manager_prefix", prefix)
}

/// `tcp.PREFIX.`
pub fn tcp_name(prefix: &str) -> ScopeName {
    ScopeName::tagged("tcp", "envoy_tcp_prefix", prefix)
}

/// `OUTER.rbac.` under another scope's name.
pub fn rbac_name(outer: ScopeName) -> ScopeName {
    ScopeName { dotted: format!("{}rbac.", outer.dotted), family: format!("{}rbac_", outer.family), tags: outer.tags }
}

/// `listener.ADDRESS.`; the address's colon becomes `_` as Envoy writes it.
pub fn listener_name(address: std::net::SocketAddr) -> ScopeName {
    ScopeName::tagged("listener", "envoy_listener_address", &address.to_string().replace(':', "_"))
}

/// `listener.ADDRESS.worker_N.`
pub fn listener_worker_name(address: std::net::SocketAddr, worker: usize) -> ScopeName {
    let outer = listener_name(address);
    let mut tags = outer.tags;
    tags.push(("envoy_worker_id", worker.to_string()));
    ScopeName { dotted: format!("{}worker_{worker}.", outer.dotted), family: format!("{}worker_", outer.family), tags }
}
