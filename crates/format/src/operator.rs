//! Compiled format strings.

use std::sync::Arc;

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
    /// As `StartTime`, of the moment of the record.
    EmitTime(Option<Box<str>>),
    /// Request header, with an alternative header if it is absent.
    Req(Box<str>, Option<Box<str>>),
    /// Request header without its query string (`REQ_WITHOUT_QUERY`).
    ReqWithoutQuery(Box<str>, Option<Box<str>>),
    /// Response header, with an alternative header.
    Resp(Box<str>, Option<Box<str>>),
    /// The bytes of a head, names included.
    HeadBytes(HeadOf),
    /// The path, with or without its query.
    Path {
        /// Where it comes from.
        source: PathSource,
        /// Whether with the query.
        query: bool,
    },
    /// A parameter of the query.
    QueryParam(Box<str>),
    /// The query. As in Envoy, `DECODED` changes nothing: what it decodes it encodes again.
    QueryParams,
    /// Response trailer.
    Trailer(Box<str>, Option<Box<str>>),
    /// The gRPC status of a call.
    GrpcStatus(GrpcStatusFormat),
    Protocol,
    ResponseCode,
    /// Blanks become underscores, if there is a conversion.
    ResponseCodeDetails(Conversion),
    ConnectionTerminationDetails,
    ResponseFlags,
    ResponseFlagsLong,
    BytesReceived,
    BytesSent,
    /// Milliseconds.
    Duration,
    /// Milliseconds to the last request byte.
    RequestDuration,
    /// Milliseconds to the last request byte sent upstream.
    RequestTxDuration,
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
    /// The host's name, or its address if it has none.
    UpstreamHostName {
        /// Whether with the port.
        port: bool,
    },
    /// The hosts of all tries, or the connections.
    Attempted(Attempted),
    UpstreamProtocol,
    UpstreamConnectionId,
    UpstreamCluster,
    /// The cluster's name; `UpstreamCluster` prints its `alt_stat_name`.
    UpstreamClusterRaw,
    UpstreamTransportFailureReason,
    DownstreamTransportFailureReason,
    UpstreamRequestAttemptCount,
    /// An address of the client's or of the upstream connection.
    Address(AddressOf, AddressPart),
    /// Of a certificate of the client's or of the upstream connection.
    Certificate(Certificate),
    /// Of the TLS session with the client or with the upstream.
    Tls(Side, TlsField),
    /// The server name of the client's TLS, or the host of the request.
    RequestedServerName(HostSource),
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
    /// An expression over attributes.
    Cel {
        /// The expression.
        expression: Arc<evenkeel_cel::Expression>,
        /// `node.id` and `node.cluster` of the proxy.
        node: Arc<[String; 2]>,
        /// Whether values keep their types in JSON.
        typed: bool,
    },
    /// The first of these that has a value; each is an operator.
    Coalesce(Vec<FormatPart>),
    /// A random UUID.
    UniqueId,
    TraceId,
    SpanId,
    /// A count of something that does not exist in HTTP/1 and HTTP/2.
    Zero,
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

/// Whose blanks become underscores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// Blanks become underscores.
    OneWord,
    /// The text is as it is (`ALLOW_WHITESPACES`).
    Verbatim,
}

/// A head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HeadOf {
    Request,
    Response,
    Trailers,
}

/// An address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AddressOf {
    /// Where the client connected to: the original destination of a redirected connection.
    DownstreamLocal,
    /// The socket's own.
    DownstreamDirectLocal,
    /// The client's: of the socket's peer, or as a header says.
    DownstreamRemote,
    /// The socket's peer.
    DownstreamDirectRemote,
    UpstreamLocal,
    /// That of the host, once there is a connection.
    UpstreamRemote,
}

/// What is printed of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressPart {
    /// `10.0.0.1:80`
    Whole,
    /// `10.0.0.1`
    WithoutPort,
    /// `10.0.0.0/8`: the first bits.
    Masked(u8),
    /// `80`
    Port,
}

/// What is listed of all tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempted {
    /// Addresses of hosts.
    Hosts {
        /// Whether with ports.
        port: bool,
    },
    /// Names of hosts; addresses of those that have none.
    HostNames {
        /// Whether with ports.
        port: bool,
    },
    /// IDs of connections.
    Connections,
}

/// A side of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Downstream,
    Upstream,
}

/// Whose certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Whose {
    Peer,
    Local,
}

/// Something of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// On which connection.
    pub side: Side,
    /// Of which end.
    pub whose: Whose,
    /// What of it.
    pub field: CertificateField,
}

/// What is printed of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CertificateField {
    UriSan,
    DnsSan,
    IpSan,
    EmailSan,
    Subject,
    Issuer,
    Serial,
    /// SHA-256 in hexadecimal.
    Sha256,
    /// SHA-1 in hexadecimal.
    Sha1,
    /// SHA-256 of the issuer's certificate in the chain.
    IssuerSha256,
    /// The serial number of the issuer's certificate in the chain.
    IssuerSerial,
    /// SHA-256 of each certificate of the chain.
    ChainSha256,
    /// SHA-1 of each certificate of the chain.
    ChainSha1,
    /// Serial numbers of the chain.
    ChainSerials,
    /// PEM, percent-encoded.
    Pem,
    /// Beginning of the validity, in a format as of `StartTime`.
    NotBefore(Option<Box<str>>),
    /// End of the validity.
    NotAfter(Option<Box<str>>),
}

/// What is printed of a TLS session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TlsField {
    Version,
    Cipher,
    Group,
    /// The server name that the proxy sent upstream.
    ServerName,
}

/// Where `%REQUESTED_SERVER_NAME%` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSource {
    /// Whether the server name of TLS counts.
    pub sni: bool,
    /// The host that counts if that is not there; `None`: none.
    pub host: Option<PathSource>,
}

/// The original value of a path or host, or the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathSource {
    /// As the client sent it (`ORIG`): `-` if it has not been replaced.
    Original,
    /// As the upstream gets it.
    Current,
    /// As the client sent it.
    OriginalOrCurrent,
}
