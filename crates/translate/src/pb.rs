//! Short names for the generated Envoy types this crate writes.

pub use evenkeel_xds::pb::google;

/// `envoy.config.*.v3`, each under its last word.
pub mod config {
    pub use evenkeel_xds::pb::envoy::config::accesslog::v3 as accesslog;
    pub use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
    pub use evenkeel_xds::pb::envoy::config::endpoint::v3 as endpoint;
    pub use evenkeel_xds::pb::envoy::config::listener::v3 as listener;
    pub use evenkeel_xds::pb::envoy::config::rbac::v3 as rbac;
    pub use evenkeel_xds::pb::envoy::config::route::v3 as route;
    pub use evenkeel_xds::pb::envoy::config::trace::v3 as trace;
}

pub use evenkeel_xds::pb::envoy::config::common::matcher::v3 as common_matcher;
pub use evenkeel_xds::pb::envoy::config::core::v3 as core;
pub use evenkeel_xds::pb::envoy::extensions::access_loggers::file::v3 as file_access_log;
pub use evenkeel_xds::pb::envoy::extensions::access_loggers::filters::cel::v3 as expression_filter;
pub use evenkeel_xds::pb::envoy::extensions::access_loggers::grpc::v3 as grpc_access_log;
pub use evenkeel_xds::pb::envoy::extensions::access_loggers::open_telemetry::v3 as otlp_access_log;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::cors::v3 as cors;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::ext_authz::v3 as http_ext_authz;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_stats::v3 as grpc_stats;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::grpc_web::v3 as grpc_web;
pub use evenkeel_xds::pb::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3 as client_side_weighted_round_robin;
pub use evenkeel_xds::pb::envoy::extensions::load_balancing_policies::common::v3 as load_balancing;
pub use evenkeel_xds::pb::envoy::extensions::tracers::opentelemetry::resource_detectors::v3 as resource_detectors;
pub use evenkeel_xds::pb::opentelemetry::proto::common::v1 as otlp;
/// The dynamic forward proxy: its cluster type and filters.
pub mod dynamic_forward_proxy {
    pub use evenkeel_xds::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::{ClusterConfig, cluster_config};
    pub use evenkeel_xds::pb::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
    pub use evenkeel_xds::pb::envoy::extensions::filters::http::dynamic_forward_proxy::v3::{
        FilterConfig as HttpFilterConfig, filter_config as http_filter_config,
    };
    pub use evenkeel_xds::pb::envoy::extensions::filters::network::sni_dynamic_forward_proxy::v3::{
        FilterConfig as SniFilterConfig, filter_config as sni_filter_config,
    };
}
/// Faults: the filter, and messages that it shares with others.
pub mod fault {
    pub use evenkeel_xds::pb::envoy::extensions::filters::common::fault::v3::{FaultDelay, fault_delay};
    pub use evenkeel_xds::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault, fault_abort};
}
pub use evenkeel_xds::pb::envoy::extensions::filters::http::jwt_authn::v3 as jwt_authn;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::on_demand::v3 as on_demand;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::rbac::v3 as http_rbac;
pub use evenkeel_xds::pb::envoy::extensions::filters::http::router::v3 as router;
pub use evenkeel_xds::pb::envoy::extensions::filters::listener::http_inspector::v3 as http_inspector;
pub use evenkeel_xds::pb::envoy::extensions::filters::listener::original_dst::v3 as original_dst;
pub use evenkeel_xds::pb::envoy::extensions::filters::listener::original_src::v3 as original_src;
pub use evenkeel_xds::pb::envoy::extensions::filters::listener::proxy_protocol::v3 as proxy_protocol;
pub use evenkeel_xds::pb::envoy::extensions::filters::listener::tls_inspector::v3 as tls_inspector;
pub use evenkeel_xds::pb::envoy::extensions::filters::network::ext_authz::v3 as network_ext_authz;
pub use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
pub use evenkeel_xds::pb::envoy::extensions::filters::network::rbac::v3 as network_rbac;
pub use evenkeel_xds::pb::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
pub use evenkeel_xds::pb::envoy::extensions::filters::udp::udp_proxy::v3 as udp_proxy;
pub use evenkeel_xds::pb::envoy::extensions::http::header_formatters::preserve_case::v3 as preserve_case;
pub use evenkeel_xds::pb::envoy::extensions::retry::host::previous_hosts::v3 as previous_hosts;
pub use evenkeel_xds::pb::envoy::extensions::retry::priority::previous_priorities::v3 as previous_priorities;
pub use evenkeel_xds::pb::envoy::extensions::transport_sockets::proxy_protocol::v3 as upstream_proxy_protocol;
pub use evenkeel_xds::pb::envoy::extensions::transport_sockets::raw_buffer::v3 as raw_buffer;
pub use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
pub use evenkeel_xds::pb::envoy::extensions::upstreams::http::v3 as upstream_http;
/// Stateful sessions: the filter, its per-route configuration, and the session state.
pub mod session {
    pub use evenkeel_xds::pb::envoy::extensions::filters::http::stateful_session::v3::{
        StatefulSession, StatefulSessionPerRoute, stateful_session_per_route as per_route,
    };
    pub use evenkeel_xds::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
    pub use evenkeel_xds::pb::envoy::extensions::http::stateful_session::header::v3::HeaderBasedSessionState;
    pub use evenkeel_xds::pb::envoy::r#type::http::v3::{Cookie, CookieAttribute};
}
pub use evenkeel_xds::pb::envoy::r#type::matcher::v3 as matcher;
pub use evenkeel_xds::pb::envoy::r#type::metadata::v3 as metadata;
pub use evenkeel_xds::pb::envoy::r#type::tracing::v3 as tracing;
pub use evenkeel_xds::pb::envoy::r#type::v3 as envoy_type;
