//! Where proxies send spans and access logs: `enableTracing`, `enableEnvoyAccessLogService`, the providers of
//! `meshConfig.extensionProviders`, and who names them: `defaultProviders` and Telemetry objects.

mod merge;
mod metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::TagSource;
use evenkeel_base::Span;

pub use self::merge::{LogChoice, Tracer};
pub use self::metrics::{MetricChange, MetricsChoice, MetricsOverride, MetricsRule};
use crate::Selection;
use crate::provider::ProviderService;

/// A collector of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// The collector's service.
    pub service: ProviderService,
    /// The longest path in a span, in bytes; `None`: Envoy's default.
    pub max_path_bytes: Option<u32>,
    /// Its protocol.
    pub protocol: CollectorProtocol,
    /// Whether the resource of its spans has the attributes of the proxy's variable `OTEL_RESOURCE_ATTRIBUTES`.
    pub reads_environment: bool,
}

/// The protocol of a collector of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectorProtocol {
    /// Zipkin's JSON, version 2.
    Zipkin {
        /// The path of calls.
        path: Arc<str>,
        /// Whether trace ids have 64 bits only.
        short_ids: bool,
        /// Whether requests carry W3C's context, too, which also counts where a request has none of B3's.
        uses_w3c: bool,
        /// Limit for each call; `None`: Envoy's.
        timeout: Option<Duration>,
        /// Headers of each call.
        headers: Vec<(Arc<str>, Arc<str>)>,
    },
    /// OpenTelemetry over gRPC.
    OtlpGrpc {
        /// Limit for each call.
        timeout: Option<Duration>,
        /// Metadata of each call.
        metadata: Vec<(Arc<str>, Arc<str>)>,
    },
    /// OpenTelemetry over HTTP.
    OtlpHttp {
        /// The path of calls.
        path: Arc<str>,
        /// Limit for each call.
        timeout: Duration,
        /// Headers of each call.
        headers: Vec<(Arc<str>, Arc<str>)>,
    },
}

/// The subject of the entries of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSubject {
    /// A request.
    Http,
    /// A connection.
    Tcp,
}

/// A service that takes access logs over gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogService {
    /// The subject of its entries.
    pub subject: LogSubject,
    /// The log's service.
    pub service: ProviderService,
    /// The name of the log; `None`: Istio's.
    pub log_name: Option<Arc<str>>,
    /// Objects of the filter state that are logged.
    pub filter_state: Vec<String>,
    /// Request headers that are logged.
    pub request_headers: Vec<String>,
    /// Response headers that are logged.
    pub response_headers: Vec<String>,
    /// Response trailers that are logged.
    pub response_trailers: Vec<String>,
}

/// A collector of OpenTelemetry that takes access logs, of requests and connections alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpLog {
    /// The collector's service.
    pub service: ProviderService,
    /// The name of the log; `None`: Istio's.
    pub log_name: Option<Arc<str>>,
    /// Objects of the filter state that are logged.
    pub filter_state: Vec<String>,
    /// The body of records; `None`: Istio's text format.
    pub body: Option<Arc<str>>,
    /// The attributes of records, a JSON object whose texts are operators, as JSON text.
    pub attributes: Option<Arc<str>>,
}

/// An access log in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLogFile {
    /// The file.
    pub path: Arc<str>,
    /// Its format.
    pub format: AccessLogFormat,
    /// Whether keys without a value are left out.
    pub omit_empty_values: bool,
}

/// The format of an access log.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessLogFormat {
    /// A line of text; `None` = Istio's.
    Text(Option<Arc<str>>),
    /// A JSON object whose texts are operators, as JSON text; `None` = Istio's keys.
    Json(Option<Arc<str>>),
}

/// The access log of a provider.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessLogTarget {
    /// A file.
    File(AccessLogFile),
    /// A service.
    Service(LogService),
    /// A collector of OpenTelemetry.
    OpenTelemetry(OtlpLog),
}

/// A provider of `extensionProviders`, or one that exists without being declared.
#[derive(Debug, Clone, PartialEq)]
pub enum Provider {
    /// A collector of spans.
    Tracer(Arc<Collector>),
    /// An access log.
    Log(Arc<AccessLogTarget>),
    /// Metrics for Prometheus.
    Metrics,
    /// One for telemetry that proxies cannot call.
    Unsupported,
    /// One for another purpose.
    Other,
}

