//! Where proxies send spans and access logs: `enableTracing`, `enableEnvoyAccessLogService`, and the providers of
//! `meshConfig.extensionProviders` that `defaultProviders` names.

use std::sync::Arc;
use std::time::Duration;

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

/// An access log that all proxies have.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessLogTarget {
    /// A file.
    File(AccessLogFile),
    /// A service.
    Service(LogService),
}

/// The telemetry settings of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Whether proxies with a collector of their own trace requests (`enableTracing`).
    pub traces: bool,
    /// The collector of all proxies (`defaultProviders.tracing`); it goes before their own.
    pub collector: Option<Arc<Collector>>,
    /// Whether proxies with a service for access logs of their own send them (`enableEnvoyAccessLogService`).
    pub sends_logs: bool,
}

impl Default for Telemetry {
    /// Istio's defaults.
    fn default() -> Self {
        Self { traces: true, collector: None, sends_logs: false }
    }
}
