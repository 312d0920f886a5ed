//! The names of operators.

use crate::operator::{
    AddressOf, AddressPart, Attempted, Certificate, CertificateField, HeadOf, Operator, Side, TlsField, Whose,
};

/// Operators of Envoy 1.40 whose values this proxy does not have.
pub const ONLY_ENVOY: &[&str] = &[
    "CLUSTER_METADATA",
    "DOWNSTREAM_CX_RTT",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "DOWNSTREAM_DETECTED_CLOSE_TYPE",
    "DOWNSTREAM_HANDSHAKE_DURATION",
    "DOWNSTREAM_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_HEADER_BYTES_SENT",
    "DOWNSTREAM_LOCAL_CLOSE_REASON",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DOWNSTREAM_WIRE_BYTES_RECEIVED",
    "DOWNSTREAM_WIRE_BYTES_SENT",
    "EMIT_TIME_LOCAL",
    "START_TIME_LOCAL",
    "UPSTREAM_CONNECTION_POOL_READY_DURATION",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "UPSTREAM_DETECTED_CLOSE_TYPE",
    "UPSTREAM_HEADER_BYTES_RECEIVED",
    "UPSTREAM_HEADER_BYTES_SENT",
    "UPSTREAM_LOCAL_CLOSE_REASON",
    "UPSTREAM_METADATA",
    "UPSTREAM_TLS_SESSION_ID",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
];

/// Operators that take an argument, or may.
pub(crate) const WITH_ARGUMENT: &[&str] = &[
    "CEL",
    "COALESCE",
    "COMMON_DURATION",
    "DYNAMIC_METADATA",
    "EMIT_TIME",
    "ENVIRONMENT",
    "FILTER_STATE",
    "GRPC_STATUS",
    "METADATA",
    "PATH",
    "QUERY_PARAM",
    "QUERY_PARAMS",
    "REQ",
    "REQUESTED_SERVER_NAME",
    "REQUEST_HEADER",
    "REQ_WITHOUT_QUERY",
    "RESP",
    "RESPONSE_CODE_DETAILS",
    "RESPONSE_HEADER",
    "RESPONSE_TRAILER",
    "START_TIME",
    "TRAILER",
    "TYPED_CEL",
    "UPSTREAM_FILTER_STATE",
];

/// Whether this proxy has an operator.
pub fn is_known(name: &str) -> bool {
    known().any(|known| known == name)
}

/// The names of the operators that this proxy has.
pub fn known() -> impl Iterator<Item = &'static str> {
    let addresses = ADDRESSES.iter().map(|(name, _, _)| *name);
    let certificates = CERTIFICATES.iter().map(|(name, ..)| *name);
    let plain = PLAIN.iter().map(|(name, _)| *name);
    plain
        .chain(addresses)
        .chain(certificates)
        .chain(WITH_ARGUMENT.iter().copied())
        .chain(["ACCESS_LOG_TYPE", "CUSTOM_FLAGS"])
}

/// The operator of a name that takes no argument.
pub(crate) fn plain(name: &str) -> Option<Operator> {
    PLAIN.iter().find(|(known, _)| *known == name).map(|(_, operator)| operator.clone())
}

/// The address that an operator prints.
pub(crate) fn address(name: &str) -> Option<(AddressOf, AddressPart)> {
    ADDRESSES.iter().find(|(known, ..)| *known == name).map(|(_, of, part)| (*of, *part))
}

/// What an operator prints of a certificate.
pub(crate) fn certificate(name: &str) -> Option<Certificate> {
    let (_, side, whose, field) = CERTIFICATES.iter().find(|(known, ..)| *known == name)?;
    Some(Certificate { side: *side, whose: *whose, field: field.clone() })
}

/// Operators that print an address; one without a port may have a number of bits.
#[rustfmt::skip]
const ADDRESSES: &[(&str, AddressOf, AddressPart)] = {
    use AddressOf::{DownstreamDirectLocal, DownstreamDirectRemote, DownstreamLocal, DownstreamRemote, UpstreamLocal, UpstreamRemote};
    use AddressPart::{Port, Whole, WithoutPort};
    &[
        ("DOWNSTREAM_LOCAL_ADDRESS", DownstreamLocal, Whole),
        ("DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", DownstreamLocal, WithoutPort),
        ("DOWNSTREAM_LOCAL_PORT", DownstreamLocal, Port),
        ("DOWNSTREAM_DIRECT_LOCAL_ADDRESS", DownstreamDirectLocal, Whole),
        ("DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT", DownstreamDirectLocal, WithoutPort),
        ("DOWNSTREAM_DIRECT_LOCAL_PORT", DownstreamDirectLocal, Port),
        ("DOWNSTREAM_REMOTE_ADDRESS", DownstreamRemote, Whole),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", DownstreamRemote, WithoutPort),
        ("DOWNSTREAM_REMOTE_PORT", DownstreamRemote, Port),
        ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS", DownstreamDirectRemote, Whole),
        ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", DownstreamDirectRemote, WithoutPort),
        ("DOWNSTREAM_DIRECT_REMOTE_PORT", DownstreamDirectRemote, Port),
        ("UPSTREAM_LOCAL_ADDRESS", UpstreamLocal, Whole),
        ("UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", UpstreamLocal, WithoutPort),
        ("UPSTREAM_LOCAL_PORT", UpstreamLocal, Port),
        ("UPSTREAM_REMOTE_ADDRESS", UpstreamRemote, Whole),
        ("UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", UpstreamRemote, WithoutPort),
        ("UPSTREAM_REMOTE_PORT", UpstreamRemote, Port),
    ]
};

