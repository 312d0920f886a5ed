//! Mirrored requests and their originals, which do not wait for them: a mirror that is slow, does not read, or is gone; a
//! client that is gone; bodies and trailers. The contents of mirrored requests are compared with Envoy elsewhere.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Backend, Connection, Reply, eventually};

use crate::harness::{Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// A server that keeps connections without reading from them, or reads all that comes until their ends, or until [`LAST`].
struct Raw {
    address: SocketAddr,
    /// What came on a connection.
    received: Receiver<Vec<u8>>,
}

const LAST: &[u8] = b"x-sum: 8\r\n\r\n";

impl Raw {
    fn start(reads: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (sender, received) = channel();
        std::thread::spawn(move || {
            let mut kept: Vec<TcpStream> = Vec::new();
            for mut socket in listener.incoming().flatten() {
                let mut bytes = Vec::new();
                if reads {
                    let mut chunk = [0; 4096];
                    // A reset is an end as well.
                    while let Ok(count @ 1..) = socket.read(&mut chunk) {
                        bytes.extend_from_slice(&chunk[..count]);
                        if bytes.ends_with(LAST) {
                            break;
                        }
                    }
                } else {
                    kept.push(socket);
                }
                if sender.send(bytes).is_err() {
                    return;
                }
            }
        });
        Self { address, received }
    }
}

fn proxy(main: SocketAddr, mirror: SocketAddr) -> (Proxy, SocketAddr) {
    proxy_with(main, mirror, "30s", "")
}

/// `options`: more fields of the mirror's cluster.
fn proxy_with(main: SocketAddr, mirror: SocketAddr, timeout: &str, options: &str) -> (Proxy, SocketAddr) {
    let trailers = protocol("explicit_http_config: {http_protocol_options: {enable_trailers: true}}");
    let clusters =
        [static_cluster("main", main, &trailers), static_cluster("mirror", mirror, &format!("{trailers}, {options}"))];
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, route: \
                  {cluster: main, timeout: 30s, request_mirror_policies: [{cluster: mirror}]}}]}]}\n      http_protocol_options: \
                  {enable_trailers: true}";
    let routes = routes.replace("30s", timeout);
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", &routes, ""), &clusters), 1);
    proxy.wait_live();
    let web = proxy.listener("web");
    (proxy, web)
}

fn wait_stat(proxy: &Proxy, name: &str, value: u64) {
    eventually(&format!("{name} = {value}"), || (stat(proxy, name) == [value]).then_some(()));
}

