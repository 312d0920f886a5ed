//! Statistics of listeners, connection managers and TCP proxies, under Envoy's names. Those of clusters are in
//! `upstream`.

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_stats::{ScopeName, layout};

layout! {
    /// `http.PREFIX.`
    pub mod http {
        counters {
            downstream_cx_total, downstream_cx_http1_total, downstream_cx_http2_total, downstream_cx_ssl_total, downstream_cx_destroy,
            downstream_cx_destroy_remote_active_rq, downstream_cx_idle_timeout, downstream_cx_drain_close,
            downstream_cx_max_requests_reached, downstream_cx_max_duration_reached, downstream_cx_protocol_error, downstream_cx_upgrades_total,
            downstream_cx_rx_bytes_total, downstream_cx_tx_bytes_total,
            downstream_rq_total, downstream_rq_http1_total, downstream_rq_http2_total, downstream_rq_completed, downstream_rq_1xx, downstream_rq_2xx,
            downstream_rq_3xx, downstream_rq_4xx, downstream_rq_5xx, downstream_rq_timeout, downstream_rq_header_timeout,
            downstream_rq_idle_timeout, downstream_rq_rx_reset, downstream_rq_tx_reset, downstream_rq_too_large, downstream_rq_too_many_premature_resets, downstream_rq_overload_close,
            downstream_cx_overload_disable_keepalive, downstream_rq_non_relative_path,
            no_route, no_cluster, rq_total, rq_direct_response, rq_redirect, rs_too_large,
            on_demand_attempt, on_demand_success, on_demand_missing, on_demand_timeout, on_demand_overflow
        }
        gauges { downstream_cx_active, downstream_cx_http1_active, downstream_cx_http2_active, downstream_cx_ssl_active, downstream_cx_upgrades_active,
            downstream_rq_active }
        histograms { downstream_rq_time, downstream_cx_length_ms, on_demand_time }
        statuses None
    }
}

