//! Access log configuration: where to, what, and the compiled format (`SubstitutionFormatString`).

use std::sync::Arc;

use crate::matching::HeaderMatcher;

/// One `envoy.access_loggers.file`.
#[derive(Debug)]
pub struct AccessLog {
    /// File; `/dev/stdout` and `/dev/stderr` are the process's own.
    pub path: Arc<str>,
    /// The line.
    pub format: LogFormat,
    /// Which requests are logged.
    pub filter: LogFilter,
}

/// The form of a line.
#[derive(Debug)]
pub enum LogFormat {
    /// Text; ends in a newline if the user wrote one.
    Text(Format),
    /// JSON object, keys in the order given; typed values (numbers stay numbers, absent is `null`).
    Json {
        /// Nested values.
        root: JsonFormat,
        /// Leave out keys whose value is absent.
        omit_empty: bool,
    },
}

/// A JSON value of operators.
#[derive(Debug)]
pub enum JsonFormat {
    /// Object.
    Object(Vec<(Box<str>, JsonFormat)>),
    /// List.
    List(Vec<JsonFormat>),
    /// String of operators; a lone operator keeps its type.
    Value(Format),
}

/// Which requests are logged (`AccessLogFilter`).
#[derive(Debug, Default)]
pub enum LogFilter {
    /// All.
    #[default]
    All,
    /// Those with one of these response flags (`response_flag_filter`); empty: any flag.
    ResponseFlags(Vec<Box<str>>),
    /// `status_code_filter`.
    StatusCode(Comparison),
    /// Milliseconds (`duration_filter`).
    Duration(Comparison),
    /// Of the request (`header_filter`).
    Header(HeaderMatcher),
    /// `grpc_status_filter`.
    GrpcStatus {
        /// These, by number.
        statuses: Vec<u8>,
        /// All but these.
        exclude: bool,
    },
    /// Those all of these let through.
    And(Vec<LogFilter>),
    /// Those one of these lets through.
    Or(Vec<LogFilter>),
}

/// `ComparisonFilter`.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// How.
    pub operation: Operation,
    /// With what.
    pub value: u32,
}

/// How a number is compared.
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
    /// As is.
    Literal(Box<str>),
    /// `%OPERATOR(argument):length%`.
    Operator {
        /// Which.
        operator: Operator,
        /// Longest value in bytes.
        max_length: Option<usize>,
    },
}

/// How `%GRPC_STATUS%` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcStatusFormat {
    /// `InvalidArgument`.
    Camel,
    /// `INVALID_ARGUMENT`.
    Snake,
    /// `3`.
    Number,
}

/// How `%FILTER_STATE%` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterStateFormat {
    /// `TYPED`: JSON.
    Typed,
    /// `PLAIN`: the object's own text.
    Plain,
}

/// Envoy's command operators that are supported. An absent value prints `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operator {
    /// Format in `strftime` with Envoy's `%3f` etc.; `None`: `2026-01-31T12:34:56.789Z`.
    StartTime(Option<Box<str>>),
    /// Request header, with an alternative when it is absent.
    Req(Box<str>, Option<Box<str>>),
    /// Request header without its query (`REQ_WITHOUT_QUERY`).
    ReqWithoutQuery(Box<str>, Option<Box<str>>),
    /// Response header, with an alternative.
    Resp(Box<str>, Option<Box<str>>),
    /// Response trailer.
    Trailer(Box<str>, Option<Box<str>>),
    /// How a call of gRPC ended.
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
    /// From one point in a request's life to another.
    CommonDuration {
        /// From then.
        start: TimePoint,
        /// Until then.
        end: TimePoint,
        /// In this unit.
        precision: Precision,
    },
    UpstreamHost,
    UpstreamCluster,
    /// The cluster's name where `UpstreamCluster` says its `alt_stat_name`.
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
    /// The body of the proxy's own answer, in `local_reply_config`.
    LocalReplyBody,
    ConnectionId,
    RequestId,
    Hostname,
    FilterChainName,
    /// What an HTTP filter keeps under this key (`FILTER_STATE`).
    FilterState(Box<str>, FilterStateFormat),
    /// What a filter has found out (`DYNAMIC_METADATA`).
    DynamicMetadata {
        /// The filter.
        filter: Box<str>,
        /// Keys, from the outermost object in; none: all of it.
        path: Vec<Box<str>>,
    },
    /// What a proxy that was asked for a tunnel answered: `%FILTER_STATE(envoy.tcp_proxy.propagate_response_headers)%`.
    TunnelHeaders,
    /// What it said at the tunnel's end: `%FILTER_STATE(envoy.tcp_proxy.propagate_response_trailers)%`.
    TunnelTrailers,
    /// Filter state and others that this build never sets: prints `-`.
    Unset,
}

/// A point in a request's life, as `%COMMON_DURATION%` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimePoint {
    /// `DS_RX_BEG`: the request began.
    DownstreamRxBegin,
    /// `DS_RX_END`: its last byte came.
    DownstreamRxEnd,
    /// `US_CX_BEG`: the connection that carries it upstream began to be made, for whichever request.
    UpstreamConnectBegin,
    /// `US_CX_END`: that connection was made.
    UpstreamConnectEnd,
    /// `US_HS_END`: its TLS handshake was over.
    UpstreamHandshakeEnd,
    /// `US_TX_BEG`: the request's first byte went upstream, in the last try.
    UpstreamTxBegin,
    /// `US_TX_END`: its last byte did.
    UpstreamTxEnd,
    /// `US_RX_BEG`: the upstream's first byte came.
    UpstreamRxBegin,
    /// `US_RX_BODY_BEG`: the first byte of its answer's body came.
    UpstreamRxBodyBegin,
    /// `US_RX_END`: its last byte came.
    UpstreamRxEnd,
    /// `DS_TX_BEG`: the client was sent the first byte.
    DownstreamTxBegin,
    /// `DS_TX_END`: the client was sent the last byte.
    DownstreamTxEnd,
    /// `ON_DEMAND_BEG`: it began to wait for configuration it needs.
    HeldBegin,
    /// `ON_DEMAND_END`: it went on.
    HeldEnd,
}

impl TimePoint {
    /// All of them, under Envoy's names.
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