/// Operators that print something of a certificate; a time may have a format.
#[rustfmt::skip]
const CERTIFICATES: &[(&str, Side, Whose, CertificateField)] = {
    use CertificateField::{
        ChainSerials, ChainSha1, ChainSha256, DnsSan, EmailSan, IpSan, Issuer, IssuerSerial, IssuerSha256, NotAfter, NotBefore, Pem, Serial, Sha1, Sha256, Subject,
        UriSan,
    };
    use Side::{Downstream, Upstream};
    use Whose::{Local, Peer};
    &[
        ("DOWNSTREAM_PEER_URI_SAN", Downstream, Peer, UriSan),
        ("DOWNSTREAM_PEER_DNS_SAN", Downstream, Peer, DnsSan),
        ("DOWNSTREAM_PEER_IP_SAN", Downstream, Peer, IpSan),
        ("DOWNSTREAM_PEER_EMAIL_SAN", Downstream, Peer, EmailSan),
        ("DOWNSTREAM_PEER_SUBJECT", Downstream, Peer, Subject),
        ("DOWNSTREAM_PEER_ISSUER", Downstream, Peer, Issuer),
        ("DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256", Downstream, Peer, IssuerSha256),
        ("DOWNSTREAM_PEER_ISSUER_SERIAL", Downstream, Peer, IssuerSerial),
        ("DOWNSTREAM_PEER_SERIAL", Downstream, Peer, Serial),
        ("DOWNSTREAM_PEER_FINGERPRINT_256", Downstream, Peer, Sha256),
        ("DOWNSTREAM_PEER_FINGERPRINT_1", Downstream, Peer, Sha1),
        ("DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256", Downstream, Peer, ChainSha256),
        ("DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1", Downstream, Peer, ChainSha1),
        ("DOWNSTREAM_PEER_CHAIN_SERIALS", Downstream, Peer, ChainSerials),
        ("DOWNSTREAM_PEER_CERT", Downstream, Peer, Pem),
        ("DOWNSTREAM_PEER_CERT_V_START", Downstream, Peer, NotBefore(None)),
        ("DOWNSTREAM_PEER_CERT_V_END", Downstream, Peer, NotAfter(None)),
        ("DOWNSTREAM_LOCAL_URI_SAN", Downstream, Local, UriSan),
        ("DOWNSTREAM_LOCAL_DNS_SAN", Downstream, Local, DnsSan),
        ("DOWNSTREAM_LOCAL_IP_SAN", Downstream, Local, IpSan),
        ("DOWNSTREAM_LOCAL_EMAIL_SAN", Downstream, Local, EmailSan),
        ("DOWNSTREAM_LOCAL_SUBJECT", Downstream, Local, Subject),
        ("UPSTREAM_PEER_URI_SAN", Upstream, Peer, UriSan),
        ("UPSTREAM_PEER_DNS_SAN", Upstream, Peer, DnsSan),
        ("UPSTREAM_PEER_IP_SAN", Upstream, Peer, IpSan),
        ("UPSTREAM_PEER_SUBJECT", Upstream, Peer, Subject),
        ("UPSTREAM_PEER_ISSUER", Upstream, Peer, Issuer),
        ("UPSTREAM_PEER_CERT", Upstream, Peer, Pem),
        ("UPSTREAM_PEER_CERT_V_START", Upstream, Peer, NotBefore(None)),
        ("UPSTREAM_PEER_CERT_V_END", Upstream, Peer, NotAfter(None)),
        ("UPSTREAM_LOCAL_URI_SAN", Upstream, Local, UriSan),
        ("UPSTREAM_LOCAL_DNS_SAN", Upstream, Local, DnsSan),
        ("UPSTREAM_LOCAL_IP_SAN", Upstream, Local, IpSan),
    ]
};

