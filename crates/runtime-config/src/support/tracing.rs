//! Tracing: connection managers, routes, providers.

use super::message::MessageSupport;
use super::message::Role::{Extension, Part};

const NO_LOGS: &str = "spans have no log entries";

const fn part(name: &'static str, full: &'static [&'static str]) -> MessageSupport {
    MessageSupport { name, role: Part, full, values: &[], no_effect: &[] }
}

#[rustfmt::skip]
pub(super) static MESSAGES: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing",
        role: Part,
        full: &["client_sampling", "random_sampling", "overall_sampling", "max_path_tag_length", "custom_tags",
            "provider", "spawn_upstream_span"],
        values: &[],
        no_effect: &[(NO_LOGS, &["verbose"])],
    },
    MessageSupport {
        name: "envoy.type.tracing.v3.CustomTag",
        role: Part,
        full: &["tag", "literal", "environment", "request_header"],
        values: &[("metadata", "of spans"), ("value", "of spans")],
        no_effect: &[],
    },
    part("envoy.type.tracing.v3.CustomTag.Literal", &["value"]),
    part("envoy.type.tracing.v3.CustomTag.Environment", &["name", "default_value"]),
    part("envoy.type.tracing.v3.CustomTag.Header", &["name", "default_value"]),
    part("envoy.type.tracing.v3.CustomTag.Metadata", &["kind", "metadata_key", "default_value"]),
    part("envoy.type.metadata.v3.MetadataKind", &["request", "route"]),
    part("envoy.type.metadata.v3.MetadataKind.Request", &[]),
    part("envoy.type.metadata.v3.MetadataKind.Route", &[]),
    part("envoy.type.metadata.v3.MetadataKey", &["key", "path"]),
    part("envoy.type.metadata.v3.MetadataKey.PathSegment", &["key"]),
    part("envoy.config.route.v3.Decorator", &["operation", "propagate"]),
    part("envoy.config.route.v3.Tracing", &["client_sampling", "random_sampling", "overall_sampling", "custom_tags"]),
    part("envoy.config.trace.v3.Tracing", &["http"]),
    part("envoy.config.trace.v3.Tracing.Http", &["name", "typed_config"]),
    MessageSupport {
        name: "envoy.config.trace.v3.ZipkinConfig",
        role: Extension,
        full: &["collector_cluster", "collector_endpoint", "collector_hostname", "trace_id_128bit", "shared_span_context",
            "split_spans_for_request", "collector_service", "trace_context_option"],
        values: &[("collector_endpoint_version", "HTTP_JSON")],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.config.trace.v3.OpenTelemetryConfig",
        role: Extension,
        full: &["grpc_service", "http_service", "service_name"],
        values: &[("resource_detectors", "those of the environment, of a static configuration, and of Dynatrace"),
            ("sampler", "that of Dynatrace")],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.extensions.tracers.opentelemetry.samplers.v3.DynatraceSamplerConfig",
        role: Extension,
        full: &[],
        values: &[],
        no_effect: &[("`random_sampling` decides; Dynatrace's rates are not fetched",
            &["tenant", "cluster_id", "http_service", "root_spans_per_minute"])],
    },
    MessageSupport {
        name: "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig",
        role: Extension,
        full: &[],
        values: &[],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.StaticConfigResourceDetectorConfig",
        role: Extension,
        full: &["attributes"],
        values: &[],
        no_effect: &[],
    },
    MessageSupport {
        name: "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.DynatraceResourceDetectorConfig",
        role: Extension,
        full: &[],
        values: &[],
        no_effect: &[],
    },
    part("envoy.config.core.v3.HttpService", &["http_uri", "request_headers_to_add"]),
];
