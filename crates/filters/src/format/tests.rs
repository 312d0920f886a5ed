//! The text of operators.

use std::time::{Duration, Instant, UNIX_EPOCH};

use evenkeel_runtime_config::substitution_format::TimePoint;

use super::sink::list;
use super::*;
use crate::info::{ConnectionInfo, ResponseFlags, StreamInfo};

struct Head(&'static [(&'static str, &'static str)]);
impl HeadLookup for Head {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
    }
}

const REQUEST: Head =
    Head(&[(":method", "GET"), (":path", "/a?b=1"), (":authority", "info:8080"), ("user-agent", "quote\" and \u{1}")]);

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
            trace: None,
            upstream: None,
            cut_off: false,
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
fn a_clients_word_is_no_path() {
    const CLAIMED: Head = Head(&[(":path", "/a?b=1"), ("x-envoy-original-path", "/claimed?c=2")]);
    let check = |rewritten: bool, pattern: &str, expected: &str| {
        let mut known = Known::new();
        known.stream.rewritten = rewritten;
        let mut out = Vec::new();
        format(&parse(pattern), &Record { request: &CLAIMED, ..known.record() }, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected, "{rewritten} {pattern}");
    };
    let path = "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %REQ_WITHOUT_QUERY(X-Envoy-Original-Path?:PATH)% %REQ(:PATH)%";
    check(false, path, "/a?b=1 /a /a?b=1");
    check(true, path, "/claimed?c=2 /claimed /a?b=1");
    // Who asks for the header gets it.
    check(false, "%REQ(X-ENVOY-ORIGINAL-PATH)%", "/claimed?c=2");
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
        let out = header_value(&parse(pattern), &Known::good().record());
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
