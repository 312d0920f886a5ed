//! gRPC calls are counted, and logged with their messages, as Envoy does: for any method, any end of the call, and any split
//! of its bytes.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::{Connection, free_ports, wait};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, cluster, endpoint};

/// How long statistics and log may take to be complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message of one byte.
const ONE: &[u8] = &[0, 0, 0, 0, 1, 7];
/// Three messages, the second without content and compressed.
const THREE: &[u8] = &[0, 0, 0, 0, 2, 7, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
/// A message that is cut short.
const SHORT: &[u8] = &[0, 0, 0, 1, 0, 9, 9];

/// One call.
struct Row {
    path: &'static str,
    /// Content type of the request.
    kind: &'static str,
    /// It is sent in pieces of so many bytes.
    cut: usize,
    request: &'static [u8],
    answer: Answer,
}

/// What the server says once it has all of the request.
enum Answer {
    /// A head, messages in pieces of three bytes, and trailers with this status, if any.
    Messages { kind: &'static str, body: &'static [u8], status: Option<&'static str> },
    /// A head with these statuses of HTTP and gRPC, and nothing more.
    Head(u16, Option<&'static str>),
    /// Messages, and then the stream is reset.
    Resets(&'static [u8]),
}

use Answer::{Head, Messages, Resets};

const GRPC: &str = "application/grpc";

const fn call(path: &'static str, request: &'static [u8], answer: Answer) -> Row {
    Row { path, kind: GRPC, cut: usize::MAX, request, answer }
}

const fn ends(body: &'static [u8], status: &'static str) -> Answer {
    Messages { kind: GRPC, body, status: Some(status) }
}

/// What looks like gRPC's, and is not by its content type. Of a request that is none Envoy would log the messages of an answer
/// that is; Evenkeel does not look.
const PLAIN: Answer = Messages { kind: "text/plain", body: ONE, status: Some("0") };

const ROWS: &[Row] = &[
    call("/plain.Svc/Unary", ONE, ends(ONE, "0")),
    call("/plain.Svc/Unary?a=/b", ONE, ends(ONE, "0")),
    call("//plain.Svc//Unary/", ONE, ends(ONE, "0")),
    call("/Svc/Unary", ONE, ends(ONE, "0")),
    Row { cut: 1, ..call("/Svc/ClientStreams", THREE, ends(ONE, "0")) },
    Row { cut: 4, ..call("/Svc/ServerStreams", ONE, ends(THREE, "0")) },
    Row { cut: 7, ..call("/Svc/BothStream", THREE, ends(THREE, "0")) },
    call("/Svc/NoRequest", b"", ends(ONE, "0")),
    call("/Svc/CutShort", SHORT, ends(SHORT, "0")),
    call("/Svc/Fails", ONE, ends(ONE, "13")),
    call("/Svc/TrailersOnly", ONE, Head(200, Some("5"))),
    call("/Svc/NoStatus", ONE, Messages { kind: GRPC, body: ONE, status: None }),
    call("/Svc/NoStatusAtAll", ONE, Head(503, None)),
    call("/Svc/OfHttp", ONE, Head(503, Some("14"))),
    call("/Svc/Resets", ONE, Resets(ONE)),
    call("/Svc/NoGrpcBack", ONE, PLAIN),
    call("/Svc/LeadingZero", ONE, ends(ONE, "00")),
    call("/OnlyAService", ONE, ends(ONE, "0")),
    call("/a/b/c", ONE, ends(ONE, "0")),
    Row { kind: "application/grpc+proto", ..call("/Svc/WithSuffix", ONE, ends(ONE, "0")) },
    Row { kind: "application/grpc;charset=utf-8", ..call("/Svc/WithParameter", ONE, PLAIN) },
    Row { kind: "application/grpc-web", ..call("/Svc/Web", ONE, PLAIN) },
    Row { kind: "text/plain", ..call("/Svc/NoGrpc", ONE, PLAIN) },
    call("/Denied/Unary", ONE, Head(200, None)),
    call("/Nobody/There", ONE, Head(200, None)),
    call("/Nowhere/AtAll", ONE, Head(200, None)),
];

/// Configurations of the filter. Each has a listener and a cluster of its own.
const FILTERS: &[(&str, &str)] = &[
    ("default", ""),
    ("all", "stats_for_all_methods: true, emit_filter_state: true, enable_upstream_stats: true"),
    ("dots", "stats_for_all_methods: true, replace_dots_in_grpc_service_name: true"),
    (
        "listed",
        "individual_method_stats_allowlist: { services: [ { name: plain.Svc, method_names: [ Unary ] }, { name: Svc, method_names: [ \
         Fails, TrailersOnly ] } ] }, replace_dots_in_grpc_service_name: true, enable_upstream_stats: true, emit_filter_state: true",
    ),
    ("none", "stats_for_all_methods: false"),
];

/// Lines of `/stats`, of `/stats/prometheus`, and of the access log.
type Seen = [BTreeSet<String>; 3];

#[test]
fn evenkeel_and_envoy_count_calls_of_grpc_alike() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let server = listener.local_addr().expect("bound");
    runtime.spawn(accept(listener));
    let ports = free_ports::<6>();
    let (admin, ports) = (ports[0], &ports[1..]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    std::fs::write(&file, bootstrap(server.port(), admin, ports, &log)).expect("a writable folder");
    let run = |program: Program, expected: Option<&Seen>| {
        let mut process = web::start(program, &file, admin, ports[0]);
        for port in ports {
            process.wait_for_port((Ipv4Addr::LOCALHOST, *port).into());
            for row in 0..ROWS.len() {
                runtime.block_on(ask(*port, row));
            }
        }
        let complete = |seen: &Seen| match expected {
            Some(expected) => seen == expected,
            // In two formats.
            None => seen[2].len() == 2 * ROWS.len() * FILTERS.len(),
        };
        let seen =
            wait::poll(PATIENCE, || Some(look(admin, &log)).filter(&complete)).unwrap_or_else(|| look(admin, &log));
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        seen
    };
    let envoy = run(Program::Envoy, None);
    let evenkeel = run(Program::Evenkeel, Some(&envoy));
    let lines = |seen: &BTreeSet<String>| seen.iter().map(String::as_str).collect::<String>();
    for (envoy, evenkeel) in envoy.iter().zip(&evenkeel) {
        let difference = first_difference(&lines(envoy), &lines(evenkeel));
        assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}", difference.unwrap_or_default());
    }
    for counted in [
        "cluster.all.grpc.Svc.BothStream.response_message_count: 3\n",
        "cluster.listed.grpc.Svc.TrailersOnly.5: 1\n",
        "cluster.none.grpc.success: 11\n",
        "cluster.dots.grpc.plain_Svc.Unary.total: 3\n",
    ] {
        assert!(envoy[0].contains(counted), "{counted} is not among {:#?}", envoy[0]);
    }
}

/// Statistics of gRPC, and the kinds of lines in the log. Of a histogram only that it is there: times are left to chance. A status
/// that gRPC does not have gets no counter of its own from Evenkeel; and Envoy takes `plain.Svc` and its method apart at the wrong
/// dot, unless dots are replaced.
fn look(admin: u16, log: &Path) -> Seen {
    let text = get(admin, "/stats");
    let counted = text
        .lines()
        .filter(|line| line.contains(".grpc.") && !line.contains(".00: ") && !super::is_own(line))
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_default();
            if name.ends_with("rq_time") { format!("{name}\n") } else { format!("{name}: {value}\n") }
        });
    let text = get(admin, "/stats/prometheus");
    let is_alike = |line: &&str| {
        let odd = ["rq_time", "grpc_00", "plain.Svc", "\"plain\""];
        line.starts_with("envoy_cluster_grpc") && !odd.iter().any(|part| line.contains(part))
    };
    let prometheus = text.lines().filter(is_alike).filter_map(in_order);
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let logged = log.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned);
    [counted.collect(), prometheus.collect(), logged.collect()]
}

