//! Requests through the proxy in every pairing of HTTP/1.1 and HTTP/2, with hyper at both ends: one service and one client
//! that behave alike in both protocols.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_filters::TrailersContext;
use evenkeel_filters::test_filter::{CustomFilter, State, register};
use evenkeel_testkit::eventually;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::harness::{Proxy, http_listener, stat, static_bootstrap, static_cluster};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

const BOTH: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];
/// No exchange of these tests takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// What the service saw and did.
#[derive(Default)]
struct Seen {
    /// Bytes of `/endless` that were taken from it.
    produced: AtomicU64,
    /// Requests whose body or connection broke off.
    broken: AtomicUsize,
    /// `/endless` answers that were dropped.
    dropped: AtomicUsize,
}

struct Stage {
    runtime: Runtime,
    proxy: Proxy,
    web: SocketAddr,
    seen: Arc<Seen>,
}

impl Stage {
    fn new(upstream: Version) -> Self {
        Self::with_filters(upstream, "")
    }

    /// With these filters before the router.
    fn with_filters(upstream: Version, filters: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let seen = Arc::<Seen>::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(serve(listener, upstream, Arc::clone(&seen)));
        let protocol = match upstream {
            Version::HTTP_2 => "http2_protocol_options: {allow_connect: true}",
            _ => "http_protocol_options: {enable_trailers: true}",
        };
        let options = format!(
            "typed_extension_protocol_options: {{envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{\"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
             {{{protocol}}}}}}}"
        );
        let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: backend}}]}]}\n      http_protocol_options: {enable_trailers: true}\n      \
                      http2_protocol_options: {allow_connect: true}\n      upgrade_configs: [{upgrade_type: websocket}]";
        let clusters = [static_cluster("backend", address, &options)];
        let listener = http_listener("web", routes, "");
        let listener = listener.replacen("http_filters:\n", &format!("http_filters:\n{filters}"), 1);
        let proxy = Proxy::start(&static_bootstrap(&listener, &clusters));
        proxy.wait_live();
        let web = proxy.listener("web");
        Self { runtime, proxy, web, seen }
    }

    /// Runs `scenario` for clients of either protocol, each with its time limit.
    fn each<F: Future<Output = ()>>(&self, scenario: impl Fn(Client) -> F) {
        for version in BOTH {
            self.runtime.block_on(async {
                let client = Client { web: self.web, version };
                timeout(LIMIT, scenario(client)).await.unwrap_or_else(|_| panic!("{version:?} takes too long"));
            });
        }
    }
}

/// Serves `listener` in one protocol.
async fn serve(listener: TcpListener, version: Version, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
            let io = TokioIo::new(stream);
            match version {
                Version::HTTP_2 => {
                    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    _ = server.enable_connect_protocol().serve_connection(io, service).await;
                }
                _ => {
                    let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
                    _ = connection.with_upgrades().await;
                }
            }
        });
    }
}

async fn answer(mut request: Request<Incoming>, seen: Arc<Seen>) -> Result<Response<Body>, Infallible> {
    if request.headers().contains_key("upgrade") || request.method() == Method::CONNECT {
        return Ok(upgrade(request));
    }
    let path = request.uri().path().to_owned();
    let response = Response::builder().header("x-seen", describe(&request));
    let body = match path.as_str() {
        "/empty" => return Ok(response.status(204).body(empty()).expect("valid")),
        "/early" => full("early"),
        "/endless" => endless(seen),
        "/broken" => {
            let frames = [Ok(Frame::data(Bytes::from("half"))), Err(std::io::Error::other("broken on purpose"))];
            let frames = futures_util::stream::iter(frames).then(|frame| async {
                // The first half is on its way before the rest breaks.
                tokio::task::yield_now().await;
                frame
            });
            StreamBody::new(frames).boxed_unsync()
        }
        _ => {
            let received = match request.body_mut().collect().await {
                Ok(received) => received,
                Err(_) => {
                    seen.broken.fetch_add(1, Ordering::Relaxed);
                    return Ok(response.body(empty()).expect("valid"));
                }
            };
            let sum = received.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
            let length = received.to_bytes().len();
            let text = format!("{length} bytes, sum {}", sum.as_ref().map_or("-", |sum| sum.to_str().expect("text")));
            match path.as_str() {
                "/trailers" => with_trailers(text, "x-back", "yes"),
                _ => full(&text),
            }
        }
    };
    let trailer = (path == "/trailers").then_some(("trailer", "x-back"));
    let response = trailer.into_iter().fold(response, |response, (name, value)| response.header(name, value));
    Ok(response.body(body).expect("valid"))
}

