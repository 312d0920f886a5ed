//! Compressed and decompressed bodies: Evenkeel and Envoy compress the same messages, with the same heads and statistics.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_testkit::{Backend, Connection, Reply, Request, Response, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

const COMPRESSOR: &str = "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor";
const DECOMPRESSOR: &str = "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor";
const LIBRARY: &str = "type.googleapis.com/envoy.extensions.compression";

/// A text that is worth it.
const TEXT: &str = "All work and no play makes Jack a dull boy. All work and no play makes Jack a dull boy.";

/// What clients ask for: a path, the header lines of the reply, and their own.
const ROWS: &[(&str, &str, &str)] = &[
    ("/", "", "accept-encoding: gzip\r\n"),
    ("/", "", ""),
    ("/", "", "accept-encoding: br\r\n"),
    ("/", "", "accept-encoding: zstd\r\n"),
    ("/", "", "accept-encoding: gzip, br, zstd\r\n"),
    ("/", "", "accept-encoding: gzip;q=0.1, br;q=0.2, zstd;q=0.3\r\n"),
    ("/", "", "accept-encoding: *\r\n"),
    ("/", "", "accept-encoding: gzip;q=0, *\r\n"),
    ("/", "", "accept-encoding: identity\r\n"),
    ("/", "", "accept-encoding: identity;q=0.5, gzip\r\n"),
    ("/", "", "accept-encoding: deflate\r\n"),
    ("/", "", "accept-encoding: gzip;q=nonsense\r\n"),
    ("/", "", "accept-encoding: deflate\r\naccept-encoding: gzip\r\n"),
    ("/short", "", "accept-encoding: gzip\r\n"),
    ("/chunked", "", "accept-encoding: gzip\r\n"),
    ("/chunked", "content-type: text/html; charset=utf-8", "accept-encoding: br\r\n"),
    ("/", "content-type: image/png", "accept-encoding: gzip\r\n"),
    ("/", "content-type: TEXT/HTML", "accept-encoding: gzip\r\n"),
    ("/", "content-encoding: other", "accept-encoding: gzip\r\n"),
    ("/", "cache-control: private, no-transform", "accept-encoding: gzip\r\n"),
    ("/", "cache-control: private", "accept-encoding: gzip\r\n"),
    ("/", "etag: \"strong\"", "accept-encoding: gzip\r\n"),
    ("/", "etag: W/\"weak\"", "accept-encoding: gzip\r\n"),
    ("/", "vary: origin", "accept-encoding: gzip\r\n"),
    ("/", "vary: Accept-Encoding", "accept-encoding: gzip\r\n"),
    ("/", "vary: origin", ""),
    ("/partial", "", "accept-encoding: gzip\r\n"),
    ("/no-etag", "etag: \"strong\"", "accept-encoding: gzip\r\n"),
    ("/weak-etag", "etag: \"strong\"", "accept-encoding: gzip\r\n"),
    ("/off", "", "accept-encoding: gzip\r\n"),
    ("/hidden", "", "accept-encoding: gzip\r\n"),
    ("/zstd", "", "accept-encoding: zstd, gzip;q=0.1\r\n"),
    ("/direct", "", "accept-encoding: gzip\r\n"),
];

fn library(name: &str, kind: &str, direction: &str) -> String {
    let coding = kind.to_lowercase();
    format!("{{ name: {name}, typed_config: {{ \"@type\": {LIBRARY}.{coding}.{direction}.v3.{kind} }} }}")
}

fn compressor(name: &str, kind: &str, more: &str) -> String {
    let library = library(&format!("{name}-library"), kind, "compressor");
    format!("{{ name: {name}, typed_config: {{ \"@type\": {COMPRESSOR}, compressor_library: {library}, {more} }} }}")
}

fn decompressor(name: &str, kind: &str) -> String {
    let library = library(name, kind, "decompressor");
    format!(
        "{{ name: {name}, typed_config: {{ \"@type\": {DECOMPRESSOR}, decompressor_library: {library}, request_direction_config: {{ \
         common_config: {{ enabled: {{ default_value: true, runtime_key: none }} }}, advertise_accept_encoding: false }} }} }}"
    )
}

fn listener(name: &str, port: u16, filters: &[String], routes: &[&str]) -> String {
    let filters: String = filters.iter().map(|filter| format!("{filter}, ")).collect();
    let routes: String = routes.iter().map(|route| format!("              - {route}\n")).collect();
    let manager = format!("          http_filters: [ {filters}{ROUTER} ]\n{}", web::one_host(&routes));
    web::http_listener(name, port, &manager).replace("stat_prefix: http", &format!("stat_prefix: {name}"))
}

