//! The value of each operator.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use evenkeel_base::cidr::IpNet;
use evenkeel_base::grpc::{STATUS_NAMES, is_grpc, status_of_http};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::substitution_format::{
    AddressOf, AddressPart, Conversion, FilterStateFormat, GrpcStatusFormat, HeadOf, HostSource, Operator, PathSource,
    Precision, TimePoint,
};

use super::record::{HeadLookup, ORIGINAL_PATH, Record};
use super::sink::{Sink, join, write_address, write_ip};
use super::{certificates, expressions, time, tries};
use crate::info::{ConnectionInfo, Form, ResponseFlags};
use crate::uuid::uuid;

/// The gRPC status of a gRPC request: from the trailers, else from the headers, else mapped from the HTTP status.
fn grpc_status(format: GrpcStatusFormat, record: &Record<'_>, sink: &mut impl Sink) {
    let is_grpc = record.request.lookup("content-type").is_some_and(is_grpc);
    let status = record.trailers.lookup("grpc-status").or_else(|| record.response.lookup("grpc-status"));
    let number = match status {
        _ if !is_grpc => return sink.absent(),
        Some(status) => std::str::from_utf8(status).ok().and_then(|status| status.parse::<usize>().ok()),
        None if record.status == 0 => return sink.absent(),
        None => Some(status_of_http(record.status).into()),
    };
    match (format, number.and_then(|number| STATUS_NAMES.get(number))) {
        (GrpcStatusFormat::Camel, Some((camel, _))) => sink.bytes(camel.as_bytes()),
        (GrpcStatusFormat::Snake, Some((_, snake))) => sink.bytes(snake.as_bytes()),
        _ => sink.number_of(number.map(|number| number as u64)),
    }
}

