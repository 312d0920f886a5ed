//! A filter that hands pieces of bodies away and gets others back later, while more of the body is read: as filters do that ask another
//! service about each piece. It does what `x-up` says to requests and what `x-down` says to responses.

use std::any::Any;
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_filters::test_filter::{CustomFilter, State, register};
use evenkeel_filters::{BadBody, Data, Decision, Flow, MAX_HELD_BYTES, Pause, RequestContext};
use evenkeel_testkit::{Backend, Reply, eventually};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;

use crate::harness::{Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// How long the other service takes for a piece.
const ANSWER: Duration = Duration::from_millis(20);
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

/// The pieces of one direction that are away.
struct Away {
    what: String,
    /// Each with the time at which it comes back.
    pieces: VecDeque<(Instant, Vec<u8>)>,
    ended: bool,
}

impl Away {
    fn new(what: &[u8]) -> Self {
        Self { what: String::from_utf8_lossy(what).into_owned(), pieces: VecDeque::new(), ended: false }
    }

    fn held(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| piece.len()).sum()
    }

    /// What the other service makes of a piece.
    fn answer(&self, piece: Vec<u8>) -> Vec<u8> {
        match self.what.as_str() {
            "upper" | "whole" => piece.to_ascii_uppercase(),
            "drop" => Vec::new(),
            "inject" => [b"+".as_slice(), &piece].concat(),
            _ => piece,
        }
    }

    /// Takes a piece, and releases those that have come back.
    fn pass(&mut self, data: &mut Data<'_>) -> Flow {
        let piece = std::mem::replace(&mut data.bytes, b"".into()).into_owned();
        let wait = if self.what == "never" { LONG } else { ANSWER };
        // Each half is an answer of its own.
        let half = if self.what == "split" { piece.len() / 2 } else { 0 };
        let (first, second) = piece.split_at(half);
        for (part, times) in [(first, 1), (second, 2)].into_iter().filter(|(part, _)| !part.is_empty()) {
            self.pieces.push_back((data.now + wait * times, part.to_vec()));
        }
        self.ended |= std::mem::take(&mut data.ends);
        let mut released = Vec::new();
        let now = data.now;
        let may_release = self.what != "whole" || self.ended;
        while let Some((_, piece)) = self.pieces.pop_front_if(|(back, _)| may_release && *back <= now) {
            released.extend(self.answer(piece));
        }
        data.bytes = released.into();
        match self.pieces.front() {
            None => {
                data.ends = self.ended;
                Flow::Continue
            }
            Some((back, _)) => Flow::Pause(Pause::for_time(back.saturating_duration_since(now)).holding(self.held())),
        }
    }
}

/// The filter; counts the bytes of requests that it has seen.
struct Courier {
    seen: Arc<AtomicUsize>,
}

/// Of one request: both directions.
struct Parcels {
    up: Away,
    down: Away,
    asked: bool,
}

impl Parcels {
    fn of(state: &mut State) -> Option<&mut Self> {
        state.as_mut()?.downcast_mut()
    }
}

impl CustomFilter for Courier {
    fn request_head(&self, state: &mut State, context: &mut RequestContext<'_>) -> Decision {
        let what = |name: &[u8]| Away::new(context.head.headers.find(name).unwrap_or_default());
        let parcels: Box<dyn Any> = Box::new(Parcels { up: what(b"x-up"), down: what(b"x-down"), asked: false });
        *state = Some(parcels);
        Decision::Continue
    }

    fn request_data(&self, state: &mut State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        self.seen.fetch_add(data.bytes.len(), Ordering::Relaxed);
        let Some(parcels) = Parcels::of(state) else { return Ok(Flow::Continue) };
        if parcels.up.what != "silent" {
            return Ok(parcels.up.pass(data));
        }
        // Nobody answers in time.
        data.bytes = b"".into();
        if std::mem::replace(&mut parcels.asked, true) && !data.ends {
            return Err(BadBody { status: 504, body: "nobody answers", details: "courier_timeout" });
        }
        data.ends = false;
        Ok(Flow::Pause(Pause::for_time(ANSWER)))
    }

