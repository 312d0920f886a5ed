//! Health checks over gRPC: whatever a host answers, Evenkeel and Envoy give it the same health.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use evenkeel_testkit::{Connection, eventually, free_ports};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::{TcpListener, TcpStream};

use super::proxy::Program;
use super::web::{self, HTTP2, cluster, endpoint};

/// What a host says when it is asked for a service whose time has come; until then it serves.
#[derive(Clone, Copy)]
enum Answer {
    /// These messages as they are on the wire, then a status, if any.
    Messages(&'static [u8], Option<&'static str>),
    /// A status without any message.
    Status(&'static str),
    /// The same with this status of HTTP.
    Http(u16, &'static str),
    /// It serves, in this content type.
    Serves(&'static str),
    Resets,
    Never,
}

use Answer::{Http, Messages, Never, Resets, Serves, Status};

/// `HealthCheckResponse` with field 1 = `SERVING`.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];

const ROWS: &[(&str, Answer)] = &[
    ("serving", Messages(SERVING, Some("0"))),
    ("not-serving", Messages(&[0, 0, 0, 0, 2, 0x08, 2], Some("0"))),
    ("unknown", Messages(&[0, 0, 0, 0, 2, 0x08, 0], Some("0"))),
    ("service-unknown", Messages(&[0, 0, 0, 0, 2, 0x08, 3], Some("0"))),
    ("no-such-value", Messages(&[0, 0, 0, 0, 2, 0x08, 77], Some("0"))),
    ("says-nothing", Messages(&[0, 0, 0, 0, 0], Some("0"))),
    ("serving-but-failed", Messages(SERVING, Some("14"))),
    ("serving-without-a-status", Messages(SERVING, None)),
    ("serving-with-a-strange-status", Messages(SERVING, Some("fine"))),
    ("with-a-field-nobody-knows", Messages(&[0, 0, 0, 0, 4, 0x08, 1, 0x10, 5], Some("0"))),
    ("two-messages", Messages(&[0, 0, 0, 0, 2, 0x08, 1, 0, 0, 0, 0, 2, 0x08, 1], Some("0"))),
    ("an-empty-message-first", Messages(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x08, 1], Some("0"))),
    ("cut-short", Messages(&[0, 0, 0, 0, 9, 0x08, 1], Some("0"))),
    ("more-behind", Messages(&[0, 0, 0, 0, 2, 0x08, 1, 0, 0], Some("0"))),
    ("compressed", Messages(&[1, 0, 0, 0, 2, 0x08, 1], Some("0"))),
    ("strange-flags", Messages(&[2, 0, 0, 0, 2, 0x08, 1], Some("0"))),
    ("no-protobuf", Messages(&[0, 0, 0, 0, 2, 0xff, 0xff], Some("0"))),
    ("ok-without-a-message", Status("0")),
    ("not-found", Status("5")),
    ("unimplemented", Status("12")),
    ("http-503", Http(503, "0")),
    ("http-404", Http(404, "12")),
    ("with-a-suffix", Serves("application/grpc+proto")),
    ("with-a-parameter", Serves("application/grpc; charset=utf-8")),
    ("no-grpc", Serves("text/plain")),
    ("resets", Resets),
    ("never", Never),
];

/// Checks that are watched: when the last of them comes, the proxy has made up its mind about the others.
const CHECKS: usize = 5;

/// What a host that never answers is given.
const TIMEOUT: &str = "1s";

#[derive(Default)]
struct Host {
    /// It gives the answers of the table.
    ill: AtomicBool,
    /// How often it was asked for which service since then.
    asked: Mutex<HashMap<String, usize>>,
}

#[test]
fn evenkeel_and_envoy_think_the_same_of_a_host_by_its_answers_over_grpc() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let host = Arc::new(Host::default());
    runtime.spawn(accept(listener, Arc::clone(&host)));
    let [port, admin] = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    std::fs::write(&file, bootstrap(address.port(), port, admin)).expect("a writable folder");
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| {
        let mut process = web::start(program, &file, admin, port);
        let all_healthy = || {
            eventually(&format!("{program:?} to find every host healthy"), || {
                let flags = flags(admin, address);
                (flags.len() == ROWS.len() && flags.values().all(|flags| flags == "healthy")).then_some(())
            });
        };
        all_healthy();
        let before = counts(admin);
        host.asked.lock().expect("nobody panicked").clear();
        host.ill.store(true, Ordering::SeqCst);
        eventually(&format!("{program:?} to check every host"), || {
            let asked = host.asked.lock().expect("nobody panicked");
            ROWS.iter().all(|(name, _)| asked.get(*name).is_some_and(|times| *times >= CHECKS)).then_some(())
        });
        let seen = thoughts(admin, address, &before);
        host.ill.store(false, Ordering::SeqCst);
        all_healthy();
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    });
    let differences: Vec<_> = envoy.iter().zip(&evenkeel).filter(|(envoy, evenkeel)| envoy != evenkeel).collect();
    assert!(differences.is_empty(), "Envoy, Evenkeel: {differences:#?}");
    let says = |row: &str, expected: &str| assert!(envoy.contains(&format!("{row}: {expected}")), "{envoy:#?}");
    says("serving", "healthy, success");
    says("not-serving", "/failed_active_hc, failure");
    says("resets", "healthy, failure and network_failure");
}