fn bootstrap(ports: [u16; 5], admin: u16, backend: u16) -> String {
    let [many, one, other, back, up] = ports;
    let responses = |more: &str| format!("response_direction_config: {{ {more} }}");
    let per_route = |more: &str| {
        format!(
            "typed_per_filter_config: {{ gzip: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.compressor.v3.CompressorPerRoute, \
             {more} }} }}"
        )
    };
    let all = "{ match: { prefix: / }, route: { cluster: backend } }";
    let zstd = library("z", "Zstd", "compressor");
    let chain = [
        compressor("gzip", "Gzip", &responses("uncompressible_response_codes: [206]")),
        compressor("br", "Brotli", &responses("")),
        compressor("zstd", "Zstd", &responses("")),
    ];
    let routes = [
        &*format!("{{ match: {{ path: /off }}, route: {{ cluster: backend }}, {} }}", per_route("disabled: true")),
        &*format!(
            "{{ match: {{ path: /hidden }}, route: {{ cluster: backend }}, {} }}",
            per_route("overrides: { response_direction_config: { remove_accept_encoding_header: true } }")
        ),
        &*format!(
            "{{ match: {{ path: /zstd }}, route: {{ cluster: backend }}, {} }}",
            per_route(&format!("overrides: {{ compressor_library: {zstd} }}"))
        ),
        &*format!(
            "{{ match: {{ path: /direct }}, direct_response: {{ status: 200, body: {{ inline_string: \"{TEXT}\" }} }} }}"
        ),
        all,
    ];
    let unpacking = [decompressor("ugz", "Gzip"), decompressor("ubr", "Brotli"), decompressor("uzs", "Zstd")];
    let packing =
        compressor("pack", "Brotli", "request_direction_config: { common_config: { min_content_length: 50 } }");
    let listeners = [
        listener("many", many, &chain, &routes),
        // The older fields, and one compressor alone.
        listener("one", one, &[compressor("gzip", "Gzip", "disable_on_etag_header: true, content_length: 40")], &[all]),
        listener(
            "other",
            other,
            &[compressor(
                "gzip",
                "Gzip",
                &responses(
                    "weaken_etag_on_compress: true, common_config: { content_type_matcher: [ { prefix: text/ } ] }",
                ),
            )],
            &[all],
        ),
        // What `many` has compressed arrives as it was; and what is compressed on its way up.
        listener("back", back, &unpacking, &["{ match: { prefix: / }, route: { cluster: many } }"]),
        listener("up", up, &[packing], &["{ match: { prefix: / }, route: { cluster: back } }"]),
    ];
    let clusters = [("backend", backend), ("many", many), ("back", back)];
    let clusters = clusters.map(|(name, port)| web::cluster(name, &endpoint(port, ""), ""));
    web::scene(admin, &listeners.concat(), &clusters)
}

/// The reply that a request asks for in `x-reply`.
fn reply(request: &Request) -> Reply {
    // One line or several are the same list.
    let accepts = request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"));
    let accepts: Vec<&str> = accepts.map(|(_, value)| value.as_str()).collect();
    let mut headers = vec![("x-accepts".to_owned(), accepts.join(","))];
    if let Some((name, value)) = request.header("x-reply").and_then(|reply| reply.split_once(": ")) {
        headers.push((name.to_owned(), value.to_owned()));
    }
    if request.method == "POST" {
        let coding = request.header("content-encoding").unwrap_or("-");
        return Reply::text(format!("{coding} {}", String::from_utf8_lossy(&request.body)));
    }
    match request.target.as_str() {
        "/short" => Reply::Fixed(200, headers, b"short".to_vec()),
        "/partial" => Reply::Fixed(206, headers, TEXT.into()),
        "/chunked" => Reply::Chunked(200, headers, TEXT.as_bytes().chunks(20).map(<[u8]>::to_vec).collect()),
        _ => Reply::Fixed(200, headers, TEXT.into()),
    }
}

