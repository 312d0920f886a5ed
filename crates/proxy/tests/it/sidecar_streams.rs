//! One stream, or one peer, on the connections between sidecars does not affect the others: readers that are slow, clients
//! that disconnect, malicious peers, and more requests than a worker can serve.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Http2Frames as H2, eventually};
use futures_util::StreamExt as _;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Version};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::harness::{MeshTls, Proxy, stat};
use crate::sidecars::{Mesh, Raw, Setup, ask, channel, path};

/// What may lie between an application that sends and one that does not read: socket buffers of six sockets, windows of both
/// sidecars, the libraries' own.
const MOST_IN_BETWEEN: u64 = 64 << 20;

/// Waits until a count stands still.
fn stands_still(what: &str, count: impl Fn() -> u64) {
    stands_still_below(MOST_IN_BETWEEN, what, count);
}

fn stands_still_below(most: u64, what: &str, count: impl Fn() -> u64) {
    let (mut before, mut quiet) = (0, 0);
    eventually(what, || {
        let now = count();
        assert!(now < most, "{what}: {now} bytes are held");
        quiet = if now == before && now > 0 { quiet + 1 } else { 0 };
        before = now;
        (quiet > 20).then_some(())
    });
}

/// One worker each: whatever shares a protocol shares a connection.
fn narrow() -> Mesh {
    Mesh::new(&Setup { workers: (1, 1), ..Setup::default() })
}

/// Others are served, on the connection that the slow ones use.
fn others_are_served(mesh: &Mesh, version: Version) {
    let answers = mesh.run(ask(mesh.entry, version, 20));
    assert!(answers.iter().all(|answer| answer.contains(" app.test ")), "{answers:?}");
}

fn nothing_is_left(mesh: &Mesh, cut_off: usize) {
    eventually("the application to see the end", || {
        (mesh.app.cut_off.load(Ordering::Relaxed) == cut_off).then_some(())
    });
    nothing_is_in_flight(mesh);
}

fn nothing_is_in_flight(mesh: &Mesh) {
    for proxy in [&mesh.outbound, &mesh.inbound] {
        eventually("no request in flight", || {
            (stat(proxy, "cluster.next.upstream_rq_active").iter().sum::<u64>() == 0).then_some(())
        });
    }
}

/// Pieces without end, and how many bytes of them were taken.
fn endless() -> (impl futures_util::Stream<Item = Vec<u8>> + Send + 'static, Arc<AtomicU64>) {
    let taken = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&taken);
    let pieces = futures_util::stream::repeat(vec![b'y'; 10_000]).inspect(move |piece| {
        counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
    });
    (pieces, taken)
}

#[test]
fn grpc_streams_wait_for_slow_readers_alone() {
    let mesh = narrow();
    let client = mesh.run(async { tonic::client::Grpc::new(channel(mesh.entry).await) });
    let ready = async || {
        let mut client = client.clone();
        client.ready().await.expect("ready");
        client
    };

    // A client that does not read what its server streams.
    let slow = mesh.run(async {
        let request = tonic::Request::new(b"go".to_vec());
        ready().await.server_streaming(request, path("Endless"), Raw).await.expect("a stream").into_inner()
    });
    stands_still("the server to wait", || mesh.app.produced.load(Ordering::Relaxed));
    others_are_served(&mesh, Version::HTTP_2);
    drop(slow);
    nothing_is_left(&mesh, 1);

    // A server that does not read what its client streams.
    let (pieces, taken) = endless();
    let mut clients = mesh.run(ready());
    let call = mesh.runtime.spawn(async move {
        clients.client_streaming::<_, Vec<u8>, Vec<u8>, _>(tonic::Request::new(pieces), path("Unread"), Raw).await
    });
    stands_still("the client to wait", || taken.load(Ordering::Relaxed));
    others_are_served(&mesh, Version::HTTP_2);
    call.abort();
    nothing_is_left(&mesh, 2);
    assert_eq!(mesh.connections(), (1, 0), "all shared one connection");
}

