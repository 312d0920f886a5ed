//! Access log configuration: destination, filter, and the compiled format (`SubstitutionFormatString`).

use std::sync::Arc;

use crate::grpc_access_log::GrpcLog;
use crate::matching::HeaderMatcher;

/// One access logger.
#[derive(Debug)]
pub struct AccessLog {
    /// Where entries go, and what they are.
    pub sink: LogSink,
    /// Which requests are logged.
    pub filter: LogFilter,
}

impl AccessLog {
    /// The cluster that gets the entries; `None`: they are lines of a file.
    pub(crate) fn service(&self) -> Option<&Arc<str>> {
        match &self.sink {
            LogSink::File { .. } => None,
            LogSink::Grpc(log) => Some(&log.collector.target.call.cluster),
        }
    }
}

/// Where entries go.
#[derive(Debug)]
pub enum LogSink {
    /// `envoy.access_loggers.file`.
    File {
        /// The file; `/dev/stdout` and `/dev/stderr` are the process's own.
        path: Arc<str>,
        /// The format of a line.
        format: LogFormat,
    },
    /// `envoy.access_loggers.http_grpc`, `envoy.access_loggers.tcp_grpc`.
    Grpc(Box<GrpcLog>),
}

/// The format of a log line.
#[derive(Debug)]
pub enum LogFormat {
    /// Text; ends in a newline if the user wrote one.
    Text(Format),
    /// JSON object, keys in the order given; typed values (numbers stay numbers, absent is `null`).
    Json {
        /// Nested values.
        root: JsonFormat,
        /// Omit keys whose value is absent.
        omit_empty: bool,
    },
}

/// A JSON value with operators.
#[derive(Debug)]
pub enum JsonFormat {
    /// Object.
    Object(Vec<(Box<str>, JsonFormat)>),
    /// List.
    List(Vec<JsonFormat>),
    /// A string with operators; a lone operator keeps its type.
    Value(Format),
}

/// Selects the requests to log (`AccessLogFilter`).
#[derive(Debug, Default)]
pub enum LogFilter {
    /// All.
    #[default]
    All,
    /// Those with one of these response flags (`response_flag_filter`); empty: any flag.
    ResponseFlags(Vec<Box<str>>),
    /// `status_code_filter`.
    StatusCode(Comparison),
    /// Duration in milliseconds (`duration_filter`).
    Duration(Comparison),
    /// A request header (`header_filter`).
    Header(HeaderMatcher),
    /// `grpc_status_filter`.
    GrpcStatus {
        /// Status numbers.
        statuses: Vec<u8>,
        /// Matches all but these.
        exclude: bool,
    },
    /// Matches if all of these match.
    And(Vec<LogFilter>),
    /// Matches if any of these matches.
    Or(Vec<LogFilter>),
}

/// `ComparisonFilter`.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// The comparison operation.
    pub operation: Operation,
    /// The value to compare with.
    pub value: u32,
}

/// A comparison operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Equal,
    AtLeast,
    AtMost,
    NotEqual,
}

/// A compiled format string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Literals and operators in order.
    pub parts: Vec<FormatPart>,
}

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatPart {
    /// Literal text.
    Literal(Box<str>),
    /// `%OPERATOR(argument):length%`.
    Operator {
        /// The operator.
        operator: Operator,
        /// Maximum length of the value in bytes.
        max_length: Option<usize>,
    },
}

/// The format of `%GRPC_STATUS%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcStatusFormat {
    /// `InvalidArgument`.
    Camel,
    /// `INVALID_ARGUMENT`.
    Snake,
    /// `3`.
    Number,
}

/// The format of `%FILTER_STATE%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterStateFormat {
    /// `TYPED`: JSON.
    Typed,
    /// `PLAIN`: the object's string form.
    Plain,
}