/// What the proxy made of the request's head.
fn describe(request: &Request<Incoming>) -> String {
    let header = |name| request.headers().get(name).map_or("-", |value: &HeaderValue| value.to_str().expect("text"));
    let host = request.uri().authority().map_or(header("host"), |authority| authority.as_str());
    format!(
        "{:?} {} {} host={host} cookie={} proto={} connection={}",
        request.version(),
        request.method(),
        request.uri().path(),
        header("cookie"),
        header("x-forwarded-proto"),
        header("connection"),
    )
}

/// Echoes what comes over the tunnel.
fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    let over_http2 = request.version() == Version::HTTP_2;
    let key = request.headers().get("sec-websocket-key").cloned();
    let on = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = on.await else { return };
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = read.read(&mut chunk).await {
            if write.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
        // The end of what came is answered, and then returned.
        _ = write.write_all(b"bye").await;
        _ = write.shutdown().await;
    });
    let response = if over_http2 {
        Response::builder().status(200)
    } else {
        Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("x-key-length", key.as_ref().map_or(0, HeaderValue::len))
    };
    // The one key whose answer is known here.
    let accepts = !over_http2 && key.is_some_and(|key| key == KEY);
    let response = if accepts { response.header("sec-websocket-accept", ACCEPT) } else { response };
    response.body(empty()).expect("valid")
}

