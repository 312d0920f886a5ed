//! The memory of slow clients: heads that never end, bodies that trickle, responses that nobody reads. Hundreds of each are
//! open at once, and every one has a named bound.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Http2Frames, TestCa, eventually};

use crate::counting::Retained;
use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};
use crate::{alone, mutual_tls};

/// Bytes of a head that is not complete, and what its connection may hold: its state, the request's, and what was read.
const SHORT_HEAD_BYTES: usize = 4 * 1024;
const LONG_HEAD_LENGTH: usize = 4 * 1024;
const LONG_HEAD_BYTES: usize = SHORT_HEAD_BYTES + LONG_HEAD_LENGTH;
/// A ClientHello that is not complete.
const CLIENT_HELLO_BYTES: usize = 4 * 1024;
/// A request whose body trickles, with its connection upstream.
const SLOW_BODY_BYTES: usize = 8 * 1024;
/// An answer that is not read: a block read from upstream, a block to be written, and what is known of both sides. TLS holds records
/// besides.
const UNREAD_BYTES: usize = (32 + 32 + 8) * 1024;
const UNREAD_TLS_BYTES: usize = UNREAD_BYTES + 32 * 1024;

/// A stream between its request and its answer, with its connection upstream.
const IDLE_STREAM_BYTES: usize = 8 * 1024;

/// Streams of one connection.
const STREAMS: usize = 80;
/// Connections whose kernel buffers are filled: megabytes each.
const FEW: usize = 12;
/// A server that could write nothing for so long is held back.
const FULL_AFTER: Duration = Duration::from_millis(50);
/// More than all of the kernel's buffers between a server and a client.
const ENDLESS: usize = 64 << 20;

const ROUTES: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: server}}]}]}";

/// A server whose connections the test holds. It reads nothing by itself.
struct Server {
    listener: TcpListener,
    accepted: RefCell<Vec<TcpStream>>,
}

impl Server {
    fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").expect("a free port"), accepted: RefCell::default() }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    /// Takes a request's head, up to its empty line.
    fn take_request(&self) -> TcpStream {
        let (mut stream, _) = self.listener.accept().expect("the proxy connects");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the proxy writes");
            head.push(byte[0]);
        }
        stream
    }

    fn keep(&self, stream: TcpStream) {
        self.accepted.borrow_mut().push(stream);
    }
}

fn start(server: SocketAddr, tls: &str) -> (Proxy, SocketAddr) {
    let bootstrap = static_bootstrap(&http_listener("http", ROUTES, tls), &[static_cluster("server", server, "")]);
    let proxy = Proxy::start_with(&bootstrap, 1);
    proxy.wait_live();
    let address = proxy.listener("http");
    (proxy, address)
}

/// Waits until the proxy has so many connections on its listener.
fn settle(proxy: &Proxy, stat_name: &str, count: usize) {
    eventually("all connections to be counted", || (stat(proxy, stat_name) == [count as u64]).then_some(()));
}

/// Opens connections and sends the bytes in so many pieces, each of which the proxy has to look at.
fn send_in_pieces(address: SocketAddr, bytes: &[u8], pieces: usize) -> TcpStream {
    let mut socket = Connection::socket(address).expect("it accepts");
    for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
        socket.write_all(piece).expect("the proxy reads");
    }
    socket
}

#[test]
fn heads_that_never_end_hold_little() {
    let _alone = alone();
    let server = Server::start();
    let (proxy, address) = start(server.address(), "");
    let active = |count| settle(&proxy, "http.http.downstream_cx_active", count);
    let short = b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: ";
    Retained::measure(|| send_in_pieces(address, short, 8), active).check("the beginning of a head", SHORT_HEAD_BYTES);
    drop(proxy);

    let (proxy, address) = start(server.address(), "");
    let active = |count| settle(&proxy, "http.http.downstream_cx_active", count);
    let long = [&short[..], &[b'a'; LONG_HEAD_LENGTH]].concat();
    Retained::measure(|| send_in_pieces(address, &long, 64), active).check("4 KiB of a head", LONG_HEAD_BYTES);
}

#[test]
fn handshakes_that_never_end_hold_little() {
    let _alone = alone();
    let ca = TestCa::new();
    let identity = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/server");
    let (proxy, address) = start(([127, 0, 0, 1], 9).into(), &mutual_tls(&ca, &identity));
    let hello = TlsClient { server_name: "a.test", root_pem: ca.root_pem(), ..TlsClient::default() }.client_hello();
    let half = &hello[..hello.len() / 2];
    // Until the handshake is done only the listener knows of a connection.
    let active = |count| {
        eventually("all connections to be counted", || {
            let text = proxy.get("/stats").text();
            text.lines()
                .any(|line| {
                    line.starts_with("listener.")
                        && !line.contains("worker_")
                        && line.ends_with(&format!("downstream_cx_active: {count}"))
                })
                .then_some(())
        });
    };
    Retained::measure(|| send_in_pieces(address, half, 4), active).check("half a ClientHello", CLIENT_HELLO_BYTES);
}

