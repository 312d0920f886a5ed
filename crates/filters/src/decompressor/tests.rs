//! Which messages are decompressed, and what their heads say.

use std::sync::Arc;

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::compression::{Coding, Compression, Decompression};
use evenkeel_runtime_config::decompressor::{Decompressor, Direction};
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::view::PlainRequest;

use crate::compression::Encoder;
use crate::http::fixture::Fixture;
use crate::{BadBody, Body, Data, Decision};

const ON: Direction = Direction { enabled: true, ignore_no_transform: false };

fn fixture(requests: Direction, responses: Direction) -> Fixture {
    Fixture::new(HttpFilterConfig::Decompressor(Arc::new(Decompressor {
        library: "any".into(),
        decompression: Decompression { coding: Coding::Gzip, max_ratio: 100 },
        requests,
        responses,
        advertises: true,
    })))
}

fn fields(headers: &Headers) -> Vec<String> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    headers.iter().map(|(_, name, value)| format!("{}: {}", text(name), text(value))).collect()
}

fn request(filter: &mut Fixture, headers: &[(&str, &str)]) -> Vec<String> {
    let mut request = PlainRequest::new("POST", "a", "/");
    request.headers.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    filter.request(&request);
    assert!(matches!(filter.ask(Body::Coming), Decision::Continue));
    fields(&filter.head.headers)
}

#[test]
fn the_coding_that_was_applied_last_goes() {
    let off = Direction { enabled: false, ..ON };
    let always = Direction { ignore_no_transform: true, ..ON };
    for (direction, headers, expected) in [
        (ON, vec![("content-encoding", "gzip"), ("content-length", "9")], vec![]),
        (ON, vec![("content-encoding", "br, GZIP")], vec!["content-encoding: br"]),
        (ON, vec![("content-encoding", "gzip, br")], vec!["content-encoding: gzip, br"]),
        (ON, vec![("content-length", "9")], vec!["content-length: 9"]),
        (off, vec![("content-encoding", "gzip")], vec!["content-encoding: gzip"]),
        (
            ON,
            vec![("content-encoding", "gzip"), ("cache-control", "no-transform")],
            vec!["content-encoding: gzip", "cache-control: no-transform"],
        ),
        (
            always,
            vec![("content-encoding", "gzip"), ("cache-control", "no-transform")],
            vec!["cache-control: no-transform"],
        ),
    ] {
        let mut filter = fixture(direction, off);
        assert_eq!(request(&mut filter, &headers), expected, "{headers:?}");
    }
}

#[test]
fn the_server_learns_that_it_may_compress() {
    for (accepted, expected) in [
        (None, "gzip"),
        (Some("br, gzip;q=0.3"), "br,gzip"),
        (Some("gzip"), "gzip"),
        (Some("identity"), "identity,gzip"),
    ] {
        let mut filter = fixture(ON, ON);
        let headers: Vec<_> = accepted.map(|accepted| ("accept-encoding", accepted)).into_iter().collect();
        assert_eq!(request(&mut filter, &headers), [format!("accept-encoding: {expected}")], "{accepted:?}");
    }
}

#[test]
fn a_request_that_cannot_be_read_is_refused_and_a_response_is_counted_in_trailers() {
    let mut encoder = Encoder::new(Compression::Gzip { level: 6 }).expect("memory");
    let mut body = encoder.push(b"hello");
    body.extend(encoder.finish());
    let mut filter = fixture(ON, ON);
    request(&mut filter, &[("content-encoding", "gzip")]);
    for (bytes, expected) in [(&body[..], Some(&b"hello"[..])), (b"no gzip at all", None)] {
        request(&mut filter, &[("content-encoding", "gzip")]);
        let mut data = Data { bytes: bytes.into(), ends: true, now: filter.now };
        let passed = filter.filters.request_data(&mut filter.streams, &mut data);
        match expected {
            Some(expected) => assert_eq!(&*data.bytes, expected),
            None => assert!(matches!(passed, Err(BadBody { status: 400, .. })), "{passed:?}"),
        }
    }
    // A response's part that can be read arrives, and nothing after it.
    let mut broken = ResponseHead::default();
    broken.headers.append(b"content-encoding", b"gzip");
    filter.answer(broken, false);
    for (bytes, ends, expected) in [([&*body, b"no gzip"].concat(), false, "hello"), (body.clone(), true, "")] {
        let mut data = Data { bytes: bytes.into(), ends, now: filter.now };
        _ = filter.filters.response_data(&mut filter.streams, &mut data);
        assert_eq!(String::from_utf8_lossy(&data.bytes), expected);
    }
    request(&mut filter, &[]);
    let mut head = ResponseHead::default();
    head.headers.append(b"content-encoding", b"gzip");
    let head = filter.answer(head, false);
    assert_eq!(fields(&head.headers), [""; 0]);
    let mut data = Data { bytes: body[..].into(), ends: true, now: filter.now };
    _ = filter.filters.response_data(&mut filter.streams, &mut data);
    assert_eq!(&*data.bytes, b"hello");
    let mut trailers = Headers::default();
    filter.end(&head, &mut trailers);
    let expected = [
        format!("x-envoy-decompressor-any-compressed-bytes: {}", body.len()),
        "x-envoy-decompressor-any-uncompressed-bytes: 5".to_owned(),
    ];
    assert_eq!(fields(&trailers), expected);
}