fn empty() -> Body {
    Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn full(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed_unsync()
}

fn with_trailers(text: String, name: &'static str, value: &'static str) -> Body {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, HeaderValue::from_static(value));
    let frames = [Ok(Frame::data(Bytes::from(text))), Ok(Frame::trailers(trailers))];
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

/// As many bytes as are taken.
fn endless(seen: Arc<Seen>) -> Body {
    struct Counted(Arc<Seen>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    let piece = Bytes::from(vec![b'x'; 16 * 1024]);
    let frames = futures_util::stream::unfold(Counted(seen), move |seen| {
        let piece = piece.clone();
        async move {
            seen.0.produced.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Some((Ok(Frame::data(piece)), seen))
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

#[derive(Clone, Copy)]
struct Client {
    web: SocketAddr,
    version: Version,
}

impl Client {
    /// Sends one request on a connection of its own, which lives until the response is dropped or complete.
    async fn send(self, request: Request<Body>) -> Response<Incoming> {
        let io = TokioIo::new(TcpStream::connect(self.web).await.expect("it accepts"));
        match self.version {
            Version::HTTP_2 => {
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
                tokio::spawn(connection);
                sender.send_request(request).await.expect("an answer")
            }
            _ => {
                let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP/1");
                tokio::spawn(connection.with_upgrades());
                sender.send_request(request).await.expect("an answer")
            }
        }
    }

    fn request(self, method: Method, path: &str, body: Body) -> Request<Body> {
        let uri = match self.version {
            Version::HTTP_2 => format!("http://web.test{path}"),
            _ => path.to_owned(),
        };
        let request = Request::builder().method(method).uri(uri).version(self.version);
        let request = match self.version {
            Version::HTTP_2 => request,
            _ => request.header("host", "web.test"),
        };
        request.body(body).expect("valid")
    }
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.expect("the whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

fn name(version: Version) -> &'static str {
    if version == Version::HTTP_2 { "HTTP/2.0" } else { "HTTP/1.1" }
}

#[test]
fn heads_and_bodies_pass_in_every_pairing() {
    for upstream in BOTH {
        let stage = Stage::new(upstream);
        stage.each(|client| async move {
            let mut request = client.request(Method::GET, "/get?q", empty());
            request.headers_mut().append("cookie", HeaderValue::from_static("a=1"));
            if client.version == Version::HTTP_2 {
                request.headers_mut().append("cookie", HeaderValue::from_static("b=2"));
            }
            let cookie = if client.version == Version::HTTP_2 { "a=1; b=2" } else { "a=1" };
            let response = client.send(request).await;
            assert_eq!((response.status(), response.version()), (StatusCode::OK, client.version));
            let seen = format!("{} GET /get host=web.test cookie={cookie} proto=http connection=-", name(upstream));
            assert_eq!(response.headers()["x-seen"], seen.as_str());
            assert_eq!(response.headers()["content-length"], "14");
            assert_eq!(text(response).await, "0 bytes, sum -");

            let response = client.send(client.request(Method::POST, "/post", full(&"y".repeat(100_000)))).await;
            assert_eq!(text(response).await, "100000 bytes, sum -");

            let response = client.send(client.request(Method::HEAD, "/head", empty())).await;
            assert_eq!(response.headers()["content-length"], "14");
            assert_eq!(text(response).await, "");

            let response = client.send(client.request(Method::GET, "/empty", empty())).await;
            assert_eq!(response.status(), StatusCode::NO_CONTENT);
            assert_eq!(text(response).await, "");
        });
        let requests = |counter: &str| stat(&stage.proxy, counter).iter().sum::<u64>();
        assert_eq!((requests("web.downstream_rq_http1_total"), requests("web.downstream_rq_http2_total")), (4, 4));
        assert_eq!((requests("web.downstream_cx_http1_total"), requests("web.downstream_cx_http2_total")), (4, 4));
    }
}

#[test]
fn trailers_pass_both_ways_in_every_pairing() {
    for upstream in BOTH {
        Stage::new(upstream).each(|client| async move {
            let mut request =
                client.request(Method::POST, "/trailers", with_trailers("0123456789".into(), "x-sum", "45"));
            request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
            request.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
            let response = client.send(request).await;
            let received = response.into_body().collect().await.expect("the whole body");
            let trailer = received.trailers().and_then(|trailers| trailers.get("x-back")).cloned();
            assert_eq!(received.to_bytes(), "10 bytes, sum 45");
            assert_eq!(trailer, Some(HeaderValue::from_static("yes")), "{:?} to {upstream:?}", client.version);
        });
    }
}

/// Adds a trailer to every response.
struct Adds;

impl CustomFilter for Adds {
    fn response_trailers(&self, _: &mut State, context: &mut TrailersContext<'_>) {
        context.trailers.append(b"x-added", b"yes");
    }
}

#[test]
fn trailers_of_filters_follow_a_body_without_any() {
    register("adds", Adds);
    let buffer = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    let filter = format!("      - {{name: adds, typed_config: {{\"@type\": {buffer}, max_request_bytes: 1}}}}\n");
    for upstream in BOTH {
        Stage::with_filters(upstream, &filter).each(|client| async move {
            let response = client.send(client.request(Method::POST, "/", full("0123456789"))).await;
            let received = response.into_body().collect().await.expect("the whole body");
            // A body of announced length has no trailers in HTTP/1.
            let expected = (client.version == Version::HTTP_2).then(|| HeaderValue::from_static("yes"));
            let trailer = received.trailers().and_then(|trailers| trailers.get("x-added")).cloned();
            assert_eq!(trailer, expected, "{:?} to {upstream:?}", client.version);
            assert_eq!(received.to_bytes(), "10 bytes, sum -", "{:?} to {upstream:?}", client.version);
        });
    }
}

#[test]
fn an_answer_does_not_wait_for_its_request() {
    for upstream in BOTH {
        Stage::new(upstream).each(|client| async move {
            // The request never ends.
            let frames = futures_util::stream::once(async { Ok(Frame::data(Bytes::from("begun"))) });
            let frames = futures_util::StreamExt::chain(frames, futures_util::stream::pending());
            let request = client.request(Method::POST, "/early", StreamBody::new(frames).boxed_unsync());
            let response = client.send(request).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(text(response).await, "early", "{:?} to {upstream:?}", client.version);
        });
    }
}

#[test]
fn an_answer_that_breaks_off_breaks_off_for_the_client() {
    for upstream in BOTH {
        let stage = Stage::new(upstream);
        stage.each(|client| async move {
            let response = client.send(client.request(Method::GET, "/broken", empty())).await;
            let end = response.into_body().collect().await;
            assert!(end.is_err(), "{:?} to {upstream:?}: {end:?}", client.version);
        });
        eventually("no request in flight", || (stat(&stage.proxy, ".upstream_rq_active") == [0]).then_some(()));
    }
}

#[test]
fn a_client_that_leaves_ends_its_request_upstream_in_every_pairing() {
    for upstream in BOTH {
        let stage = Stage::new(upstream);
        stage.each(|client| async move {
            let response = client.send(client.request(Method::GET, "/endless", empty())).await;
            let mut body = response.into_body();
            body.frame().await.expect("a frame").expect("data");
        });
        eventually("both answers to be dropped", || (stage.seen.dropped.load(Ordering::Relaxed) == 2).then_some(()));
        eventually("no request in flight", || (stat(&stage.proxy, ".upstream_rq_active") == [0]).then_some(()));

        stage.each(|client| async move {
            let frames = futures_util::stream::once(async { Ok(Frame::data(Bytes::from("begun"))) });
            let frames = futures_util::StreamExt::chain(frames, futures_util::stream::pending());
            let request = client.request(Method::POST, "/post", StreamBody::new(frames).boxed_unsync());
            _ = timeout(Duration::from_millis(300), client.send(request)).await;
        });
        eventually("both requests to break off", || (stage.seen.broken.load(Ordering::Relaxed) == 2).then_some(()));
    }
}

/// What may lie between a server that writes and a client that does not read: socket buffers of four sockets, hyper's own, the
/// windows of HTTP/2.
const MOST_IN_BETWEEN: u64 = 48 * 1024 * 1024;

#[test]
fn a_client_that_does_not_read_stops_the_server() {
    for upstream in BOTH {
        let stage = Stage::new(upstream);
        for version in BOTH {
            stage.seen.produced.store(0, Ordering::Relaxed);
            let client = Client { web: stage.web, version };
            let response = stage.runtime.block_on(client.send(client.request(Method::GET, "/endless", empty())));
            let mut before = 0;
            let mut quiet = 0;
            eventually("the server to stand still", || {
                let now = stage.seen.produced.load(Ordering::Relaxed);
                assert!(now < MOST_IN_BETWEEN, "{version:?} to {upstream:?}: {now} bytes are held");
                quiet = if now == before { quiet + 1 } else { 0 };
                before = now;
                (quiet > 20).then_some(())
            });
            drop(response);
        }
    }
}

/// The example of RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

#[test]
fn websockets_pass_in_every_pairing() {
    for upstream in BOTH {
        let stage = Stage::new(upstream);
        stage.each(|client| async move {
            let mut request = match client.version {
                Version::HTTP_2 => {
                    let mut request = client.request(Method::CONNECT, "/chat", empty());
                    request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
                    request
                }
                _ => {
                    let mut request = client.request(Method::GET, "/chat", empty());
                    request.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
                    request.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
                    request
                }
            };
            request.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("13"));
            if client.version == Version::HTTP_11 {
                request.headers_mut().insert("sec-websocket-key", HeaderValue::from_static(KEY));
            }
            let response = client.send(request).await;
            let expected = if client.version == Version::HTTP_2 { 200 } else { 101 };
            assert_eq!(response.status(), expected, "{:?} to {upstream:?}", client.version);
            // Who speaks HTTP/1.1 gets a key, and the answer to its own, whatever the other side speaks.
            let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            if client.version == Version::HTTP_11 {
                assert_eq!(header("sec-websocket-accept"), Some(ACCEPT), "{upstream:?}");
            }
            if upstream == Version::HTTP_11 {
                let expected = if client.version == Version::HTTP_11 { KEY.len() } else { 24 };
                assert_eq!(header("x-key-length"), Some(expected.to_string().as_str()), "{:?}", client.version);
            }
            let upgraded = hyper::upgrade::on(response).await.expect("a tunnel");
            let mut tunnel = TokioIo::new(upgraded);
            tunnel.write_all(b"hello").await.expect("it reads");
            let mut echo = [0; 5];
            tunnel.read_exact(&mut echo).await.expect("it echoes");
            assert_eq!(&echo, b"hello");
            // The client's end travels, and the other direction goes on.
            tunnel.shutdown().await.expect("it ends");
            let mut rest = Vec::new();
            tunnel.read_to_end(&mut rest).await.expect("the rest");
            assert_eq!(rest, b"bye", "{:?} to {upstream:?}", client.version);
        });
        eventually("no tunnel", || (stat(&stage.proxy, "web.downstream_cx_upgrades_active") == [0]).then_some(()));
    }
}

/// Runs `exchange` within the time limit.
fn timeout_in<T>(runtime: &Runtime, exchange: impl Future<Output = T>) -> Result<T, tokio::time::error::Elapsed> {
    runtime.block_on(async { timeout(LIMIT, exchange).await })
}

/// A stage whose route and connection manager are given, and whose upstream is a plain TCP echo.
fn tunnel_stage(route: &str) -> (Runtime, Proxy, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                _ = tokio::io::copy(&mut read, &mut write).await;
                _ = write.write_all(b"bye").await;
            });
        }
    });
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{route}]}}]}}\n      \
         http2_protocol_options: {{allow_connect: true}}\n      upgrade_configs: [{{upgrade_type: CONNECT}}]"
    );
    let proxy =
        Proxy::start(&static_bootstrap(&http_listener("web", &routes, ""), &[static_cluster("backend", address, "")]));
    proxy.wait_live();
    let web = proxy.listener("web");
    (runtime, proxy, web)
}

