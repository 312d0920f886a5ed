//! Failures of requests and connections: the access log is the same as Envoy's, with the code, the flags in their order, and
//! the details.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::{Connection, eventually, free_ports, wait};
use nix::sys::socket::{setsockopt, sockopt};

use super::proxy::Program;
use super::web::{self, ROUTER, cluster, endpoint};

/// What an upstream does once it was asked.
#[derive(Clone, Copy)]
enum Does {
    /// Says that, and closes.
    Says(&'static str),
    /// Says nothing, and resets.
    Resets,
    /// Says that, and no more.
    Hangs(&'static str),
    /// Answers with a head of so many bytes and fields.
    Boasts(usize, usize),
}

use Does::{Boasts, Hangs, Resets, Says};

const AGAIN: &str = "retry_policy: { retry_on: \"5xx,reset,connect-failure\", num_retries: 1 }";
const UNAVAILABLE: &str = "HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\nno";
const CUT_SHORT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nab";

/// A request's name, the cluster it goes to, what else its route says, and what its upstream does.
const REQUESTS: &[(&str, &str, &str, Does)] = &[
    ("answers", "web", "", Says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")),
    ("refused", "refused", "", Says("")),
    ("refused-again", "refused", AGAIN, Says("")),
    ("no-host", "empty", AGAIN, Says("")),
    ("no-cluster", "missing", "", Says("")),
    ("overflow", "full", AGAIN, Says("")),
    ("closes", "web", "", Says("")),
    ("closes-again", "web", AGAIN, Says("")),
    ("resets", "web", "", Resets),
    ("unavailable-again", "web", AGAIN, Says(UNAVAILABLE)),
    ("no-http", "web", "", Says("nonsense\r\n\r\n")),
    ("no-http-again", "web", AGAIN, Says("nonsense\r\n\r\n")),
    ("half-a-head", "web", "", Says("HTTP/1.1 200 OK\r\nconte")),
    ("half-a-body", "web", "", Says(CUT_SHORT)),
    ("half-a-chunk", "web", "", Says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab")),
    ("bad-chunk", "web", "", Hangs("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n")),
    ("late", "web", "timeout: 0.2s", Hangs("")),
    ("late-again", "web", "retry_policy: { retry_on: 5xx, num_retries: 1, per_try_timeout: 0.1s }", Hangs("")),
    ("idle", "web", "timeout: 0s, idle_timeout: 0.2s", Hangs("")),
    ("lasts", "web", "timeout: 0s, max_stream_duration: { max_stream_duration: 0.2s }", Hangs("")),
    ("large-head", "web", "", Boasts(79 * 1024, 90)),
    ("too-large-head", "web", "", Boasts(90 * 1024, 90)),
    ("too-many-fields", "web", "", Boasts(1024, 101)),
    ("larger-head", "roomy", "", Boasts(99 * 1024, 300)),
    ("too-large-a-head", "roomy", "", Boasts(120 * 1024, 300)),
    ("too-many-of-them", "roomy", "", Boasts(8 * 1024, 301)),
    ("longer-than-a-small-one", "narrow", "", Boasts(4 * 1024, 3)),
];

/// What a client of a TCP proxy does after its first bytes.
#[derive(Clone, Copy, PartialEq)]
enum Client {
    Waits,
    Ends,
}

/// A connection's name, its TCP proxy, what its client does, and what its upstream does.
const CONNECTIONS: &[(&str, &str, Client, Does)] = &[
    ("both-end", "cluster: web", Client::Ends, Says("bytes")),
    ("upstream-ends", "cluster: web", Client::Waits, Says("bytes")),
    ("upstream-resets", "cluster: web", Client::Waits, Resets),
    ("is-refused", "cluster: refused", Client::Waits, Says("")),
    ("is-refused-twice", "cluster: refused, max_connect_attempts: 2", Client::Waits, Says("")),
    ("has-no-cluster", "cluster: missing", Client::Waits, Says("")),
    ("has-no-host", "cluster: empty", Client::Waits, Says("")),
    ("is-too-many", "cluster: full", Client::Waits, Says("")),
    ("is-idle", "cluster: web, idle_timeout: 0.2s", Client::Waits, Hangs("")),
    ("lasts-too-long", "cluster: web, max_downstream_connection_duration: 0.2s", Client::Waits, Hangs("")),
];

#[test]
fn evenkeel_and_envoy_say_the_same_of_what_fails() {
    let upstream = upstream();
    let envoy = log(Program::Envoy, upstream, None);
    let evenkeel = log(Program::Evenkeel, upstream, Some(&envoy));
    let differences: Vec<_> = envoy.iter().filter(|(name, line)| evenkeel.get(*name) != Some(line)).collect();
    assert!(differences.is_empty(), "Envoy: {differences:#?}\nEvenkeel: {evenkeel:#?}");
    let says = |row: &str, expected: &str| assert!(envoy[row].starts_with(expected), "{envoy:#?}");
    says("refused-again", "503 URX,UF UpstreamRetryLimitExceeded,UpstreamConnectionFailure");
    says("larger-head", "200 - ");
    says("is-refused", "0 UF,URX ");
    says("upstream-resets", "0 UR ");
}

/// What is counted besides, over all rows.
const COUNTED: [&str; 8] = [
    "http.http.downstream_rq_completed",
    "http.http.downstream_rq_rx_reset",
    "http.http.downstream_rq_tx_reset",
    "cluster.web.upstream_rq_rx_reset",
    "cluster.web.upstream_rq_tx_reset",
    "cluster.web.upstream_rq_pending_failure_eject",
    "cluster.web.upstream_cx_protocol_error",
    "cluster.roomy.upstream_cx_protocol_error",
];
/// How long a program may take to count what it has logged.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the access log of a program says of each row, and what it counts, once that is as `wanted`.
fn log(program: Program, upstream: SocketAddr, wanted: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, path) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let [http, refused, admin] = free_ports();
    let ports = free_ports::<{ CONNECTIONS.len() }>();
    let text = scene(&path, http, admin, &ports, upstream.port(), refused);
    std::fs::write(&file, text).expect("a writable folder");
    let mut process = web::start(program, &file, admin, http);
    std::thread::scope(|scope| {
        for (name, ..) in REQUESTS {
            scope.spawn(move || {
                let mut client = Connection::open((Ipv4Addr::LOCALHOST, http).into()).expect("it accepts");
                // An answer that is cut short is what some rows are about.
                let _ = client.get("test", &format!("/{name}"), "");
            });
        }
        for ((name, _, does, _), port) in CONNECTIONS.iter().zip(ports) {
            scope.spawn(move || connect(name, *does, port));
        }
    });
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    let mut lines = eventually(&format!("{program:?} to have written all"), || {
        let text = std::fs::read_to_string(&path).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines: BTreeMap<String, String> =
            lines.map(|(name, line)| (name.trim_start_matches('/').into(), line.into())).collect();
        (lines.len() == REQUESTS.len() + CONNECTIONS.len()).then_some(lines)
    });
    let right = |counts: &BTreeMap<String, String>| {
        wanted.is_none_or(|wanted| counts.iter().all(|(name, count)| wanted.get(name) == Some(count)))
    };
    let counts = wait::poll(PATIENCE, || Some(counts(admin)).filter(&right)).unwrap_or_else(|| counts(admin));
    lines.extend(counts);
    lines
}

fn counts(admin: u16) -> BTreeMap<String, String> {
    let mut admin = Connection::open((Ipv4Addr::LOCALHOST, admin).into()).expect("an admin port");
    let stats = admin.get("admin", "/stats", "").expect("statistics").text();
    let stats: BTreeMap<_, _> = stats.lines().filter_map(|line| line.split_once(": ")).collect();
    COUNTED.map(|name| (name.to_owned(), stats.get(name).copied().unwrap_or("0").to_owned())).into()
}

fn connect(name: &str, does: Client, port: u16) {
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it accepts");
    // It may be gone already.
    let _ = client.write_all(format!("GET /{name} x\r\n\r\n").as_bytes());
    if does == Client::Ends {
        let _ = client.shutdown(Shutdown::Write);
    }
    let _ = client.read_to_end(&mut Vec::new());
}

/// Where all rows are served.
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
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let name = head.split(' ').nth(1)?.trim_start_matches('/');
    let requests = REQUESTS.iter().map(|(name, _, _, does)| (name, does));
    let connections = CONNECTIONS.iter().map(|(name, _, _, does)| (name, does));
    match *requests.chain(connections).find(|(known, _)| **known == name)?.1 {
        Says(text) => stream.write_all(text.as_bytes()).ok()?,
        Resets => reset_on_close(&stream),
        Hangs(text) => {
            stream.write_all(text.as_bytes()).ok()?;
            // Until the proxy has had enough.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        Boasts(bytes, fields) => {
            let mut head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n".to_owned() + &"a: b\r\n".repeat(fields - 2);
            let rest = bytes - head.len() - "z: \r\n\r\n".len();
            head += &format!("z: {}\r\n\r\n", "x".repeat(rest));
            stream.write_all(head.as_bytes()).ok()?;
        }
    }
    Some(())
}

/// Has the end of this connection be a reset.
pub(super) fn reset_on_close(stream: &TcpStream) {
    setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).expect("a socket that is open");
}

fn access_log(path: &Path, name: &str) -> String {
    let format = format!(
        "{name} %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG% %RESPONSE_CODE_DETAILS% \
         %CONNECTION_TERMINATION_DETAILS% %UPSTREAM_TRANSPORT_FAILURE_REASON%"
    );
    web::access_log(path, &[&format])
}

fn scene(path: &Path, http: u16, admin: u16, ports: &[u16], upstream: u16, refused: u16) -> String {
    let routes = REQUESTS.iter().map(|(name, cluster, more, _)| {
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        format!("              - {{ match: {{ path: /{name} }}, route: {{ cluster: {cluster}{more} }} }}\n")
    });
    let mut manager = format!("          {}\n", access_log(path, "%REQ(:PATH)%"));
    manager += &format!("          http_filters: [ {ROUTER} ]\n");
    manager += &web::one_host(&routes.collect::<String>())
        .replace("name: r\n", "name: r\n            validate_clusters: false\n");
    let mut listeners = web::http_listener("http", http, &manager);
    for ((name, config, _, _), port) in CONNECTIONS.iter().zip(ports) {
        listeners += &web::tcp_listener(name, *port, &format!("{config}, {}", access_log(path, name)));
    }
    let limits = |kib: u32, fields: u32| {
        format!(
            "typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ \
             http_protocol_options: {{}} }}, common_http_protocol_options: {{ max_response_headers_kb: {kib}, \
             max_headers_count: {fields} }} }} }},"
        )
    };
    let full =
        "circuit_breakers: { thresholds: [ { max_connections: 0, max_pending_requests: 0, max_requests: 0 } ] },";
    let clusters = [
        // Rows that try again do so at the same time.
        cluster("web", &endpoint(upstream, ""), "circuit_breakers: { thresholds: [ { max_retries: 100 } ] },"),
        cluster("refused", &endpoint(refused, ""), ""),
        cluster("empty", "", ""),
        cluster("full", &endpoint(upstream, ""), full),
        cluster("roomy", &endpoint(upstream, ""), &limits(100, 300)),
        cluster("narrow", &endpoint(upstream, ""), &limits(1, 10)),
    ];
    web::scene(admin, &listeners, &clusters)
}