/// Operators that take no argument.
#[rustfmt::skip]
const PLAIN: &[(&str, Operator)] = &[
    ("PROTOCOL", Operator::Protocol),
    ("UPSTREAM_PROTOCOL", Operator::UpstreamProtocol),
    ("REQUEST_HEADERS_BYTES", Operator::HeadBytes(HeadOf::Request)),
    ("RESPONSE_HEADERS_BYTES", Operator::HeadBytes(HeadOf::Response)),
    ("RESPONSE_TRAILERS_BYTES", Operator::HeadBytes(HeadOf::Trailers)),
    ("BYTES_RETRANSMITTED", Operator::Zero),
    ("PACKETS_RETRANSMITTED", Operator::Zero),
    ("RESPONSE_CODE", Operator::ResponseCode),
    ("CONNECTION_TERMINATION_DETAILS", Operator::ConnectionTerminationDetails),
    ("RESPONSE_FLAGS", Operator::ResponseFlags),
    ("RESPONSE_FLAGS_LONG", Operator::ResponseFlagsLong),
    ("BYTES_RECEIVED", Operator::BytesReceived),
    ("BYTES_SENT", Operator::BytesSent),
    ("DURATION", Operator::Duration),
    ("REQUEST_DURATION", Operator::RequestDuration),
    ("REQUEST_TX_DURATION", Operator::RequestTxDuration),
    ("RESPONSE_DURATION", Operator::ResponseDuration),
    ("RESPONSE_TX_DURATION", Operator::ResponseTxDuration),
    // Of HTTP/3.
    ("ROUNDTRIP_DURATION", Operator::Unset),
    ("UPSTREAM_HOST", Operator::UpstreamHost),
    ("UPSTREAM_HOST_NAME", Operator::UpstreamHostName { port: true }),
    ("UPSTREAM_HOST_NAME_WITHOUT_PORT", Operator::UpstreamHostName { port: false }),
    ("UPSTREAM_HOSTS_ATTEMPTED", Operator::Attempted(Attempted::Hosts { port: true })),
    ("UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT", Operator::Attempted(Attempted::Hosts { port: false })),
    ("UPSTREAM_HOST_NAMES_ATTEMPTED", Operator::Attempted(Attempted::HostNames { port: true })),
    ("UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT", Operator::Attempted(Attempted::HostNames { port: false })),
    ("UPSTREAM_CONNECTION_IDS_ATTEMPTED", Operator::Attempted(Attempted::Connections)),
    ("UPSTREAM_CONNECTION_ID", Operator::UpstreamConnectionId),
    ("UPSTREAM_CLUSTER", Operator::UpstreamCluster),
    ("UPSTREAM_CLUSTER_RAW", Operator::UpstreamClusterRaw),
    ("UPSTREAM_TRANSPORT_FAILURE_REASON", Operator::UpstreamTransportFailureReason),
    ("DOWNSTREAM_TRANSPORT_FAILURE_REASON", Operator::DownstreamTransportFailureReason),
    ("UPSTREAM_REQUEST_ATTEMPT_COUNT", Operator::UpstreamRequestAttemptCount),
    ("DOWNSTREAM_TLS_VERSION", Operator::Tls(Side::Downstream, TlsField::Version)),
    ("DOWNSTREAM_TLS_CIPHER", Operator::Tls(Side::Downstream, TlsField::Cipher)),
    ("DOWNSTREAM_TLS_GROUP", Operator::Tls(Side::Downstream, TlsField::Group)),
    ("UPSTREAM_TLS_VERSION", Operator::Tls(Side::Upstream, TlsField::Version)),
    ("UPSTREAM_TLS_CIPHER", Operator::Tls(Side::Upstream, TlsField::Cipher)),
    ("UPSTREAM_TLS_GROUP", Operator::Tls(Side::Upstream, TlsField::Group)),
    ("UPSTREAM_SERVER_NAME", Operator::Tls(Side::Upstream, TlsField::ServerName)),
    ("ROUTE_NAME", Operator::RouteName),
    ("VIRTUAL_CLUSTER_NAME", Operator::VirtualClusterName),
    ("CONNECTION_ID", Operator::ConnectionId),
    ("STREAM_ID", Operator::RequestId),
    ("HOSTNAME", Operator::Hostname),
    ("LOCAL_REPLY_BODY", Operator::LocalReplyBody),
    ("FILTER_CHAIN_NAME", Operator::FilterChainName),
    ("GRPC_STATUS_NUMBER", Operator::GrpcStatus(crate::GrpcStatusFormat::Number)),
    ("UNIQUE_ID", Operator::UniqueId),
    ("TRACE_ID", Operator::TraceId),
    ("SPAN_ID", Operator::SpanId),
    // Of listeners that this proxy does not have, fingerprints of handshakes (off by default in Envoy), and names of a kind that is not read.
    ("DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID", Operator::Unset),
    ("DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID", Operator::Unset),
    ("UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID", Operator::Unset),
    ("TLS_JA3_FINGERPRINT", Operator::Unset),
    ("TLS_JA4_FINGERPRINT", Operator::Unset),
    ("DOWNSTREAM_LOCAL_OTHERNAME_SAN", Operator::Unset),
    ("DOWNSTREAM_PEER_OTHERNAME_SAN", Operator::Unset),
];
