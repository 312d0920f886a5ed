//! The echo servers beside Fortio's, under Fortio's load and ours.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_echo::EchoArguments;
use evenkeel_testkit::fortio;
use evenkeel_testkit::http::Connection;
use evenkeel_testkit::port::free_ports;
use evenkeel_testkit::tls::TestCa;
use evenkeel_testkit::wait::eventually;
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    echo: EchoArguments,
}

/// The ports of a server that runs until the test's process ends.
struct Server {
    http: SocketAddr,
    tcp: SocketAddr,
    udp: SocketAddr,
    grpc: SocketAddr,
    forwarding: SocketAddr,
}

impl Server {
    fn start(extra: &[&str]) -> Self {
        let [http, tcp, udp, grpc, forwarding] = free_ports().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut words = vec!["echo".to_owned(), "-P".to_owned(), format!("{forwarding} {tcp}")];
        for (flag, address) in [("--http-port", http), ("--tcp-port", tcp), ("--udp-port", udp), ("--grpc-port", grpc)]
        {
            words.extend([flag.to_owned(), address.to_string()]);
        }
        words.extend(extra.iter().map(|word| (*word).to_owned()));
        let arguments = Cli::parse_from(words).echo;
        std::thread::spawn(move || evenkeel_echo::run(&arguments, &mut std::io::sink()));
        for address in [http, tcp, grpc, forwarding] {
            eventually("the server listens", || std::net::TcpStream::connect(address).ok());
        }
        Self { http, tcp, udp, grpc, forwarding }
    }
}

/// How often each code came, by Fortio's own client.
fn codes(line: &str) -> Value {
    let output = Command::new(fortio::program("fortio"))
        .args(["load", "-json", "-"])
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("Fortio starts");
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {}", String::from_utf8_lossy(&output.stderr)));
    result["RetCodes"].clone()
}

#[test]
fn fortios_client_is_served() {
    let server = Server::start(&[]);
    let check = |line: String, expected: Value| assert_eq!(codes(&line), expected, "{line}");
    check(format!("-n 20 -c 2 -qps 0 -payload abc http://{}/", server.http), json!({"200": 20}));
    check(format!("-n 20 -c 2 -qps 0 http://{}/echo?size=100&delay=1ms", server.http), json!({"200": 20}));
    check(format!("-n 20 -c 2 -qps 0 -h2 -payload-size 100000 http://{}/", server.http), json!({"200": 20}));
    check(format!("-n 4 -c 2 -qps 0 http://{}/?status=503", server.http), json!({"503": 4}));
    check(format!("-n 20 -c 2 -s 2 -qps 0 -grpc -ping -payload abc {}", server.grpc), json!({"SERVING": 20}));
    check(format!("-n 20 -c 2 -qps 0 -grpc {}", server.grpc), json!({"SERVING": 20}));
    check(format!("-n 20 -c 2 -qps 0 tcp://{}", server.tcp), json!({"OK": 20}));
    check(format!("-n 20 -c 2 -qps 0 tcp://{}", server.forwarding), json!({"OK": 20}));
    check(format!("-n 20 -c 2 -qps 0 udp://{}", server.udp), json!({"OK": 20}));
}

#[test]
fn requests_are_answered_as_by_fortios_server() {
    let (ours, theirs) = (Server::start(&[]), fortio::Server::start(&[]));
    let check = |request: &str| {
        let answer = |address: SocketAddr| {
            let mut connection = Connection::open(address).expect("it accepts");
            connection.send(request).expect("it reads");
            let response = connection.response().expect("a response");
            let random = request.contains("size=");
            let body = if random { response.body.len().to_string() } else { response.text() };
            let header = |name: &str| response.header_all(name).join(",");
            let headers = ["content-type", "content-length", "connection", "x-a"].map(header);
            (response.status, headers, body)
        };
        assert_eq!(answer(ours.http), answer(theirs.http), "{request}");
    };
    let post = |path: &str| {
        let head = "Host: a\r\nContent-Type: text/x\r\nX-B: c\r\nContent-Length: 5\r\n\r\n";
        check(&format!("POST {path} HTTP/1.1\r\n{head}hello"));
        check(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    };
    for path in [
        "/",
        "/echo",
        "/any/path?a=b",
        "/echo?size=10",
        "/echo?size=0",
        "/echo?size=10:100",
        "/echo?size=9999999",
        "/echo?status=201",
        "/echo?status=503:100",
        "/echo?status=404:100,503:0&status=1",
        "/echo?status=abc",
        "/echo?status=503:200",
        "/echo?delay=1ms",
        "/echo?delay=abc",
        "/echo?header=X-A:%20b&header=x-a:c&header=nothing",
        "/debug/echo/x?size=3",
    ] {
        post(path);
    }
    check("GET /echo?close=true HTTP/1.1\r\nHost: a\r\n\r\n");
    check("GET /echo?close=100 HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn shares_of_statuses_and_delays_are_met() {
    const CALLS: u64 = 400;
    let server = Server::start(&["--max-echo-delay", "20ms", "--echo-server-default-params", "status=418"]);
    let count = |line: String, code: &str| codes(&line)[code].as_u64().unwrap_or_default();
    let url = format!("-n {CALLS} -c 4 -qps 0 http://{}", server.http);
    let failed = count(format!("{url}/?status=503:30"), "503");
    assert!((CALLS / 5..CALLS * 2 / 5).contains(&failed), "{failed} of {CALLS}");
    assert_eq!(count(url, "418"), CALLS, "requests without a query have the default one");
    let begun = std::time::Instant::now();
    let mut connection = Connection::open(server.http).expect("it accepts");
    assert_eq!(connection.get("a", "/?delay=1h", "").expect("a response").status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(20), "the delay is as long as allowed");
}

#[test]
fn the_debug_page_shows_the_request() {
    let server = Server::start(&[]);
    let mut connection = Connection::open(server.http).expect("it accepts");
    connection.send("POST /debug HTTP/1.1\r\nHost: a\r\nX-B: c\r\nContent-Length: 5\r\n\r\nhello").expect("it reads");
    let page = connection.response().expect("a response").text();
    for part in ["\nPOST /debug HTTP/1.1\n", "\nhost: a\n", "\nx-b: c\n", "\nbody:\n\nhello\n"] {
        assert!(page.contains(part), "no {part:?} in\n{page}");
    }
}

#[test]
fn clients_are_verified_over_mutual_tls() {
    let (ca, folder) = (TestCa::new(), tempfile::tempdir().expect("a folder"));
    let root = folder.path().join("root.pem");
    std::fs::write(&root, ca.root_pem()).expect("written");
    let (cert, key) = ca.for_dns(&["localhost"]).write(folder.path(), "server");
    let (client_cert, client_key) = ca.for_client("client", "test").write(folder.path(), "client");
    let text = |path: &std::path::Path| path.display().to_string();
    let (root, cert, key) = (text(&root), text(&cert), text(&key));
    let server = Server::start(&["--cert", &cert, "--key", &key, "--cacert", &root, "--mtls"]);
    let url = format!("https://localhost:{}/", server.http.port());
    let identity = format!("-cert {} -key {}", text(&client_cert), text(&client_key));
    assert_eq!(codes(&format!("-n 4 -c 2 -qps 0 -cacert {root} {identity} {url}")), json!({"200": 4}));
    assert_eq!(codes(&format!("-n 4 -c 2 -qps 0 -cacert {root} {url}")), json!({"-1": 4}));
}