    fn response_data(&self, state: &mut State, data: &mut Data<'_>) -> Flow {
        Parcels::of(state).map_or(Flow::Continue, |parcels| parcels.down.pass(data))
    }
}

/// A body in pieces that arrive one by one.
struct Pieces {
    rest: VecDeque<Frame<Bytes>>,
    yielded: bool,
}

impl Pieces {
    fn new(pieces: &[&str], trailer: bool) -> Self {
        let mut rest: VecDeque<_> =
            pieces.iter().map(|piece| Frame::data(Bytes::copy_from_slice(piece.as_bytes()))).collect();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", "up".parse().expect("a value"));
        rest.extend(trailer.then(|| Frame::trailers(trailers)));
        Self { rest, yielded: false }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.yielded = !self.yielded;
        if self.yielded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.rest.pop_front().map(Ok))
    }
}

/// A proxy with the filter, in front of a server that returns bodies.
struct Scene {
    proxy: Proxy,
    web: SocketAddr,
    seen: Arc<AtomicUsize>,
    _inner: Proxy,
    server: Backend,
    runtime: Runtime,
}

const BUFFER: &str = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";

fn routes(cluster: &str) -> String {
    format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /, headers: \
         [{{name: x-h2, present_match: true}}]}}, route: {{cluster: a2}}}}, {{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]}}"
    )
}

impl Scene {
    fn new(name: &str) -> Self {
        let seen = Arc::default();
        register(name, Courier { seen: Arc::clone(&seen) });
        let server = Backend::start(|request| {
            let (first, second) = request.body.split_at(request.body.len() / 2);
            match request.target.as_str() {
                "/broken" => Reply::Raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n".to_vec()),
                "/trailed" => {
                    Reply::Trailed(vec![], request.body.clone(), vec![("x-end".to_owned(), "down".to_owned())])
                }
                _ => Reply::Chunked(200, vec![], vec![first.to_vec(), second.to_vec()]),
            }
        });
        let h2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
        let with_trailers = protocol("explicit_http_config: {http_protocol_options: {enable_trailers: true}}");
        let a = || static_cluster("a", server.address(), &with_trailers);
        let inner = {
            let a2 = static_cluster("a2", server.address(), &with_trailers);
            Proxy::start_with(&static_bootstrap(&http_listener(&format!("{name}-in"), &routes("a"), ""), &[a(), a2]), 1)
        };
        let filter = format!(
            "http_filters:\n      - {{name: {name}, typed_config: {{\"@type\": {BUFFER}, max_request_bytes: 1}}}}\n"
        );
        let listener = http_listener(name, &routes("a"), "").replacen("http_filters:\n", &filter, 1);
        let clusters = [a(), static_cluster("a2", inner.listener(&format!("{name}-in")), &h2)];
        let proxy = Proxy::start_with(&static_bootstrap(&listener, &clusters), 1);
        proxy.wait_live();
        let web = proxy.listener(name);
        Self { proxy, web, seen, _inner: inner, server, runtime: Runtime::new().expect("threads") }
    }

    /// The status, the body and the trailer `x-end` of the response; an error if it is cut off.
    fn ask(
        &self,
        http2: bool,
        path: &str,
        headers: &[(&str, &str)],
        body: Pieces,
    ) -> hyper::Result<(u16, String, String)> {
        let mut request = Request::post(if http2 { format!("http://test{path}") } else { path.to_owned() });
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !http2 {
            request = request.header("host", "test").header("te", "trailers");
        }
        let request = request.body(body).expect("a request");
        self.runtime.block_on(async {
            let io = TokioIo::new(tokio::net::TcpStream::connect(self.web).await.expect("it accepts"));
            let response = if http2 {
                let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            } else {
                let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            };
            let status = response.status().as_u16();
            let collected = response.into_body().collect().await?;
            let end = collected.trailers().and_then(|trailers| trailers.get("x-end"));
            let end = end.map(|value| value.to_str().expect("text").to_owned()).unwrap_or_default();
            Ok((status, String::from_utf8_lossy(&collected.to_bytes()).into_owned(), end))
        })
    }
}

