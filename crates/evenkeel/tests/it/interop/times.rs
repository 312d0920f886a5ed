//! Time points of a request in the access log (`%COMMON_DURATION%`) are taken at the same events as in Envoy.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::{Connection, TestCa, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// One step of what takes time here. What takes none takes far less.
const STEP: Duration = Duration::from_millis(600);

const POINTS: [&str; 11] = [
    "DS_RX_END",
    "US_CX_BEG",
    "US_CX_END",
    "US_HS_END",
    "US_TX_BEG",
    "US_TX_END",
    "US_RX_BEG",
    "US_RX_BODY_BEG",
    "US_RX_END",
    "DS_TX_BEG",
    "DS_TX_END",
];
/// Durations that do not begin with the request.
const SPANS: [&str; 4] = ["US_CX_BEG:US_CX_END", "US_CX_BEG:US_HS_END", "US_TX_BEG:US_RX_BEG", "DS_TX_END:DS_RX_BEG"];

/// Requests over one connection, one after the other: the path, whether the body comes a step late, and the rest of the route.
const REQUESTS: [(&str, bool, &str); 9] = [
    ("slow", false, "route: { cluster: web }"),
    ("slow-again", false, "route: { cluster: web }"),
    ("late-body", true, "route: { cluster: web }"),
    ("no-body", false, "route: { cluster: web }"),
    ("retried", false, "route: { cluster: web, retry_policy: { retry_on: 5xx, num_retries: 1 } }"),
    ("cut-short", false, "route: { cluster: cut }"),
    ("tls", false, "route: { cluster: secure }"),
    ("refused", false, "route: { cluster: refused }"),
    ("local", false, "direct_response: { status: 200, body: { inline_string: local } }"),
];

#[test]
fn evenkeel_and_envoy_tell_the_same_times() {
    let (web, cut) = (upstream(), upstream());
    let [mut envoy, mut evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| log(program, web, cut));
    // Evenkeel reads the time once per turn, and makes an answer of its own within one.
    for log in [&mut envoy, &mut evenkeel] {
        log.get_mut("local").expect("a row").remove("DS_TX_END:DS_RX_BEG");
    }
    assert_eq!(evenkeel, envoy, "left: Evenkeel, right: Envoy");
    let says = |row: &str, point: &str, steps: &str| assert_eq!(envoy[row][point], steps, "{row} {point}: {envoy:#?}");
    says("slow", "US_RX_BEG", "1");
    says("slow", "US_RX_END", "2");
    says("late-body", "US_TX_END", "1");
    says("retried", "US_TX_BEG", "1");
    says("tls", "US_CX_BEG:US_HS_END", "0");
    says("refused", "US_TX_BEG", "-");
}

/// What a program's log says of each row: steps to each point, `-` where there is none.
fn log(program: Program, web: SocketAddr, cut: SocketAddr) -> BTreeMap<String, BTreeMap<String, String>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, path) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let ports = free_ports::<4>();
    std::fs::write(&file, scene(&path, &ports, web.port(), cut.port())).expect("a writable folder");
    let [http, .., admin] = ports;
    let mut process = web::start(program, &file, admin, http);
    let mut client = Connection::socket((Ipv4Addr::LOCALHOST, http).into()).expect("it accepts");
    for (name, late, _) in REQUESTS {
        let body = if late { "content-length: 1\r\n\r\n" } else { "\r\n" };
        client.write_all(format!("GET /{name} HTTP/1.1\r\nhost: a\r\n{body}").as_bytes()).expect("it reads");
        if late {
            pause();
            client.write_all(b"x").expect("it reads");
        }
        if !answer(&mut client) {
            client = Connection::socket((Ipv4Addr::LOCALHOST, http).into()).expect("it accepts");
        }
    }
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    eventually(&format!("{program:?} to have written all"), || {
        let text = std::fs::read_to_string(&path).ok()?;
        (text.lines().count() == REQUESTS.len()).then(|| text.lines().map(row).collect())
    })
}