#[test]
fn connect_is_terminated_where_the_route_says_so() {
    let route = "{match: {connect_matcher: {}}, route: {cluster: backend, upgrade_configs: [{upgrade_type: CONNECT, \
                 connect_config: {}}]}}";
    let (runtime, _proxy, web) = tunnel_stage(route);
    for version in BOTH {
        let exchange = timeout_in(&runtime, async {
            let client = Client { web, version };
            let mut request = client.request(Method::CONNECT, "/", empty());
            *request.uri_mut() = "web.test:443".parse().expect("an authority");
            let response = client.send(request).await;
            assert_eq!(response.status(), StatusCode::OK, "{version:?}");
            let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.expect("a tunnel"));
            tunnel.write_all(b"hello").await.expect("it reads");
            let mut echo = [0; 5];
            tunnel.read_exact(&mut echo).await.expect("it echoes");
            tunnel.shutdown().await.expect("it ends");
            let mut rest = Vec::new();
            tunnel.read_to_end(&mut rest).await.expect("the rest");
            assert_eq!((&echo, rest.as_slice()), (b"hello", &b"bye"[..]), "{version:?}");
        });
        exchange.expect("in time");
    }
}

#[test]
fn connect_without_a_route_for_it_is_refused() {
    let (runtime, _proxy, web) = tunnel_stage("{match: {prefix: /}, route: {cluster: backend}}");
    for version in BOTH {
        let exchange = timeout_in(&runtime, async {
            let client = Client { web, version };
            let mut request = client.request(Method::CONNECT, "/", empty());
            *request.uri_mut() = "web.test:443".parse().expect("an authority");
            assert_eq!(client.send(request).await.status(), StatusCode::NOT_FOUND, "{version:?}");
        });
        exchange.expect("in time");
    }
}