/// A sample with its labels in alphabetical order.
fn in_order(sample: &str) -> Option<String> {
    let (name, rest) = sample.split_once('{')?;
    let (labels, value) = rest.split_once('}')?;
    let mut labels: Vec<_> = labels.split(',').collect();
    labels.sort_unstable();
    Some(format!("{name}{{{}}}{value}\n", labels.join(",")))
}

fn get(admin: u16, path: &str) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer").text()
}

/// Makes the call of a row and reads its answer, however it ends.
async fn ask(port: u16, index: usize) {
    let Some(row) = ROWS.get(index) else { return };
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("the listener accepts");
    let (mut sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let driving = tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://calls.test{}", row.path))
        .header("content-type", row.kind)
        .header("te", "trailers")
        .header("row", index)
        .body(())
        .expect("a request");
    let (response, mut body) = sender.send_request(request, false).expect("an open connection");
    // The proxy may have answered before all of it is sent.
    let sent = pieces(row.request, row.cut).try_for_each(|piece| body.send_data(piece, false));
    let _ = sent.and_then(|()| body.send_data(Bytes::new(), true));
    if let Ok(response) = response.await {
        let mut body = response.into_body();
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
        }
        let _ = body.trailers().await;
    }
    drop(sender);
    driving.abort();
}

