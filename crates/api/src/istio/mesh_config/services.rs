//! MeshConfig: services that proxies send spans and access logs to.

use std::time::Duration;

use evenkeel_base::Spanned;

use crate::decode::{AnyFields, HeaderName, Port};

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
        trace_context_option: Option<Spanned<TraceContextOption>> = "traceContextOption",
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
        /// The source of the resource's attributes.
        resource_detectors: Option<ResourceDetectors> = "resourceDetectors",
        /// Dynatrace's sampler.
        dynatrace_sampler: Option<Spanned<AnyFields>> = "dynatraceSampler",
        /// The attribute with the service's name.
        service_attribute_enrichment: Option<Spanned<ServiceAttributeEnrichment>> = "serviceAttributeEnrichment",
    }
}

object! {
    /// The sources of attributes of the resource.
    pub struct ResourceDetectors {
        /// The proxy's variable `OTEL_RESOURCE_ATTRIBUTES`.
        environment: Option<EnvironmentDetector> = "environment",
        /// Files that Dynatrace puts on its hosts.
        dynatrace: Option<Spanned<AnyFields>> = "dynatrace",
    }
}

object! {
    /// The detector that reads a variable.
    pub struct EnvironmentDetector {}
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

choices! {
    /// In which headers the spans of Zipkin carry their context.
    pub enum TraceContextOption {
        /// B3's.
        B3 = "USE_B3",
        /// B3's, and W3C's where a request has none of B3's.
        B3WithW3c = "USE_B3_WITH_W3C_PROPAGATION",
    }
}

choices! {
    /// By which names spans of OpenTelemetry name their service.
    pub enum ServiceAttributeEnrichment {
        /// Istio's canonical names.
        IstioCanonical = "ISTIO_CANONICAL",
        /// OpenTelemetry's conventions for Kubernetes.
        Conventions = "OTEL_SEMANTIC_CONVENTIONS",
    }
}