#[test]
fn pieces_that_are_away_come_back_in_order_and_changed() {
    let scene = Scene::new("courier");
    for (http2, h2) in [(false, false), (false, true), (true, false), (true, true)] {
        for (name, what, expected) in [
            ("x-up", "upper", "ABCDEF"),
            // All pieces are away before the first comes back: the rest is read meanwhile.
            ("x-up", "whole", "ABCDEF"),
            ("x-up", "drop", ""),
            ("x-up", "split", "abcdef"),
            ("x-down", "upper", "ABCDEF"),
            ("x-down", "whole", "ABCDEF"),
            ("x-down", "drop", ""),
            ("x-down", "split", "abcdef"),
        ] {
            let mut headers = vec![(name, what)];
            headers.extend(h2.then_some(("x-h2", "1")));
            for (path, trailer, end) in [("/", false, ""), ("/trailed", true, "down")] {
                let body = Pieces::new(&["ab", "cd", "ef"], trailer);
                let answer = scene.ask(http2, path, &headers, body);
                let answer = answer.unwrap_or_else(|error| panic!("{name}: {what} {path} {http2} {h2}: {error}"));
                assert_eq!((answer.0, answer.1.as_str()), (200, expected), "{name}: {what} {path} {http2} {h2}");
                // The trailers come after the last piece. Clients of HTTP/1 get none unless it is configured.
                if http2 && !expected.is_empty() {
                    assert_eq!(answer.2, end, "{name}: {what} {path} {h2}");
                }
            }
        }
        let (status, body, _) =
            scene.ask(http2, "/", &[("x-up", "inject")], Pieces::new(&["ab"], false)).expect("an answer");
        assert_eq!((status, body.as_str()), (200, "+ab"), "{http2}");
    }
    assert!(!scene.server.requests().is_empty());
}

#[test]
fn what_never_comes_back_ends_with_the_filter_the_client_or_the_upstream() {
    let scene = Scene::new("lost");
    let active = || stat(&scene.proxy, "http.lost.downstream_rq_active");
    for http2 in [false, true] {
        // The filter gives up.
        let answer = scene.ask(http2, "/", &[("x-up", "silent")], Pieces::new(&["ab"], false)).expect("an answer");
        assert_eq!((answer.0, answer.1.as_str()), (504, "nobody answers"), "{http2}");
        // The upstream breaks off while pieces of its response are away: they do not become a whole response.
        let cut = scene.ask(http2, "/broken", &[("x-down", "whole")], Pieces::new(&["ab"], false));
        assert!(cut.is_err(), "{http2}: {cut:?}");
    }
    // The client goes away.
    let mut client = TcpStream::connect(scene.web).expect("it accepts");
    let head = "POST / HTTP/1.1\r\nhost: test\r\nx-up: never\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n";
    let before = scene.seen.load(Ordering::Relaxed);
    client.write_all(head.as_bytes()).expect("it reads");
    eventually("the piece is away", || (scene.seen.load(Ordering::Relaxed) > before).then_some(()));
    drop(client);
    eventually("no request", || (active() == [0]).then_some(()));
}

#[test]
fn more_is_read_only_while_little_is_away() {
    let scene = Scene::new("stuck");
    let mut client = TcpStream::connect(scene.web).expect("it accepts");
    const BYTES: usize = 256 * 1024 * 1024;
    let head = format!("POST / HTTP/1.1\r\nhost: test\r\nx-up: never\r\ncontent-length: {BYTES}\r\n\r\n");
    client.write_all(head.as_bytes()).expect("it reads");
    client.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let piece = vec![b'x'; 256 * 1024];
    while let Ok(1..) = client.write(&piece) {}
    let seen = scene.seen.load(Ordering::Relaxed);
    // It stops with the piece that fills the room.
    assert!((MAX_HELD_BYTES..2 * MAX_HELD_BYTES).contains(&seen), "{seen} bytes are away");
    drop(client);
    eventually("no request", || (stat(&scene.proxy, "http.stuck.downstream_rq_active") == [0]).then_some(()));
}
