//! Which messages are compressed, what their heads say, and that bodies arrive in one piece.

use std::sync::Arc;

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::compression::{Coding, Compression, Decompression};
use evenkeel_runtime_config::compressor::{Compressible, Compressor, CompressorPerRoute, Responses};
use evenkeel_runtime_config::decompressor::{Decompressor, Direction};
use evenkeel_runtime_config::hcm::{HttpFilter, HttpFilterConfig};
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::PlainRequest;

use crate::compression::Decoder;
use crate::http::fixture::Fixture;
use crate::{Body, Data, Decision};

fn bodies() -> Compressible {
    let text = StringMatcher::Exact { value: (*b"text/plain").into(), ignore_case: true };
    Compressible { enabled: true, min_content_length: 30, content_types: vec![text] }
}

fn config() -> Compressor {
    Compressor {
        library: "text".into(),
        compression: Compression::Gzip { level: 6 },
        requests: None,
        responses: Responses {
            bodies: bodies(),
            own_statistics: true,
            disable_on_etag: false,
            weaken_etag: false,
            remove_accept_encoding: false,
            uncompressible: vec![206],
        },
        choose_first: false,
    }
}

fn fixture(config: Compressor) -> Fixture {
    Fixture::new(HttpFilterConfig::Compressor(Arc::new(config)))
}

fn request(filter: &mut Fixture, accepted: Option<&str>) {
    let mut request = PlainRequest::new("GET", "a", "/");
    request.headers.extend(accepted.map(|accepted| ("accept-encoding".to_owned(), accepted.to_owned())));
    filter.request(&request);
    assert!(matches!(filter.ask(Body::Empty), Decision::Continue));
}

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let mut head = ResponseHead { status, ..ResponseHead::default() };
    fields.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value.as_bytes()));
    head
}