layout! {
    /// `http1.`: of all clients' HTTP/1 connections.
    pub mod http1 {
        counters { dropped_headers_with_underscores, requests_rejected_with_underscores_in_headers }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `listener.ADDRESS.`
    pub mod listener {
        counters {
            downstream_cx_total, downstream_cx_destroy, downstream_cx_overflow, downstream_global_cx_overflow,
            downstream_cx_overload_reject, downstream_cx_memory_overflow, downstream_cx_memory_cut, downstream_cx_memory_paused, downstream_pre_cx_timeout,
            downstream_listener_filter_error, downstream_listener_filter_remote_close, no_filter_chain_match,
            downstream_cx_transport_socket_connect_timeout,
            on_demand_attempt, on_demand_success, on_demand_missing, on_demand_timeout, on_demand_overflow
        }
        gauges { downstream_cx_active, downstream_pre_cx_active, downstream_memory_bytes }
        histograms { downstream_cx_length_ms }
        statuses None
    }
}

layout! {
    /// `listener.ADDRESS.ssl.`
    pub mod listener_ssl {
        counters { connection_error, handshake, no_certificate, fail_verify_no_cert, fail_verify_error, fail_verify_san }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `listener.ADDRESS.server_ssl_socket_factory.`
    pub mod listener_ssl_factory {
        counters { downstream_context_secrets_not_ready }
        gauges {}
        histograms {}
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
            idle_timeout, max_downstream_connection_duration, on_demand_cluster_attempt, on_demand_cluster_missing,
            on_demand_cluster_success, on_demand_cluster_timeout
        }
        gauges { downstream_cx_active }
        histograms {}
        statuses None
    }
}

layout! {
    /// `udp.PREFIX.`
    pub mod udp {
        counters {
            downstream_sess_evicted, downstream_sess_no_route, downstream_sess_overflow, downstream_sess_rx_bytes,
            downstream_sess_rx_datagrams, downstream_sess_rx_datagrams_dropped, downstream_sess_rx_errors, downstream_sess_total, downstream_sess_tx_bytes,
            downstream_sess_tx_datagrams, downstream_sess_tx_errors, idle_timeout
        }
        gauges { downstream_sess_active }
        histograms {}
        statuses None
    }
}

layout! {
    /// `proxy_proto.` or `proxy_proto.PREFIX.`
    pub mod proxy_protocol {
        counters { not_found_disallowed, not_found_allowed }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `proxy_proto.[PREFIX.]versions.vN.`
    pub mod proxy_protocol_version {
        counters { found, disallowed, error }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `workers.worker_N.`: `work_total` counts requests and each 16 KiB of their bodies, `busy_us_total` microseconds of CPU
    /// time, `busy_permille` the share of a core used in the last second.
    pub mod worker {
        counters { downstream_cx_total, downstream_rq_total, downstream_rq_lent, downstream_cx_moved_in, downstream_cx_moved_out, work_total,
            busy_us_total }
        gauges { downstream_cx_active, busy_permille }
        histograms {}
        statuses None
    }
}

/// `http.PREFIX.`
pub fn http_name(prefix: &str) -> ScopeName {
    ScopeName::tagged("http", "envoy_http_conn_manager_prefix", prefix)
}

/// `tcp.PREFIX.`
pub fn tcp_name(prefix: &str) -> ScopeName {
    ScopeName::tagged("tcp", "envoy_tcp_prefix", prefix)
}

/// `udp.PREFIX.`
pub fn udp_name(prefix: &str) -> ScopeName {
    ScopeName::tagged("udp", "envoy_udp_prefix", prefix)
}

/// `proxy_proto.` or `proxy_proto.PREFIX.`
pub fn proxy_protocol_name(prefix: &str) -> ScopeName {
    match prefix {
        "" => ScopeName::plain("proxy_proto."),
        prefix => ScopeName::tagged("proxy_proto", "envoy_proxy_protocol_prefix", prefix),
    }
}

/// `proxy_proto.[PREFIX.]versions.vN.`
pub fn proxy_protocol_version_name(prefix: &str, version: u8) -> ScopeName {
    let outer = proxy_protocol_name(prefix);
    let mut tags = outer.tags;
    tags.push(("envoy_proxy_protocol_version", version.to_string()));
    ScopeName {
        dotted: format!("{}versions.v{version}.", outer.dotted),
        family: format!("{}versions_", outer.family),
        tags,
    }
}

/// `listener.ADDRESS.`; colons in the address become `_`, as in Envoy.
pub fn listener_name(address: &ListenAddress) -> ScopeName {
    ScopeName::tagged("listener", "envoy_listener_address", &address.to_string().replace(':', "_"))
}

/// `workers.worker_N.`
pub fn worker_name(worker: usize) -> ScopeName {
    ScopeName {
        dotted: format!("workers.worker_{worker}."),
        family: "envoy_workers_".to_owned(),
        tags: vec![("envoy_worker_id", worker.to_string())],
    }
}

/// `listener.ADDRESS.ssl.`
pub fn listener_ssl_name(address: &ListenAddress) -> ScopeName {
    part_of_listener(address, "ssl")
}

/// `listener.ADDRESS.server_ssl_socket_factory.`
pub fn listener_ssl_factory_name(address: &ListenAddress) -> ScopeName {
    part_of_listener(address, "server_ssl_socket_factory")
}

fn part_of_listener(address: &ListenAddress, part: &str) -> ScopeName {
    let outer = listener_name(address);
    ScopeName {
        dotted: format!("{}{part}.", outer.dotted),
        family: format!("{}{part}_", outer.family),
        tags: outer.tags,
    }
}

/// `listener.ADDRESS.worker_N.`
pub fn listener_worker_name(address: &ListenAddress, worker: usize) -> ScopeName {
    let outer = listener_name(address);
    let mut tags = outer.tags;
    tags.push(("envoy_worker_id", worker.to_string()));
    ScopeName { dotted: format!("{}worker_{worker}.", outer.dotted), family: format!("{}worker_", outer.family), tags }
}
