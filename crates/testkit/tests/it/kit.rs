//! The helpers' behavior that other crates' tests rely on.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Backend, Connection, Process, Reply, TcpEcho, envoy_validate, free_ports};

#[test]
fn raw_client_reads_every_framing() {
    let backend = Backend::start(|request| match request.target.as_str() {
        "/chunked" => Reply::Chunked(200, vec![], vec![b"one".to_vec(), b"two".to_vec()]),
        "/raw" => Reply::Raw(b"HTTP/1.0 200 OK\r\n\r\nuntil close".to_vec()),
        _ => Reply::text("fixed"),
    });
    let mut connection = Connection::open(backend.address()).unwrap();
    assert_eq!(connection.get("a", "/fixed", "").unwrap().text(), "fixed");
    assert_eq!(connection.get("a", "/chunked", "").unwrap().text(), "onetwo");
    connection.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(connection.head_response().unwrap().header("content-length"), Some("5"));
    assert_eq!(connection.ending(Duration::from_millis(20)).unwrap(), Ending::Open);
    let last = connection.get("a", "/raw", "").unwrap();
    assert!(last.until_close && !last.keeps_open(), "{last:?}");
    assert_eq!(connection.ending(Duration::from_secs(5)).unwrap(), Ending::Closed);
    assert_eq!(backend.connections(), 1);
}

#[test]
fn backend_reads_chunked_and_expecting_requests() {
    let backend = Backend::echo("b");
    let mut connection = Connection::open(backend.address()).unwrap();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").unwrap();
    assert!(connection.response().unwrap().text().ends_with("\n\nabc"));
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n").unwrap();
    assert_eq!(connection.response().unwrap().status, 100);
    connection.send("hi").unwrap();
    assert!(connection.response().unwrap().text().ends_with("\n\nhi"));
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn tcp_echo_echoes_until_half_close() {
    let server = TcpEcho::start();
    let mut connection = Connection::open(server.address()).unwrap();
    connection.send("ping").unwrap();
    connection.finish_sending().unwrap();
    assert_eq!(connection.read_to_end().unwrap(), b"ping");
}

#[test]
fn dropping_a_process_ends_it() {
    let mut process = Process::spawn(Command::new("sh").args(["-c", "echo up; exec sleep 600"]));
    assert_eq!(process.wait_for_line("up"), "up");
    let pid = process.pid();
    drop(process);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn free_ports_differ() {
    let ports = free_ports::<8>();
    let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
    assert_eq!(distinct.len(), ports.len());
}

#[test]
fn envoy_tells_good_bootstrap_from_bad() {
    envoy_validate("node: {id: a, cluster: b}").unwrap();
    let error = envoy_validate("nodes: {}").unwrap_err();
    assert!(error.contains("nodes"), "{error}");
}
