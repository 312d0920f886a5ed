//! Format strings with command operators (`SubstitutionFormatString`): in access logs, headers and local replies.

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
    /// Response headers of the proxy through which a tunnel was opened:
    /// `%FILTER_STATE(envoy.tcp_proxy.propagate_response_headers)%`.
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
