//! `envoy.access_loggers.http_grpc`, `envoy.access_loggers.tcp_grpc` and `envoy.access_loggers.open_telemetry`, compiled: the contents of entries, and the service
//! that gets them.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::data::accesslog::v3::AccessLogType;

use crate::ext_authz::GrpcTarget;
use crate::substitution_format::Format;

/// One log whose entries are sent to a gRPC service.
#[derive(Debug)]
pub struct GrpcLog {
    /// The destination of entries.
    pub collector: Arc<Collector>,
    /// When entries are written, by the place of the log (`access_log_type`).
    pub written: AccessLogType,
    /// Keys of filter state (`filter_state_objects_to_log`).
    pub filter_state: Vec<Box<str>>,
    /// Lower-case names of request headers (`additional_request_headers_to_log`).
    pub request_headers: Vec<Box<str>>,
    /// Lower-case names of response headers.
    pub response_headers: Vec<Box<str>>,
    /// Lower-case names of response trailers.
    pub response_trailers: Vec<Box<str>>,
    /// Further names and values (`custom_tags`).
    pub tags: Vec<(Box<str>, Tag)>,
    /// The contents of an entry that is a log record of OpenTelemetry.
    pub otlp: Option<OtlpRecord>,
}

/// `OpenTelemetryAccessLogConfig`: what a log record has.
#[derive(Debug)]
pub struct OtlpRecord {
    /// Its body.
    pub body: Option<OtlpValue>,
    /// Its attributes.
    pub attributes: Vec<(Box<str>, OtlpValue)>,
}

/// A value with operators.
#[derive(Debug)]
pub enum OtlpValue {
    /// A text.
    Text(Format),
    /// Values by name.
    Map(Vec<(Box<str>, OtlpValue)>),
    /// Values in order.
    List(Vec<OtlpValue>),
}

/// A service, and how entries are sent to it (`CommonGrpcAccessLogConfig`). Logs whose collectors are equal share a stream of each worker.
#[derive(Debug)]
pub struct Collector {
    /// The service.
    pub target: GrpcTarget,
    /// A collector of OpenTelemetry that is called over HTTP: the same messages in POST requests to the same cluster (`http_service`).
    pub http: Option<HttpPost>,
    /// `log_name`, which the service learns with the first message of a stream.
    pub log_name: Box<str>,
    /// The kind of all entries.
    pub kind: EntryKind,
    /// Of records of OpenTelemetry: the encoded resource that they are about.
    pub resource: Vec<u8>,
    /// Maximum time that an entry waits for others.
    pub flush_interval: Duration,
    /// Entries are sent once they have this size together, in bytes; 0: each at once.
    pub buffer_bytes: usize,
    /// The message it was compiled from.
    pub(crate) source: Vec<u8>,
}

impl Collector {
    /// Maximum size of a worker's buffer, in bytes: a message to the service must not be longer than servers accept (4 MiB by
    /// default).
    pub const MAX_BUFFER_BYTES: usize = 1024 * 1024;
}

impl PartialEq for Collector {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.source == other.source
    }
}

/// A POST request.
#[derive(Debug)]
pub struct HttpPost {
    /// Host in the URI; may be empty.
    pub host: Box<str>,
    /// Path in the URI.
    pub path: Box<str>,
    /// Further headers.
    pub headers: Vec<(Box<str>, Box<str>)>,
}

/// The message that an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// `HTTPAccessLogEntry`.
    Http,
    /// `TCPAccessLogEntry`.
    Tcp,
    /// `opentelemetry.proto.logs.v1.LogRecord`.
    OpenTelemetry,
}

/// The value of a custom tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// A fixed value for all entries: `literal`, or `environment`.
    Fixed(Box<str>),
    /// A request header (lower case), or a default for requests without it; an empty default leaves the tag out.
    RequestHeader(Box<str>, Box<str>),
}