#[test]
fn a_mirror_that_does_not_read_is_cut() {
    let (main, mirror) = (Backend::start(|request| Reply::text(request.body.len().to_string())), Raw::start(false));
    let (proxy, web) = proxy(main.address(), mirror.address);
    const BYTES: usize = 32 * 1024 * 1024;
    let mut client = Connection::open(web).expect("it accepts");
    client.send(format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {BYTES}\r\n\r\n")).expect("it reads");
    client.send(vec![b'x'; BYTES]).expect("it reads all of it");
    assert_eq!(client.response().expect("an answer").text(), BYTES.to_string());
    wait_stat(&proxy, "cluster.main.retry_or_shadow_abandoned", 1);
    wait_stat(&proxy, "cluster.mirror.upstream_rq_active", 0);
    wait_stat(&proxy, "cluster.mirror.upstream_cx_active", 0);
}

/// What the mirrors of a worker hold is bounded, and a mirror that hangs does not stay when its original is over: not even with Istio's
/// default of no timeout.
#[test]
fn mirrors_that_do_not_read_hold_little_and_end() {
    let (main, mirror) = (Backend::start(|request| Reply::text(request.body.len().to_string())), Raw::start(false));
    // Otherwise the kernel takes them: SO_SNDBUF.
    let small = "upstream_bind_config: {socket_options: [{level: 1, name: 7, int_value: 8192, state: STATE_PREBIND}]}";
    let (proxy, web) = proxy_with(main.address(), mirror.address, "0s", small);
    const BYTES: usize = 1_000_000;
    let mut client = Connection::open(web).expect("it accepts");
    for number in 0..60 {
        client.send(format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {BYTES}\r\n\r\n")).expect("it reads");
        client.send(vec![b'x'; BYTES]).expect("it reads all of it");
        assert_eq!(client.response().expect("an answer").text(), BYTES.to_string());
        assert!(
            number != 5 || stat(&proxy, "cluster.main.retry_or_shadow_abandoned") == [0],
            "each alone is not too large"
        );
    }
    assert!(stat(&proxy, "cluster.main.retry_or_shadow_abandoned")[0] > 0, "nothing bounds what they hold");
    wait_stat(&proxy, "cluster.mirror.upstream_rq_active", 0);
    wait_stat(&proxy, "cluster.mirror.upstream_cx_active", 0);
}

/// However fast the body comes.
#[test]
fn a_mirror_that_reads_gets_all_of_a_large_body() {
    let [main, mirror] = [0, 1].map(|_| Backend::start(|request| Reply::text(request.body.len().to_string())));
    let (proxy, web) = proxy(main.address(), mirror.address());
    const BYTES: usize = 32 * 1024 * 1024;
    let mut client = Connection::open(web).expect("it accepts");
    client.send(format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {BYTES}\r\n\r\n")).expect("it reads");
    // At the pace of a network, which is slower than that of a reader.
    for piece in vec![b'x'; BYTES].chunks(256 * 1024) {
        client.send(piece).expect("it reads all of it");
        #[allow(clippy::disallowed_methods, reason = "the pace of a network")]
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.response().expect("an answer").text(), BYTES.to_string());
    wait_stat(&proxy, "cluster.mirror.upstream_rq_2xx", 1);
    assert_eq!(mirror.requests()[0].body.len(), BYTES);
    assert_eq!(stat(&proxy, "cluster.main.retry_or_shadow_abandoned"), [0]);
}

#[test]
fn a_slow_mirror_delays_nobody_and_its_connection_is_kept() {
    let late = Duration::from_millis(700);
    let main = Backend::start(|_| Reply::text("main"));
    let mirror = Backend::start(move |_| Reply::After(late, Box::new(Reply::text("mirror"))));
    let (proxy, web) = proxy(main.address(), mirror.address());
    let mut client = Connection::open(web).expect("it accepts");
    let begun = Instant::now();
    assert_eq!(client.get("test", "/one", "").expect("an answer").text(), "main");
    assert!(begun.elapsed() < late, "the answer waits for the mirror");
    drop(client);
    wait_stat(&proxy, "cluster.mirror.upstream_rq_2xx", 1);
    let mut client = Connection::open(web).expect("it accepts");
    assert_eq!(client.get("test", "/two", "").expect("an answer").text(), "main");
    wait_stat(&proxy, "cluster.mirror.upstream_rq_2xx", 2);
    assert_eq!(stat(&proxy, "cluster.mirror.upstream_cx_total"), [1]);
}

#[test]
fn a_request_that_breaks_off_takes_its_copy_with_it() {
    let (main, mirror) = (Raw::start(true), Raw::start(true));
    let (proxy, web) = proxy(main.address, mirror.address);
    let mut client = Connection::open(web).expect("it accepts");
    client.send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nhello").expect("it reads");
    eventually("the copy", || (stat(&proxy, "cluster.mirror.upstream_rq_active") == [1]).then_some(()));
    drop(client);
    let received = mirror.received.recv_timeout(PATIENCE).expect("the copy ends with the original");
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(received.contains("\r\nhost: test-shadow\r\n") && received.ends_with("\r\n\r\nhello"), "{received}");
    wait_stat(&proxy, "cluster.mirror.upstream_rq_active", 0);
}

#[test]
fn trailers_are_mirrored() {
    let (main, mirror) = (Backend::start(|_| Reply::text("main")), Raw::start(true));
    let (_proxy, web) = proxy(main.address(), mirror.address);
    let mut client = Connection::open(web).expect("it accepts");
    client.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").expect("it reads");
    client.send("3\r\nyou\r\n0\r\nx-sum: 8\r\n\r\n").expect("it reads");
    assert_eq!(client.response().expect("an answer").text(), "main");
    drop(client);
    let received = mirror.received.recv_timeout(PATIENCE).expect("the copy is whole, though its original is over");
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(received.ends_with("you\r\n0\r\nx-sum: 8\r\n\r\n"), "{received}");
}
