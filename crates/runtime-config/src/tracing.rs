//! `HttpConnectionManager.tracing` and `bootstrap.tracing`, compiled. Their implementation is in crate `filters`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::fraction::Fraction;
use crate::peer::Peer;
use crate::substitution_format::Format;

/// How a connection manager traces its requests.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)]
pub struct Tracing {
    /// The destination of spans; `None`: requests are marked as traced, but there are no spans.
    pub provider: Option<Arc<Provider>>,
    /// Which requests are traced, unless their route says otherwise.
    pub sampling: Sampling,
    /// Maximum length of a path in the tag `http.url`, in bytes (256).
    pub max_path_bytes: usize,
    /// Further tags, by name.
    pub custom_tags: Vec<CustomTag>,
    /// Whether each try has a separate span (`spawn_upstream_span`).
    pub spawn_upstream_span: bool,
    /// Each try has a span of its own, and the request's span has the kind of its listener's direction all the same
    /// (`start_child_span` of the router).
    pub start_child_span: bool,
    /// `x-request-id` decides, and tells who comes after (`use_request_id_for_trace_sampling`). Otherwise chance does.
    pub use_request_id: bool,
    /// The data about this proxy.
    pub node: Arc<OwnNode>,
}

/// The data about this proxy in spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnNode {
    /// `node.id`.
    pub id: String,
    /// `node.cluster`: the service in Zipkin's spans.
    pub cluster: String,
    /// `node.locality.zone`.
    pub zone: String,
    /// An address of this machine, for Zipkin's spans.
    pub address: Option<IpAddr>,
    /// Its workload, for Istio's metrics.
    pub workload: Arc<Peer>,
}

/// Which requests are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Share of those whose client asks for it by `x-client-trace-id`.
    pub client: Fraction,
    /// Share of the others.
    pub random: Fraction,
    /// Share of all that would be traced.
    pub overall: Fraction,
}

/// The destination of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// `envoy.config.trace.v3.ZipkinConfig`.
    Zipkin(Zipkin),
    /// `envoy.config.trace.v3.OpenTelemetryConfig`.
    OpenTelemetry(OpenTelemetry),
}

impl Provider {
    /// The cluster of the collector.
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            Self::Zipkin(zipkin) => &zipkin.cluster,
            Self::OpenTelemetry(otlp) => &otlp.cluster,
        }
    }
}

/// A Zipkin collector, which gets JSON v2 over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Zipkin {
    /// `collector_cluster`.
    pub cluster: Arc<str>,
    /// `collector_endpoint`: the path.
    pub path: Box<str>,
    /// `collector_hostname`; the cluster's name when unset.
    pub host: Box<str>,
    /// New trace ids have 128 bits.
    pub trace_id_128bit: bool,
    /// A server's span has the id of its client's span.
    pub shared_span_context: bool,
    /// Whether a request's span is always a server's, and that of a try a client's, whatever the listener's direction.
    pub split_spans_for_request: bool,
    /// Whether requests carry W3C's context, too, which also counts where a request has none of B3's (`trace_context_option`).
    pub uses_w3c: bool,
    /// Time limit of a report (5 s when unset).
    pub timeout: Duration,
    /// Headers of each report.
    pub headers: Vec<(Box<str>, Box<str>)>,
}

/// A collector that takes OTLP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTelemetry {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// The protocol for spans.
    pub exporter: Exporter,
    /// Time limit of an export (5 s when unset).
    pub timeout: Duration,
    /// Headers of each export.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// `service.name` of the resource.
    pub service_name: Box<str>,
    /// Its further attributes (`resource_detectors`).
    pub resource: Vec<(Box<str>, Box<str>)>,
}

/// How spans are sent to a collector by OTLP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exporter {
    /// `opentelemetry.proto.collector.trace.v1.TraceService/Export` (`grpc_service`).
    Grpc {
        /** `:authority`; empty: the cluster's name. */
        authority: Arc<str>,
        /** Longest answer in bytes; `None`: the limit of calls. */
        max_message_bytes: Option<usize>,
        /** Do not add `x-envoy-internal` and such headers. */
        skip_envoy_headers: bool,
    },
    /// A POST of the same message (`http_service`).
    Http {
        /** Host in the URI. */
        host: Box<str>,
        /** Path in the URI. */
        path: Box<str>,
    },
}

/// A tag of every span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomTag {
    /// Its name.
    pub tag: Arc<str>,
    /// Its value.
    pub value: TagValue,
}

/// The source of a tag's value. A span does not get a tag without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagValue {
    /// This text; also that of an environment variable, which was read with the configuration.
    Literal(Box<str>),
    /// The first value of a request header.
    RequestHeader {
        /** Lower case. */
        name: Box<str>,
        /** If there is none. */
        default: Box<str>,
    },
    /// What a format string makes of the request.
    Format(Format),
    /// A value in metadata.
    Metadata {
        /** Whose. */
        of: MetadataOf,
        /** The name of the filter. */
        filter: Box<str>,
        /** Keys, from the outermost object in. */
        path: Vec<Box<str>>,
        /** If there is none. */
        default: Box<str>,
    },
}

/// The owner of the metadata that a tag shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataOf {
    /// Dynamic metadata of the request.
    Request,
    /// The route's.
    Route,
}

/// The tracing settings of a route.
#[derive(Debug, Default)]
pub struct RouteTracing {
    /// Name of its spans (`decorator.operation`); may be empty.
    pub operation: Box<str>,
    /// Whether the other side learns that name by a header (`decorator.propagate`).
    pub propagates: bool,
    /// Replaces that of the connection manager (`tracing`).
    pub sampling: Option<Sampling>,
    /// Tags besides those of the connection manager; of equal names, these hold.
    pub custom_tags: Vec<CustomTag>,
}