fn shown(response: &Response) -> String {
    let names =
        ["content-encoding", "content-length", "transfer-encoding", "vary", "etag", "cache-control", "x-accepts"];
    let fields = names.iter().filter_map(|name| Some(format!("{name}: {}", response.header(name)?)));
    let body = match response.header("content-encoding") {
        Some("gzip") => {
            let mut text = String::new();
            let read = flate2::read::GzDecoder::new(&*response.body).read_to_string(&mut text);
            read.map_or_else(|error| error.to_string(), |_| text)
        }
        Some("br" | "zstd") => "(coded)".to_owned(),
        _ => response.text(),
    };
    format!("{} {:?} {body}", response.status, fields.collect::<Vec<_>>())
}

/// What a program answers, and its statistics.
fn story(program: Program, backend: u16) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [many, one, other, back, up, admin] = free_ports::<6>();
    std::fs::write(&file, bootstrap([many, one, other, back, up], admin, backend)).expect("a writable folder");
    let mut process = web::start(program, &file, admin, many);
    let connect = |port: u16| Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("a connection");
    let mut lines = Vec::new();
    for (path, reply, headers) in ROWS {
        let wanted = if reply.is_empty() { String::new() } else { format!("x-reply: {reply}\r\n") };
        let port = match *path {
            "/no-etag" => one,
            "/weak-etag" => other,
            _ => many,
        };
        let mut client = connect(port);
        let answer = client.get("a.test", path, &format!("{wanted}{headers}")).expect("an answer");
        lines.push(format!("{path} {reply} {headers:?}: {}", shown(&answer)));
    }
    for coding in ["gzip", "br", "zstd"] {
        for path in ["/", "/chunked", "/short"] {
            let answer =
                connect(back).get("a.test", path, &format!("accept-encoding: {coding}\r\n")).expect("an answer");
            lines.push(format!("back {coding} {path}: {}", shown(&answer)));
        }
    }
    for body in [TEXT, "too short"] {
        let mut client = connect(up);
        let head = format!("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: {}\r\n\r\n", body.len());
        client.send(format!("{head}{body}")).expect("sent");
        lines.push(format!("up: {}", shown(&client.response().expect("an answer"))));
    }
    let stats = connect(admin).get("localhost", "/stats", "connection: close\r\n").expect("statistics").text();
    // The libraries differ by a few bytes, and only Envoy's have statistics of their own.
    let same = |line: &&str| {
        line.contains("compressor.")
            && !line.contains("total_compressed_bytes")
            && !line.contains("decompressor_library")
    };
    let mut stats: Vec<_> = stats.lines().filter(same).map(str::to_owned).collect();
    stats.sort();
    lines.extend(stats);
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    lines
}

#[test]
fn evenkeel_and_envoy_compress_alike() {
    let backend = Backend::start(reply);
    let port = backend.address().port();
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| story(program, port));
    assert!(envoy.iter().any(|line| line.contains("content-encoding: br") && line.contains("(coded)")), "{envoy:#?}");
    let text = |lines: &[String]| lines.join("\n");
    let difference = evenkeel_testkit::golden::first_difference(&text(&envoy), &text(&evenkeel));
    let different: Vec<_> = envoy
        .iter()
        .zip(&evenkeel)
        .filter(|(envoy, evenkeel)| envoy != evenkeel)
        .map(|(a, b)| format!("- {a}\n+ {b}"))
        .collect();
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n{}", different.join("\n"), difference.unwrap_or_default());
}

/// Bodies that stand for more than they may, or are not what they say: the request is refused, and the proxy stays up.
#[test]
fn a_request_that_cannot_be_decompressed_is_refused() {
    let backend = Backend::start(reply);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [many, one, other, back, up, admin] = free_ports::<6>();
    let config = bootstrap([many, one, other, back, up], admin, backend.address().port());
    std::fs::write(&file, config).expect("a writable folder");
    let mut process = web::start(Program::Evenkeel, &file, admin, many);
    let zeros = vec![0; 4 << 20];
    let mut bomb = Vec::new();
    let mut encoder = flate2::read::GzEncoder::new(&*zeros, flate2::Compression::best());
    encoder.read_to_end(&mut bomb).expect("compressed");
    for body in [&*bomb, b"this is no gzip", &bomb[..20]] {
        let mut client = Connection::open((Ipv4Addr::LOCALHOST, back).into()).expect("a connection");
        let head = format!(
            "POST / HTTP/1.1\r\nhost: a.test\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send([head.as_bytes(), body].concat()).expect("sent");
        assert_eq!(client.response().expect("an answer").status, 400, "{} bytes", body.len());
    }
    assert!(process.exited().is_none(), "it ended; it printed:\n{}", process.output());
}
