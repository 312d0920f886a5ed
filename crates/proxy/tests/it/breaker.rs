//! Circuit breakers with a limit of one: a request beyond the limit is refused at once, one within it is served.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{Proxy, get, http_listener, stat, static_bootstrap, static_cluster};

const OVERFLOW: &str = "upstream connect error or disconnect/reset before headers. reset reason: overflow";

fn listener(log: &str) -> String {
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: backend}}]}]}";
    let access_log = format!(
        "access_log: [{{name: file, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {log}, log_format: \
         {{text_format_source: {{inline_string: \"%RESPONSE_CODE% %RESPONSE_FLAGS% %REQ(:PATH)%\\n\"}}}}}}}}]"
    );
    http_listener("web", &format!("{routes}\n      {access_log}"), "")
}

struct Case {
    limits: &'static str,
    workers: usize,
    /// One request more is within the limits, and waits for the connection.
    one_waits: bool,
    /// The host keeps the connection on which it answered the first request.
    keeps: bool,
}

fn check(case: &Case) {
    let (arrived, arrival) = channel();
    let (release, released) = channel::<()>();
    let (released, keeps) = (Mutex::new(released), case.keeps);
    let backend = Backend::start(move |request| match request.target.as_str() {
        "/hold" => {
            arrived.send(()).expect("the test waits");
            released.lock().expect("not poisoned").recv_timeout(PATIENCE).expect("the test lets it go");
            if keeps {
                Reply::text("held")
            } else {
                Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nheld".to_vec())
            }
        }
        target => Reply::text(target),
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("access.log");
    let thresholds = format!("circuit_breakers: {{thresholds: [{{{}}}]}}", case.limits);
    let cluster = static_cluster("backend", backend.address(), &thresholds);
    let proxy = Proxy::start_with(&static_bootstrap(&listener(log.to_str().expect("UTF-8")), &[cluster]), case.workers);
    proxy.wait_live();
    let web = proxy.listener("web");

    let mut held = Connection::open(web).expect("it accepts");
    held.send("GET /hold HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    arrival.recv_timeout(PATIENCE).expect("the request reaches the host");
    let mut waiting = Connection::open(web).expect("it accepts");
    if case.one_waits {
        waiting.send("GET /waits HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
        eventually("a pending request", || (stat(&proxy, ".upstream_rq_pending_active") == [1]).then_some(()));
    }
    let surplus = get(web, "/surplus");
    assert_eq!((surplus.status, surplus.text().as_str()), (503, OVERFLOW), "{}", case.limits);
    assert_eq!(stat(&proxy, ".upstream_rq_pending_overflow"), [1], "{}", case.limits);

    release.send(()).expect("the host waits");
    let response = held.response().expect("the request in flight is answered");
    assert_eq!((response.status, response.text().as_str()), (200, "held"), "{}", case.limits);
    if case.one_waits {
        let response = waiting.response().expect("the request that waited is answered");
        assert_eq!((response.status, response.text().as_str()), (200, "/waits"), "{}", case.limits);
    }
    // On this connection the first request has ended, its place is free.
    for _ in 0..3 {
        let response = held.get("test", "/after", "").expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (200, "/after"), "{}", case.limits);
    }
    drop((held, waiting));
    proxy.stop().expect("a clean end");
    assert!(backend.requests().iter().all(|request| request.target != "/surplus"), "the host is spared");

    let log = std::fs::read_to_string(&log).expect("the access log");
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_unstable();
    let mut expected = vec!["200 - /after"; 3];
    expected.push("200 - /hold");
    expected.extend(case.one_waits.then_some("200 - /waits"));
    expected.push("503 UO /surplus");
    assert_eq!(lines, expected, "{}", case.limits);
}

#[test]
fn one_request_holds_across_workers() {
    check(&Case { limits: "max_requests: 1", workers: 2, one_waits: false, keeps: true });
}

#[test]
fn one_connection_is_handed_to_the_one_request_that_waits() {
    let limits = "max_connections: 1, max_pending_requests: 1";
    check(&Case { limits, workers: 1, one_waits: true, keeps: true });
}

#[test]
fn one_connection_goes_to_the_request_that_waits_on_another_worker() {
    let limits = "max_connections: 1, max_pending_requests: 1";
    check(&Case { limits, workers: 2, one_waits: true, keeps: true });
    check(&Case { limits, workers: 2, one_waits: true, keeps: false });
}

#[test]
fn one_connection_that_ends_makes_room_for_the_one_request_that_waits() {
    let limits = "max_connections: 1, max_pending_requests: 1";
    check(&Case { limits, workers: 1, one_waits: true, keeps: false });
}
