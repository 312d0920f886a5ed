//! Services that filters, logs and tracing call.

use super::message::Role::{self, Part};
use super::message::{MessageSupport, part};

const fn message(
    name: &'static str,
    role: Role,
    full: &'static [&'static str],
    values: &'static [(&'static str, &'static str)],
    no_effect: &'static [(&'static str, &'static [&'static str])],
) -> MessageSupport {
    MessageSupport { name, role, full, values, no_effect }
}

/// Whose gRPC calls have a setting.
const CALLED: &str = "of services that filters and logs call, and of collectors of spans";

pub(super) static MESSAGES: &[MessageSupport] = &[
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
        &[
            ("timeout", CALLED),
            ("initial_metadata", "of services that filters and logs call, of collectors of spans, and of `ads_config`"),
        ],
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
