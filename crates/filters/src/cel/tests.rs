//! What expressions say of a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::expression::Expression;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::peer::Peer;
use evenkeel_runtime_config::tracing::OwnNode;

use super::{evaluate, holds};
use crate::format::{Record, ResponseView, Trailers};
use crate::http::HeadView;
use crate::info::{ConnectionInfo, ResponseFlags, StreamInfo};
use crate::peer_metadata::PeerObject;

fn expression(text: &str) -> Expression {
    let node = OwnNode { id: "sidecar~1".to_owned(), cluster: "web.shop".to_owned(), ..OwnNode::default() };
    Expression { compiled: Arc::new(evenkeel_cel::Expression::compile(text).unwrap()), node: Arc::new(node) }
}

fn with_record(f: impl FnOnce(&Record<'_>)) {
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let now = Instant::now();
    let connection = ConnectionInfo::new(7, now, address("10.0.0.1:4000"), address("10.0.0.2:80"));
    let mut stream = StreamInfo::new(now);
    stream.protocol = Some("HTTP/1.1");
    stream.flags = ResponseFlags::UPSTREAM_CONNECTION_FAILURE | ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
    stream.cluster_name = Some("outbound|80||web".into());
    stream.host = Some("10.0.0.9:8080".into());
    (stream.bytes_received, stream.bytes_sent, stream.attempts) = (10, 20, 2);
    stream.details = "via_upstream".into();
    stream.metadata.merge("a.filter", &[("count".into(), MetadataValue::Number(2f64.to_bits()))]);
    let labels = [("app".to_owned(), "client".to_owned())].into();
    stream.set_object("downstream_peer", std::rc::Rc::new(PeerObject(Peer::new("client-v1", "shop", "c1", &labels))));
    let mut request = RequestHead::default();
    request.set_method(b"POST");
    request.set_authority(b"web");
    request.set_path(b"/a?b=c");
    request.headers.append(b"content-type", b"application/grpc");
    request.headers.append(b"x-a", b"1");
    request.headers.append(b"x-a", b"2");
    let response = ResponseHead { status: 503, ..ResponseHead::default() };
    let mut trailers = Headers::default();
    trailers.append(b"grpc-status", b"14");
    let head = HeadView::new(&request, &stream.metadata);
    let record = Record {
        request: &head,
        response: &ResponseView(&response),
        trailers: &Trailers(&trailers),
        status: 503,
        ..Record::headless(&stream, &connection, (SystemTime::UNIX_EPOCH, now + Duration::from_millis(1500)))
    };
    f(&record);
}

#[test]
fn attributes_are_those_of_the_request() {
    let check = |record: &Record<'_>, text: &str, expected: &str| {
        let found = evaluate(&expression(text), record);
        let found = found.map(|value| value.to_text()).unwrap_or_else(|failure| failure.to_string());
        assert_eq!(found, expected, "{text}");
    };
    with_record(|record| {
        check(record, "request.path", "/a?b=c");
        check(record, "request.url_path + ' ' + request.query", "/a b=c");
        check(record, "request.method + request.host", "POSTweb");
        check(record, "request.headers['x-a']", "1,2");
        check(record, "request.protocol", "HTTP/1.1");
        check(record, "request.size + response.size", "30");
        check(record, "request.total_size > request.size", "true");
        check(record, "response.code", "503");
        check(record, "response.code_details", "via_upstream");
        check(record, "response.flags", "32800");
        check(record, "response.grpc_status", "14");
        check(record, "response.trailers['grpc-status']", "14");
        check(record, "connection.mtls", "false");
        check(record, "connection.id", "7");
        check(record, "connection.uri_san_peer_certificate", "there is no `uri_san_peer_certificate`");
        check(record, "source.address + ' ' + destination.address", "10.0.0.1:4000 10.0.0.2:80");
        check(record, "source.port + destination.port", "4080");
        check(record, "upstream.address + ' ' + xds.cluster_name", "10.0.0.9:8080 outbound|80||web");
        check(record, "upstream.port + upstream.request_attempt_count", "8082");
        check(record, "metadata.filter_metadata['a.filter'].count", "2");
        check(record, "filter_state.downstream_peer.app + filter_state['downstream_peer'].cluster", "clientc1");
        check(record, "node.id + xds.node.cluster", "sidecar~1web.shop");
        check(record, "request.duration == duration('1.5s') && request.time < request.time + duration('1ms')", "true");
        check(record, "has(request.referer) || has(response.backend_latency)", "false");
        assert!(holds(&expression("response.code >= 500"), record));
        assert!(!holds(&expression("request.referer == ''"), record));
    });
}