#[test]
fn http1_clients_wait_for_slow_readers_alone() {
    let mesh = narrow();
    // One that does not read its answer.
    let mut slow = Connection::open(mesh.entry).expect("it accepts");
    slow.send("GET /endless HTTP/1.1\r\nhost: app.test\r\n\r\n").expect("it reads");
    stands_still("the server to wait", || mesh.app.produced.load(Ordering::Relaxed));
    others_are_served(&mesh, Version::HTTP_11);
    // One whose server does not read its request.
    let mut stuck = Connection::socket(mesh.entry).expect("it accepts");
    stuck.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    stuck
        .write_all(b"POST /unread HTTP/1.1\r\nhost: app.test\r\ncontent-length: 1000000000\r\n\r\n")
        .expect("it reads");
    let block = vec![b'z'; 100_000];
    let mut sent = 0;
    while let Ok(count) = stuck.write(&block) {
        sent += count as u64;
        assert!(sent < MOST_IN_BETWEEN, "{sent} bytes are held");
    }
    others_are_served(&mesh, Version::HTTP_11);
    assert_eq!(mesh.connections(), (1, 0), "all shared one connection");
}

/// One client of HTTP/2 that asks for much and takes nothing of it, on streams without a window, and many of HTTP/1 that do not read:
/// what they leave unread on the connection between the sidecars is not what everybody else is short of.
#[test]
fn hundreds_of_readers_that_stall_stall_nobody_else() {
    const STREAMS: u32 = 200;
    const CLIENTS: usize = 60;
    let mesh = narrow();
    let mut streams = H2::open(mesh.entry).expect("it accepts");
    streams.frame(H2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).expect("it reads");
    for number in 0..STREAMS {
        let fields = GET.map(|field| if field.0 == ":path" { (":path", "/endless") } else { field });
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| H2::field(name, value)).collect();
        streams.frame(H2::HEADERS, H2::END_HEADERS | H2::END_STREAM, 2 * number + 1, &block).expect("it reads");
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Connection::open(mesh.entry).expect("it accepts");
            client.send("GET /endless HTTP/1.1\r\nhost: app.test\r\n\r\n").expect("it reads");
            client
        })
        .collect();
    let most = (u64::from(STREAMS) + CLIENTS as u64) * MOST_IN_BETWEEN;
    stands_still_below(most, "all of them to stall", || mesh.app.produced.load(Ordering::Relaxed));
    for version in [Version::HTTP_2, Version::HTTP_11] {
        others_are_served(&mesh, version);
    }
    // Those who stall are there all the while, and hold no more than they may.
    let active = || stat(&mesh.outbound, "http.outbound.downstream_rq_active").iter().sum::<u64>();
    // Of those who were served, the last may be counted for a moment longer.
    eventually("only they", || (active() == u64::from(STREAMS) + CLIENTS as u64).then_some(()));
    let (shared, single) = mesh.connections();
    assert!(shared <= 2 * 8 + 2 && single == 0, "{shared} shared connections, {single} others");
    drop((streams, clients));
    nothing_is_left(&mesh, STREAMS as usize + CLIENTS);
    others_are_served(&mesh, Version::HTTP_2);
}

/// The same in the other direction: an application that does not read what it is sent.
#[test]
fn uploads_that_nobody_reads_stall_nobody_else() {
    const CLIENTS: usize = 40;
    let mesh = narrow();
    let entry = mesh.entry;
    let stuck: Vec<_> = (0..CLIENTS)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = Connection::socket(entry).expect("it accepts");
                client.set_write_timeout(Some(Duration::from_secs(1))).expect("a socket");
                let head = b"POST /unread HTTP/1.1\r\nhost: app.test\r\ncontent-length: 1000000000\r\n\r\n";
                client.write_all(head).expect("it reads");
                let block = vec![b'z'; 100_000];
                while client.write(&block).is_ok() {}
                client
            })
        })
        .collect();
    let stuck: Vec<_> = stuck.into_iter().map(|client| client.join().expect("no panic")).collect();
    for version in [Version::HTTP_2, Version::HTTP_11] {
        others_are_served(&mesh, version);
    }
    drop(stuck);
    nothing_is_in_flight(&mesh);
}

// Peers that mean harm ------------------------------------------------------------------------------------------------------

