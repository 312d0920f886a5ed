//! Entries for access log services (`envoy.data.accesslog.v3`), filled with what a [`Record`] has.
//!
//! Unlike Envoy's, an entry has no sizes of heads on the wire, no wire bytes, no TLS session id and no JA3 fingerprint.

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::format::{HeadLookup, Record};
use evenkeel_runtime_config::grpc_access_log::{EntryKind, GrpcLog, Tag};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_xds::pb::envoy::config::core::v3::{self as core, Metadata, RequestMethod};
use evenkeel_xds::pb::envoy::data::accesslog::v3::http_access_log_entry::HttpVersion;
use evenkeel_xds::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, ConnectionProperties, HttpAccessLogEntry, HttpRequestProperties,
    HttpResponseProperties, TcpAccessLogEntry,
};
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{Any, Duration, ListValue, Struct, Timestamp, UInt32Value, Value};

use super::{flags, tls};

/// Appends an entry as an element of `log_entry`, the first field of `HTTPAccessLogEntries` and of `TCPAccessLogEntries`.
pub(super) fn append(log: &GrpcLog, record: &Record<'_>, out: &mut Vec<u8>) {
    const LOG_ENTRY: u32 = 1;
    match log.collector.kind {
        EntryKind::Http => prost::encoding::message::encode(LOG_ENTRY, &http(log, record), out),
        EntryKind::Tcp => prost::encoding::message::encode(LOG_ENTRY, &tcp(log, record), out),
        // Records have another form.
        EntryKind::OpenTelemetry => {}
    }
}

fn tcp(log: &GrpcLog, record: &Record<'_>) -> TcpAccessLogEntry {
    let (received_bytes, sent_bytes) = (record.stream.bytes_received, record.stream.bytes_sent);
    TcpAccessLogEntry {
        common_properties: Some(common(log, record)),
        connection_properties: Some(ConnectionProperties { received_bytes, sent_bytes }),
    }
}

fn http(log: &GrpcLog, record: &Record<'_>) -> HttpAccessLogEntry {
    let version = match record.stream.protocol {
        Some("HTTP/1.0") => HttpVersion::Http10,
        Some("HTTP/1.1") => HttpVersion::Http11,
        Some("HTTP/2") => HttpVersion::Http2,
        _ => HttpVersion::ProtocolUnspecified,
    };
    HttpAccessLogEntry {
        common_properties: Some(common(log, record)),
        protocol_version: version.into(),
        request: Some(request(log, record)),
        response: Some(response(log, record)),
    }
}

fn request(log: &GrpcLog, record: &Record<'_>) -> HttpRequestProperties {
    let header = |name: &str| record.request.lookup(name).map(text).unwrap_or_default();
    HttpRequestProperties {
        request_method: RequestMethod::from_str_name(&header(":method")).unwrap_or_default().into(),
        scheme: header(":scheme"),
        authority: header(":authority"),
        path: header(":path"),
        user_agent: header("user-agent"),
        referer: header("referer"),
        forwarded_for: header("x-forwarded-for"),
        request_id: header("x-request-id"),
        original_path: record.original_path().map(text).unwrap_or_default(),
        request_headers_bytes: record.request.bytes(),
        request_body_bytes: record.stream.bytes_received,
        request_headers: headers(record.request, &log.request_headers),
        ..HttpRequestProperties::default()
    }
}

fn response(log: &GrpcLog, record: &Record<'_>) -> HttpResponseProperties {
    HttpResponseProperties {
        response_code: (record.status > 0).then(|| UInt32Value { value: record.status.into() }),
        response_headers_bytes: record.response.bytes(),
        response_body_bytes: record.stream.bytes_sent,
        response_headers: headers(record.response, &log.response_headers),
        response_trailers: headers(record.trailers, &log.response_trailers),
        response_code_details: record.stream.details.to_string(),
        ..HttpResponseProperties::default()
    }
}

fn headers<M: FromIterator<(String, String)>>(head: &dyn HeadLookup, names: &[Box<str>]) -> M {
    names.iter().filter_map(|name| Some((name.to_string(), text(&head.joined(name)?)))).collect()
}

