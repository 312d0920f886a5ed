//! Formats a [`Record`]: text, JSON and header values share one table of operators.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel_runtime_config::access_log::{
    Format, FormatPart, GrpcMessagesFormat, GrpcStatusFormat, JsonFormat, LogFormat, Operator, Precision, TimePoint,
};

use super::record::{HeadLookup, Record};
use super::time;
use crate::response_flags::ResponseFlags;

/// What an operator yields.
enum Value<'a> {
    Absent,
    Bytes(&'a [u8]),
    Number(u64),
    Address(SocketAddr),
    Ip(IpAddr),
    List(&'a [String]),
    Flags {
        flags: ResponseFlags,
        long: bool,
    },
    Time(Option<&'a str>),
    /// Messages of a call, as text.
    Messages([u64; 2], GrpcMessagesFormat),
}

/// Appends one log line.
pub fn format_line(line: &LogFormat, record: &Record<'_>, out: &mut Vec<u8>) {
    match line {
        LogFormat::Text(text) => format(text, record, out),
        LogFormat::Json { root, omit_empty } => {
            json(root, record, *omit_empty, out);
            out.push(b'\n');
        }
    }
}

/// Appends the text form. An absent value is `-`.
pub fn format(format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    for part in &format.parts {
        match part {
            FormatPart::Literal(text) => out.extend_from_slice(text.as_bytes()),
            FormatPart::Operator { operator, max_length } => {
                let start = out.len();
                if !write_text(&value(operator, record), record, out) {
                    out.push(b'-');
                }
                if let Some(limit) = max_length {
                    out.truncate(start + limit.min(&(out.len() - start)));
                }
            }
        }
    }
}

fn json(node: &JsonFormat, record: &Record<'_>, omit_empty: bool, out: &mut Vec<u8>) {
    match node {
        JsonFormat::Object(entries) => {
            out.push(b'{');
            let mut first = true;
            for (key, entry) in entries {
                if omit_empty && is_absent(entry, record) {
                    continue;
                }
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                json_string(key.as_bytes(), out);
                out.push(b':');
                json(entry, record, omit_empty, out);
            }
            out.push(b'}');
        }
        JsonFormat::List(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json(item, record, omit_empty, out);
            }
            out.push(b']');
        }
        JsonFormat::Value(format) => json_value(format, record, out),
    }
}

/// A lone operator keeps its type; anything else is a string.
fn json_value(whole: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    if let [FormatPart::Operator { operator, max_length: None }] = whole.parts.as_slice() {
        match value(operator, record) {
            Value::Absent => return out.extend_from_slice(b"null"),
            Value::Number(number) => return write_number(number, out),
            // In JSON Envoy spells the fields as in protobuf.
            Value::Messages(messages, GrpcMessagesFormat::Typed) => {
                return messages_object(messages, ["request_message_count", "response_message_count"], out);
            }
            _ => {}
        }
    }
    let mut text = Vec::new();
    format(whole, record, &mut text);
    json_string(&text, out);
}

/// `FilterObject` as JSON, which leaves out what is 0 and writes 64-bit numbers as strings.
fn messages_object(messages: [u64; 2], names: [&str; 2], out: &mut Vec<u8>) {
    out.push(b'{');
    for (name, count) in names.iter().zip(messages).filter(|(_, count)| *count > 0) {
        if !out.ends_with(b"{") {
            out.push(b',');
        }
        // Writing to a Vec cannot fail.
        _ = write!(out, "\"{name}\":\"{count}\"");
    }
    out.push(b'}');
}

fn json_string(bytes: &[u8], out: &mut Vec<u8>) {
    // Serializing a string to a Vec cannot fail.
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(bytes));
}

fn is_absent(node: &JsonFormat, record: &Record<'_>) -> bool {
    match node {
        JsonFormat::Value(format) => match format.parts.as_slice() {
            [FormatPart::Operator { operator, .. }] => matches!(value(operator, record), Value::Absent),
            _ => false,
        },
        _ => false,
    }
}