/// What is agreed on between sidecars alone is agreed on with nobody else, though it has a certificate.
#[test]
fn gateways_do_not_take_their_clients_for_sidecars() {
    for listener in ["", "traffic_direction: OUTBOUND"] {
        let mesh = Mesh::new(&Setup { listener, ..Setup::default() });
        let mut client = as_sidecar(&mesh.tls, mesh.inbound.listener("inbound")).expect("a handshake");
        // Nothing was agreed on, so that its first bytes say what it speaks: frames are HTTP/2 as anybody's.
        assert_eq!(client.get("a", "/", "").expect("HTTP/1.1").status, 200, "{listener}");
    }
}

/// Speaks as a sidecar does whose applications speak HTTP/1.1.
fn as_sidecar(tls: &MeshTls, address: SocketAddr) -> std::io::Result<Connection> {
    let alpn = &["evenkeel-h2-http/1.1", "istio-http/1.1"];
    let (server_name, identity) = (MeshTls::SERVER_NAME, Some(&tls.client));
    TlsClient { server_name, root_pem: tls.ca.root_pem(), identity, alpn }.open(address)
}

fn attack(mesh: &Mesh) -> H2 {
    let connection = as_sidecar(&mesh.tls, mesh.inbound.listener("inbound")).expect("a handshake");
    let mut client = H2::over(connection).expect("it reads");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    client
}

fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| H2::field(name, value)).collect();
    H2::bytes(H2::HEADERS, H2::END_HEADERS | H2::END_STREAM, 1, &block)
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];

/// GET with a pseudo-header field that says something else.
fn instead(name: &str, value: &str) -> Vec<u8> {
    head(&GET.map(|field| if field.0 == name { (field.0, value) } else { field }))
}

fn with(name: &str, value: &str) -> Vec<u8> {
    head(&[&GET[..], &[(name, value)]].concat())
}

