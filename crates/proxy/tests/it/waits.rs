//! The waits of a request before an upstream gets it: for a connection, and the pause before a retry.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use evenkeel_testkit::{Backend, Connection, Http2Frames as H2, Reply, eventually};

use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};

/// A port on which connections are not accepted, nor refused.
struct Deaf {
    _socket: socket2::Socket,
    _waiting: Vec<TcpStream>,
    address: SocketAddr,
}

impl Deaf {
    fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
        socket.listen(1).expect("it can listen");
        let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
        // Until its backlog is full.
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let waiting = (0..8).map_while(connect).collect();
        Self { _socket: socket, _waiting: waiting, address }
    }
}

/// A proxy whose upstream takes no connection, or one whose upstream refuses them and is asked again a minute later.
fn start(host: SocketAddr, route: &str) -> Proxy {
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: far, {route}}}}}]}}]}}"
    );
    let cluster = static_cluster("far", host, "").replace("connect_timeout: 5s", "connect_timeout: 60s");
    assert!(cluster.contains("connect_timeout: 60s"), "{cluster}");
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", &routes, ""), &[cluster]), 1);
    proxy.wait_live();
    proxy
}

const PAUSE: &str = "timeout: TIMEOUT, retry_policy: {retry_on: connect-failure, num_retries: 3, retry_back_off: {base_interval: 60s, \
                     max_interval: 60s}}";

fn refusing() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}

#[test]
fn who_leaves_is_not_waited_for() {
    let deaf = Deaf::new();
    let body = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 90000000\r\n\r\n{}", "x".repeat(1 << 20));
    for (what, host, route) in [
        ("a connection", deaf.address, "timeout: 0s".to_owned()),
        ("a retry", refusing(), PAUSE.replace("TIMEOUT", "0s")),
    ] {
        let proxy = start(host, &route);
        let is_waiting = |count: u64| {
            eventually(&format!("{count} to wait for {what}"), || {
                (stat(&proxy, "http.web.downstream_rq_active") == [count]).then_some(())
            });
            if what == "a retry" && count > 0 {
                eventually("the pause to begin", || {
                    (stat(&proxy, "upstream_rq_retry_backoff_exponential") != [0]).then_some(())
                });
            }
        };
        for request in ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", &body] {
            let mut client = Connection::socket(proxy.listener("web")).expect("it accepts");
            client.set_write_timeout(Some(Duration::from_millis(500))).expect("an option");
            let _ = client.write_all(request.as_bytes());
            is_waiting(1);
            drop(client);
            is_waiting(0);
        }
        let mut client = H2::open(proxy.listener("web")).expect("it accepts");
        client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
        let (first, second) = (client.get().expect("it reads"), client.get().expect("it reads"));
        is_waiting(2);
        client.frame(H2::RST_STREAM, 0, first, &[0, 0, 0, 8]).expect("it reads");
        is_waiting(1);
        client.frame(H2::RST_STREAM, 0, second, &[0, 0, 0, 8]).expect("it reads");
        is_waiting(0);
        assert_eq!(stat(&proxy, "cluster.far.upstream_rq_pending_active"), [0], "{what}");
        assert_eq!(stat(&proxy, "cluster.far.upstream_rq_active"), [0], "{what}");
    }
}

#[test]
fn the_routes_timeout_holds() {
    let deaf = Deaf::new();
    for (what, host, route) in [
        ("a connection", deaf.address, "timeout: 0.2s".to_owned()),
        ("a retry", refusing(), PAUSE.replace("TIMEOUT", "0.2s")),
    ] {
        let proxy = start(host, &route);
        let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
        client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("it reads");
        let answer = client.read_to_end().expect("an answer");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 504 "), "{what}: {answer}");
        assert_eq!(stat(&proxy, "cluster.far.upstream_rq_timeout"), [1], "{what}");
    }
}

/// How long the upstream takes for an answer.
const TAKES: Duration = Duration::from_millis(150);

#[test]
fn time_goes_on_while_a_request_waits_and_while_a_connection_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let manager = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: \
         {{cluster: slow}}}}]}}]}}\n      access_log: [{{name: file, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, log_format: {{text_format_source: \
         {{inline_string: \"%START_TIME(%s%3f)% %DURATION% %RESPONSE_DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%\\n\"}}}}}}}}]",
        path.display()
    );
    let backend = Backend::start(|_| {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(TAKES).is_err());
        Reply::text("hello")
    });
    let cluster = static_cluster("slow", backend.address(), "");
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", &manager, ""), &[cluster]), 1);
    proxy.wait_live();
    let lines = |count: usize| -> Vec<Vec<u64>> {
        eventually("the access log", || {
            let text = std::fs::read_to_string(&path).ok().filter(|text| text.lines().count() >= count)?;
            let numbers = |line: &str| line.split(' ').map(|number| number.parse().expect("a number")).collect();
            Some(text.lines().map(numbers).collect())
        })
    };
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    for _ in 0..2 {
        assert_eq!(client.get("a", "/", "").expect("an answer").text(), "hello");
    }
    let mut client = H2::open(proxy.listener("web")).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    for streams in [3, 4] {
        client.get().expect("it reads");
        lines(streams);
    }
    let (mut ended, takes) = (0, TAKES.as_millis() as u64);
    for line in lines(4) {
        let [start, duration, response, service] = line[..] else { panic!("{line:?}") };
        // The log's times are whole milliseconds.
        assert!(start + 1 >= ended, "{start} {ended}");
        assert!(duration >= response && response + 1 >= takes && service + 1 >= takes, "{line:?}");
        ended = start + duration;
    }
}