/// By the trailers, else by the headers; only of requests of gRPC.
fn grpc_status<'a>(format: GrpcStatusFormat, record: &Record<'a>) -> Value<'a> {
    const NAMES: [(&str, &str); 17] = [
        ("OK", "OK"),
        ("Canceled", "CANCELLED"),
        ("Unknown", "UNKNOWN"),
        ("InvalidArgument", "INVALID_ARGUMENT"),
        ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
        ("NotFound", "NOT_FOUND"),
        ("AlreadyExists", "ALREADY_EXISTS"),
        ("PermissionDenied", "PERMISSION_DENIED"),
        ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
        ("FailedPrecondition", "FAILED_PRECONDITION"),
        ("Aborted", "ABORTED"),
        ("OutOfRange", "OUT_OF_RANGE"),
        ("Unimplemented", "UNIMPLEMENTED"),
        ("Internal", "INTERNAL"),
        ("Unavailable", "UNAVAILABLE"),
        ("DataLoss", "DATA_LOSS"),
        ("Unauthenticated", "UNAUTHENTICATED"),
    ];
    let is_grpc = record.request.lookup("content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"));
    let of = |fields: &'a dyn HeadLookup| fields.lookup("grpc-status");
    let Some(status) = of(record.trailers).or_else(|| of(record.response)).filter(|_| is_grpc) else {
        return Value::Absent;
    };
    let number = std::str::from_utf8(status).ok().and_then(|status| status.parse::<usize>().ok());
    match (format, number.and_then(|number| NAMES.get(number))) {
        (GrpcStatusFormat::Camel, Some((camel, _))) => Value::Bytes(camel.as_bytes()),
        (GrpcStatusFormat::Snake, Some((_, snake))) => Value::Bytes(snake.as_bytes()),
        _ => number.map_or(Value::Absent, |number| Value::Number(number as u64)),
    }
}

fn value<'a>(operator: &'a Operator, record: &Record<'a>) -> Value<'a> {
    match operator {
        Operator::StartTime(format) => Value::Time(format.as_deref()),
        Operator::Req(name, other) => header(record.request, name, other.as_deref()),
        Operator::ReqWithoutQuery(name, other) => without_query(header(record.request, name, other.as_deref())),
        Operator::Resp(name, other) => header(record.response, name, other.as_deref()),
        Operator::Trailer(name, other) => header(record.trailers, name, other.as_deref()),
        Operator::GrpcStatus(format) => grpc_status(*format, record),
        Operator::Protocol => text(record.protocol),
        Operator::ResponseCode => Value::Number(u64::from(record.response_code)),
        Operator::ResponseCodeDetails => non_empty(record.response_code_details),
        Operator::ConnectionTerminationDetails => non_empty(record.connection_termination_details),
        Operator::ResponseFlags => flags(record.flags, false),
        Operator::ResponseFlagsLong => flags(record.flags, true),
        Operator::BytesReceived => Value::Number(record.bytes_received),
        Operator::BytesSent => Value::Number(record.bytes_sent),
        Operator::Duration => millis(Some(record.duration)),
        Operator::RequestDuration => millis(record.request_duration),
        Operator::ResponseDuration => millis(record.response_duration),
        Operator::ResponseTxDuration => {
            millis(record.response_duration.map(|first| record.duration.saturating_sub(first)))
        }
        Operator::CommonDuration { start, end, precision } => {
            let passed = point(*end, record).zip(point(*start, record)).and_then(|(end, start)| end.checked_sub(start));
            passed.map_or(Value::Absent, |passed| Value::Number(in_units(passed, *precision)))
        }
        Operator::UpstreamHost => text(record.upstream_host),
        Operator::UpstreamCluster | Operator::UpstreamClusterRaw => text(record.upstream_cluster),
        Operator::UpstreamLocalAddress => address(record.upstream_local_address),
        Operator::UpstreamTransportFailureReason => non_empty(record.upstream_transport_failure_reason),
        Operator::UpstreamRequestAttemptCount => Value::Number(u64::from(record.upstream_attempts)),
        Operator::DownstreamLocalAddress => address(record.downstream_local_address),
        Operator::DownstreamLocalAddressWithoutPort => ip(record.downstream_local_address),
        Operator::DownstreamLocalPort => port(record.downstream_local_address),
        Operator::DownstreamRemoteAddress => address(record.downstream_remote_address),
        Operator::DownstreamRemoteAddressWithoutPort => ip(record.downstream_remote_address),
        Operator::DownstreamRemotePort => port(record.downstream_remote_address),
        Operator::DownstreamDirectRemoteAddress => address(record.downstream_direct_remote_address),
        Operator::DownstreamDirectRemoteAddressWithoutPort => ip(record.downstream_direct_remote_address),
        Operator::DownstreamPeerUriSan => list(record.downstream_peer_uri_sans),
        Operator::DownstreamLocalUriSan => list(record.downstream_local_uri_sans),
        Operator::DownstreamPeerSubject => non_empty(record.downstream_peer_subject),
        Operator::DownstreamTlsVersion => text(record.downstream_tls_version),
        Operator::DownstreamTlsCipher => text(record.downstream_tls_cipher),
        Operator::RequestedServerName => text(record.requested_server_name),
        Operator::RouteName => text(record.route_name.filter(|name| !name.is_empty())),
        Operator::FilterChainName => text(record.filter_chain_name.filter(|name| !name.is_empty())),
        Operator::ConnectionId => Value::Number(record.connection_id),
        Operator::RequestId => header(record.request, "x-request-id", None),
        Operator::Hostname => text(hostname()),
        Operator::GrpcMessages(format) => {
            record.grpc_messages.map_or(Value::Absent, |messages| Value::Messages(messages, *format))
        }
        Operator::VirtualClusterName | Operator::Unset => Value::Absent,
    }
}

