//! Formats a [`Record`]: text, JSON and header values share one table of operators.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel_base::grpc::{STATUS_NAMES, is_grpc, status_of_http};
use evenkeel_filters::Form;
use evenkeel_runtime_config::access_log::{
    FilterStateFormat, Format, FormatPart, GrpcStatusFormat, JsonFormat, LogFormat, Operator, Precision, TimePoint,
};
use evenkeel_runtime_config::cluster::MetadataValue;
use evenkeel_tls::printable;

use super::record::{HeadLookup, Record};
use super::time;
use crate::response_flags::ResponseFlags;

/// Takes what an operator yields, as what it is.
trait Sink {
    fn absent(&mut self);
    fn bytes(&mut self, bytes: &[u8]);
    fn number(&mut self, number: u64);
    /// What has no form but its text: addresses, lists, times.
    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>));

    /// How objects are written in it.
    fn form(&self) -> Form;

    /// What is JSON already.
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

/// Text as it is, and what stands for a value that is absent.
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

/// A value of JSON.
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

    // In JSON Envoy spells the fields as in protobuf.
    fn form(&self) -> Form {
        Form::TypedJson
    }

    fn json(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }
}

/// Nothing but whether there is a value.
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

/// Appends the text form. An absent value is `-`.
pub fn format(format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    format_or(b"-", format, record, out);
}

/// Appends the value of a header. What is absent is left out.
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

/// By the trailers, else by the headers, else by what the answer's status stands for; only of requests of gRPC.
fn grpc_status(format: GrpcStatusFormat, record: &Record<'_>, sink: &mut impl Sink) {
    let is_grpc = record.request.lookup("content-type").is_some_and(is_grpc);
    let status = record.trailers.lookup("grpc-status").or_else(|| record.response.lookup("grpc-status"));
    let number = match status {
        _ if !is_grpc => return sink.absent(),
        Some(status) => std::str::from_utf8(status).ok().and_then(|status| status.parse::<usize>().ok()),
        None if record.response_code == 0 => return sink.absent(),
        None => Some(status_of_http(record.response_code).into()),
    };
    match (format, number.and_then(|number| STATUS_NAMES.get(number))) {
        (GrpcStatusFormat::Camel, Some((camel, _))) => sink.bytes(camel.as_bytes()),
        (GrpcStatusFormat::Snake, Some((_, snake))) => sink.bytes(snake.as_bytes()),
        _ => sink.number_of(number.map(|number| number as u64)),
    }
}

/// Gives what the operator stands for to `sink`.
fn value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
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
        Operator::Protocol => sink.string(record.protocol),
        Operator::ResponseCode => sink.number(u64::from(record.response_code)),
        Operator::ResponseCodeDetails => sink.non_empty(record.response_code_details),
        Operator::ConnectionTerminationDetails => sink.non_empty(record.connection_termination_details),
        Operator::ResponseFlags => {
            flags(record, sink, |flags, out| join(flags.short_names(), out));
        }
        Operator::ResponseFlagsLong => {
            flags(record, sink, |flags, out| join(flags.long_names(), out));
        }
        Operator::BytesReceived => sink.number(record.bytes_received),
        Operator::BytesSent => sink.number(record.bytes_sent),
        Operator::Duration => sink.millis(Some(record.duration)),
        Operator::RequestDuration => sink.millis(record.request_duration),
        Operator::ResponseDuration => sink.millis(record.response_duration),
        Operator::ResponseTxDuration => {
            sink.millis(record.response_duration.map(|first| record.duration.saturating_sub(first)));
        }
        Operator::CommonDuration { start, end, precision } => {
            let passed = point(*end, record).zip(point(*start, record)).and_then(|(end, start)| end.checked_sub(start));
            sink.number_of(passed.map(|passed| in_units(passed, *precision)));
        }
        Operator::UpstreamHost => sink.string(record.upstream_host),
        Operator::UpstreamCluster | Operator::UpstreamClusterRaw => sink.string(record.upstream_cluster),
        Operator::UpstreamLocalAddress => sink.text_of(record.upstream_local_address, write_address),
        Operator::UpstreamTransportFailureReason => one_word(record.upstream_transport_failure_reason, sink),
        Operator::DownstreamTransportFailureReason => one_word(record.downstream_transport_failure_reason, sink),
        Operator::UpstreamRequestAttemptCount => sink.number(u64::from(record.upstream_attempts)),
        Operator::DownstreamLocalAddress => sink.text_of(record.downstream_local_address, write_address),
        Operator::DownstreamLocalAddressWithoutPort => sink.text_of(record.downstream_local_address, write_ip),
        Operator::DownstreamLocalPort => sink.number_of(port(record.downstream_local_address)),
        Operator::DownstreamRemoteAddress => sink.text_of(record.downstream_remote_address, write_address),
        Operator::DownstreamRemoteAddressWithoutPort => sink.text_of(record.downstream_remote_address, write_ip),
        Operator::DownstreamRemotePort => sink.number_of(port(record.downstream_remote_address)),
        Operator::DownstreamDirectRemoteAddress => {
            sink.text_of(record.downstream_direct_remote_address, write_address);
        }
        Operator::DownstreamDirectRemoteAddressWithoutPort => {
            sink.text_of(record.downstream_direct_remote_address, write_ip);
        }
        Operator::DownstreamPeerUriSan => list(record.downstream_peer_uri_sans, sink),
        Operator::DownstreamLocalUriSan => list(record.downstream_local_uri_sans, sink),
        Operator::DownstreamPeerSubject => sink.non_empty(record.downstream_peer_subject),
        Operator::DownstreamTlsVersion => sink.string(record.downstream_tls_version),
        Operator::DownstreamTlsCipher => sink.string(record.downstream_tls_cipher),
        Operator::RequestedServerName => sink.string(record.requested_server_name),
        Operator::RouteName => sink.non_empty(record.route_name.unwrap_or_default()),
        Operator::FilterChainName => sink.non_empty(record.filter_chain_name.unwrap_or_default()),
        Operator::ConnectionId => sink.number(record.connection_id),
        Operator::RequestId => sink.header(record.request, "x-request-id", None),
        Operator::Hostname => sink.string(hostname()),
        Operator::FilterState(key, format) => filter_state(key, *format, record, sink),
        Operator::DynamicMetadata { filter, path } => dynamic_metadata(filter, path, record, sink),
        Operator::TunnelHeaders => json_of(record.tunnel_headers, sink),
        Operator::TunnelTrailers => json_of(record.tunnel_trailers, sink),
        Operator::VirtualClusterName | Operator::Unset => sink.absent(),
    }
}