#[test]
fn grpc_clients_are_answered_in_their_own_way_and_in_time() {
    let slow = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, route: \
                {cluster: backend, timeout: 0s, max_grpc_timeout: 0s}}]}]}";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = listener.local_addr().expect("bound");
    let proxy =
        Proxy::start(&static_bootstrap(&http_listener("web", slow, ""), &[static_cluster("backend", silent, "")]));
    proxy.wait_live();
    let client = Client { web: proxy.listener("web"), version: Version::HTTP_2 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut request = client.request(Method::POST, "/pkg.Service/Method", empty());
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-timeout", HeaderValue::from_static("200m"));
        let response = timeout(LIMIT, client.send(request)).await.expect("in time");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "upstream request timeout");
    });
}

#[test]
fn an_http2_connection_is_asked_to_leave_after_its_last_request() {
    let bootstrap = static_bootstrap(
        &http_listener(
            "web",
            &format!(
                "{}\n      common_http_protocol_options: {{max_requests_per_connection: 2}}",
                crate::harness::answering("hello")
            ),
            "",
        ),
        &[],
    );
    let proxy = Proxy::start(&bootstrap);
    proxy.wait_live();
    let web = proxy.listener("web");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let io = TokioIo::new(TcpStream::connect(web).await.expect("it accepts"));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), io).await.expect("HTTP/2");
        let ended = tokio::spawn(connection);
        let client = Client { web, version: Version::HTTP_2 };
        for _ in 0..2 {
            let response = sender.send_request(client.request(Method::GET, "/", empty())).await.expect("an answer");
            assert_eq!(text(response).await, "hello");
        }
        // GOAWAY ends the client's connection, of which it still has the sender.
        timeout(LIMIT, ended).await.expect("in time").expect("no panic").expect("in order");
    });
    assert_eq!(stat(&proxy, "web.downstream_cx_max_requests_reached"), [1]);
}