/// Gives the value of the operator to `sink`.
pub(super) fn value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
    let stream = record.stream;
    let times = &stream.times;
    match operator {
        Operator::StartTime(None) => sink.text(|out| time::write_default(record.start, out)),
        Operator::StartTime(Some(format)) => sink.text(|out| time::write_custom(record.start, format, out)),
        Operator::Req(name, other) => match request_header(record, name, other.as_deref()) {
            Some(value) => sink.bytes(value),
            None => sink.absent(),
        },
        Operator::ReqWithoutQuery(name, other) => match request_header(record, name, other.as_deref()) {
            Some(value) => sink.bytes(without_query(value)),
            None => sink.absent(),
        },
        Operator::Resp(name, other) => header_value(record.response, name, other.as_deref(), sink),
        Operator::Trailer(name, other) => header_value(record.trailers, name, other.as_deref(), sink),
        Operator::GrpcStatus(format) => grpc_status(*format, record, sink),
        Operator::EmitTime(format) => {
            let at = record.start + record.duration();
            sink.text(|out| match format {
                None => time::write_default(at, out),
                Some(format) => time::write_custom(at, format, out),
            });
        }
        Operator::HeadBytes(HeadOf::Request) => sink.number(record.request.bytes()),
        Operator::HeadBytes(HeadOf::Response) => sink.number(record.response.bytes()),
        Operator::HeadBytes(HeadOf::Trailers) => sink.number(record.trailers.bytes()),
        Operator::Path { source, query } => match path(*source, record) {
            Some(path) => sink.bytes(if *query { path } else { without_query(path) }),
            None => sink.absent(),
        },
        Operator::QueryParam(name) => query_param(name, record, sink),
        Operator::QueryParams => match query(record) {
            Some(query) => sink.bytes(query),
            None => sink.absent(),
        },
        Operator::Protocol => sink.string(stream.protocol),
        Operator::ResponseCode => sink.number(u64::from(record.status)),
        Operator::ResponseCodeDetails(Conversion::Verbatim) => sink.non_empty(&stream.details),
        Operator::ResponseCodeDetails(Conversion::OneWord) => one_word(&stream.details, sink),
        Operator::ConnectionTerminationDetails => sink.non_empty(&stream.termination),
        Operator::ResponseFlags => {
            flags(record, sink, |flags, out| join(flags.short_names(), out));
        }
        Operator::ResponseFlagsLong => {
            flags(record, sink, |flags, out| join(flags.long_names(), out));
        }
        Operator::BytesReceived => sink.number(stream.bytes_received),
        Operator::BytesSent => sink.number(stream.bytes_sent),
        Operator::Duration => millis(sink, Some(record.duration())),
        Operator::RequestDuration => millis(sink, times.since_start(TimePoint::DownstreamRxEnd)),
        Operator::RequestTxDuration => millis(sink, times.since_start(TimePoint::UpstreamTxEnd)),
        Operator::ResponseDuration => millis(sink, times.since_start(TimePoint::UpstreamRxBegin)),
        Operator::ResponseTxDuration => {
            let first = times.since_start(TimePoint::UpstreamRxBegin);
            millis(sink, first.map(|first| record.duration().saturating_sub(first)));
        }
        Operator::CommonDuration { start, end, precision } => {
            sink.number_of(times.between(*start, *end).map(|passed| in_units(passed, *precision)));
        }
        Operator::UpstreamHost => sink.string(stream.host.as_deref()),
        Operator::UpstreamHostName { port } => sink.string(tries::host_name(record, *port)),
        Operator::Attempted(what) => tries::attempted(*what, record, sink),
        Operator::UpstreamProtocol => sink.string(stream.upstream_protocol),
        Operator::UpstreamCluster | Operator::UpstreamClusterRaw => sink.string(stream.cluster_name.as_deref()),
        Operator::UpstreamTransportFailureReason => one_word(&stream.transport_failure, sink),
        Operator::UpstreamRequestAttemptCount => sink.number(u64::from(stream.attempts)),
        Operator::RouteName => sink.non_empty(stream.route_name.as_deref().unwrap_or_default()),
        Operator::RequestId => header_value(record.request, "x-request-id", None, sink),
        Operator::Hostname => sink.string(hostname()),
        Operator::FilterState(key, format) => filter_state(key, *format, record, sink),
        Operator::FilterStateField(key, field) => filter_state_field(key, field, record, sink),
        Operator::DynamicMetadata { filter, path } => dynamic_metadata(filter, path, record, sink),
        Operator::LocalReplyBody => sink.bytes(record.local_reply_body),
        Operator::TunnelHeaders => json_of(stream.tunnel_headers.as_deref(), sink),
        Operator::TunnelTrailers => json_of(stream.tunnel_trailers.as_deref(), sink),
        Operator::Cel { .. } => expressions::value(operator, record, sink),
        Operator::UniqueId => sink.bytes(&unique_id()),
        Operator::TraceId => {
            sink.text_of(record.trace, |ids, out| out.extend_from_slice(format!("{:032x}", ids.trace).as_bytes()))
        }
        Operator::SpanId => {
            sink.text_of(record.trace, |ids, out| out.extend_from_slice(format!("{:016x}", ids.span).as_bytes()))
        }
        Operator::Zero => sink.number(0),
        Operator::VirtualClusterName | Operator::Unset | Operator::Coalesce(_) => sink.absent(),
        of_connection => connection_value(of_connection, record, sink),
    }
}

/// As [`value`], for the operators about connections.
fn connection_value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
    let connection = record.connection;
    match operator {
        Operator::DownstreamTransportFailureReason => {
            one_word(record.stream.handshake_failure.as_deref().unwrap_or_default(), sink);
        }
        Operator::Address(of, part) => address(*of, *part, record, sink),
        Operator::Certificate(wanted) => certificates::certificate(wanted, record, sink),
        Operator::Tls(side, field) => certificates::tls(*side, *field, record, sink),
        Operator::RequestedServerName(source) => server_name(*source, record, sink),
        Operator::FilterChainName => sink.string(connection.filter_chain_name()),
        Operator::ConnectionId => sink.number(connection.id),
        Operator::UpstreamConnectionId => sink.number(record.stream.upstream_connection.unwrap_or_default()),
        _ => sink.absent(),
    }
}