/// The providers of `defaultProviders`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DefaultProviders {
    /// For traces.
    pub tracing: Vec<Arc<str>>,
    /// For access logs.
    pub access_logging: Vec<Arc<str>>,
    /// For metrics.
    pub metrics: Vec<Arc<str>>,
}

/// The telemetry settings of the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetrySettings {
    /// Whether proxies with a collector of their own trace requests (`enableTracing`).
    pub traces: bool,
    /// Whether proxies with a service for access logs of their own send them (`enableEnvoyAccessLogService`).
    pub sends_logs: bool,
    /// All providers, by name.
    pub providers: BTreeMap<Arc<str>, Provider>,
    /// Those that are used where no Telemetry object names others.
    pub defaults: DefaultProviders,
}

/// The provider of metrics that exists without being declared, and is used unless the mesh's settings name others.
const PROMETHEUS: &str = "prometheus";
/// The target of an access log without a file, as in Istio's built-in provider `envoy`.
pub(crate) const STDOUT: &str = "/dev/stdout";

impl TelemetrySettings {
    /// Providers that exist without being declared, as in Istio.
    pub(crate) fn built_in() -> [(Arc<str>, Provider); 2] {
        let file = AccessLogFile { path: STDOUT.into(), format: AccessLogFormat::Text(None), omit_empty_values: false };
        [(PROMETHEUS.into(), Provider::Metrics), ("envoy".into(), Provider::Log(Arc::new(AccessLogTarget::File(file))))]
    }
}

impl Default for TelemetrySettings {
    /// Istio's defaults.
    fn default() -> Self {
        Self {
            traces: true,
            sends_logs: false,
            providers: Self::built_in().into(),
            defaults: DefaultProviders { metrics: vec![PROMETHEUS.into()], ..DefaultProviders::default() },
        }
    }
}

/// The side of the traffic that a workload is on. A gateway is a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// It calls.
    Client,
    /// It is called.
    Server,
}

/// The traces and access logs of some workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; without a selection it applies to the whole mesh if this is the root namespace.
    pub namespace: Arc<str>,
    /// The workloads of the namespace that it is for.
    pub selection: Selection,
    /// Traces.
    pub tracing: Vec<TracingRule>,
    /// Access logs.
    pub logs: Vec<LogRule>,
    /// Istio's metrics.
    pub metrics: Vec<MetricsRule>,
    /// Where it was written.
    pub origin: Span,
}

/// What a Telemetry object says of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct TracingRule {
    /// The side that it is for; `None`: both.
    pub side: Option<Side>,
    /// Where spans go.
    pub provider: Option<Arc<str>>,
    /// Whether there are none.
    pub disabled: Option<bool>,
    /// The share of sampled requests, in percent.
    pub sampling: Option<f64>,
    /// Further tags, by name; none: those of the outer rule.
    pub tags: Vec<(String, TagValue)>,
    /// Whether spans have Istio's tags of the workload.
    pub istio_tags: Option<bool>,
}

/// The value of a tag of spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TagValue {
    /// This text.
    Literal(String),
    /// That of a variable of the proxy's environment, or a default.
    Environment(String, Option<String>),
    /// That of a header of the request, or a default.
    Header(Arc<str>, Option<String>),
    /// What a format string of access logs makes of the request.
    Format(String),
}

impl TagValue {
    /// The value that comes from this source.
    pub fn of(source: TagSource<'_>) -> Self {
        match source {
            TagSource::Literal(text) => Self::Literal(text.to_owned()),
            TagSource::Environment(name, default) => Self::Environment(name.to_owned(), default.map(str::to_owned)),
            TagSource::Header(name, default) => Self::Header(name.0.clone(), default.map(str::to_owned)),
            TagSource::Format(text) => Self::Format(text.to_owned()),
        }
    }
}

/// What a Telemetry object says of access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRule {
    /// The side that it is for; `None`: both.
    pub side: Option<Side>,
    /// The logs; none: those of the outer rule.
    pub providers: Vec<Arc<str>>,
    /// Whether nothing is written to them.
    pub disabled: bool,
    /// The expression (CEL) that is true for what is written; `None`: everything.
    pub filter: Option<Arc<str>>,
}