/// When that was, from the request's start.
fn point(point: TimePoint, record: &Record<'_>) -> Option<Duration> {
    match point {
        TimePoint::RequestBegin => Some(Duration::ZERO),
        TimePoint::RequestEnd => record.request_duration,
        TimePoint::ResponseBegin => record.response_duration,
        TimePoint::ResponseEnd => Some(record.duration),
        TimePoint::HeldBegin => record.held.map(|(begin, _)| begin),
        TimePoint::HeldEnd => record.held.map(|(_, end)| end),
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

fn header<'a>(head: &'a dyn HeadLookup, name: &str, other: Option<&str>) -> Value<'a> {
    let found = head.lookup(name).or_else(|| other.and_then(|other| head.lookup(other)));
    found.map_or(Value::Absent, Value::Bytes)
}

fn without_query(value: Value<'_>) -> Value<'_> {
    match value {
        Value::Bytes(bytes) => {
            let end = bytes.iter().position(|byte| *byte == b'?').unwrap_or(bytes.len());
            Value::Bytes(&bytes[..end])
        }
        other => other,
    }
}

fn text(value: Option<&str>) -> Value<'_> {
    value.map_or(Value::Absent, |text| Value::Bytes(text.as_bytes()))
}

fn non_empty(value: &str) -> Value<'_> {
    text(Some(value).filter(|text| !text.is_empty()))
}

fn millis<'a>(value: Option<Duration>) -> Value<'a> {
    value.map_or(Value::Absent, |duration| Value::Number(duration.as_millis() as u64))
}

fn address<'a>(value: Option<SocketAddr>) -> Value<'a> {
    value.map_or(Value::Absent, Value::Address)
}

fn ip<'a>(value: Option<SocketAddr>) -> Value<'a> {
    value.map_or(Value::Absent, |address| Value::Ip(address.ip()))
}

fn port<'a>(value: Option<SocketAddr>) -> Value<'a> {
    value.map_or(Value::Absent, |address| Value::Number(u64::from(address.port())))
}

fn list(value: &[String]) -> Value<'_> {
    if value.is_empty() { Value::Absent } else { Value::List(value) }
}

fn flags<'a>(flags: ResponseFlags, long: bool) -> Value<'a> {
    if flags.is_empty() { Value::Absent } else { Value::Flags { flags, long } }
}

fn hostname() -> Option<&'static str> {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    };
    NAME.get_or_init(read).as_deref()
}

/// Appends a value; `false` when it is absent.
fn write_text(value: &Value<'_>, record: &Record<'_>, out: &mut Vec<u8>) -> bool {
    match value {
        Value::Absent => return false,
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Number(number) => write_number(*number, out),
        // Writing to a Vec cannot fail.
        Value::Address(SocketAddr::V4(address)) => write_ipv4(address.ip().octets(), Some(address.port()), out),
        Value::Ip(IpAddr::V4(ip)) => write_ipv4(ip.octets(), None, out),
        Value::Address(address) => _ = write!(out, "{address}"),
        Value::Ip(ip) => _ = write!(out, "{ip}"),
        Value::List(items) => join(items.iter().map(String::as_str), out),
        Value::Flags { flags, long: false } => join(flags.short_names(), out),
        Value::Flags { flags, long: true } => join(flags.long_names(), out),
        Value::Messages(messages, GrpcMessagesFormat::Typed) => {
            messages_object(*messages, ["requestMessageCount", "responseMessageCount"], out);
        }
        Value::Messages([sent, received], GrpcMessagesFormat::Plain) => _ = write!(out, "{sent},{received}"),
        Value::Time(None) => time::write_default(record.start, out),
        Value::Time(Some(format)) => time::write_custom(record.start, format, out),
    }
    true
}

