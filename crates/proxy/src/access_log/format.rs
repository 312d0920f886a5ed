//! Formats a [`Record`]: text, JSON and header values share one table of operators.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel_base::grpc::{STATUS_NAMES, is_grpc, status_of_http};
use evenkeel_filters::{ConnectionInfo, Form, ResponseFlags};
use evenkeel_runtime_config::access_log::{
    FilterStateFormat, Format, FormatPart, GrpcStatusFormat, JsonFormat, LogFormat, Operator, Precision, TimePoint,
};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_tls::printable;

use super::record::{HeadLookup, Record};
use super::time;

/// Receives the value of an operator with its type.
trait Sink {
    fn absent(&mut self);
    fn bytes(&mut self, bytes: &[u8]);
    fn number(&mut self, number: u64);
    /// A value that exists only as text: addresses, lists, times.
    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>));

    /// The form in which objects are written to it.
    fn form(&self) -> Form;

    /// A value that is JSON already.
    fn json(&mut self, json: &str);

    fn string(&mut self, value: Option<&str>) {
        match value {
            Some(text) => self.bytes(text.as_bytes()),
            None => self.absent(),
        }
    }

    fn non_empty(&mut self, value: &str) {
        self.string(Some(value).filter(|text| !text.is_empty()));
    }

    fn number_of(&mut self, value: Option<u64>) {
        match value {
            Some(number) => self.number(number),
            None => self.absent(),
        }
    }

    fn millis(&mut self, value: Option<Duration>) {
        self.number_of(value.map(|duration| in_units(duration, Precision::Millis)));
    }

    fn header(&mut self, head: &dyn HeadLookup, name: &str, other: Option<&str>) {
        match header(head, name, other) {
            Some(value) => self.bytes(value),
            None => self.absent(),
        }
    }

    fn text_of<T>(&mut self, value: Option<T>, write: impl FnOnce(T, &mut Vec<u8>)) {
        match value {
            Some(value) => self.text(|out| write(value, out)),
            None => self.absent(),
        }
    }
}

/// Writes text, with a placeholder for absent values.
struct Text<'o>(&'o mut Vec<u8>, &'static [u8]);

impl Sink for Text<'_> {
    fn absent(&mut self) {
        write_short(self.1, self.0);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        write_number(number, self.0);
    }

    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(self.0);
    }

    fn form(&self) -> Form {
        Form::Typed
    }

    fn json(&mut self, json: &str) {
        self.bytes(json.as_bytes());
    }
}

/// Writes a JSON value.
struct Json<'o>(&'o mut Vec<u8>);

impl Sink for Json<'_> {
    fn absent(&mut self) {
        self.0.extend_from_slice(b"null");
    }

    fn bytes(&mut self, bytes: &[u8]) {
        json_string(bytes, self.0);
    }

    fn number(&mut self, number: u64) {
        write_number(number, self.0);
    }

    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut text = Vec::new();
        write(&mut text);
        json_string(&text, self.0);
    }

    // Envoy spells the fields as in protobuf when it writes JSON.
    fn form(&self) -> Form {
        Form::TypedJson
    }

    fn json(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }
}

/// Finds out whether there is a value, and no more.
struct Presence(bool);

impl Sink for Presence {
    fn absent(&mut self) {
        self.0 = false;
    }

    fn bytes(&mut self, _: &[u8]) {}

    fn number(&mut self, _: u64) {}

    fn text(&mut self, _: impl FnOnce(&mut Vec<u8>)) {}

    fn form(&self) -> Form {
        Form::TypedJson
    }

