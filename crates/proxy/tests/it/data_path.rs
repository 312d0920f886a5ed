//! Connections and requests through live workers: balance, the keep-alive race, clients that disconnect or are slow.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{
    Proxy, active_by_worker, answering, http_listener, raise_open_files, stat, static_bootstrap, static_cluster,
};

fn bootstrap(routes: &str, hcm: &str, upstream: Option<SocketAddr>) -> String {
    let clusters: Vec<_> = upstream.map(|address| static_cluster("backend", address, "")).into_iter().collect();
    static_bootstrap(&http_listener("web", &format!("{routes}\n      {hcm}"), ""), &clusters)
}

const TO_BACKEND: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: \
                          {prefix: /}, route: {cluster: backend}}]}]}";

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
        let counts = active_by_worker(&proxy);
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (workers, connections), "{counts:?}");
        assert!(counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) <= 1, "{counts:?}");
        drop(open);
        eventually("every seat to be free", || (active_by_worker(&proxy).iter().sum::<u64>() == 0).then_some(()));
    }
}

/// Files that a connection takes here: two at the client, one at the proxy.
const FILES_PER_CONNECTION: u64 = 3;
/// Files left to the proxy itself and to the tests beside this one.
const OTHER_FILES: u64 = 900;

#[test]
fn four_workers_share_1024_connections_or_as_many_as_the_file_limit_allows() {
    let most = raise_open_files().saturating_sub(OTHER_FILES) / FILES_PER_CONNECTION;
    let connections = most.min(1024);
    assert!(connections >= 16, "the file limit leaves {connections} connections");
    let proxy = Proxy::start_with(&bootstrap(&answering("hello"), "", None), 4);
    proxy.wait_live();
    let web = proxy.listener("web");
    let mut open = Vec::new();
    let fill = |open: &mut Vec<Connection>| {
        while (open.len() as u64) < connections {
            let mut connection = Connection::open(web).expect("it accepts");
            assert_eq!(connection.get("test", "/", "").expect("an answer").status, 200);
            open.push(connection);
        }
        // One that is on its way between two workers, to fill a gap, counts again when it has arrived.
        let counts = eventually("all to be counted", || {
            Some(active_by_worker(&proxy)).filter(|counts| counts.iter().sum::<u64>() == connections)
        });
        assert_eq!(counts.len(), 4, "{counts:?}");
        assert!(counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) <= 1, "{counts:?}");
    };
    fill(&mut open);
    // Those who leave are no fair sample, and those who come fill the gaps. None of the rest has moved or was lost.
    open.truncate(open.len() / 2);
    let mut turn = 0;
    open.retain(|_| {
        turn += 1;
        turn % 4 != 0
    });
    let left = open.len() as u64;
    eventually("those who left to be gone", || (active_by_worker(&proxy).iter().sum::<u64>() == left).then_some(()));
    fill(&mut open);
    for connection in &mut open {
        assert_eq!(connection.get("test", "/", "").expect("an answer").text(), "hello");
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
fn what_many_ask_at_once_is_answered_to_each_in_order() {
    let padding = "x".repeat(4096);
    let backend = Backend::start(move |request| Reply::text(format!("{} {padding}", request.target)));
    let proxy = Proxy::start_with(&bootstrap(TO_BACKEND, "", Some(backend.address())), 1);
    proxy.wait_live();
    let web = proxy.listener("web");
    let mut open: Vec<_> = (0..48).map(|_| Connection::open(web).expect("it accepts")).collect();
    // All at once, so that the worker does not come to rest; the last of a connection's answers ends it.
    let paths = |client: usize| (0..8).map(move |number| format!("/{client}/{number}"));
    for (client, connection) in open.iter_mut().enumerate() {
        let requests = paths(client).map(|path| {
            let last = if path.ends_with("/7") { "connection: close\r\n" } else { "" };
            format!("GET {path} HTTP/1.1\r\nhost: test\r\n{last}\r\n")
        });
        connection.send(requests.collect::<String>()).expect("it reads");
    }
    for (client, connection) in open.iter_mut().enumerate() {
        for path in paths(client) {
            let response = connection.response().expect("an answer");
            assert_eq!((response.status, response.text().split(' ').next()), (200, Some(path.as_str())));
            assert_eq!(response.keeps_open(), !path.ends_with("/7"));
        }
        assert!(connection.response().is_err(), "nothing follows");
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
    assert_eq!((response.status, response.text().as_str()), (408, "request header timeout"));
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
    // The request was not complete when the answer began: who knows whether it would have been.
    assert!(String::from_utf8_lossy(&rest).contains("connection: close\r\n"), "{}", rest.escape_ascii());
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

#[test]
fn a_stream_lasts_no_longer_than_its_manager_or_its_route_lets_it() {
    let slow = Backend::start(|_| Reply::After(std::time::Duration::from_secs(2), Box::new(Reply::text("slow"))));
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /unlimited}, route: {cluster: backend, max_stream_duration: {max_stream_duration: 0s}}}, {match: {prefix: \
                  /}, route: {cluster: backend}}]}]}";
    let limit = "common_http_protocol_options: {max_stream_duration: 0.2s}";
    let proxy = Proxy::start(&bootstrap(routes, limit, Some(slow.address())));
    proxy.wait_live();
    let ask = |path: &str| {
        let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
        let response = client.get("test", path, "").expect("an answer");
        (response.status, response.text())
    };
    assert_eq!(ask("/"), (504, "downstream duration timeout".to_owned()));
    assert_eq!(ask("/unlimited"), (200, "slow".to_owned()));
}
