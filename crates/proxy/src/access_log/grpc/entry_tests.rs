//! Entries as JSON: the fields of a record, and their place in the message.

use std::sync::Arc;
use std::time::{Duration as Span, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_filters::format::{ResponseView, Trailers};
use evenkeel_filters::{Form, ResponseFlags, StateObject, StreamInfo};
use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::access_log::{AccessLog, LogSink};
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::{SecretStore, Session};
use evenkeel_xds::json::{read_text, to_json};
use evenkeel_xds::{Schema, pb};
use serde_json::{Value as Json, json};

use super::*;

/// The access log of a listener that has this one.
fn log(kind: &str, config: &str) -> Arc<AccessLog> {
    let listener = format!(
        r#"
name: l
address: {{socket_address: {{address: 127.0.0.1, port_value: 80}}}}
access_log:
- name: als
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.{kind}
    common_config: {{log_name: l, transport_api_version: V3, grpc_service: {{envoy_grpc: {{cluster_name: als}}}}, {config}
filter_chains:
- filters:
  - name: tcp
    typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c}}
"#
    );
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let read = read_text::<pb::envoy::config::listener::v3::Listener>(&Schema::acquire(), "test.yaml", &listener);
    builder.set_listener(&evenkeel_xds::pack(&read.message.expect("a listener"))).expect("a usable listener");
    Arc::clone(&builder.build().listeners["l"].access_logs[0])
}

fn grpc(log: &AccessLog) -> &GrpcLog {
    match &log.sink {
        LogSink::Grpc(log) => log,
        LogSink::File { .. } => panic!("{log:?}"),
    }
}

/// Headers of a request.
struct Head(Vec<(&'static str, &'static [u8])>);

impl HeadLookup for Head {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn bytes(&self) -> u64 {
        99
    }
}

struct Object;

impl StateObject for Object {
    fn write(&self, _: Form, _: &mut Vec<u8>) -> bool {
        false
    }

    fn message(&self) -> Option<(&'static str, Vec<u8>)> {
        Some(("google.protobuf.UInt32Value", vec![8, 7]))
    }
}

fn stream(start: Instant) -> StreamInfo {
    let mut stream = StreamInfo::new(start);
    for (point, millis) in [
        (TimePoint::DownstreamRxEnd, 1),
        (TimePoint::UpstreamTxBegin, 2),
        (TimePoint::UpstreamTxEnd, 3),
        (TimePoint::UpstreamRxBegin, 4),
        (TimePoint::UpstreamRxEnd, 5),
        (TimePoint::DownstreamTxBegin, 6),
        (TimePoint::DownstreamTxEnd, 7),
    ] {
        stream.times.set(point, start + Span::from_millis(millis));
    }
    stream.protocol = Some("HTTP/2");
    stream.details = "via_upstream".into();
    stream.termination = "ended".into();
    stream.flags = ResponseFlags::UPSTREAM_CONNECTION_FAILURE;
    (stream.bytes_received, stream.bytes_sent, stream.attempts) = (10, 20, 2);
    stream.client = Some(([10, 0, 0, 9], 9).into());
    stream.cluster_name = Some("c".into());
    stream.host = Some("10.0.0.3:80".into());
    stream.upstream_local = Some(([10, 0, 0, 2], 5).into());
    stream.route_name = Some("r".into());
    stream.transport_failure = "delayed connect error: x".into();
    let fields = [("a".into(), MetadataValue::List(vec![MetadataValue::Bool(true), MetadataValue::Text("t".into())]))];
    stream.metadata.merge("f", &fields);
    stream.set_object("state", std::rc::Rc::new(Object));
    stream.rewritten = true;
    stream
}

const ADDRESSES: [(&str, &str, u16); 5] = [
    ("downstream_remote_address", "10.0.0.9", 9),
    ("downstream_direct_remote_address", "10.0.0.1", 1),
    ("downstream_local_address", "::1", 443),
    ("upstream_remote_address", "10.0.0.3", 80),
    ("upstream_local_address", "10.0.0.2", 5),
];

fn common_json() -> Json {
    let mut json = json!({
        "tls_properties": {
            "tls_version": "TLSv1_2", "tls_cipher_suite": 0xC02B, "tls_sni_hostname": "web.test",
            "local_certificate_properties": {}, "peer_certificate_properties": {},
        },
        "start_time": "2026-02-02T02:40:00.007Z", "duration": "0.008s",
        "time_to_last_rx_byte": "0.001s", "time_to_first_upstream_tx_byte": "0.002s",
        "time_to_last_upstream_tx_byte": "0.003s", "time_to_first_upstream_rx_byte": "0.004s",
        "time_to_last_upstream_rx_byte": "0.005s", "time_to_first_downstream_tx_byte": "0.006s",
        "time_to_last_downstream_tx_byte": "0.007s",
        "upstream_cluster": "c", "upstream_transport_failure_reason": "delayed connect error: x", "route_name": "r",
        "response_flags": { "upstream_connection_failure": true },
        "metadata": { "filter_metadata": { "f": { "a": [true, "t"] } } },
        "filter_state_objects": { "state": { "@type": "type.googleapis.com/google.protobuf.UInt32Value", "value": 7 } },
        "upstream_request_attempt_count": 2, "connection_termination_details": "ended",
        "stream_id": "1",
    });
    for (name, address, port) in ADDRESSES {
        json[name] = json!({ "socket_address": { "address": address, "port_value": port } });
    }
    json
}

/// A record of everything, as an entry of this log.
fn with_record<T>(then: impl FnOnce(&Record<'_>) -> T) -> T {
    let start = Instant::now();
    let stream = stream(start);
    let mut connection =
        ConnectionInfo::new(1, start, ([10, 0, 0, 1], 1).into(), "[::1]:443".parse().expect("an address"));
    connection.view.server_name = Some("web.test".into());
    let session = Session { version: "TLSv1.2", cipher: "ECDHE-ECDSA-AES128-GCM-SHA256", ..Session::default() };
    connection.session = Some(Arc::new(session));
    let request = Head(vec![
        (":method", b"POST"),
        (":path", b"/a\xffb"),
        (":authority", b"web.test"),
        (":scheme", b"https"),
        ("user-agent", b"ua"),
        ("referer", b"ref"),
        ("x-forwarded-for", b"1.2.3.4"),
        ("x-request-id", b"id"),
        ("x-envoy-original-path", b"/was"),
        ("x-more", b"1,2"),
    ]);
    let mut response = ResponseHead { status: 503, ..ResponseHead::default() };
    [("x-a", "1"), ("x-a", "2")]
        .iter()
        .for_each(|(name, value)| response.headers.append(name.as_bytes(), value.as_bytes()));
    let mut trailers = Headers::default();
    trailers.append(b"grpc-status", b"14");
    then(&Record {
        stream: &stream,
        connection: &connection,
        start: UNIX_EPOCH + Span::from_millis(1_770_000_000_007),
        now: start + Span::from_millis(8),
        request: &request,
        response: &ResponseView(&response),
        trailers: &Trailers(&trailers),
        status: 503,
        local_reply_body: b"",
        trace: None,
        upstream: None,
        cut_off: false,
    })
}

#[test]
fn an_http_entry_has_all_that_is_known() {
    let log = log(
        "HttpGrpcAccessLogConfig",
        "filter_state_objects_to_log: [ state, none ], custom_tags: [ { tag: t, literal: { value: v } }, \
         { tag: h, request_header: { name: X-More } }, { tag: d, request_header: { name: x-none, default_value: d } }, \
         { tag: n, request_header: { name: x-none } } ] }\n    additional_request_headers_to_log: [ X-More, x-none ]\n    \
         additional_response_headers_to_log: [ x-a ]\n    additional_response_trailers_to_log: [ grpc-status ]",
    );
    let entry = with_record(|record| http(grpc(&log), record));
    let mut common = common_json();
    common["custom_tags"] = json!({ "t": "v", "h": "1,2", "d": "d" });
    let expected = json!({
        "common_properties": common,
        "protocol_version": "HTTP2",
        "request": {
            "request_method": "POST", "scheme": "https", "authority": "web.test", "path": "/a!b", "user_agent": "ua",
            "referer": "ref", "forwarded_for": "1.2.3.4", "request_id": "id", "original_path": "/was",
            "request_headers_bytes": "99", "request_body_bytes": "10", "request_headers": { "x-more": "1,2" },
        },
        "response": {
            "response_code": 503, "response_headers_bytes": "18", "response_body_bytes": "20",
            "response_headers": { "x-a": "1,2" }, "response_trailers": { "grpc-status": "14" },
            "response_code_details": "via_upstream",
        },
    });
    pretty_assert(&to_json(&Schema::acquire(), &entry), &expected);
}

#[test]
fn a_tcp_entry_has_all_that_is_known() {
    let log = log("TcpGrpcAccessLogConfig", "filter_state_objects_to_log: [ state ] }");
    let entry =
        with_record(|record| tcp(grpc(&log), &Record { request: &evenkeel_filters::format::NoHead, ..*record }));
    let expected = json!({
        "common_properties": common_json(),
        "connection_properties": { "received_bytes": "10", "sent_bytes": "20" },
    });
    pretty_assert(&to_json(&Schema::acquire(), &entry), &expected);
}

#[test]
fn an_entry_of_which_nothing_is_known() {
    let log = log("HttpGrpcAccessLogConfig", "}");
    let start = Instant::now();
    let nowhere = ([127, 0, 0, 1], 1).into();
    let (stream, connection) = (StreamInfo::new(start), ConnectionInfo::new(1, start, nowhere, nowhere));
    let mut out = Vec::new();
    let record = Record::headless(&stream, &connection, (SystemTime::UNIX_EPOCH, start));
    append(grpc(&log), &record, &mut out);
    let entries: pb::envoy::service::accesslog::v3::stream_access_logs_message::HttpAccessLogEntries =
        prost::Message::decode(&*out).expect("a message");
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 1 } });
    let expected = json!({ "log_entry": [{
        "common_properties": {
            "downstream_remote_address": address, "downstream_direct_remote_address": address,
            "downstream_local_address": address, "start_time": "1970-01-01T00:00:00Z", "duration": "0s", "stream_id": "1",
        },
        "request": {}, "response": {},
    }] });
    pretty_assert(&to_json(&Schema::acquire(), &entries), &expected);
}

/// Fields of messages have no order here.
fn pretty_assert(got: &Json, expected: &Json) {
    let text = |json: &Json| serde_json::to_string_pretty(&sorted(json)).expect("JSON");
    assert_eq!(text(got), text(expected));
}

fn sorted(json: &Json) -> Json {
    match json {
        Json::Object(fields) => {
            let sorted: std::collections::BTreeMap<_, _> =
                fields.iter().map(|(name, field)| (name, self::sorted(field))).collect();
            Json::Object(sorted.into_iter().map(|(name, field)| (name.clone(), field)).collect())
        }
        Json::Array(items) => items.iter().map(self::sorted).collect(),
        other => other.clone(),
    }
}
