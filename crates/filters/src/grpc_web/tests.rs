//! Calls as the proxy passes them to the filter.

use std::sync::Arc;

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::grpc_web::GrpcWeb;
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::view::PlainRequest;

use crate::http::fixture::Fixture;
use crate::http::{Body, Data, Decision, Flow};

fn fixture(kind: &str, accept: &str) -> (Fixture, Decision) {
    let mut fixture = Fixture::new(HttpFilterConfig::GrpcWeb(Arc::new(GrpcWeb)));
    let request = PlainRequest::new("POST", "a", "/s.S/M")
        .with_header("content-type", kind)
        .with_header("content-length", "8")
        .with_header("accept", accept);
    fixture.request(&request);
    let decision = fixture.ask(Body::Coming);
    (fixture, decision)
}

fn head(status: u16, kind: &str) -> ResponseHead {
    let mut head = ResponseHead { status, ..ResponseHead::default() };
    head.headers.append(b"content-type", kind.as_bytes());
    head.headers.append(b"content-length", b"6");
    head
}

fn fields(headers: &Headers) -> Vec<String> {
    let line = |(_, name, value): (_, &[u8], &[u8])| {
        format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    };
    headers.iter().map(line).collect()
}

#[test]
fn only_exact_content_types_are_grpc_web() {
    for (kind, is_web) in [
        ("application/grpc-web", true),
        ("application/grpc-web+proto", true),
        ("application/grpc-web-text", true),
        ("application/grpc-web-text+proto", true),
        ("application/grpc-web+json", false),
        ("application/grpc-web; charset=utf-8", false),
        ("Application/grpc-web", false),
        ("application/grpc", false),
        ("text/plain", false),
    ] {
        let (fixture, decision) = fixture(kind, "*/*");
        assert!(matches!(decision, Decision::Continue));
        let mut fields = fields(&fixture.head.headers);
        fields.sort_unstable();
        let expected = if is_web {
            vec!["accept: */*", "content-type: application/grpc", "grpc-accept-encoding: identity", "te: trailers"]
        } else {
            vec!["accept: */*", "content-length: 8", &*format!("content-type: {kind}")]
                .into_iter()
                .map(|line| &*line.to_owned().leak())
                .collect()
        };
        assert_eq!(fields, expected, "{kind}");
        assert_eq!(fixture.info.made_grpc, is_web, "{kind}");
    }
}

/// The response's body and trailers after the filter: `body` in pieces of three bytes, then these trailers.
fn answered(fixture: &mut Fixture, body: &[u8], trailers: &[(&str, &str)]) -> (Vec<u8>, Vec<String>) {
    let now = fixture.now;
    let mut sent = Vec::new();
    for piece in body.chunks(3) {
        let mut data = Data { bytes: piece.into(), ends: false, now };
        assert!(matches!(fixture.filters.response_data(&mut fixture.streams, &mut data), Flow::Continue));
        sent.extend_from_slice(&data.bytes);
    }
    let mut left = Headers::default();
    trailers.iter().for_each(|(name, value)| left.append(name.as_bytes(), value.as_bytes()));
    sent.extend(fixture.end(&ResponseHead::default(), &mut left));
    (sent, fields(&left))
}

const MESSAGE: &[u8] = &[0, 0, 0, 0, 1, 7];

#[test]
fn trailers_become_the_last_frame() {
    for (accept, kind, expected) in [
        ("*/*", "application/grpc-web+proto", &b"\0\0\0\0\x01\x07\x80\0\0\0\x0fgrpc-status:0\r\n"[..]),
        ("application/grpc-web-text", "application/grpc-web-text+proto", b"AAAAAAEHgAAAAA9ncnBjLXN0YXR1czowDQo="),
    ] {
        let (mut fixture, _) = fixture("application/grpc-web", accept);
        let head = fixture.answer(head(200, "application/grpc+proto"), false);
        assert_eq!(fields(&head.headers), [format!("content-type: {kind}")]);
        let (body, trailers) = answered(&mut fixture, MESSAGE, &[("grpc-status", "0")]);
        assert_eq!((body.as_slice(), trailers), (expected, Vec::new()), "{accept}");
        let counted = fixture.registry.text();
        assert!(counted.contains("cluster.c.grpc-web.s.S.M.success: 1\n"), "{counted}");
    }
    // A response without trailers has no such frame.
    let (mut fixture, _) = fixture("application/grpc-web", "*/*");
    fixture.answer(head(200, "application/grpc"), false);
    assert_eq!(answered(&mut fixture, MESSAGE, &[]).0, MESSAGE);
}

#[test]
fn text_that_is_no_base64_ends_the_request() {
    for (text, ends, expected) in [
        ("AAAAAAEH", true, Ok(MESSAGE)),
        ("AAAAA", true, Err("grpc_base_64_decode_failed_bad_size")),
        ("AA!A", false, Err("grpc_base_64_decode_failed")),
    ] {
        let (mut fixture, _) = fixture("application/grpc-web-text", "*/*");
        let mut data = Data { bytes: text.as_bytes().into(), ends, now: fixture.now };
        let result = fixture.filters.request_data(&mut fixture.streams, &mut data).map_err(|bad| bad.details);
        assert_eq!(result.map(|_| &*data.bytes), expected, "{text}");
    }
}