    fn json(&mut self, _: &str) {}
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

/// Appends the text form. An absent value becomes `-`.
pub fn format(format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    format_or(b"-", format, record, out);
}

/// Appends the value of a header. Absent values are left out.
pub fn format_header(format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    format_or(b"", format, record, out);
}

fn format_or(absent: &'static [u8], format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    for part in &format.parts {
        match part {
            FormatPart::Literal(text) => write_short(text.as_bytes(), out),
            FormatPart::Operator { operator, max_length } => {
                let start = out.len();
                value(operator, record, &mut Text(out, absent));
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
        return value(operator, record, &mut Json(out));
    }
    let mut text = Vec::new();
    format(whole, record, &mut text);
    json_string(&text, out);
}

fn json_string(bytes: &[u8], out: &mut Vec<u8>) {
    // Serializing a string to a Vec cannot fail.
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(bytes));
}

fn is_absent(node: &JsonFormat, record: &Record<'_>) -> bool {
    match node {
        JsonFormat::Value(format) => match format.parts.as_slice() {
            [FormatPart::Operator { operator, .. }] => {
                let mut presence = Presence(true);
                value(operator, record, &mut presence);
                !presence.0
            }
            _ => false,
        },
        _ => false,
    }
}

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
fn value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
    let stream = record.stream;
    let times = &stream.times;
    match operator {
        Operator::StartTime(None) => sink.text(|out| time::write_default(record.start, out)),
        Operator::StartTime(Some(format)) => sink.text(|out| time::write_custom(record.start, format, out)),
        Operator::Req(name, other) => sink.header(record.request, name, other.as_deref()),
        Operator::ReqWithoutQuery(name, other) => match header(record.request, name, other.as_deref()) {
            Some(value) => sink.bytes(without_query(value)),
            None => sink.absent(),
        },
        Operator::Resp(name, other) => sink.header(record.response, name, other.as_deref()),
        Operator::Trailer(name, other) => sink.header(record.trailers, name, other.as_deref()),
        Operator::GrpcStatus(format) => grpc_status(*format, record, sink),
        Operator::Protocol => sink.string(stream.protocol),
        Operator::ResponseCode => sink.number(u64::from(record.status)),
        Operator::ResponseCodeDetails => sink.non_empty(&stream.details),
        Operator::ConnectionTerminationDetails => sink.non_empty(&stream.termination),
        Operator::ResponseFlags => {
            flags(record, sink, |flags, out| join(flags.short_names(), out));
        }
        Operator::ResponseFlagsLong => {
            flags(record, sink, |flags, out| join(flags.long_names(), out));
        }
        Operator::BytesReceived => sink.number(stream.bytes_received),
        Operator::BytesSent => sink.number(stream.bytes_sent),
        Operator::Duration => sink.millis(Some(record.duration())),
        Operator::RequestDuration => sink.millis(times.since_start(TimePoint::DownstreamRxEnd)),
        Operator::ResponseDuration => sink.millis(times.since_start(TimePoint::UpstreamRxBegin)),
        Operator::ResponseTxDuration => {
            let first = times.since_start(TimePoint::UpstreamRxBegin);
            sink.millis(first.map(|first| record.duration().saturating_sub(first)));
        }
        Operator::CommonDuration { start, end, precision } => {
            sink.number_of(times.between(*start, *end).map(|passed| in_units(passed, *precision)));
        }
        Operator::UpstreamHost => sink.string(stream.host.as_deref()),
        Operator::UpstreamCluster | Operator::UpstreamClusterRaw => sink.string(stream.cluster_name.as_deref()),
        Operator::UpstreamLocalAddress => sink.text_of(stream.upstream_local, write_address),
        Operator::UpstreamTransportFailureReason => one_word(&stream.transport_failure, sink),
        Operator::UpstreamRequestAttemptCount => sink.number(u64::from(stream.attempts)),
        Operator::RouteName => sink.non_empty(stream.route_name.as_deref().unwrap_or_default()),
        Operator::RequestId => sink.header(record.request, "x-request-id", None),
        Operator::Hostname => sink.string(hostname()),
        Operator::FilterState(key, format) => filter_state(key, *format, record, sink),
        Operator::FilterStateField(key, field) => filter_state_field(key, field, record, sink),
        Operator::DynamicMetadata { filter, path } => dynamic_metadata(filter, path, record, sink),
        Operator::LocalReplyBody => sink.bytes(record.local_reply_body),
        Operator::TunnelHeaders => json_of(stream.tunnel_headers.as_deref(), sink),
        Operator::TunnelTrailers => json_of(stream.tunnel_trailers.as_deref(), sink),
        Operator::VirtualClusterName | Operator::Unset => sink.absent(),
        of_connection => connection_value(of_connection, record, sink),
    }
}