fn row(line: &str) -> (String, BTreeMap<String, String>) {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default().trim_start_matches('/').to_owned();
    let steps = |word: &str| match word.parse::<u128>() {
        Ok(millis) => ((millis + STEP.as_millis() / 2) / STEP.as_millis()).to_string(),
        Err(_) => word.to_owned(),
    };
    (name, POINTS.iter().chain(&SPANS).map(|name| (*name).to_owned()).zip(words.map(steps)).collect())
}

/// Reads an answer; false when the connection ends with it.
fn answer(client: &mut TcpStream) -> bool {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"\r\n\r\n") {
        match client.read(&mut byte) {
            Ok(1) => text.push(byte[0]),
            _ => return false,
        }
    }
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    client.read_exact(&mut vec![0; length]).is_ok()
}

/// Answers each request a step late, and ends its body another step later, unless the path says something else.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream) -> Option<()> {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        if head.contains("content-length: 1\r\n") {
            stream.read_exact(&mut byte).ok()?;
        }
        let mut say = |text: &str| stream.write_all(text.as_bytes()).ok();
        match head.split(' ').nth(1)? {
            "/no-body" => say("HTTP/1.1 204 No Content\r\n\r\n")?,
            "/late-body" => say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?,
            // The next try has a connection of its own: whether this one could be kept is not what the row is about.
            "/retried" if head.contains("x-envoy-attempt-count: 1\r\n") => {
                pause();
                return say("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            }
            "/retried" => say("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?,
            "/cut-short" => {
                say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")?;
                pause();
                return None;
            }
            _ => {
                pause();
                say("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok")?;
                pause();
                say("ok")?;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "how long things take is what the test is about")]
fn pause() {
    std::thread::sleep(STEP);
}

fn scene(path: &Path, &[http, secure, refused, admin]: &[u16; 4], web: u16, cut: u16) -> String {
    let durations = POINTS.map(|point| format!("DS_RX_BEG:{point}")).into_iter().chain(SPANS.map(str::to_owned));
    let durations: String = durations.map(|span| format!(" %COMMON_DURATION({span}:ms)%")).collect();
    let log = web::access_log(path, &[&format!("%REQ(:PATH)%{durations}")]);
    let routes: String = REQUESTS
        .iter()
        .map(|(name, _, route)| format!("              - {{ match: {{ path: /{name} }}, {route} }}\n"))
        .collect();
    let hosts =
        web::one_host(&routes).replace("domains: [", "include_request_attempt_count: true\n              domains: [");
    let manager = format!("          {log}\n          http_filters: [ {ROUTER} ]\n{hosts}");
    let mut listeners = web::http_listener("http", http, &manager);
    listeners += &secure_listener(secure);
    let insecure = "transport_socket: { name: tls, typed_config: { \"@type\": \
                    type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext } },";
    let clusters = [
        cluster("web", &endpoint(web, ""), ""),
        cluster("cut", &endpoint(cut, ""), ""),
        cluster("secure", &endpoint(secure, ""), insecure),
        cluster("refused", &endpoint(refused, ""), ""),
    ];
    web::scene(admin, &listeners, &clusters)
}

/// A listener of the program itself that speaks TLS.
fn secure_listener(port: u16) -> String {
    let server = TestCa::new().for_spiffe("spiffe://cluster.local/ns/default/sa/server");
    let routes =
        "              - { match: { prefix: / }, direct_response: { status: 200, body: { inline_string: ok } } }\n";
    let manager = format!("          http_filters: [ {ROUTER} ]\n{}", web::one_host(routes));
    let mut listener = web::http_listener("secure", port, &manager);
    listener += &format!(
        "      transport_socket:
        name: tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_certificates:
            - certificate_chain: {{inline_string: {:?}}}
              private_key: {{inline_string: {:?}}}\n",
        server.cert_pem, server.key_pem
    );
    listener
}