fn pieces(body: &'static [u8], cut: usize) -> impl Iterator<Item = Bytes> {
    body.chunks(cut.min(body.len().max(1))).map(Bytes::from_static)
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
    let row = row.and_then(|row| ROWS.get(row)).expect("the client's row");
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    let head = |status: u16, kind: &str, grpc_status: Option<&str>| {
        let mut head = Response::builder().status(status).header("content-type", kind);
        if let Some(status) = grpc_status {
            head = head.header("grpc-status", status);
        }
        head.body(()).expect("a response")
    };
    match row.answer {
        Head(status, grpc_status) => {
            respond.send_response(head(status, GRPC, grpc_status), true)?;
            Ok(())
        }
        Resets(body) => {
            let mut stream = respond.send_response(head(200, GRPC, None), false)?;
            stream.send_data(Bytes::from_static(body), false)?;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            Ok(())
        }
        Messages { kind, body, status } => {
            let mut stream = respond.send_response(head(200, kind, None), false)?;
            pieces(body, 3).try_for_each(|piece| stream.send_data(piece, false))?;
            match status {
                None => stream.send_data(Bytes::new(), true),
                Some(status) => {
                    let name = HeaderName::from_static("grpc-status");
                    stream.send_trailers(HeaderMap::from_iter([(name, HeaderValue::from_static(status))]))
                }
            }
        }
    }
}

fn bootstrap(server: u16, admin: u16, ports: &[u16], log: &Path) -> String {
    let listeners: String = FILTERS.iter().zip(ports).map(|(filter, port)| listener(filter, *port, log)).collect();
    let named = FILTERS.iter().map(|(name, _)| cluster(name, &endpoint(server, ""), HTTP2));
    let clusters: Vec<_> = named.chain([cluster("empty", "", HTTP2)]).collect();
    web::scene(admin, &listeners, &clusters)
}

/// The filter in front of one that refuses, and of one that collects bodies.
fn listener((name, config): &(&str, &str), port: u16, log: &Path) -> String {
    let comma = if config.is_empty() { "" } else { ", " };
    let state = "%FILTER_STATE(envoy.filters.http.grpc_stats";
    let text = format!(
        "{name} %REQ(:PATH)% {state})% {state}:PLAIN)% {state}:FIELD:request_message_count)% %FILTER_STATE(other:PLAIN)%"
    );
    let json = format!(
        "json_format: {{ filter: {name}, path: \"%REQ(:PATH)%\", typed: \"{state})%\", plain: \"{state}:PLAIN)%\", \
         text: \"of {state}:TYPED)%\" }}"
    );
    let log = web::access_log(log, &[&text, &json]);
    let buffered = if *name == "none" { "buffer: { max_request_bytes: 1000 }" } else { "disabled: true" };
    let routes = format!(
        "              - {{ match: {{ prefix: /Nobody/ }}, route: {{ cluster: empty }} }}
              - {{ match: {{ prefix: /Nowhere/ }}, direct_response: {{ status: 404 }} }}
              - {{ match: {{ prefix: / }}, route: {{ cluster: {name} }}, typed_per_filter_config: {{ b: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute, {buffered} }} }} }}
"
    );
    let manager = format!(
        "          {log}
          http_filters:
          - {{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig{comma}{config} }} }}
          - name: d
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
              rules: {{ action: DENY, policies: {{ p: {{ permissions: [ {{ url_path: {{ path: {{ prefix: /Denied/ }} }} }} ], principals: [ {{ any: true }} ] }} }} }}
          - {{ name: b, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 1000 }} }}
          - {ROUTER}
{}",
        web::one_host(&routes)
    );
    web::http_listener(name, port, &manager)
}
