//! Resources: listeners, routes, clusters, endpoints, secrets, the bootstrap, and the messages they share.

use super::Role::{Extension, Part};
use super::{MessageSupport, Role};

const METADATA: &str = "metadata is for the control plane and for people; nothing here decides by it";
const NO_TRACING: &str = "there is no tracing, and it does nothing else";
const NO_HASHING: &str = "no supported load balancer hashes";
const NO_GRPC: &str = "it limits timeouts of gRPC requests, which need HTTP/2";
const FIXED_BUFFERS: &str = "bytes are passed on as they come, through buffers of a fixed size";
const NO_RUNTIME: &str = "there is no runtime layer; the default value holds";

const fn message(
    name: &'static str,
    role: Role,
    full: &'static [&'static str],
    values: &'static [(&'static str, &'static str)],
    no_effect: &'static [(&'static str, &'static [&'static str])],
) -> MessageSupport {
    MessageSupport { name, role, full, values, no_effect }
}

const fn part(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    message(name, Part, full, &[], &[])
}

const HEADER_EDITS: [&str; 4] =
    ["request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove"];

#[rustfmt::skip]
pub(super) static MESSAGES: &[MessageSupport] = &[
    // Listeners
    message("envoy.config.listener.v3.Listener", Part,
        &["name", "address", "filter_chains", "default_filter_chain", "use_original_dst",
          "bind_to_port", "listener_filters", "listener_filters_timeout", "continue_on_listener_filters_timeout",
          "enable_reuse_port", "access_log", "tcp_backlog_size"],
        &[],
        &[(METADATA, &["metadata"]),
          (FIXED_BUFFERS, &["per_connection_buffer_limit_bytes"]),
          ("no statistic or admin page here tells directions apart", &["traffic_direction"]),
          ("connections are always balanced exactly", &["connection_balance_config"]),
          ("it tunes the accept loop of another implementation", &["max_connections_to_accept_per_socket_event"]),
          ("there is no global connection limit to be exempt from", &["ignore_global_conn_limit"])]),
    message("envoy.config.listener.v3.FilterChain", Part,
        &["filter_chain_match", "filters", "transport_socket", "transport_socket_connect_timeout", "name"],
        &[], &[(METADATA, &["metadata"])]),
    part("envoy.config.listener.v3.FilterChainMatch",
        &["destination_port", "prefix_ranges", "server_names", "transport_protocol", "application_protocols",
          "direct_source_prefix_ranges", "source_type", "source_prefix_ranges", "source_ports"]),
    part("envoy.config.listener.v3.Filter", &["name", "typed_config"]),
    part("envoy.config.listener.v3.ListenerFilter", &["name", "typed_config", "filter_disabled"]),
    part("envoy.config.listener.v3.ListenerFilterChainMatchPredicate",
        &["or_match", "and_match", "not_match", "any_match", "destination_port_range"]),
    part("envoy.config.listener.v3.ListenerFilterChainMatchPredicate.MatchSet", &["rules"]),

    // Route configurations
    message("envoy.config.route.v3.RouteConfiguration", Part,
        &["name", "virtual_hosts", HEADER_EDITS[0], HEADER_EDITS[1], HEADER_EDITS[2], HEADER_EDITS[3],
          "most_specific_header_mutations_wins", "validate_clusters", "max_direct_response_body_size_bytes",
          "ignore_port_in_host_matching"],
        &[], &[(METADATA, &["metadata"])]),
    message("envoy.config.route.v3.VirtualHost", Part,
        &["name", "domains", "routes", "require_tls", HEADER_EDITS[0], HEADER_EDITS[1], HEADER_EDITS[2], HEADER_EDITS[3],
          "include_request_attempt_count", "include_attempt_count_in_response", "retry_policy", "typed_per_filter_config"],
        &[], &[(METADATA, &["metadata"])]),
    message("envoy.config.route.v3.Route", Part,
        &["name", "match", "route", "redirect", "direct_response", "typed_per_filter_config", HEADER_EDITS[0],
          HEADER_EDITS[1], HEADER_EDITS[2], HEADER_EDITS[3]],
        &[], &[(METADATA, &["metadata"]), (NO_TRACING, &["decorator"])]),
    part("envoy.config.route.v3.RouteMatch",
        &["prefix", "path", "safe_regex", "path_separated_prefix", "case_sensitive", "runtime_fraction",
          "headers", "query_parameters", "grpc"]),
    part("envoy.config.route.v3.RouteMatch.GrpcRouteMatchOptions", &[]),
    message("envoy.config.core.v3.RuntimeFractionalPercent", Part, &["default_value"], &[], &[(NO_RUNTIME, &["runtime_key"])]),
    part("envoy.type.v3.FractionalPercent", &["numerator", "denominator"]),
    part("envoy.config.route.v3.HeaderMatcher",
        &["name", "string_match", "present_match", "range_match", "invert_match", "treat_missing_header_as_empty",
          "exact_match", "prefix_match", "suffix_match", "contains_match", "safe_regex_match"]),
    message("envoy.config.route.v3.QueryParameterMatcher", Part, &["name", "string_match"], &[("present_match", "true")], &[]),
    message("envoy.config.route.v3.RouteAction", Part,
        &["cluster", "weighted_clusters", "cluster_not_found_response_code", "prefix_rewrite", "regex_rewrite",
          "host_rewrite_literal", "auto_host_rewrite", "append_x_forwarded_host", "timeout", "idle_timeout", "retry_policy",
          "upgrade_configs", "max_stream_duration"],
        &[("priority", "DEFAULT")],
        &[(NO_HASHING, &["hash_policy"]), (NO_GRPC, &["max_grpc_timeout", "grpc_timeout_offset"])]),
    message("envoy.config.route.v3.RouteAction.MaxStreamDuration", Part, &[], &[("max_stream_duration", "0 s: no limit")],
        &[(NO_GRPC, &["grpc_timeout_header_max", "grpc_timeout_header_offset"])]),
    part("envoy.config.route.v3.RouteAction.UpgradeConfig", &["upgrade_type", "enabled"]),
    message("envoy.config.route.v3.WeightedCluster", Part, &["clusters"], &[], &[(NO_RUNTIME, &["runtime_key_prefix"])]),
    part("envoy.config.route.v3.WeightedCluster.ClusterWeight",
        &["name", "weight", HEADER_EDITS[0], HEADER_EDITS[1], HEADER_EDITS[2], HEADER_EDITS[3], "host_rewrite_literal"]),
    part("envoy.config.route.v3.RedirectAction",
        &["https_redirect", "scheme_redirect", "host_redirect", "port_redirect", "path_redirect", "prefix_rewrite",
          "regex_rewrite", "response_code", "strip_query"]),
    part("envoy.config.route.v3.DirectResponseAction", &["status", "body"]),
    part("envoy.config.route.v3.RetryPolicy",
        &["retry_on", "num_retries", "per_try_timeout", "retriable_status_codes", "retry_back_off", "retry_host_predicate",
          "host_selection_retry_max_attempts"]),
    part("envoy.config.route.v3.RetryPolicy.RetryBackOff", &["base_interval", "max_interval"]),
    part("envoy.config.route.v3.RetryPolicy.RetryHostPredicate", &["name", "typed_config"]),
    part("envoy.config.core.v3.HeaderValueOption", &["header", "append", "append_action", "keep_empty_value"]),
    part("envoy.config.core.v3.HeaderValue", &["key", "value"]),

    // Matchers
    part("envoy.type.matcher.v3.StringMatcher", &["exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"]),
    message("envoy.type.matcher.v3.RegexMatcher", Part, &["regex"], &[],
        &[("patterns are always read as RE2 reads them, with a limit of their own", &["google_re2"])]),
    part("envoy.type.matcher.v3.RegexMatchAndSubstitute", &["pattern", "substitution"]),
    part("envoy.type.matcher.v3.PathMatcher", &["path"]),
    part("envoy.type.v3.Int64Range", &["start", "end"]),
    part("envoy.type.v3.Int32Range", &["start", "end"]),
    part("envoy.type.v3.Percent", &["value"]),

    // Clusters
    message("envoy.config.cluster.v3.Cluster", Part,
        &["name", "alt_stat_name", "eds_cluster_config", "connect_timeout",
          "load_assignment", "least_request_lb_config", "round_robin_lb_config", "original_dst_lb_config",
          "common_lb_config", "transport_socket", "transport_socket_matches", "typed_extension_protocol_options",
          "circuit_breakers", "upstream_bind_config", "upstream_connection_options", "dns_lookup_family",
          "dns_refresh_rate", "respect_dns_ttl", "dns_jitter"],
        &[("type", "STATIC, EDS, STRICT_DNS, LOGICAL_DNS, ORIGINAL_DST"),
          ("lb_policy", "ROUND_ROBIN, LEAST_REQUEST, RANDOM, CLUSTER_PROVIDED"),
          ("typed_dns_resolver_config", "the c-ares resolver without options that name servers")],
        &[(METADATA, &["metadata"]), (FIXED_BUFFERS, &["per_connection_buffer_limit_bytes"]),
          ("hosts of original destinations are forgotten with their last connection", &["cleanup_interval"])]),
    part("envoy.config.cluster.v3.Cluster.EdsClusterConfig", &["eds_config", "service_name"]),
    part("envoy.config.cluster.v3.Cluster.LeastRequestLbConfig", &["choice_count"]),
    part("envoy.config.cluster.v3.Cluster.RoundRobinLbConfig", &[]),
    part("envoy.config.cluster.v3.Cluster.OriginalDstLbConfig", &["upstream_port_override"]),
    part("envoy.config.cluster.v3.Cluster.CommonLbConfig", &["healthy_panic_threshold"]),
    part("envoy.config.cluster.v3.Cluster.TransportSocketMatch", &["name", "match", "transport_socket"]),
    part("envoy.config.cluster.v3.CircuitBreakers", &["thresholds"]),
    message("envoy.config.cluster.v3.CircuitBreakers.Thresholds", Part,
        &["max_connections", "max_pending_requests", "max_requests", "max_retries"], &[("priority", "DEFAULT")], &[]),
    part("envoy.config.cluster.v3.UpstreamConnectionOptions", &["tcp_keepalive"]),
    part("envoy.config.core.v3.TcpKeepalive", &["keepalive_probes", "keepalive_time", "keepalive_interval"]),
    part("envoy.config.core.v3.BindConfig", &["source_address", "socket_options"]),
    message("envoy.config.core.v3.SocketOption", Part, &["level", "name", "int_value"],
        &[("state", "STATE_PREBIND")], &[("it is for people", &["description"])]),
    message("envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig", Extension, &[], &[],
        &[("names are resolved by the servers the system names; it tunes another implementation's sockets", &["udp_max_queries"])]),

    // Endpoints
    part("envoy.config.endpoint.v3.ClusterLoadAssignment", &["cluster_name", "endpoints"]),
    message("envoy.config.endpoint.v3.LocalityLbEndpoints", Part,
        &["locality", "lb_endpoints", "priority"], &[],
        &[(METADATA, &["metadata"]),
          ("they count only with locality_weighted_lb_config, which is refused", &["load_balancing_weight"])]),
    message("envoy.config.endpoint.v3.LbEndpoint", Part, &["endpoint", "health_status", "load_balancing_weight"],
        &[("metadata", "envoy.transport_socket_match labels; nothing decides by the rest")], &[]),
    part("envoy.config.core.v3.Metadata", &["filter_metadata"]),
    part("envoy.config.endpoint.v3.Endpoint", &["address", "hostname"]),
    part("envoy.config.core.v3.Locality", &["region", "zone", "sub_zone"]),
    message("envoy.config.core.v3.Address", Part, &["socket_address"], &[("pipe", "endpoints")], &[]),
    message("envoy.config.core.v3.SocketAddress", Part, &["address", "port_value"], &[("protocol", "TCP")], &[]),
    part("envoy.config.core.v3.Pipe", &["path"]),
    part("envoy.config.core.v3.CidrRange", &["address_prefix", "prefix_len"]),

    // Sources, data, extensions
    part("envoy.config.core.v3.ConfigSource",
        &["ads", "self", "api_config_source", "initial_fetch_timeout", "resource_api_version"]),
    part("envoy.config.core.v3.AggregatedConfigSource", &[]),
    message("envoy.config.core.v3.SelfConfigSource", Part, &[], &[("transport_api_version", "V3")], &[]),
    message("envoy.config.core.v3.ApiConfigSource", Part, &["grpc_services"],
        &[("api_type", "GRPC, DELTA_GRPC, AGGREGATED_GRPC, AGGREGATED_DELTA_GRPC"), ("transport_api_version", "V3")],
        &[("the node is always sent with the first message only", &["set_node_on_first_message_only"])]),
    part("envoy.config.core.v3.GrpcService", &["envoy_grpc"]),
    part("envoy.config.core.v3.GrpcService.EnvoyGrpc", &["cluster_name"]),
    part("envoy.config.core.v3.DataSource", &["filename", "inline_bytes", "inline_string", "environment_variable"]),
    part("envoy.config.core.v3.TransportSocket", &["name", "typed_config"]),
    part("envoy.config.core.v3.TypedExtensionConfig", &["name", "typed_config"]),

    // RBAC
    part("envoy.config.rbac.v3.RBAC", &["action", "policies"]),
    part("envoy.config.rbac.v3.Policy", &["permissions", "principals"]),
    part("envoy.config.rbac.v3.Permission",
        &["and_rules", "or_rules", "any", "header", "url_path", "destination_ip", "destination_port",
          "destination_port_range", "not_rule", "requested_server_name"]),
    part("envoy.config.rbac.v3.Permission.Set", &["rules"]),
    part("envoy.config.rbac.v3.Principal",
        &["and_ids", "or_ids", "any", "authenticated", "direct_remote_ip", "remote_ip", "header", "url_path", "not_id"]),
    part("envoy.config.rbac.v3.Principal.Set", &["ids"]),
    part("envoy.config.rbac.v3.Principal.Authenticated", &["principal_name"]),

    // Access logs
    part("envoy.config.accesslog.v3.AccessLog", &["name", "filter", "typed_config"]),
    part("envoy.config.accesslog.v3.AccessLogFilter", &["response_flag_filter"]),
    part("envoy.config.accesslog.v3.ResponseFlagFilter", &["flags"]),
    part("envoy.config.core.v3.SubstitutionFormatString",
        &["text_format", "json_format", "text_format_source", "omit_empty_values", "formatters", "json_format_options"]),
    message("envoy.config.core.v3.JsonFormatOptions", Part, &[], &[],
        &[("keys are always sorted", &["sort_properties"])]),

    // Bootstrap
    message("envoy.config.bootstrap.v3.Bootstrap", Part,
        &["node", "static_resources", "dynamic_resources", "cluster_manager", "admin"], &[],
        &[("statistics are read, not flushed: there are no sinks", &["stats_flush_interval"])]),
    message("envoy.config.core.v3.Node", Part, &["id", "cluster", "metadata", "locality"], &[], &[]),
    part("envoy.config.bootstrap.v3.Bootstrap.StaticResources", &["listeners", "clusters"]),
    part("envoy.config.bootstrap.v3.Bootstrap.DynamicResources", &["lds_config", "cds_config", "ads_config"]),
    part("envoy.config.bootstrap.v3.ClusterManager", &["upstream_bind_config"]),
    part("envoy.config.bootstrap.v3.Admin", &["address"]),
];