fn shown(headers: &Headers) -> String {
    let lines: Vec<_> = headers
        .iter()
        .map(|(_, name, value)| format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
        .collect();
    lines.join(", ")
}

#[test]
fn a_response_is_compressed_if_the_client_takes_it_and_it_is_worth_it() {
    const LONG: (&str, &str) = ("content-length", "1000");
    const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");
    let gzip = "content-encoding: gzip, vary: Accept-Encoding";
    for (accepted, status, fields, expected) in [
        (Some("gzip"), 200, vec![LONG, TEXT], format!("content-type: text/plain; charset=utf-8, {gzip}")),
        (Some("gzip"), 200, vec![], gzip.to_owned()),
        // Another client would get another body.
        (None, 200, vec![LONG], "content-length: 1000, vary: Accept-Encoding".to_owned()),
        (Some("br"), 200, vec![LONG], "content-length: 1000, vary: Accept-Encoding".to_owned()),
        (Some("gzip"), 200, vec![("content-length", "29")], "content-length: 29".to_owned()),
        (Some("gzip"), 200, vec![("content-length", "x")], "content-length: x".to_owned()),
        (Some("gzip"), 200, vec![("content-type", "image/png")], "content-type: image/png".to_owned()),
        (Some("gzip"), 206, vec![LONG], "content-length: 1000".to_owned()),
        (Some("gzip"), 200, vec![("content-encoding", "br")], "content-encoding: br".to_owned()),
        (
            Some("gzip"),
            200,
            vec![("cache-control", "private, No-Transform")],
            "cache-control: private, No-Transform".to_owned(),
        ),
        (Some("gzip"), 200, vec![("etag", "\"a\"")], gzip.to_owned()),
        (Some("gzip"), 200, vec![("etag", "W/\"a\"")], format!("etag: W/\"a\", {gzip}")),
        (
            Some("gzip"),
            200,
            vec![("vary", "accept-encoding, host")],
            "vary: accept-encoding, host, content-encoding: gzip".to_owned(),
        ),
        (Some("gzip"), 200, vec![("vary", "host")], "vary: host, Accept-Encoding, content-encoding: gzip".to_owned()),
    ] {
        let mut filter = fixture(config());
        request(&mut filter, accepted);
        let answer = filter.answer(head(status, &fields), false);
        let mut got: Vec<_> = shown(&answer.headers).split(", ").map(str::to_owned).collect();
        let mut wanted: Vec<_> = expected.split(", ").map(str::to_owned).collect();
        got.sort();
        wanted.sort();
        assert_eq!(got, wanted, "{accepted:?} {status} {fields:?}");
    }
}

#[test]
fn a_strong_validator_goes_becomes_weak_or_prevents_compression() {
    for (disable, weaken, expected) in [
        (false, false, "content-encoding: gzip, vary: Accept-Encoding"),
        (false, true, "etag: W/\"a\", content-encoding: gzip, vary: Accept-Encoding"),
        (true, false, "etag: \"a\""),
    ] {
        let mut config = config();
        (config.responses.disable_on_etag, config.responses.weaken_etag) = (disable, weaken);
        let mut filter = fixture(config);
        request(&mut filter, Some("gzip"));
        let answer = filter.answer(head(200, &[("etag", "\"a\"")]), false);
        assert_eq!(shown(&answer.headers), expected, "{disable} {weaken}");
    }
}

#[test]
fn a_route_turns_it_off_and_chooses_another_coding() {
    for (route, expected) in [
        (CompressorPerRoute { responses: Some(false), ..Default::default() }, ""),
        (
            CompressorPerRoute {
                compression: Some(Compression::Zstd { level: 3, checksum: false }),
                ..Default::default()
            },
            "content-encoding: zstd, vary: Accept-Encoding",
        ),
    ] {
        let mut filter = fixture(config()).told(route.clone());
        request(&mut filter, Some("gzip;q=0.5, zstd"));
        assert_eq!(shown(&filter.answer(head(200, &[]), false).headers), expected, "{route:?}");
    }
}

#[test]
fn the_body_is_complete_whatever_comes_after_it() {
    for local in [true, false] {
        let mut filter = fixture(config());
        request(&mut filter, Some("gzip"));
        let head = filter.answer(head(200, &[]), local);
        let pieces: [(&[u8], bool); 3] = [(b"one ", false), (b"two ", false), (b"three", true)];
        let mut got = Vec::new();
        for (piece, ends) in pieces {
            let mut data = Data { bytes: piece.into(), ends, now: filter.now };
            _ = filter.filters.response_data(&mut filter.streams, &mut data);
            got.extend_from_slice(&data.bytes);
        }
        if !local {
            got.extend(filter.end(&head, &mut Headers::default()));
        }
        let mut decoder = Decoder::new(Decompression { coding: Coding::Gzip, max_ratio: 100 }).expect("memory");
        assert_eq!(decoder.push(&got, true).as_deref(), Ok(&b"one two three"[..]), "local: {local}");
    }
}

#[test]
fn a_chain_that_compresses_and_then_decompresses_passes_the_body() {
    let named = |name: &str, config| HttpFilter { name: name.into(), disabled: false, skip: None, config };
    let unpacks = Decompressor {
        library: "any".into(),
        decompression: Decompression { coding: Coding::Gzip, max_ratio: 100 },
        requests: Direction { enabled: false, ignore_no_transform: false },
        responses: Direction { enabled: true, ignore_no_transform: false },
        advertises: false,
    };
    let chain = [
        named("unpacks", HttpFilterConfig::Decompressor(Arc::new(unpacks))),
        named("packs", HttpFilterConfig::Compressor(Arc::new(config()))),
    ];
    for pieces in
        [&[(&b"one "[..], false), (b"two", true)][..], &[(b"one two", true)], &[(b"one two", false), (b"", true)]]
    {
        let mut filter = Fixture::chain(&chain);
        request(&mut filter, Some("gzip"));
        let head = filter.answer(head(200, &[]), false);
        assert_eq!(shown(&head.headers), "vary: Accept-Encoding");
        let mut got = Vec::new();
        for (piece, ends) in pieces {
            let mut data = Data { bytes: (*piece).into(), ends: *ends, now: filter.now };
            _ = filter.filters.response_data(&mut filter.streams, &mut data);
            got.extend_from_slice(&data.bytes);
        }
        let mut trailers = Headers::default();
        got.extend(filter.end(&head, &mut trailers));
        assert_eq!(String::from_utf8_lossy(&got), "one two", "{pieces:?}");
        assert!(shown(&trailers).contains("x-envoy-decompressor-any-uncompressed-bytes: 7"), "{}", shown(&trailers));
    }
}

#[test]
fn tunnels_are_not_compressed() {
    for (method, status, is_compressed) in
        [("GET", 200, true), ("GET", 101, false), ("CONNECT", 200, false), ("CONNECT", 407, true)]
    {
        let mut filter = fixture(config());
        let mut request = PlainRequest::new(method, "a", "/");
        request.headers.push(("accept-encoding".to_owned(), "gzip".to_owned()));
        filter.request(&request);
        assert!(matches!(filter.ask(Body::Coming), Decision::Continue));
        let answer = filter.answer(head(status, &[]), false);
        assert_eq!(answer.headers.find(b"content-encoding").is_some(), is_compressed, "{method} {status}");
    }
}

#[test]
fn a_request_is_compressed_only_if_that_is_configured() {
    for (requests, body, expected) in [
        (Some(bodies()), Body::Coming, "content-encoding: gzip"),
        (Some(bodies()), Body::Empty, "content-length: 500"),
        (None, Body::Coming, "content-length: 500"),
        (Some(Compressible { min_content_length: 501, ..bodies() }), Body::Coming, "content-length: 500"),
        (Some(Compressible { enabled: false, ..bodies() }), Body::Coming, "content-length: 500"),
    ] {
        let mut filter = fixture(Compressor { requests, ..config() });
        let mut request = PlainRequest::new("POST", "a", "/");
        request.headers.push(("content-length".to_owned(), "500".to_owned()));
        filter.request(&request);
        assert!(matches!(filter.ask(body), Decision::Continue));
        assert_eq!(shown(&filter.head.headers), expected, "{body:?}");
    }
}