/// As [`value`], for the operators about the client's connection.
fn connection_value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
    let ConnectionInfo { view, session, .. } = record.connection;
    let session = session.as_deref();
    let peer = session.and_then(|session| session.peer.as_deref());
    let client = record.stream.client.unwrap_or(view.remote);
    let socket = record.connection.socket_path();
    match operator {
        Operator::DownstreamTransportFailureReason => {
            one_word(record.stream.handshake_failure.as_deref().unwrap_or_default(), sink);
        }
        Operator::DownstreamLocalAddress | Operator::DownstreamLocalAddressWithoutPort if socket.is_some() => {
            sink.string(socket);
        }
        // The client of a Unix socket has no address.
        Operator::DownstreamLocalPort
        | Operator::DownstreamRemotePort
        | Operator::DownstreamRemoteAddress
        | Operator::DownstreamRemoteAddressWithoutPort
        | Operator::DownstreamDirectRemoteAddress
        | Operator::DownstreamDirectRemoteAddressWithoutPort
            if socket.is_some() =>
        {
            sink.absent();
        }
        Operator::DownstreamLocalAddress => sink.text(|out| write_address(view.local, out)),
        Operator::DownstreamLocalAddressWithoutPort => sink.text(|out| write_ip(view.local, out)),
        Operator::DownstreamLocalPort => sink.number(view.local.port().into()),
        Operator::DownstreamRemoteAddress => sink.text(|out| write_address(client, out)),
        Operator::DownstreamRemoteAddressWithoutPort => sink.text(|out| write_ip(client, out)),
        Operator::DownstreamRemotePort => sink.number(client.port().into()),
        Operator::DownstreamDirectRemoteAddress => sink.text(|out| write_address(view.direct_remote, out)),
        Operator::DownstreamDirectRemoteAddressWithoutPort => sink.text(|out| write_ip(view.direct_remote, out)),
        Operator::DownstreamPeerUriSan => list(peer.map(|peer| &*peer.uri_sans).unwrap_or_default(), sink),
        Operator::DownstreamLocalUriSan => {
            let local = session.and_then(|session| session.local.as_deref());
            list(local.map(|local| &*local.uri_sans).unwrap_or_default(), sink);
        }
        Operator::DownstreamPeerSubject => sink.non_empty(peer.map(|peer| &*peer.subject).unwrap_or_default()),
        Operator::DownstreamTlsVersion => sink.non_empty(session.map(|session| session.version).unwrap_or_default()),
        Operator::DownstreamTlsCipher => sink.non_empty(session.map(|session| session.cipher).unwrap_or_default()),
        Operator::RequestedServerName => sink.string(view.server_name.as_deref()),
        Operator::FilterChainName => sink.string(record.connection.filter_chain_name()),
        Operator::ConnectionId => sink.number(record.connection.id),
        _ => sink.absent(),
    }
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
    match record.stream.object(key).is_some_and(|object| object.field(field, &mut text)) {
        true => sink.bytes(&text),
        false => sink.absent(),
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

fn header<'a>(head: &'a dyn HeadLookup, name: &str, other: Option<&str>) -> Option<&'a [u8]> {
    head.lookup(name).or_else(|| other.and_then(|other| head.lookup(other)))
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