/// What the proxy thinks of each row's host, and as what it counts the checks. A failed exchange alone changes nothing: the
/// threshold is too high. A host that says it does not serve is out at once.
fn thoughts(admin: u16, address: SocketAddr, before: &HashMap<String, u64>) -> Vec<String> {
    let kinds = |name: &str, counts: &HashMap<String, u64>| {
        let rose = |kind: &&str| {
            let counter = format!("cluster.{name}.health_check.{kind}");
            // One that was under way may have been answered as before.
            counts.get(&counter).unwrap_or(&0) - before.get(&counter).unwrap_or(&0) > 1
        };
        ["success", "failure", "network_failure"].into_iter().filter(rose).collect::<Vec<_>>().join(" and ")
    };
    // Counters are added up now and then.
    let counts = eventually("all checks to be counted", || {
        let counts = counts(admin);
        ROWS.iter().all(|(name, _)| !kinds(name, &counts).is_empty()).then_some(counts)
    });
    let flags = flags(admin, address);
    ROWS.iter().map(|(name, _)| format!("{name}: {}, {}", flags[*name], kinds(name, &counts))).collect()
}

fn ask(admin: u16, path: &str) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer").text()
}

/// Health flags by cluster.
fn flags(admin: u16, host: SocketAddr) -> HashMap<String, String> {
    let separator = format!("::{host}::health_flags::");
    let text = ask(admin, "/clusters");
    text.lines()
        .filter_map(|line| line.split_once(&separator))
        .map(|(name, flags)| (name.into(), flags.into()))
        .collect()
}

fn counts(admin: u16) -> HashMap<String, u64> {
    let text = ask(admin, "/stats?filter=health_check");
    let count =
        |line: &str| line.split_once(": ").and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    text.lines().filter_map(count).collect()
}

async fn accept(listener: TcpListener, host: Arc<Host>) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(serve(socket, Arc::clone(&host)));
    }
}

async fn serve(socket: TcpStream, host: Arc<Host>) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let host = Arc::clone(&host);
        // A proxy may go away in the middle.
        tokio::spawn(async move { answer(request.into_body(), respond, &host).await });
    }
}

async fn answer(mut body: h2::RecvStream, mut respond: SendResponse<Bytes>, host: &Host) -> Result<(), h2::Error> {
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        message.extend_from_slice(&data?);
    }
    // Flag and length, then the name as field 1 of `HealthCheckRequest`.
    let service = String::from_utf8_lossy(message.get(7..).unwrap_or_default()).into_owned();
    let mut chosen = Messages(SERVING, Some("0"));
    if host.ill.load(Ordering::SeqCst) {
        chosen = ROWS.iter().find(|(name, _)| *name == service).map_or(Status("3"), |(_, answer)| *answer);
        *host.asked.lock().expect("nobody panicked").entry(service).or_insert(0) += 1;
    }
    let head = |status: u16, content_type: &str, grpc_status: Option<&str>| {
        let mut head = Response::builder().status(status).header("content-type", content_type);
        if let Some(status) = grpc_status {
            head = head.header("grpc-status", status);
        }
        head.body(()).expect("a response")
    };
    let (content_type, messages, status) = match chosen {
        Messages(messages, status) => ("application/grpc", messages, status),
        Serves(content_type) => (content_type, SERVING, Some("0")),
        Status(status) => {
            respond.send_response(head(200, "application/grpc", Some(status)), true)?;
            return Ok(());
        }
        Http(status, grpc_status) => {
            respond.send_response(head(status, "application/grpc", Some(grpc_status)), true)?;
            return Ok(());
        }
        Resets => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
        Never => return std::future::pending().await,
    };
    let mut stream = respond.send_response(head(200, content_type, None), false)?;
    stream.send_data(Bytes::from_static(messages), status.is_none())?;
    match status {
        Some(status) => {
            let name = http::HeaderName::from_static("grpc-status");
            stream.send_trailers(HeaderMap::from_iter([(name, HeaderValue::from_static(status))]))
        }
        None => Ok(()),
    }
}

fn bootstrap(host: u16, port: u16, admin: u16) -> String {
    let checked = |(name, answer): &(&str, Answer)| {
        let timeout = if matches!(answer, Never) { TIMEOUT } else { "30s" };
        let checks = format!(
            "health_checks: [ {{ timeout: {timeout}, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 1000, \
             healthy_threshold: 1, grpc_health_check: {{ service_name: {name} }} }} ],"
        );
        cluster(name, &endpoint(host, ""), &format!("{HTTP2} {checks}"))
    };
    let route = "{ match: { prefix: / }, route: { cluster: serving } }".to_owned();
    web::bootstrap(port, admin, &[], &[route], &ROWS.iter().map(checked).collect::<Vec<_>>())
}
