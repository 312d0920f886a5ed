//! MeshConfig: services that proxies send spans and access logs to.

use std::time::Duration;

use evenkeel_base::Spanned;

use super::providers::ExtensionProvider;
use crate::decode::{Anything, Context, HeaderName, Port};

object! {
    /// A service for traces.
    pub struct Tracer {
        /// The service, `[NAMESPACE/]HOST`.
        service: Spanned<String> = "service",
        /// Its port.
        port: Port = "port",
        /// The longest path in a trace, in characters.
        max_tag_length: Option<u32> = "maxTagLength",
        /// Whether trace ids have 64 bits only (Zipkin).
        enable_64bit_trace_id: Option<bool> = "enable64bitTraceId",
        /// The path for traces (Zipkin).
        path: Option<String> = "path",
        /// The headers that carry the context (Zipkin).
        trace_context_option: Option<Spanned<String>> = "traceContextOption",
        /// Limit for each call (Zipkin).
        timeout: Option<Spanned<Duration>> = "timeout",
        /// Headers of each call (Zipkin).
        headers: Vec<Spanned<ProviderHeader>> = "headers",
        /// The token (Lightstep, SkyWalking).
        access_token: Option<String> = "accessToken",
    }
}

object! {
    /// Traces for OpenTelemetry.
    pub struct OpenTelemetry {
        /// The service, `[NAMESPACE/]HOST`.
        service: Spanned<String> = "service",
        /// Its port.
        port: Port = "port",
        /// The longest path in a trace, in characters.
        max_tag_length: Option<u32> = "maxTagLength",
        /// Settings of HTTP; gRPC if not given.
        http: Option<OtlpHttp> = "http",
        /// Settings of gRPC.
        grpc: Option<OtlpGrpc> = "grpc",
        /// Where attributes of the resource come from.
        resource_detectors: Option<Spanned<Anything>> = "resourceDetectors",
        /// Dynatrace's sampler.
        dynatrace_sampler: Option<Spanned<Anything>> = "dynatraceSampler",
        /// The attribute with the service's name.
        service_attribute_enrichment: Option<Spanned<Anything>> = "serviceAttributeEnrichment",
    }
}

object! {
    /// OpenTelemetry over HTTP.
    pub struct OtlpHttp {
        /// The path.
        path: String = "path",
        /// Limit for each call; 3 s if not given.
        timeout: Option<Duration> = "timeout",
        /// Headers of each call.
        headers: Vec<ProviderHeader> = "headers",
    }
}

object! {
    /// OpenTelemetry over gRPC.
    pub struct OtlpGrpc {
        /// Limit for each call.
        timeout: Option<Duration> = "timeout",
        /// Metadata of each call.
        initial_metadata: Vec<ProviderHeader> = "initialMetadata",
    }
}

object! {
    /// A header of calls.
    pub struct ProviderHeader {
        /// Its name.
        name: HeaderName = "name",
        /// Its value.
        value: Option<String> = "value",
        /// The control plane's variable with its value.
        env_name: Option<Spanned<String>> = "envName",
    }
}

object! {
    /// Access logs over gRPC.
    pub struct AccessLogService {
        /// The service, `[NAMESPACE/]HOST`.
        service: Spanned<String> = "service",
        /// Its port.
        port: Port = "port",
        /// The name of the log.
        log_name: Option<String> = "logName",
        /// Objects of the filter state that are logged.
        filter_state_objects_to_log: Vec<String> = "filterStateObjectsToLog",
        /// Request headers that are logged.
        additional_request_headers_to_log: Vec<String> = "additionalRequestHeadersToLog",
        /// Response headers that are logged.
        additional_response_headers_to_log: Vec<String> = "additionalResponseHeadersToLog",
        /// Response trailers that are logged.
        additional_response_trailers_to_log: Vec<String> = "additionalResponseTrailersToLog",
    }
}

/// Whether a text can be the path of a call.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Names what of a provider nobody could be called with.
pub(super) fn check_paths(provider: &ExtensionProvider, cx: &mut Context) {
    let zipkin = provider.zipkin.as_ref().and_then(|zipkin| zipkin.path.as_deref()).filter(|path| !path.is_empty());
    let otlp = provider.opentelemetry.as_ref().and_then(|otel| Some(otel.http.as_ref()?.path.as_str()));
    if let Some(path) = zipkin.into_iter().chain(otlp).find(|path| !is_path(path)) {
        let message = format!("`{path}` is not the path of a call");
        cx.error("bad-value", &provider.name.span, message, "it begins with `/`, and has no spaces");
    }
}

/// The values of `traceContextOption` that say what happens in any case.
const B3: [&str; 2] = ["USE_B3", ""];

/// Names the settings of a tracer in use that have no effect.
pub(super) fn check_tracer(provider: &ExtensionProvider, cx: &mut Context) {
    let mut unused = |name: &str, span: &evenkeel_base::Span, message: &str, help: &str| {
        cx.at_field(name, |cx| cx.warning("unsupported-field", span, message, help));
    };
    if let Some(zipkin) = &provider.zipkin {
        if let Some(option) = zipkin.trace_context_option.as_ref().filter(|option| !B3.contains(&option.as_str())) {
            let message = "spans carry their context in B3 headers only";
            unused("traceContextOption", &option.span, message, "use an `opentelemetry` provider for W3C headers");
        }
        if let Some(timeout) = &zipkin.timeout {
            unused("timeout", &timeout.span, "calls have Envoy's limit, 5 s", "remove it");
        }
        if let Some(header) = zipkin.headers.first() {
            let help = "add them where the collector's VirtualService is";
            unused("headers", &header.span, "calls have no further headers", help);
        }
    }
    if let Some(otel) = &provider.opentelemetry {
        let all = [
            (
                "resourceDetectors",
                &otel.resource_detectors,
                "spans have no attributes of the resource but the service's name",
            ),
            ("dynatraceSampler", &otel.dynatrace_sampler, "the mesh's sampling decides"),
            (
                "serviceAttributeEnrichment",
                &otel.service_attribute_enrichment,
                "the service's name is that of the proxy",
            ),
        ];
        for (name, value, message) in all {
            if let Some(value) = value {
                unused(name, &value.span, message, "remove it");
            }
        }
        let headers = otel.http.iter().flat_map(|http| &http.headers);
        let metadata = otel.grpc.iter().flat_map(|grpc| &grpc.initial_metadata);
        for name in headers.chain(metadata).filter_map(|header| header.env_name.as_ref()) {
            let message = "the control plane does not read its environment; a header without `value` is left out";
            let help = format!("write the value of {} in `value`", name.value);
            let place = if otel.http.is_some() { "http" } else { "grpc" };
            unused(place, &name.span, message, &help);
        }
    }
}