/// Without flags this is always `-`, even where absent values are written otherwise: all went well.
fn flags(record: &Record<'_>, sink: &mut impl Sink, write: impl FnOnce(ResponseFlags, &mut Vec<u8>)) {
    match record.stream.flags {
        ResponseFlags::NONE => sink.bytes(b"-"),
        flags => sink.text(|out| write(flags, out)),
    }
}

/// Names from a certificate. Control characters that its CA allowed must not split a log line.
fn list(items: &[String], sink: &mut impl Sink) {
    sink.text_of(Some(items).filter(|items| !items.is_empty()), |items, out| {
        let plain = |item: &String| !item.bytes().any(|byte| byte.is_ascii_control());
        match items.iter().all(plain) {
            true => join(items.iter().map(String::as_str), out),
            false => out.extend_from_slice(printable(&items.join(",")).as_bytes()),
        }
    });
}

fn hostname() -> Option<&'static str> {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    };
    NAME.get_or_init(read).as_deref()
}

// Writing to a Vec cannot fail.

fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address {
        SocketAddr::V4(address) => write_ipv4(address.ip().octets(), Some(address.port()), out),
        SocketAddr::V6(address) => _ = write!(out, "{address}"),
    }
}

fn write_ip(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => write_ipv4(ip.octets(), None, out),
        IpAddr::V6(ip) => _ = write!(out, "{ip}"),
    }
}

/// `Display` of an address costs more than the rest of a line; four small numbers are cheap.
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
    write_short(itoa::Buffer::new().format(number).as_bytes(), out);
}