/// Returns the common part of entries of both kinds.
fn common(log: &GrpcLog, record: &Record<'_>) -> AccessLogCommon {
    let (stream, connection) = (record.stream, record.connection);
    let since_start = |point| stream.times.since_start(point).map(duration);
    let [remote, direct, local] = client_addresses(record);
    AccessLogCommon {
        downstream_remote_address: Some(remote),
        downstream_direct_remote_address: Some(direct),
        downstream_local_address: Some(local),
        tls_properties: tls::properties(connection),
        start_time: Some(timestamp(record.start)),
        duration: Some(duration(record.duration())),
        time_to_last_rx_byte: since_start(TimePoint::DownstreamRxEnd),
        time_to_first_upstream_tx_byte: since_start(TimePoint::UpstreamTxBegin),
        time_to_last_upstream_tx_byte: since_start(TimePoint::UpstreamTxEnd),
        time_to_first_upstream_rx_byte: since_start(TimePoint::UpstreamRxBegin),
        time_to_last_upstream_rx_byte: since_start(TimePoint::UpstreamRxEnd),
        time_to_first_downstream_tx_byte: since_start(TimePoint::DownstreamTxBegin),
        time_to_last_downstream_tx_byte: since_start(TimePoint::DownstreamTxEnd),
        upstream_remote_address: stream.host.as_deref().map(labelled_address),
        upstream_local_address: stream.upstream_local.map(address),
        // Envoy takes it from the host.
        upstream_cluster: stream.host.as_ref().and(stream.cluster_name.as_deref()).unwrap_or_default().to_owned(),
        upstream_transport_failure_reason: stream.transport_failure.clone(),
        route_name: stream.route_name.as_deref().unwrap_or_default().to_owned(),
        upstream_request_attempt_count: stream.attempts,
        connection_termination_details: stream.termination.to_string(),
        response_flags: flags::message(stream.flags),
        metadata: metadata(record),
        filter_state_objects: log.filter_state.iter().filter_map(|key| state_object(key, record)).collect(),
        custom_tags: log
            .tags
            .iter()
            .filter_map(|(name, tag)| Some((name.to_string(), tag_value(tag, record)?)))
            .collect(),
        stream_id: stream_id(log, record),
        access_log_type: log.written.into(),
        ..AccessLogCommon::default()
    }
}

/// The request's id. A connection has its number in this process; Envoy makes a UUID for it.
fn stream_id(log: &GrpcLog, record: &Record<'_>) -> String {
    match log.written {
        AccessLogType::DownstreamEnd => record.request.lookup("x-request-id").map(text).unwrap_or_default(),
        _ => record.connection.id.to_string(),
    }
}

/// The client's address, the one that it connects from, and the one that it connected to.
fn client_addresses(record: &Record<'_>) -> [core::Address; 3] {
    let ConnectionInfo { view, .. } = record.connection;
    match record.connection.socket_path() {
        // The client of a Unix socket has no name.
        Some(path) => [pipe(""), pipe(""), pipe(path)],
        None => [record.stream.client.unwrap_or(view.remote), view.direct_remote, view.local].map(address),
    }
}

fn state_object(key: &str, record: &Record<'_>) -> Option<(String, Any)> {
    let (name, value) = record.stream.object(key)?.message()?;
    Some((key.to_owned(), Any { type_url: format!("type.googleapis.com/{name}"), value }))
}

pub(super) fn tag_value(tag: &Tag, record: &Record<'_>) -> Option<String> {
    match tag {
        Tag::Fixed(value) => Some(value.to_string()),
        Tag::RequestHeader(name, default) => {
            let value = record.request.lookup(name).map_or_else(|| default.to_string(), text);
            Some(value).filter(|value| !value.is_empty())
        }
    }
}

fn metadata(record: &Record<'_>) -> Option<Metadata> {
    let all = &record.stream.metadata;
    (!all.is_empty()).then(|| Metadata {
        filter_metadata: all.iter().map(|(filter, fields)| (filter.to_owned(), object(fields))).collect(),
        ..Metadata::default()
    })
}

/// The depth is limited, because the message was decoded with a limit.
fn object(fields: &[(Box<str>, MetadataValue)]) -> Struct {
    Struct { fields: fields.iter().map(|(name, field)| (name.to_string(), value(field))).collect() }
}

fn value(value: &MetadataValue) -> Value {
    let kind = match value {
        MetadataValue::Null => Kind::NullValue(0),
        MetadataValue::Bool(value) => Kind::BoolValue(*value),
        MetadataValue::Number(bits) => Kind::NumberValue(f64::from_bits(*bits)),
        MetadataValue::Text(text) => Kind::StringValue(text.to_string()),
        MetadataValue::List(values) => Kind::ListValue(ListValue { values: values.iter().map(self::value).collect() }),
        MetadataValue::Object(fields) => Kind::StructValue(object(fields)),
    };
    Value { kind: Some(kind) }
}

fn address(address: std::net::SocketAddr) -> core::Address {
    let socket = core::SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(address.port().into())),
        ..core::SocketAddress::default()
    };
    core::Address { address: Some(core::address::Address::SocketAddress(socket)) }
}

fn pipe(path: &str) -> core::Address {
    let pipe = core::Pipe { path: path.to_owned(), mode: 0 };
    core::Address { address: Some(core::address::Address::Pipe(pipe)) }
}

/// The address of a host, by its label: `ADDRESS:PORT`, or the path of a socket.
fn labelled_address(label: &str) -> core::Address {
    label.parse().map_or_else(|_| pipe(label), address)
}

fn duration(duration: std::time::Duration) -> Duration {
    // No request lasts for longer than 2^63 seconds.
    Duration { seconds: duration.as_secs() as i64, nanos: duration.subsec_nanos() as i32 }
}

fn timestamp(time: std::time::SystemTime) -> Timestamp {
    let since = duration(time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default());
    Timestamp { seconds: since.seconds, nanos: since.nanos }
}

/// The bytes as UTF-8: each that is none becomes `!`, as Envoy writes them.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '!'));
    }
    text
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
