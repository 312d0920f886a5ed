//! Extensions: the messages a `typed_config` may hold.

use super::MessageSupport;
use super::Role::{Extension, Part};

const fn extension(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role: Extension, full, values: &[], no_effect: &[] }
}

const fn part(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role: Part, full, values: &[], no_effect: &[] }
}

const NO_RUNTIME: &str = "there is no runtime layer; the configured value applies";
const NO_TRACING: &str = "tracing is not supported, and the field has no other use";

#[rustfmt::skip]
pub(super) static MESSAGES: &[MessageSupport] = &[
    // Listener filters
    extension("envoy.extensions.filters.listener.original_dst.v3.OriginalDst", &[]),
    MessageSupport {
        name: "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        role: Extension, full: &[], values: &[],
        no_effect: &[("a ClientHello is always read completely", &["initial_read_buffer_size"])],
    },
    extension("envoy.extensions.filters.listener.http_inspector.v3.HttpInspector", &[]),

    extension("envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        &["allow_requests_without_proxy_protocol", "pass_through_tlvs", "disallowed_versions", "stat_prefix"]),
    part("envoy.config.core.v3.ProxyProtocolPassThroughTLVs", &["match_type", "tlv_type"]),

    // Network filters
    MessageSupport {
        name: "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        role: Extension,
        full: &["stat_prefix", "rds", "route_config", "http_filters", "common_http_protocol_options", "http_protocol_options",
            "server_name", "server_header_transformation", "max_request_headers_kb", "stream_idle_timeout",
            "request_timeout", "request_headers_timeout", "access_log", "use_remote_address", "xff_num_trusted_hops",
            "skip_xff_append", "via", "generate_request_id", "preserve_external_request_id",
            "always_set_request_id_in_response", "forward_client_cert_details", "set_current_client_cert_details",
            "proxy_100_continue", "upgrade_configs", "normalize_path", "merge_slashes",
            "path_with_escaped_slashes_action", "request_id_extension", "strip_matching_host_port",
            "strip_any_host_port", "http2_protocol_options", "drain_timeout", "stream_error_on_invalid_http_message"],
        values: &[("codec_type", "AUTO, HTTP1, HTTP2")],
        no_effect: &[],
    },
    part("envoy.extensions.filters.network.http_connection_manager.v3.Rds", &["route_config_name", "config_source"]),
    part("envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
        &["name", "typed_config", "is_optional", "disabled"]),
    part("envoy.extensions.filters.network.http_connection_manager.v3.RequestIDExtension", &["typed_config"]),
    part("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.UpgradeConfig",
        &["upgrade_type", "enabled"]),
    part("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.SetCurrentClientCertDetails",
        &["subject", "cert", "chain", "dns", "uri"]),
    MessageSupport {
        name: "envoy.config.core.v3.HttpProtocolOptions",
        role: Part,
        full: &["idle_timeout", "max_connection_duration", "max_headers_count", "max_requests_per_connection"],
        values: &[("max_stream_duration", "in connection managers"),
            ("headers_with_underscores_action", "in connection managers"), ("max_response_headers_kb", "in clusters")],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.config.core.v3.Http1ProtocolOptions",
        role: Part,
        full: &["accept_http_10", "allow_absolute_url", "default_host_for_http_10", "enable_trailers", "header_key_format"],
        values: &[],
        no_effect: &[],
    },
    part("envoy.config.core.v3.Http1ProtocolOptions.HeaderKeyFormat", &["proper_case_words"]),
    part("envoy.config.core.v3.Http1ProtocolOptions.HeaderKeyFormat.ProperCaseWords", &[]),
    MessageSupport {
        name: "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
        role: Extension, full: &[], values: &[],
        no_effect: &[(NO_TRACING, &["pack_trace_reason", "use_request_id_for_trace_sampling"])],
    },
    MessageSupport {
        name: "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
        role: Extension,
        full: &["stat_prefix", "cluster", "weighted_clusters", "idle_timeout", "access_log", "max_connect_attempts",
            "max_downstream_connection_duration", "hash_policy", "metadata_match", "on_demand", "tunneling_config"],
        values: &[],
        no_effect: &[],
    },
    part("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig",
        &["hostname", "headers_to_add", "use_post", "post_path", "propagate_response_headers", "propagate_response_trailers"]),
    part("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.OnDemand", &["odcds_config", "timeout"]),
    part("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster", &["clusters"]),
    part("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight",
        &["name", "weight", "metadata_match"]),
    extension("envoy.extensions.filters.network.sni_cluster.v3.SniCluster", &[]),
    extension("envoy.extensions.filters.network.rbac.v3.RBAC",
        &["rules", "shadow_rules", "shadow_rules_stat_prefix", "stat_prefix", "enforcement_type", "delay_deny"]),
    extension("envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
        &["stat_prefix", "max_connections", "delay", "runtime_enabled"]),

    // HTTP filters
    MessageSupport {
        name: "envoy.extensions.filters.http.router.v3.Router",
        role: Extension, full: &[], values: &[],
        no_effect: &[(NO_TRACING, &["start_child_span"])],
    },
    extension("envoy.extensions.filters.http.buffer.v3.Buffer", &["max_request_bytes"]),
    extension("envoy.extensions.filters.http.buffer.v3.BufferPerRoute", &["disabled", "buffer"]),
    extension("envoy.extensions.filters.http.cors.v3.Cors", &[]),
    extension("envoy.extensions.filters.http.cors.v3.CorsPolicy",
        &["allow_origin_string_match", "allow_methods", "allow_headers", "expose_headers", "max_age", "allow_credentials",
          "filter_enabled", "shadow_enabled", "allow_private_network_access", "forward_not_matching_preflights"]),
    MessageSupport {
        name: "envoy.extensions.filters.http.fault.v3.HTTPFault",
        role: Extension,
        full: &["delay", "abort", "upstream_cluster", "headers", "downstream_nodes", "max_active_faults", "response_rate_limit",
            "disable_downstream_cluster_stats", "filter_metadata"],
        values: &[],
        no_effect: &[(NO_RUNTIME, &["delay_percent_runtime", "abort_percent_runtime", "delay_duration_runtime",
            "abort_http_status_runtime", "max_active_faults_runtime", "response_rate_limit_percent_runtime",
            "abort_grpc_status_runtime"])],
    },
    part("envoy.extensions.filters.http.fault.v3.FaultAbort", &["http_status", "grpc_status", "header_abort", "percentage"]),
    part("envoy.extensions.filters.http.fault.v3.FaultAbort.HeaderAbort", &[]),
    part("envoy.extensions.filters.common.fault.v3.FaultDelay", &["fixed_delay", "header_delay", "percentage"]),
    part("envoy.extensions.filters.common.fault.v3.FaultDelay.HeaderDelay", &[]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit", &["fixed_limit", "header_limit", "percentage"]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit.FixedLimit", &["limit_kbps"]),
    part("envoy.extensions.filters.common.fault.v3.FaultRateLimit.HeaderLimit", &[]),
    extension("envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        &["emit_filter_state", "stats_for_all_methods", "individual_method_stats_allowlist", "enable_upstream_stats",
          "replace_dots_in_grpc_service_name"]),
    part("envoy.config.core.v3.GrpcMethodList", &["services"]),
    part("envoy.config.core.v3.GrpcMethodList.Service", &["name", "method_names"]),
    extension("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        &["mutations", "most_specific_header_mutations_wins"]),
    extension("envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute", &["mutations"]),
    part("envoy.extensions.filters.http.header_mutation.v3.Mutations",
        &["request_mutations", "request_trailers_mutations", "response_mutations", "response_trailers_mutations"]),
    extension("envoy.extensions.filters.http.on_demand.v3.OnDemand", &["odcds"]),
    part("envoy.extensions.filters.http.on_demand.v3.OnDemandCds", &["source", "timeout"]),
    extension("envoy.extensions.filters.http.rbac.v3.RBAC",
        &["rules", "shadow_rules", "shadow_rules_stat_prefix", "rules_stat_prefix"]),
    extension("envoy.extensions.filters.http.rbac.v3.RBACPerRoute", &["rbac"]),
    extension("envoy.extensions.filters.http.stateful_session.v3.StatefulSession",
        &["session_state", "strict", "status_on_strict_destination_not_found"]),
    extension("envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
        &["disabled", "stateful_session"]),
    extension("envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState", &["cookie"]),
    part("envoy.type.http.v3.Cookie", &["name", "ttl", "path", "attributes"]),
    part("envoy.type.http.v3.CookieAttribute", &["name", "value"]),
    extension("envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState", &["name"]),

    // Routes
    extension("envoy.config.route.v3.FilterConfig", &["config", "is_optional", "disabled"]),
    extension("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", &[]),
    extension("envoy.extensions.retry.host.omit_host_metadata.v3.OmitHostMetadataConfig", &["metadata_match"]),
    extension("envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig", &["update_frequency"]),

    // Upstream HTTP
    extension("envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        &["common_http_protocol_options", "use_downstream_protocol_config", "explicit_http_config", "auto_config",
          "http_filters"]),
    extension("envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec", &[]),
    part("envoy.extensions.upstreams.http.v3.HttpProtocolOptions.ExplicitHttpConfig",
        &["http_protocol_options", "http2_protocol_options"]),
    part("envoy.extensions.upstreams.http.v3.HttpProtocolOptions.UseDownstreamHttpConfig",
        &["http_protocol_options", "http2_protocol_options"]),
    part("envoy.extensions.upstreams.http.v3.HttpProtocolOptions.AutoHttpConfig",
        &["http_protocol_options", "http2_protocol_options"]),
    part("envoy.config.core.v3.Http2ProtocolOptions", &["hpack_table_size", "max_concurrent_streams",
        "initial_stream_window_size", "initial_connection_window_size", "allow_connect", "max_outbound_frames",
        "max_outbound_control_frames", "max_consecutive_inbound_frames_with_empty_payload",
        "max_inbound_priority_frames_per_stream", "max_inbound_window_update_frames_per_data_frame_sent",
        "override_stream_error_on_invalid_http_message", "connection_keepalive"]),
    part("envoy.config.core.v3.KeepaliveSettings",
        &["interval", "timeout", "interval_jitter", "connection_idle_interval"]),

    // Transport sockets
    MessageSupport {
        name: "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport",
        role: Extension,
        full: &["transport_socket", "config"],
        values: &[],
        no_effect: &[("a connection to such a cluster serves only one TCP connection or one request", &["tlv_as_pool_key"])],
    },
    part("envoy.config.core.v3.ProxyProtocolConfig", &["version", "pass_through_tlvs", "added_tlvs"]),
    part("envoy.config.core.v3.TlvEntry", &["type", "value"]),
    extension("envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer", &[]),
    extension("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        &["common_tls_context", "require_client_certificate"]),
    extension("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", &["common_tls_context", "sni"]),
    part("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext",
        &["tls_params", "tls_certificates", "tls_certificate_sds_secret_configs", "validation_context",
          "validation_context_sds_secret_config", "combined_validation_context", "alpn_protocols"]),
    part("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext.CombinedCertificateValidationContext",
        &["default_validation_context", "validation_context_sds_secret_config"]),
    MessageSupport {
        name: "envoy.extensions.transport_sockets.tls.v3.TlsParameters",
        role: Part,
        full: &["cipher_suites"],
        values: &[("tls_minimum_protocol_version", "TLSv1_2, TLSv1_3"), ("tls_maximum_protocol_version", "TLSv1_2, TLSv1_3")],
        no_effect: &[],
    },
    part("envoy.extensions.transport_sockets.tls.v3.TlsCertificate", &["certificate_chain", "private_key"]),
    part("envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig", &["name", "sds_config"]),
    MessageSupport {
        name: "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext",
        role: Part,
        full: &["trusted_ca", "match_typed_subject_alt_names", "match_subject_alt_names"],
        values: &[("trust_chain_verification", "VERIFY_TRUST_CHAIN")],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher",
        role: Part,
        full: &["matcher"],
        values: &[("san_type", "DNS, URI, EMAIL, IP_ADDRESS")],
        no_effect: &[],
    },
    part("envoy.extensions.transport_sockets.tls.v3.Secret", &["name", "tls_certificate", "validation_context"]),

    // Access loggers
    extension("envoy.extensions.access_loggers.file.v3.FileAccessLog", &["path", "log_format"]),
    extension("envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery", &[]),
];