/// The supported command operators of Envoy. An absent value prints `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operator {
    /// Format as for `strftime`, with Envoy's `%3f` etc.; `None`: `2026-01-31T12:34:56.789Z`.
    StartTime(Option<Box<str>>),
    /// Request header, with an alternative header if it is absent.
    Req(Box<str>, Option<Box<str>>),
    /// Request header without its query string (`REQ_WITHOUT_QUERY`).
    ReqWithoutQuery(Box<str>, Option<Box<str>>),
    /// Response header, with an alternative header.
    Resp(Box<str>, Option<Box<str>>),
    /// Response trailer.
    Trailer(Box<str>, Option<Box<str>>),
    /// The gRPC status of a call.
    GrpcStatus(GrpcStatusFormat),
    Protocol,
    ResponseCode,
    ResponseCodeDetails,
    ConnectionTerminationDetails,
    ResponseFlags,
    ResponseFlagsLong,
    BytesReceived,
    BytesSent,
    /// Milliseconds.
    Duration,
    /// Milliseconds to the last request byte.
    RequestDuration,
    /// Milliseconds to the first response byte from the upstream.
    ResponseDuration,
    /// Milliseconds from the first upstream byte to the last downstream byte.
    ResponseTxDuration,
    /// Time from one point in a request's life to another.
    CommonDuration {
        /// Start of the interval.
        start: TimePoint,
        /// End of the interval.
        end: TimePoint,
        /// Unit.
        precision: Precision,
    },
    UpstreamHost,
    /// As `UpstreamHost`, once there is a connection.
    UpstreamRemoteAddress,
    UpstreamCluster,
    /// The cluster's name; `UpstreamCluster` prints its `alt_stat_name`.
    UpstreamClusterRaw,
    UpstreamLocalAddress,
    UpstreamTransportFailureReason,
    DownstreamTransportFailureReason,
    UpstreamRequestAttemptCount,
    DownstreamLocalAddress,
    DownstreamLocalAddressWithoutPort,
    DownstreamLocalPort,
    DownstreamRemoteAddress,
    DownstreamRemoteAddressWithoutPort,
    DownstreamRemotePort,
    DownstreamDirectRemoteAddress,
    DownstreamDirectRemoteAddressWithoutPort,
    DownstreamPeerUriSan,
    DownstreamLocalUriSan,
    DownstreamPeerSubject,
    DownstreamTlsVersion,
    DownstreamTlsCipher,
    RequestedServerName,
    RouteName,
    VirtualClusterName,
    /// The body of the local reply, in `local_reply_config`.
    LocalReplyBody,
    ConnectionId,
    RequestId,
    Hostname,
    FilterChainName,
    /// An HTTP filter's state object under this key (`FILTER_STATE`).
    FilterState(Box<str>, FilterStateFormat),
    /// One field of such an object.
    FilterStateField(Box<str>, Box<str>),
    /// Dynamic metadata set by a filter (`DYNAMIC_METADATA`).
    DynamicMetadata {
        /// The filter's name.
        filter: Box<str>,
        /// Keys, from the outermost object inwards; empty: all of it.
        path: Vec<Box<str>>,
    },
    /// Response headers of a proxy that was asked for a tunnel: `%FILTER_STATE(envoy.tcp_proxy.propagate_response_headers)%`.
    TunnelHeaders,
    /// Its response trailers at the tunnel's end: `%FILTER_STATE(envoy.tcp_proxy.propagate_response_trailers)%`.
    TunnelTrailers,
    /// Filter state and other values that this build never sets: prints `-`.
    Unset,
}

/// A point in a request's life, as `%COMMON_DURATION%` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimePoint {
    /// `DS_RX_BEG`: the request began.
    DownstreamRxBegin,
    /// `DS_RX_END`: its last byte was received.
    DownstreamRxEnd,
    /// `US_CX_BEG`: connecting began for the upstream connection that carries it, for whichever request.
    UpstreamConnectBegin,
    /// `US_CX_END`: that connection was established.
    UpstreamConnectEnd,
    /// `US_HS_END`: its TLS handshake was completed.
    UpstreamHandshakeEnd,
    /// `US_TX_BEG`: the request's first byte was sent upstream, in the last try.
    UpstreamTxBegin,
    /// `US_TX_END`: its last byte was sent upstream.
    UpstreamTxEnd,
    /// `US_RX_BEG`: the upstream's first byte was received.
    UpstreamRxBegin,
    /// `US_RX_BODY_BEG`: the first byte of the response's body was received.
    UpstreamRxBodyBegin,
    /// `US_RX_END`: the response's last byte was received.
    UpstreamRxEnd,
    /// `DS_TX_BEG`: the first byte was sent to the client.
    DownstreamTxBegin,
    /// `DS_TX_END`: the last byte was sent to the client.
    DownstreamTxEnd,
    /// `ON_DEMAND_BEG`: the request began to wait for on-demand configuration.
    HeldBegin,
    /// `ON_DEMAND_END`: that wait ended.
    HeldEnd,
}

impl TimePoint {
    /// All points, with Envoy's names.
    pub const ALL: [(&'static str, Self); 14] = [
        ("DS_RX_BEG", Self::DownstreamRxBegin),
        ("DS_RX_END", Self::DownstreamRxEnd),
        ("US_CX_BEG", Self::UpstreamConnectBegin),
        ("US_CX_END", Self::UpstreamConnectEnd),
        ("US_HS_END", Self::UpstreamHandshakeEnd),
        ("US_TX_BEG", Self::UpstreamTxBegin),
        ("US_TX_END", Self::UpstreamTxEnd),
        ("US_RX_BEG", Self::UpstreamRxBegin),
        ("US_RX_BODY_BEG", Self::UpstreamRxBodyBegin),
        ("US_RX_END", Self::UpstreamRxEnd),
        ("DS_TX_BEG", Self::DownstreamTxBegin),
        ("DS_TX_END", Self::DownstreamTxEnd),
        ("ON_DEMAND_BEG", Self::HeldBegin),
        ("ON_DEMAND_END", Self::HeldEnd),
    ];
}

/// The unit of `%COMMON_DURATION%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// `ms`
    Millis,
    /// `us`
    Micros,
    /// `ns`
    Nanos,
}
