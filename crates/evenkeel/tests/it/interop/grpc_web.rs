//! gRPC-Web calls: the server gets the same gRPC requests from Evenkeel as from Envoy, and clients the same responses, binary
//! and in base64, from upstreams and from the proxy itself.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Connection, free_ports, wait};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::net::TcpListener;

use super::proxy::Program;
use super::web::{self, HTTP2, cluster, endpoint};

/// How long a log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message of one byte.
const ONE: &[u8] = &[0, 0, 0, 0, 1, 7];
/// Three messages, the second without content and compressed.
const THREE: &[u8] = &[0, 0, 0, 0, 2, 7, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
/// [`ONE`] in base64, and [`THREE`] as one text.
const ONE_TEXT: &[u8] = b"AAAAAAEH";
const THREE_TEXT: &[u8] = b"AAAAAAIHBwEAAAAAAAAAAAMBAgM=";

const WEB: &str = "application/grpc-web";
const PROTO: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";
const TEXT_PROTO: &str = "application/grpc-web-text+proto";
const GRPC: &str = "application/grpc";

/// One call over HTTP/1.1.
#[derive(Clone, Copy)]
struct Row {
    path: &'static str,
    /// Content type of the request.
    kind: &'static str,
    accept: &'static str,
    /// More header lines.
    more: &'static str,
    /// Sent in chunks of so many bytes; 0: with `content-length`.
    cut: usize,
    body: &'static [u8],
    answer: Answer,
}

/// What the server says once it has all of the request.
#[derive(Clone, Copy)]
enum Answer {
    /// A head, the body in pieces of so many bytes, and trailers of these names and values, if any.
    Full(u16, &'static str, &'static [u8], usize, &'static [(&'static str, &'static str)]),
    /// A head with these fields, and nothing more.
    Head(u16, &'static [(&'static str, &'static str)]),
    /// A body of so many bytes, in pieces, without trailers.
    Long(u16, usize),
}

use Answer::{Full, Head, Long};

const OK: &[(&str, &str)] = &[("grpc-status", "0")];
const FAILS: &[(&str, &str)] = &[("grpc-status", "13"), ("grpc-message", "50%25 done"), ("x-more", "a b")];

const CALL: Row = Row {
    path: "/a.Svc/M",
    kind: WEB,
    accept: "*/*",
    more: "",
    cut: 0,
    body: ONE,
    answer: Full(200, GRPC, ONE, 9, OK),
};

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    // Every encoding of the request with every one that is accepted for the answer.
    for (kind, body) in [(WEB, THREE), (PROTO, THREE), (TEXT, THREE_TEXT), (TEXT_PROTO, THREE_TEXT)] {
        for accept in ["*/*", WEB, TEXT, TEXT_PROTO, "application/grpc-web-text, */*"] {
            for cut in [0, 1, 5] {
                rows.push(Row { kind, accept, cut, body, answer: Full(200, GRPC, THREE, 1 + cut, OK), ..CALL });
            }
        }
    }
    let text = Row { kind: TEXT, accept: TEXT, body: ONE_TEXT, ..CALL };
    rows.extend([
        // Ends of calls.
        Row { answer: Full(200, GRPC, ONE, 9, FAILS), ..CALL },
        Row { answer: Full(200, GRPC, ONE, 9, FAILS), ..text },
        Row { answer: Full(200, GRPC, b"", 9, FAILS), ..text },
        Row { answer: Full(200, "application/grpc+proto", ONE, 9, OK), ..CALL },
        Row { answer: Full(200, GRPC, ONE, 9, &[]), ..CALL },
        Row { answer: Full(200, GRPC, ONE, 9, &[]), ..text },
        Row { answer: Head(200, &[("content-type", GRPC), ("grpc-status", "5"), ("grpc-message", "none")]), ..CALL },
        Row { answer: Head(200, &[("content-type", GRPC), ("grpc-status", "5")]), ..text },
        Row { answer: Head(503, &[]), ..CALL },
        Row { answer: Head(200, &[("content-type", "text/html")]), ..text },
        // Answers of gRPC-Web.
        Row { answer: Full(200, WEB, ONE, 9, &[]), ..CALL },
        Row { answer: Full(200, "Application/grpc-web+PROTO ; a=b", ONE, 9, &[]), ..text },
        // Answers that are not gRPC.
        Row { answer: Full(200, "text/plain", b"50% \xc3\xa9\n done", 100, &[]), ..CALL },
        Row { answer: Full(503, "text/plain", b"no", 100, &[]), ..text },
        Row { answer: Full(404, GRPC, b"not here", 3, &[]), ..CALL },
        Row { answer: Full(200, "text/plain", b"with trailers", 4, OK), ..CALL },
        Row { answer: Long(500, 30_000), ..CALL },
        Row { answer: Full(200, TEXT, ONE_TEXT, 9, &[]), ..text },
        // The proxy's own answers.
        Row { path: "/Denied/M", ..CALL },
        Row { path: "/Denied/M", ..text },
        Row { path: "/Nobody/M", ..CALL },
        Row { path: "/Nowhere/M", ..text },
        Row { path: "/Empty/M", ..text },
        // What is no base64.
        Row { body: b"AAAAA", ..text },
        Row { body: b"AA!A", ..text },
        Row { body: b"====", ..text },
        Row { body: b"AA!AAAAA", cut: 1, ..text },
        Row { body: b"AAAAAAE", cut: 3, ..text },
        Row { body: b"", ..text },
        // What is kept, and what is not gRPC-Web.
        Row { more: "grpc-accept-encoding: gzip\r\nte: gzip\r\ngrpc-timeout: 5S\r\nx-grpc-web: 1\r\n", ..CALL },
        Row { more: "Origin: http://a.test\r\n", ..CALL },
        Row { kind: "application/grpc-web+json", ..CALL },
        Row { kind: "application/grpc-web; a=b", ..CALL },
        Row { kind: "text/plain", accept: TEXT, ..CALL },
        Row { kind: GRPC, ..CALL },
        Row { path: "/NoMethod", ..CALL },
    ]);
    rows
}

/// Answers, log lines, and statistics.
type Seen = [String; 3];

#[test]
fn evenkeel_and_envoy_translate_grpc_web_alike() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let server = listener.local_addr().expect("bound");
    runtime.spawn(accept(listener));
    let [admin, port] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    std::fs::write(&file, bootstrap(server.port(), admin, port, &log)).expect("a writable folder");
    let rows = rows();
    let run = |program: Program| {
        let mut process = web::start(program, &file, admin, port);
        let answers = rows.iter().enumerate().map(|(index, row)| ask(port, index, row)).collect();
        let complete = |log: &String| log.lines().count() == rows.len();
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let lines = wait::poll(PATIENCE, || Some(read()).filter(complete)).unwrap_or_else(read);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        // Two workers write the log.
        let lines: BTreeSet<_> = lines.lines().map(|line| format!("{line}\n")).collect();
        let seen: Seen = [answers, lines.into_iter().collect(), counted(admin)];
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let differences: Vec<_> =
        envoy.iter().zip(&evenkeel).filter_map(|(envoy, evenkeel)| first_difference(envoy, evenkeel)).collect();
    assert!(differences.is_empty(), "- Envoy, + Evenkeel\n{}", differences.join("\n"));
    for part in
        ["grpc-message: 50%25 %C3%A9%0A done", "grpc-status:13\\r\\ngrpc-message:50%25 done\\r\\nx-more:a b\\r\\n"]
    {
        assert!(envoy[0].contains(part), "{part} is not in {}", envoy[0]);
    }
}

/// What the server saw of the request, and what the client got.
fn ask(port: u16, index: usize, row: &Row) -> String {
    let mut client = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the listener accepts");
    let Row { path, kind, accept, more, cut, body, .. } = row;
    let (framing, body) = match cut {
        0 => (format!("content-length: {}", body.len()), body.to_vec()),
        cut => {
            let chunks =
                body.chunks(*cut).map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            (
                "transfer-encoding: chunked".to_owned(),
                [chunks.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat(),
            )
        }
    };
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x.test\r\nrow: {index}\r\ncontent-type: {kind}\r\naccept: {accept}\r\n{more}{framing}\r\n\r\n"
    );
    client.send(head).and_then(|()| client.send(body)).expect("an open connection");
    let Ok(answer) = client.response() else { return format!("{index} {path}: no answer\n") };
    let dull = ["date", "server", "x-envoy-upstream-service-time", "connection"];
    let fields = answer.headers.iter().filter(|(name, _)| !dull.contains(&&*name.to_lowercase()));
    let fields: BTreeSet<_> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
    let (body, trailers) = (answer.body.escape_ascii(), &answer.trailers);
    format!("{index} {path} {kind} {accept} {cut}\n    {} {fields:?}\n    {body} {trailers:?}\n", answer.status)
}

fn counted(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let get = |path| Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer");
    let text = get("/stats").text();
    let lines: BTreeSet<_> = text.lines().filter(|line| line.contains(".grpc-web.") && !super::is_own(line)).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

async fn accept(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(async {
            let Ok(mut connection) = h2::server::handshake(socket).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                // A proxy may go away in the middle.
                tokio::spawn(answer(request, respond));
            }
        });
    }
}

async fn answer(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let row = request.headers().get("row").and_then(|row| row.to_str().ok()?.parse::<usize>().ok());
    let row = row.and_then(|row| rows().get(row).copied()).expect("the client's row");
    let (parts, mut body) = request.into_parts();
    let mut got = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        got.extend_from_slice(&data);
    }
    let names =
        ["content-type", "content-length", "te", "grpc-accept-encoding", "grpc-timeout", "x-grpc-web", "accept"];
    let fields: Vec<_> =
        names.iter().filter_map(|name| Some(format!("{name}={:?}", parts.headers.get(*name)?))).collect();
    let saw = format!("{} [{}]", fields.join(" "), got.escape_ascii());
    let head = |status: u16, fields: &[(&str, &str)]| {
        let head = Response::builder().status(status).header("saw", &saw);
        fields.iter().fold(head, |head, (name, value)| head.header(*name, *value)).body(()).expect("a response")
    };
    match row.answer {
        Head(status, fields) => {
            respond.send_response(head(status, fields), true)?;
            Ok(())
        }
        Long(status, bytes) => {
            let mut stream = respond.send_response(head(status, &[]), false)?;
            (0..bytes / 1_000).try_for_each(|_| stream.send_data(Bytes::from(vec![b'a'; 1_000]), false))?;
            stream.send_data(Bytes::new(), true)
        }
        Full(status, kind, body, cut, trailers) => {
            let mut stream = respond.send_response(head(status, &[("content-type", kind)]), false)?;
            let last = trailers.is_empty();
            let pieces: Vec<_> = body.chunks(cut).collect();
            for (index, piece) in pieces.iter().enumerate() {
                stream.send_data(Bytes::from_static(piece), last && index + 1 == pieces.len())?;
                tokio::task::yield_now().await;
            }
            let pair = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            match trailers {
                [] => Ok(()),
                some => stream.send_trailers(HeaderMap::from_iter(some.iter().map(pair))),
            }
        }
    }
}

fn bootstrap(server: u16, admin: u16, port: u16, log: &Path) -> String {
    let log = web::access_log(
        log,
        &["%REQ(ROW)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS% %GRPC_STATUS% %BYTES_SENT%"],
    );
    let routes = "              - { match: { prefix: /Nobody/ }, route: { cluster: empty } }
              - { match: { prefix: /Nowhere/ }, direct_response: { status: 404, body: { inline_string: \"not here\" } } }
              - { match: { prefix: /Empty/ }, direct_response: { status: 404 } }
              - { match: { prefix: / }, route: { cluster: server } }
";
    let manager = format!(
        "          {log}
          http_filters:
          - {{ name: w, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.grpc_web.v3.GrpcWeb }} }}
          - name: d
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
              rules: {{ action: DENY, policies: {{ p: {{ permissions: [ {{ url_path: {{ path: {{ prefix: /Denied/ }} }} }} ], principals: [ {{ any: true }} ] }} }} }}
          - {}
{}",
        web::ROUTER,
        web::one_host(routes)
    );
    let clusters = [cluster("server", &endpoint(server, ""), HTTP2), cluster("empty", "", HTTP2)];
    web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
}