fn address(of: AddressOf, part: AddressPart, record: &Record<'_>, sink: &mut impl Sink) {
    let ConnectionInfo { view, .. } = record.connection;
    let stream = record.stream;
    let address = match (of, record.connection.socket_path()) {
        // The client of a Unix socket has no address, and the socket no port.
        (AddressOf::DownstreamLocal | AddressOf::DownstreamDirectLocal, path @ Some(_))
            if part != AddressPart::Port =>
        {
            return sink.string(path);
        }
        (
            AddressOf::DownstreamLocal
            | AddressOf::DownstreamDirectLocal
            | AddressOf::DownstreamRemote
            | AddressOf::DownstreamDirectRemote,
            Some(_),
        ) => None,
        (AddressOf::DownstreamLocal, None) => Some(view.local),
        (AddressOf::DownstreamDirectLocal, None) => Some(record.connection.direct_local),
        (AddressOf::DownstreamRemote, None) => Some(stream.client.unwrap_or(view.remote)),
        (AddressOf::DownstreamDirectRemote, None) => Some(view.direct_remote),
        (AddressOf::UpstreamLocal, _) => stream.upstream_local,
        // The address that it is connected to, not one that it is to be.
        (AddressOf::UpstreamRemote, _) => {
            let connected = stream.times.get(TimePoint::UpstreamConnectEnd).is_some();
            let host = stream.host.as_deref().filter(|_| connected);
            match host.map(|host| (host, host.parse())) {
                Some((_, Ok(address))) => Some(address),
                Some((path, Err(_))) if part != AddressPart::Port => return sink.string(Some(path)),
                _ => None,
            }
        }
    };
    let Some(address) = address else { return sink.absent() };
    match part {
        AddressPart::Whole => sink.text(|out| write_address(address, out)),
        AddressPart::WithoutPort => sink.text(|out| write_ip(address, out)),
        AddressPart::Masked(bits) => {
            let ip = address.ip().to_canonical();
            // More bits than it has are all of them.
            let net = IpNet::new(ip, bits).unwrap_or_else(|_| IpNet::from(ip));
            sink.bytes(net.trunc().to_string().as_bytes());
        }
        AddressPart::Port => sink.number(address.port().into()),
    }
}

fn server_name(source: HostSource, record: &Record<'_>, sink: &mut impl Sink) {
    if let Some(name) = record.connection.view.server_name.as_deref().filter(|_| source.sni) {
        return sink.bytes(name.as_bytes());
    }
    let (original, current) = (record.original_host(), record.request.lookup(":authority"));
    let host = match source.host {
        None => None,
        Some(PathSource::Original) => original,
        Some(PathSource::Current) => current,
        Some(PathSource::OriginalOrCurrent) => original.or(current),
    };
    match host {
        Some(host) => sink.bytes(host),
        None => sink.absent(),
    }
}

fn path<'r>(source: PathSource, record: &Record<'r>) -> Option<&'r [u8]> {
    let current = || record.request.lookup(":path");
    match source {
        PathSource::Original => record.original_path(),
        PathSource::Current => current(),
        PathSource::OriginalOrCurrent => record.original_path().or_else(current),
    }
}

/// The query of the path, without the `?`.
fn query<'r>(record: &Record<'r>) -> Option<&'r [u8]> {
    let path = record.request.lookup(":path")?;
    let at = path.iter().position(|byte| *byte == b'?')?;
    path.get(at + 1..).filter(|query| !query.is_empty())
}

fn query_param(name: &str, record: &Record<'_>, sink: &mut impl Sink) {
    let pairs = query(record).unwrap_or_default().split(|byte| *byte == b'&');
    let mut pairs = pairs.map(|pair| match pair.iter().position(|byte| *byte == b'=') {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, &b""[..]),
    });
    match pairs.find(|(known, _)| *known == name.as_bytes()) {
        Some((_, value)) => {
            let decoded: Vec<u8> = percent_encoding::percent_decode(value).collect();
            // A client must not be able to end a line of a log.
            sink.bytes(if decoded.iter().any(u8::is_ascii_control) { value } else { &decoded });
        }
        None => sink.absent(),
    }
}

/// Version 4 of RFC 9562.
fn unique_id() -> [u8; 36] {
    // Each state has other random keys.
    uuid(|| RandomState::new().build_hasher().finish())
}