#[test]
fn a_peer_cannot_smuggle_into_the_http1_that_its_requests_become() {
    let mesh = Mesh::new(&Setup::default());
    let smuggled = "/ HTTP/1.1\r\nhost: a\r\n\r\nGET /smuggled";
    for (what, frames) in [
        ("a path with lines", instead(":path", smuggled)),
        ("a path with a blank", instead(":path", "/a HTTP/1.1")),
        ("a method with lines", instead(":method", "GET / HTTP/1.1\r\nx")),
        ("an authority with lines", instead(":authority", "a\r\nx: y")),
        ("an authority with a user", instead(":authority", "u@a")),
        ("a value with lines", with("x-a", "b\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("a value with LF", with("x-a", "b\ntransfer-encoding: chunked")),
        ("a value with NUL", with("x-a", "b\0")),
        ("a name with a colon", with("x: y", "z")),
        ("a name with lines", with("x\r\ny", "z")),
        ("a name with a blank", with("content-length ", "5")),
        ("transfer-encoding", with("transfer-encoding", "chunked")),
        ("connection", with("connection", "x-a")),
        ("upgrade", with("upgrade", "h2c")),
        ("keep-alive", with("keep-alive", "timeout=1")),
        ("another host", with("host", "b")),
        ("a length without a body", with("content-length", "5")),
        ("a length with a sign", with("content-length", "+0")),
        ("two lengths", head(&[&GET[..], &[("content-length", "0"), ("content-length", "0")]].concat())),
    ] {
        let mut client = attack(&mesh);
        client.send(&frames).expect("it reads");
        let answered = loop {
            match client.next_frame() {
                Ok(Some(frame)) if frame.kind == H2::HEADERS => break true,
                Ok(Some(frame)) if frame.kind == H2::RST_STREAM => break false,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break false,
            }
        };
        assert!(!answered, "{what}: answered");
        assert_eq!(mesh.app.requests.load(Ordering::Relaxed), 0, "{what}: reached the application");
    }
    others_are_served(&mesh, Version::HTTP_11);
}

#[test]
fn a_peer_that_floods_loses_its_connection_and_no_other() {
    let mesh = Mesh::new(&Setup::default());
    others_are_served(&mesh, Version::HTTP_11);
    let resets: Vec<u8> = (0..2000)
        .map(|number| 2 * number + 1)
        .flat_map(|stream| [H2::get_bytes(stream), H2::bytes(H2::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat())
        .collect();
    let half = H2::bytes(H2::HEADERS, H2::END_STREAM, 1, &[0x82]);
    let endless = [half, H2::bytes(H2::CONTINUATION, 0, 1, &[0; 8000]).repeat(100)].concat();
    for (what, frames) in [("rapid reset", resets), ("a head without an end", endless)] {
        let mut client = attack(&mesh);
        // It may be cut off before all is sent.
        let _ = client.send(&frames);
        let codes = client.end().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(codes.is_empty() || codes == [11], "{what}: {codes:?}");
        others_are_served(&mesh, Version::HTTP_11);
    }
    assert_eq!(mesh.connections().1, 0, "the others still share theirs");
    assert_eq!(stat(&mesh.outbound, "cluster.next.upstream_rq_rx_reset").iter().sum::<u64>(), 0);
}

#[test]
fn a_peer_is_who_its_certificate_says_on_every_stream() {
    let mesh = Mesh::new(&Setup::default());
    let mut client = attack(&mesh);
    let forged = [("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/default/sa/admin")];
    let fields = GET.map(|field| if field.0 == ":path" { (":path", "/headers") } else { field });
    client.send(&head(&[&fields[..], &forged].concat())).expect("it reads");
    let text = loop {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        if frame.kind == H2::DATA {
            break String::from_utf8_lossy(&frame.payload).into_owned();
        }
    };
    assert!(text.contains("host") && !text.contains("sa/admin"), "{text}");
    // Without a certificate there is no connection.
    let nobody = TlsClient {
        server_name: MeshTls::SERVER_NAME,
        root_pem: mesh.tls.ca.root_pem(),
        identity: None,
        alpn: &["evenkeel-h2-http/1.1"],
    };
    let opened = nobody.open(mesh.inbound.listener("inbound")).and_then(H2::over).and_then(|mut client| {
        client.frame(H2::SETTINGS, 0, 0, b"")?;
        client.get()?;
        client.next_frame()
    });
    assert!(!matches!(opened, Ok(Some(_))), "{opened:?}");
}

// Balance -------------------------------------------------------------------------------------------------------------------

/// Streams of one connection go to the workers of the receiver, for a sender with one worker has one connection.
#[test]
fn a_receivers_workers_share_what_comes_on_one_connection() {
    const WORKERS: usize = 3;
    const CLIENTS: usize = 48;
    // What the inbound sidecar does for a request is so much that one of its workers cannot keep up.
    let dear = "{match: {safe_regex: {regex: \"/([a-z]+|[b-y]*)*(x|y)+never\"}}, route: {cluster: next}}, ".repeat(200);
    let mesh = Mesh::new(&Setup { workers: (WORKERS, 1), routes: dear, ..Setup::default() });
    let stop = Arc::new(AtomicBool::new(false));
    let load = mesh.runtime.spawn({
        let (stop, entry) = (Arc::clone(&stop), mesh.entry);
        async move {
            let mut clients = JoinSet::new();
            for _ in 0..CLIENTS {
                let stop = Arc::clone(&stop);
                clients.spawn(async move { ask_until(entry, &stop).await });
            }
            while let Some(ended) = clients.join_next().await {
                ended.expect("no request lost");
            }
        }
    });
    eventually("every worker of the receiver to serve streams of one connection", || {
        assert!(!load.is_finished(), "a client has failed");
        let served = per_worker(&mesh.inbound, WORKERS);
        served.iter().all(|served| *served >= 50).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    mesh.run(load).expect("no request lost");
    assert_eq!(mesh.connections(), (1, 0));
    assert_eq!(stat(&mesh.inbound, "http.inbound.downstream_cx_total"), [1]);
}

fn per_worker(proxy: &Proxy, workers: usize) -> Vec<u64> {
    let of = |worker| stat(proxy, &format!("workers.worker_{worker}.downstream_rq_total")).iter().sum();
    (0..workers).map(of).collect()
}

/// Asks over one connection in HTTP/1.1, again and again, with a path that is long to look at.
async fn ask_until(entry: SocketAddr, stop: &AtomicBool) {
    let stream = TokioIo::new(TcpStream::connect(entry).await.expect("it accepts"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("a connection");
    tokio::spawn(connection);
    while !stop.load(Ordering::Relaxed) {
        let body =
            StreamBody::new(futures_util::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from("12345")))]));
        let request = Request::post(format!("/{}", "abcdefgh".repeat(20))).header("host", "app.test").body(body);
        let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
        let text = answer.into_body().collect().await.expect("a whole answer").to_bytes();
        assert_eq!(text, "HTTP/1.1 app.test 5");
    }
}
