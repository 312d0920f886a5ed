//! Connections and requests through live workers: balance, the keep-alive race, clients that leave or dawdle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{Proxy, answering, http_listener};

fn bootstrap(routes: &str, hcm: &str, upstream: Option<SocketAddr>) -> String {
    let listener = http_listener("web", &format!("{routes}\n      {hcm}"), "");
    let indented = listener.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    let cluster = upstream.map_or(String::new(), |address| {
        format!(
            "  clusters:\n  - name: backend\n    type: STATIC\n    connect_timeout: 1s\n    load_assignment: {{cluster_name: \
             backend, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {}, port_value: \
             {}}}}}}}}}]}}]}}\n",
            address.ip(),
            address.port()
        )
    });
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n{cluster}  \
         listeners:\n  -\n{indented}"
    )
}

const TO_BACKEND: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: \
                          {prefix: /}, route: {cluster: backend}}]}]}";

fn stat(proxy: &Proxy, suffix: &str) -> Vec<u64> {
    let text = proxy.get("/stats").text();
    let values = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| name.ends_with(suffix));
    values.filter_map(|(_, value)| value.parse().ok()).collect()
}

#[test]
fn workers_differ_by_at_most_one_connection() {
    for (workers, connections) in [(2, 17), (4, 64), (8, 200), (16, 400)] {
        let proxy = Proxy::start_with(&bootstrap(&answering("hello"), "", None), workers);
        proxy.wait_live();
        let web = proxy.listener("web");
        let mut open: Vec<_> = (0..connections).map(|_| Connection::open(web).expect("it accepts")).collect();
        for connection in &mut open {
            assert_eq!(connection.get("test", "/", "").expect("an answer").text(), "hello");
        }
        let active = || -> Vec<u64> {
            let text = proxy.get("/stats").text();
            let per_worker =
                text.lines().filter(|line| line.contains(".worker_") && line.contains("downstream_cx_active: "));
            per_worker.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
        };
        let counts = active();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (workers, connections), "{counts:?}");
        assert!(counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) <= 1, "{counts:?}");
        drop(open);
        eventually("every seat to be free", || (active().iter().sum::<u64>() == 0).then_some(()));
    }
}

#[test]
fn a_host_that_closes_kept_connections_costs_no_request() {
    // Each answer promises to keep the connection, which is closed right behind it.
    let backend = Backend::start(|_| Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()));
    let proxy = Proxy::start(&bootstrap(TO_BACKEND, "", Some(backend.address())));
    proxy.wait_live();
    let mut connection = Connection::open(proxy.listener("web")).expect("it accepts");
    for turn in 0..300 {
        let response = connection.get("test", "/", "").expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "request {turn}");
    }
}

#[test]
fn a_head_that_dawdles_gets_408_and_the_others_are_served() {
    let proxy = Proxy::start(&bootstrap(&answering("hello"), "request_headers_timeout: 0.3s", None));
    proxy.wait_live();
    let web = proxy.listener("web");
    let mut slow = Connection::open(web).expect("it accepts");
    slow.send("GET / HTTP/1.1\r\nhost: te").expect("it reads");
    let mut other = Connection::open(web).expect("it accepts");
    assert_eq!(other.get("test", "/", "").expect("an answer").text(), "hello");
    let response = slow.response().expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (408, "request timeout"));
    assert!(!response.keeps_open());
}

#[test]
fn the_answer_flows_while_the_request_still_does() {
    // A host that answers the first byte and echoes each one at once: both directions must be open together.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut seen = Vec::new();
        let mut chunk = [0; 4096];
        let mut answered = false;
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            seen.extend_from_slice(&chunk[..count]);
            if !answered && seen.windows(4).any(|window| window == b"\r\n\r\n") {
                answered = true;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nda").expect("it reads");
            }
            if seen.ends_with(b"0\r\n\r\n") {
                stream.write_all(b"ta").expect("it reads");
            }
        }
    });
    let proxy = Proxy::start(&bootstrap(TO_BACKEND, "", Some(address)));
    proxy.wait_live();
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n").expect("it reads");
    let early = client.read_exact(b"HTTP/1.1 200 OK\r\n".len()).expect("the head, before the request's end");
    assert_eq!(early, b"HTTP/1.1 200 OK\r\n");
    client.send("0\r\n\r\n").expect("it reads");
    let mut rest = Vec::new();
    while !rest.ends_with(b"\r\n\r\ndata") {
        rest.extend(client.read_exact(1).expect("the rest of the answer"));
    }
}

#[test]
fn a_client_that_leaves_ends_the_request_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(TO_BACKEND, "", Some(listener.local_addr().expect("bound"))));
    proxy.wait_live();
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    let (mut upstream, _) = listener.accept().expect("the proxy connects");
    let mut head = [0; 16];
    upstream.read_exact(&mut head).expect("the request");
    drop(client);
    let mut rest = Vec::new();
    upstream.read_to_end(&mut rest).expect("the proxy closes in order");
    eventually("no request in flight", || (stat(&proxy, ".upstream_rq_active") == [0]).then_some(()));
}