fn filter_state(key: &str, format: FilterStateFormat, record: &Record<'_>, sink: &mut impl Sink) {
    let mut text = Vec::new();
    let form = if format == FilterStateFormat::Plain { Form::Plain } else { sink.form() };
    let object = record.stream.object(key);
    if !object.is_some_and(|object| object.write(form, &mut text)) {
        return sink.absent();
    }
    match format {
        FilterStateFormat::Plain => sink.bytes(&text),
        FilterStateFormat::Typed => sink.json(&String::from_utf8_lossy(&text)),
    }
}

fn filter_state_field(key: &str, field: &str, record: &Record<'_>, sink: &mut impl Sink) {
    let mut text = Vec::new();
    if record.stream.object(key).is_some_and(|object| object.field(field, &mut text)) {
        sink.bytes(&text)
    } else {
        sink.absent()
    }
}

/// Strings are written as they are, everything else as JSON.
fn dynamic_metadata(filter: &str, path: &[Box<str>], record: &Record<'_>, sink: &mut impl Sink) {
    match record.stream.metadata.get(filter, path) {
        None => sink.absent(),
        Some(MetadataValue::Text(text)) => sink.bytes(text.as_bytes()),
        Some(value) => sink.json(&metadata_json(value).to_string()),
    }
}

fn metadata_json(value: &MetadataValue) -> serde_json::Value {
    use serde_json::Value;
    match value {
        MetadataValue::Null => Value::Null,
        MetadataValue::Bool(value) => (*value).into(),
        MetadataValue::Number(bits) => match f64::from_bits(*bits) {
            // Below 2^53 whole numbers are exact.
            whole if whole.fract() == 0.0 && whole.abs() < 9_007_199_254_740_992.0 => (whole as i64).into(),
            number => number.into(),
        },
        MetadataValue::Text(text) => (**text).into(),
        MetadataValue::List(values) => values.iter().map(metadata_json).collect(),
        MetadataValue::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.to_string(), metadata_json(value))).collect())
        }
    }
}

fn in_units(duration: Duration, precision: Precision) -> u64 {
    let number = match precision {
        Precision::Millis => duration.as_millis(),
        Precision::Micros => duration.as_micros(),
        Precision::Nanos => duration.as_nanos(),
    };
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn millis(sink: &mut impl Sink, value: Option<Duration>) {
    sink.number_of(value.map(|duration| in_units(duration, Precision::Millis)));
}

fn header_value(head: &dyn HeadLookup, name: &str, other: Option<&str>, sink: &mut impl Sink) {
    match header(head, name, other) {
        Some(value) => sink.bytes(value),
        None => sink.absent(),
    }
}

fn header<'a>(head: &'a dyn HeadLookup, name: &str, other: Option<&str>) -> Option<&'a [u8]> {
    head.lookup(name).or_else(|| other.and_then(|other| head.lookup(other)))
}

/// A header of the request. `X-ENVOY-ORIGINAL-PATH?:PATH` of the default formats is the path that was received; the header by itself is what
/// the request has, whoever has set it.
fn request_header<'a>(record: &Record<'a>, name: &str, other: Option<&str>) -> Option<&'a [u8]> {
    match other {
        Some(other) if name == ORIGINAL_PATH => record.original_path().or_else(|| record.request.lookup(other)),
        other => header(record.request, name, other),
    }
}

fn without_query(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// Writes a reason as Envoy does: as one word, because text logs are split at blanks.
fn one_word(reason: &str, sink: &mut impl Sink) {
    match reason {
        "" => sink.absent(),
        reason => sink.bytes(reason.replace(|c: char| c == ' ' || c.is_control(), "_").as_bytes()),
    }
}

fn json_of(json: Option<&str>, sink: &mut impl Sink) {
    match json {
        Some(json) => sink.json(json),
        None => sink.absent(),
    }
}

/// Writes the flags; always `-` if there are none, even where absent values are written otherwise.
fn flags(record: &Record<'_>, sink: &mut impl Sink, write: impl FnOnce(ResponseFlags, &mut Vec<u8>)) {
    match record.stream.flags {
        ResponseFlags::NONE => sink.bytes(b"-"),
        flags => sink.text(|out| write(flags, out)),
    }
}

fn hostname() -> Option<&'static str> {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    };
    NAME.get_or_init(read).as_deref()
}
