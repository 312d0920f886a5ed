//! External authorization, and the services it calls.

use super::MessageSupport;
use super::Role::{self, Extension, Part};

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

const NO_SPAN: &str = "calls of filters have no spans";
const NO_READER: &str = "only user-written Envoy extensions read it";
const NO_TYPED_METADATA: &str = "nothing here sets metadata of a message type";

#[rustfmt::skip]
/// Whose gRPC calls have a setting.
const CALLED: &str = "of services that filters and logs call, and of collectors of spans";

pub(super) static MESSAGES: &[MessageSupport] = &[
    message(
        "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        Extension,
        &[
            "grpc_service",
            "http_service",
            "failure_mode_allow",
            "failure_mode_allow_header_add",
            "with_request_body",
            "clear_route_cache",
            "status_on_error",
            "validate_mutations",
            "metadata_context_namespaces",
            "route_metadata_context_namespaces",
            "filter_enabled",
            "filter_enabled_metadata",
            "deny_at_disable",
            "include_peer_certificate",
            "include_tls_session",
            "stat_prefix",
            "allowed_headers",
            "disallowed_headers",
            "charge_cluster_response_stats",
            "encode_raw_headers",
            "decoder_header_mutation_rules",
            "enable_dynamic_metadata_ingestion",
            "emit_filter_state_stats",
            "max_denied_response_body_bytes",
        ],
        &[("transport_api_version", "V3")],
        &[
            (NO_TYPED_METADATA, &["typed_metadata_context_namespaces", "route_typed_metadata_context_namespaces"]),
            (NO_READER, &["filter_metadata"]),
            (NO_SPAN, &["emit_client_span"]),
        ],
    ),
    message(
        "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
        Extension,
        &["disabled", "check_settings"],
        &[],
        &[],
    ),
    message(
        "envoy.extensions.filters.http.ext_authz.v3.CheckSettings",
        Part,
        &["context_extensions", "disable_request_body_buffering", "with_request_body", "grpc_service", "http_service"],
        &[],
        &[(NO_SPAN, &["emit_client_span"])],
    ),
    part(
        "envoy.extensions.filters.http.ext_authz.v3.BufferSettings",
        &["max_request_bytes", "allow_partial_message", "pack_as_bytes"],
    ),
    part(
        "envoy.extensions.filters.http.ext_authz.v3.HttpService",
        &[
            "server_uri",
            "path_prefix",
            "path_override",
            "authorization_request",
            "authorization_response",
            "retry_policy",
        ],
    ),
    part("envoy.extensions.filters.http.ext_authz.v3.AuthorizationRequest", &["allowed_headers", "headers_to_add"]),
    part(
        "envoy.extensions.filters.http.ext_authz.v3.AuthorizationResponse",
        &[
            "allowed_upstream_headers",
            "allowed_upstream_headers_to_append",
            "allowed_client_headers",
            "allowed_client_headers_on_success",
            "dynamic_metadata_from_headers",
        ],
    ),
    message(
        "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz",
        Extension,
        &[
            "stat_prefix",
            "grpc_service",
            "failure_mode_allow",
            "include_peer_certificate",
            "filter_enabled_metadata",
            "include_tls_session",
            "metadata_context_namespaces",
        ],
        &[("transport_api_version", "V3")],
        &[(NO_TYPED_METADATA, &["typed_metadata_context_namespaces"])],
    ),
    part(
        "envoy.config.common.mutation_rules.v3.HeaderMutationRules",
        &[
            "allow_all_routing",
            "allow_envoy",
            "disallow_system",
            "disallow_all",
            "allow_expression",
            "disallow_expression",
            "disallow_is_error",
        ],
    ),
    part("envoy.config.core.v3.HttpUri", &["uri", "cluster", "timeout"]),
    part(
        "envoy.config.core.v3.RetryPolicy",
        &["retry_back_off", "num_retries", "retry_on", "host_selection_retry_max_attempts"],
    ),
    part("envoy.config.core.v3.BackoffStrategy", &["base_interval", "max_interval"]),
    message(
        "envoy.config.core.v3.GrpcService",
        Part,
        &["envoy_grpc"],
        &[("timeout", CALLED), ("initial_metadata", CALLED)],
        &[],
    ),
    message(
        "envoy.config.core.v3.GrpcService.EnvoyGrpc",
        Part,
        &["cluster_name"],
        &[
            ("authority", CALLED),
            ("retry_policy", "of services that filters and logs call"),
            ("max_receive_message_length", CALLED),
            ("skip_envoy_headers", CALLED),
        ],
        &[],
    ),
    part("envoy.type.matcher.v3.ListStringMatcher", &["patterns"]),
    part("envoy.type.v3.HttpStatus", &["code"]),
];