fn filter_state(key: &str, format: FilterStateFormat, record: &Record<'_>, sink: &mut impl Sink) {
    let mut text = Vec::new();
    let form = if format == FilterStateFormat::Plain { Form::Plain } else { sink.form() };
    let object = record.filters.and_then(|filters| filters.object(key));
    if !object.is_some_and(|object| object.write(form, &mut text)) {
        return sink.absent();
    }
    match format {
        FilterStateFormat::Plain => sink.bytes(&text),
        FilterStateFormat::Typed => sink.json(&String::from_utf8_lossy(&text)),
    }
}

/// Strings as they are, everything else as JSON.
fn dynamic_metadata(filter: &str, path: &[Box<str>], record: &Record<'_>, sink: &mut impl Sink) {
    let metadata = record.filters.map(|filters| &filters.metadata).or(record.connection_metadata);
    match metadata.and_then(|metadata| metadata.get(filter, path)) {
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
            // The largest whole number that is exact.
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

fn header<'a>(head: &'a dyn HeadLookup, name: &str, other: Option<&str>) -> Option<&'a [u8]> {
    head.lookup(name).or_else(|| other.and_then(|other| head.lookup(other)))
}

fn without_query(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// As Envoy writes reasons: one word, for text logs are split at blanks.
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

/// No flag is a `-`, wherever it stands: it says that all went well.
fn flags(record: &Record<'_>, sink: &mut impl Sink, write: impl FnOnce(ResponseFlags, &mut Vec<u8>)) {
    match record.flags {
        ResponseFlags::NONE => sink.bytes(b"-"),
        flags => sink.text(|out| write(flags, out)),
    }
}

fn port(address: Option<SocketAddr>) -> Option<u64> {
    address.map(|address| u64::from(address.port()))
}

/// Names out of a certificate. What its CA let pass must not make two lines of one.
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
    write_short(itoa::Buffer::new().format(number).as_bytes(), out);
}

/// A line is made of blanks, quotes and small numbers, for each of which a call, be it of `memcpy`, would cost more than its bytes.
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
            upstream_transport_failure_reason: "delayed connect error: Connection refused",
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
        check("%UPSTREAM_TRANSPORT_FAILURE_REASON%", "delayed_connect_error:_Connection_refused");
    }

    #[test]
    fn no_name_of_a_certificate_ends_the_line() {
        let names = ["spiffe://a\r\n[forged]".to_owned(), "b".to_owned()];
        let record =
            Record { downstream_peer_uri_sans: &names, downstream_transport_failure_reason: "a b\nc", ..record() };
        let check = |line: &LogFormat, expected: &str| {
            let mut out = Vec::new();
            format_line(line, &record, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        let operators = "%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_TRANSPORT_FAILURE_REASON%";
        check(&LogFormat::Text(parse(operators)), "spiffe://a\\r\\n[forged],b a_b_c");
        let root = JsonFormat::Object(vec![("all".into(), JsonFormat::Value(parse(operators)))]);
        let json = LogFormat::Json { root, omit_empty: false };
        check(&json, "{\"all\":\"spiffe://a\\\\r\\\\n[forged],b a_b_c\"}\n");
    }

    #[test]
    fn what_is_absent_is_left_out_of_headers() {
        let check = |pattern: &str, expected: &str| {
            let mut out = Vec::new();
            let good = Record { flags: ResponseFlags::NONE, ..record() };
            format_header(&parse(pattern), &good, &mut out);
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
        let call = || Record { request: &CALL, ..record() };
        check(record(), "- -");
        check(call(), "Unavailable 14");
        check(Record { response_code: 0, ..call() }, "- -");
        check(Record { response_code: 200, ..call() }, "Unknown 2");
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
            let good = Record { flags: ResponseFlags::NONE, ..record() };
            json(&root, &good, omit_empty, &mut out);
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