/// Most parts of a line are blanks, quotes and small numbers, for which any call, even of `memcpy`, costs more than copying the bytes.
#[inline(always)]
fn write_short(bytes: &[u8], out: &mut Vec<u8>) {
    match *bytes {
        [a] => out.push(a),
        [a, b] => out.extend_from_slice(&[a, b]),
        [a, b, c] => out.extend_from_slice(&[a, b, c]),
        ref bytes => out.extend_from_slice(bytes),
    }
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
    use std::time::{Instant, UNIX_EPOCH};

    use evenkeel_filters::StreamInfo;

    use super::*;
    use crate::access_log::NoHead;

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

    fn connection() -> ConnectionInfo {
        let address = |text: &str| text.parse().expect("an address");
        ConnectionInfo::new(1, Instant::now(), address("10.244.0.3:40000"), address("[::1]:80"))
    }

    /// What a record refers to.
    struct Known {
        stream: StreamInfo,
        connection: ConnectionInfo,
    }

    impl Known {
        fn new() -> Self {
            let mut stream = StreamInfo::new(Instant::now());
            let start = stream.times.start();
            let mut happens = |point, micros| stream.times.set(point, start + Duration::from_micros(micros));
            happens(TimePoint::UpstreamRxBegin, 10_000);
            happens(TimePoint::HeldBegin, 200);
            happens(TimePoint::HeldEnd, 4_567);
            happens(TimePoint::DownstreamTxEnd, 12_345);
            stream.protocol = Some("HTTP/1.1");
            stream.details = "upstream_reset_before_response_started{connection_termination}".into();
            stream.flags = ResponseFlags::UPSTREAM_CONNECTION_FAILURE | ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
            stream.bytes_sent = 1024;
            stream.transport_failure = "delayed connect error: Connection refused".into();
            Self { stream, connection: connection() }
        }

        fn good() -> Self {
            let mut known = Self::new();
            known.stream.flags = ResponseFlags::NONE;
            known
        }

        fn record(&self) -> Record<'_> {
            Record {
                stream: &self.stream,
                connection: &self.connection,
                start: UNIX_EPOCH + Duration::from_millis(1_770_000_000_007),
                now: self.stream.times.start() + Duration::from_micros(12_345),
                request: &REQUEST,
                response: &NoHead,
                trailers: &NoHead,
                status: 503,
                local_reply_body: b"",
            }
        }
    }

    fn parse(format: &str) -> Format {
        Format::parse(format, &|_| None).expect("a valid format")
    }

    #[test]
    fn text_operators() {
        let check = |pattern: &str, expected: &str| {
            let mut out = Vec::new();
            format(&parse(pattern), &Known::new().record(), &mut out);
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
        check("%UPSTREAM_TRANSPORT_FAILURE_REASON%", "delayed_connect_error:_Connection_refused");
    }

    #[test]
    fn no_name_of_a_certificate_ends_the_line() {
        let names = ["spiffe://a\r\n[forged]".to_owned(), "b".to_owned()];
        let (mut text, mut json) = (Vec::new(), Vec::new());
        list(&names, &mut Text(&mut text, b"-"));
        list(&names, &mut Json(&mut json));
        assert_eq!(String::from_utf8_lossy(&text), "spiffe://a\\r\\n[forged],b");
        assert_eq!(String::from_utf8_lossy(&json), "\"spiffe://a\\\\r\\\\n[forged],b\"");
        let mut known = Known::new();
        known.stream.handshake_failure = Some("a b\nc".into());
        let mut out = Vec::new();
        format(&parse("%DOWNSTREAM_TRANSPORT_FAILURE_REASON%"), &known.record(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "a_b_c");
    }

    #[test]
    fn what_is_absent_is_left_out_of_headers() {
        let check = |pattern: &str, expected: &str| {
            let mut out = Vec::new();
            format_header(&parse(pattern), &Known::good().record(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{pattern}");
        };
        check("%REQ(NOT-THERE)%", "");
        check("a-%REQ(NOT-THERE)%-b|%UPSTREAM_HOST%|%REQ(:METHOD)%", "a--b||GET");
        check("%RESPONSE_FLAGS%", "-");
    }

    #[test]
    fn a_calls_status_is_what_its_answer_stands_for() {
        const CALL: Head = Head(&[("content-type", "application/grpc+proto")]);
        const SAID: Head = Head(&[("grpc-status", "5")]);
        let check = |call: Record<'_>, expected: &str| {
            let mut out = Vec::new();
            format(&parse("%GRPC_STATUS% %GRPC_STATUS(NUMBER)%"), &call, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        let known = Known::new();
        let record = || known.record();
        let call = || Record { request: &CALL, ..record() };
        check(record(), "- -");
        check(call(), "Unavailable 14");
        check(Record { status: 0, ..call() }, "- -");
        check(Record { status: 200, ..call() }, "Unknown 2");
        check(Record { response: &SAID, ..call() }, "NotFound 5");
        check(Record { trailers: &SAID, ..call() }, "NotFound 5");
        const WEB: Head = Head(&[("content-type", "application/grpc-web")]);
        check(Record { request: &WEB, trailers: &SAID, ..record() }, "- -");
    }

    #[test]
    fn json_keeps_types() {
        let value = |format: &str| JsonFormat::Value(parse(format));
        let root = JsonFormat::Object(vec![
            ("code".into(), value("%RESPONSE_CODE%")),
            ("agent".into(), value("%REQ(USER-AGENT)%")),
            ("host".into(), value("%UPSTREAM_HOST%")),
            ("mixed".into(), value("%RESPONSE_CODE%!")),
            ("flags".into(), value("%RESPONSE_FLAGS%")),
            ("list".into(), JsonFormat::List(vec![value("a"), value("%BYTES_SENT%")])),
        ]);
        let check = |omit_empty: bool, expected: &str| {
            let mut out = Vec::new();
            json(&root, &Known::good().record(), omit_empty, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        let agent = "\"quote\\\" and \\u0001\"";
        check(
            false,
            &format!(
                "{{\"code\":503,\"agent\":{agent},\"host\":null,\"mixed\":\"503!\",\"flags\":\"-\",\"list\":[\"a\",1024]}}"
            ),
        );
        check(
            true,
            &format!("{{\"code\":503,\"agent\":{agent},\"mixed\":\"503!\",\"flags\":\"-\",\"list\":[\"a\",1024]}}"),
        );
    }
}