#[test]
fn bodies_that_trickle_hold_little() {
    let _alone = alone();
    let server = Server::start();
    let (proxy, address) = start(server.address(), "");
    let open = || {
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nslow";
        let mut socket = send_in_pieces(address, head, 1);
        let mut upstream = server.take_request();
        upstream.read_exact(&mut [0; 4]).expect("the proxy passes on what there is");
        socket.write_all(b"ly").expect("the proxy reads");
        upstream.read_exact(&mut [0; 2]).expect("the proxy passes on what there is");
        server.keep(upstream);
        socket
    };
    Retained::measure(open, |_| ()).check("a body that trickles", SLOW_BODY_BYTES);
    drop(proxy);
}

/// Has the server write until nobody takes any more: the proxy holds what it ever will.
fn fill(upstream: &mut TcpStream) {
    upstream.set_write_timeout(Some(FULL_AFTER)).expect("a timeout");
    let block = [b'x'; 64 * 1024];
    let mut sent = 0;
    while sent < ENDLESS {
        match upstream.write(&block) {
            Ok(count) => sent += count,
            Err(_) => return,
        }
    }
    panic!("the proxy took {sent} bytes that nobody reads");
}

#[test]
fn answers_that_nobody_reads_hold_two_blocks() {
    let _alone = alone();
    let server = Server::start();
    let answer = |head: &str| {
        let mut upstream = server.take_request();
        upstream.write_all(head.as_bytes()).expect("the proxy reads");
        fill(&mut upstream);
        server.keep(upstream);
    };
    let length = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 2 * ENDLESS);
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    for (what, head) in [("an unread answer", &*length), ("an unread answer in chunks", "HTTP/1.1 200 OK\r\n\r\n")] {
        let (proxy, address) = start(server.address(), "");
        let open = || {
            let socket = send_in_pieces(address, request, 1);
            answer(head);
            socket
        };
        Retained::measure_many(FEW, open, |_| ()).check(what, UNREAD_BYTES);
        server.accepted.borrow_mut().clear();
        drop(proxy);
    }

    let ca = TestCa::new();
    let identity = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/server");
    let client = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/client");
    let (proxy, address) = start(server.address(), &mutual_tls(&ca, &identity));
    let tls = TlsClient { identity: Some(&client), ..TlsClient::default() };
    let open = || {
        let asked = |stream: &mut _| Write::write_all(stream, request).expect("the proxy reads");
        let socket = tls.open_unverified(address, asked).expect("a handshake");
        answer(&length);
        socket
    };
    Retained::measure_many(FEW, open, |_| ()).check("an unread answer over TLS", UNREAD_TLS_BYTES);
    server.accepted.borrow_mut().clear();
    drop(proxy);
}

/// An HTTP/2 client that gives no window for answers: `SETTINGS_INITIAL_WINDOW_SIZE` is 0 (RFC 9113 section 6.5.2).
fn no_window(address: SocketAddr) -> Http2Frames {
    let mut client = Http2Frames::open(address).expect("it accepts");
    client.frame(Http2Frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).expect("the proxy reads");
    client
}

#[test]
fn http2_streams_hold_little_until_they_are_answered_and_two_blocks_when_that_is_not_read() {
    let _alone = alone();
    let server = Server::start();
    let (proxy, address) = start(server.address(), "");
    let client = RefCell::new(no_window(address));
    let open = || {
        client.borrow_mut().get().expect("the proxy reads");
        server.keep(server.take_request());
    };
    Retained::measure_many(STREAMS, open, |_| ()).check("an HTTP/2 stream that waits", IDLE_STREAM_BYTES);
    server.accepted.borrow_mut().clear();
    drop(proxy);

    let (proxy, address) = start(server.address(), "");
    let client = RefCell::new(no_window(address));
    let open = || {
        client.borrow_mut().get().expect("the proxy reads");
        let mut upstream = server.take_request();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 2 * ENDLESS);
        upstream.write_all(head.as_bytes()).expect("the proxy reads");
        fill(&mut upstream);
        server.keep(upstream);
    };
    Retained::measure_many(FEW, open, |_| ()).check("an HTTP/2 stream whose answer has no window", UNREAD_BYTES);
    server.accepted.borrow_mut().clear();
    drop(proxy);
}