/// `Display` of an address costs more than the rest of a line; four small numbers do not.
fn write_ipv4(octets: [u8; 4], port: Option<u16>, out: &mut Vec<u8>) {
    for (index, octet) in octets.into_iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        write_number(u64::from(octet), out);
    }
    if let Some(port) = port {
        out.push(b':');
        write_number(u64::from(port), out);
    }
}

fn write_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn join<'a>(items: impl Iterator<Item = &'a str>, out: &mut Vec<u8>) {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    struct Head(&'static [(&'static str, &'static str)]);
    impl HeadLookup for Head {
        fn lookup(&self, name: &str) -> Option<&[u8]> {
            self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
        }
    }

    const REQUEST: Head = Head(&[
        (":method", "GET"),
        (":path", "/a?b=1"),
        (":authority", "info:8080"),
        ("user-agent", "quote\" and \u{1}"),
    ]);

    fn record<'a>() -> Record<'a> {
        Record {
            duration: Duration::from_micros(12_345),
            response_duration: Some(Duration::from_millis(10)),
            held: Some((Duration::from_micros(200), Duration::from_micros(4_567))),
            request: &REQUEST,
            protocol: Some("HTTP/1.1"),
            response_code: 503,
            response_code_details: "upstream_reset_before_response_started{connection_termination}",
            flags: ResponseFlags::UPSTREAM_CONNECTION_FAILURE | ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED,
            bytes_sent: 1024,
            downstream_remote_address: Some(SocketAddr::from(([10, 244, 0, 3], 40_000))),
            downstream_local_address: "[::1]:80".parse().ok(),
            ..Record::new(UNIX_EPOCH + Duration::from_millis(1_770_000_000_007))
        }
    }

    fn parse(format: &str) -> Format {
        Format::parse(format, &|_| None).expect("a valid format")
    }

    #[test]
    fn text_operators() {
        let check = |pattern: &str, expected: &str| {
            let mut out = Vec::new();
            format(&parse(pattern), &record(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{pattern}");
        };
        check("[%START_TIME%] %START_TIME(%s)%", "[2026-02-02T02:40:00.007Z] 1770000000");
        check("%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%", "GET /a?b=1 HTTP/1.1");
        check("%REQ(:METHOD):2%|%REQ(NOT-THERE):9%|", "GE|-|");
        check(
            "%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG%",
            "503 UF,URX UpstreamConnectionFailure,UpstreamRetryLimitExceeded",
        );
        check("%DURATION% %RESPONSE_DURATION% %RESPONSE_TX_DURATION% %REQUEST_DURATION%", "12 10 2 -");
        check(
            "%COMMON_DURATION(ON_DEMAND_BEG:ON_DEMAND_END:us)% %COMMON_DURATION(DS_RX_BEG:US_RX_BEG:ms)% \
             %COMMON_DURATION(US_RX_BEG:DS_TX_END:ns)% %COMMON_DURATION(DS_RX_BEG:DS_RX_END:ms)% \
             %COMMON_DURATION(DS_TX_END:DS_RX_BEG:ms)%",
            "4367 10 2345000 - -",
        );
        check("%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS%", "10.244.0.3:40000 [::1]:80");
        check("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%", "10.244.0.3 80");
        check("%BYTES_SENT%/%BYTES_RECEIVED% %UPSTREAM_HOST% %ROUTE_NAME%", "1024/0 - -");
    }

    #[test]
    fn json_keeps_types() {
        let value = |format: &str| JsonFormat::Value(parse(format));
        let root = JsonFormat::Object(vec![
            ("code".into(), value("%RESPONSE_CODE%")),
            ("agent".into(), value("%REQ(USER-AGENT)%")),
            ("host".into(), value("%UPSTREAM_HOST%")),
            ("mixed".into(), value("%RESPONSE_CODE%!")),
            ("list".into(), JsonFormat::List(vec![value("a"), value("%BYTES_SENT%")])),
        ]);
        let check = |omit_empty: bool, expected: &str| {
            let mut out = Vec::new();
            json(&root, &record(), omit_empty, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        let agent = "\"quote\\\" and \\u0001\"";
        check(
            false,
            &format!("{{\"code\":503,\"agent\":{agent},\"host\":null,\"mixed\":\"503!\",\"list\":[\"a\",1024]}}"),
        );
        check(true, &format!("{{\"code\":503,\"agent\":{agent},\"mixed\":\"503!\",\"list\":[\"a\",1024]}}"));
    }
}
