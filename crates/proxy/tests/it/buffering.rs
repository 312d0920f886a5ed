//! Requests that are forwarded once they are complete (`envoy.filters.http.buffer`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// More than is kept of a request that no filter wants whole.
const LARGE: usize = 300_000;

/// What there is room for beside two of them.
const MEDIUM: usize = 120_000;
/// What the connections of a listener may hold, in bytes: two large bodies, whose memory has grown by doubling, are most of it.
const MEMORY_LIMIT: usize = 1_390_000;

/// A proxy in front of this host, with these fields of its connection manager and of its cluster; with a buffer that takes
/// 400,000 bytes, or without.
fn proxy(host: SocketAddr, buffer: bool, manager: &str, cluster: &str) -> Proxy {
    let routes = format!(
        "{manager}route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: web, retry_policy: {{retry_on: 5xx, num_retries: 2}}}}}}]}}]}}"
    );
    let filter = "http_filters:\n      - name: buffer\n        typed_config: {\"@type\": \
                  type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 400000}\n";
    let mut listener = http_listener(if buffer { "buffering" } else { "plain" }, &routes, "");
    if buffer {
        listener = listener.replacen("http_filters:\n", filter, 1);
    }
    let limit = format!(
        "layered_runtime: {{layers: [{{name: static, static_layer: \
         {{evenkeel.resource_limits.listener.buffering.memory_limit: {MEMORY_LIMIT}}}}}]}}"
    );
    let bootstrap = static_bootstrap(&listener, &[static_cluster("web", host, cluster)]);
    let proxy = Proxy::start_with(&format!("{bootstrap}\n{limit}\n"), 1);
    proxy.wait_live();
    proxy
}

fn connect(proxy: &Proxy) -> Connection {
    Connection::open(proxy.listener("buffering")).expect("it accepts")
}

fn send(connection: &mut Connection, length: usize, body: &[u8]) {
    let head = format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
    connection.send([head.as_bytes(), body].concat()).expect("it reads");
}

fn body() -> Vec<u8> {
    (0..LARGE).map(|at| (at % 251) as u8).collect()
}

#[test]
fn the_upstream_hears_of_a_request_when_it_is_complete() {
    let backend = Backend::start(|_| Reply::text("ok"));
    let proxy = proxy(backend.address(), true, "", "");
    let (mut client, body) = (connect(&proxy), body());
    let (first, last) = body.split_at(LARGE - 1);
    send(&mut client, LARGE, first);
    eventually("the request to be under way", || {
        (stat(&proxy, "http.buffering.downstream_rq_active") == [1]).then_some(())
    });
    let mut other = connect(&proxy);
    send(&mut other, 2, b"ab");
    assert_eq!(other.response().expect("an answer").status, 200);
    assert_eq!(backend.requests().len(), 1, "the other's");
    client.send(last).expect("it reads");
    assert_eq!(client.response().expect("an answer").status, 200);
    assert!(backend.requests().iter().any(|request| request.body == body));
}

#[test]
fn a_large_body_is_sent_again_over_either_protocol() {
    for cluster in ["", &protocol("explicit_http_config: {http2_protocol_options: {}}")] {
        let tries = AtomicUsize::new(0);
        let backend = Backend::start(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
            2 => Reply::text("ok"),
            _ => Reply::Fixed(503, Vec::new(), Vec::new()),
        });
        // What speaks both protocols is another proxy. It could not send such a body again itself.
        let inner = proxy(backend.address(), false, "", "");
        let outer = proxy(inner.listener("plain"), true, "", cluster);
        let (mut client, body) = (connect(&outer), body());
        send(&mut client, LARGE, &body);
        assert_eq!(client.response().expect("an answer").status, 200, "{cluster}");
        let seen = backend.requests();
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|request| request.body == body && !request.chunked), "{cluster}");
    }
}

#[test]
fn what_is_too_long_or_does_not_come_is_answered_here() {
    let backend = Backend::start(|_| Reply::text("ok"));
    let proxy = proxy(backend.address(), true, "stream_idle_timeout: 0.2s\n      ", "");
    for (length, sent, status) in [(400_001, 10, 413), (LARGE, 10, 408)] {
        let mut client = connect(&proxy);
        send(&mut client, length, &vec![b'x'; sent]);
        let response = client.response().expect("an answer");
        assert_eq!((response.status, response.keeps_open()), (status, false));
    }
    // A request is counted when it is over, which a client that has its answer may see first.
    for counter in ["http.buffering.downstream_rq_too_large", "http.buffering.downstream_rq_idle_timeout"] {
        eventually(counter, || (stat(&proxy, counter) == [1]).then_some(()));
    }
    assert_eq!(backend.connections(), 0);
}

#[test]
fn collected_bodies_count_as_memory_of_their_listener() {
    let backend = Backend::start(|_| Reply::text("ok"));
    let proxy = proxy(backend.address(), true, "", "");
    let mut client = connect(&proxy);
    send(&mut client, LARGE, &body()[..LARGE - 1]);
    let held = |proxy: &Proxy| stat(proxy, "downstream_memory_bytes").iter().sum::<u64>();
    eventually("the body to be held", || (held(&proxy) >= LARGE as u64 - 1).then_some(()));
    client.send([0]).expect("it reads");
    assert_eq!(client.response().expect("an answer").status, 200);
    eventually("the body to be given back", || (held(&proxy) < LARGE as u64 / 4).then_some(()));
}

#[test]
fn those_that_hold_much_read_slowly_while_memory_is_scarce_and_nobody_is_cut() {
    let backend = Backend::start(|_| Reply::text("ok"));
    let proxy = proxy(backend.address(), true, "", "");
    let body = body();
    let begin = |length: usize, sent: usize| {
        let mut client = connect(&proxy);
        send(&mut client, length, &body[..sent]);
        client
    };
    let count = |name: &str| stat(&proxy, name).iter().sum::<u64>();
    let mut large = [(); 2].map(|()| begin(LARGE, LARGE - 1));
    eventually("both to be held", || (count("downstream_memory_bytes") >= 2 * LARGE as u64 - 2).then_some(()));
    let mut third = begin(MEDIUM, MEDIUM / 4 * 3);
    // What it holds is known after the turn in which that was read.
    eventually("the third to be under way", || (count("http.buffering.downstream_rq_active") == 3).then_some(()));
    let mut light = connect(&proxy);
    send(&mut light, 2, b"ab");
    assert_eq!(light.response().expect("an answer").status, 200);
    third.send(&body[MEDIUM / 4 * 3..MEDIUM - 1]).expect("it reads");
    eventually("the third to be held back", || (count("downstream_cx_memory_paused") > 0).then_some(()));
    // Those that hold little are served as ever.
    send(&mut light, 2, b"ab");
    assert_eq!(light.response().expect("an answer").status, 200);
    for (client, length) in large.iter_mut().map(|client| (client, LARGE)).chain([(&mut third, MEDIUM)]) {
        client.send(&body[length - 1..length]).expect("it reads");
        assert_eq!(client.response().expect("an answer").status, 200);
    }
    assert_eq!(count("downstream_cx_memory_cut"), 0);
    let whole = |length: usize| backend.requests().iter().filter(|request| request.body == body[..length]).count();
    assert_eq!((whole(LARGE), whole(MEDIUM)), (2, 1));
}
