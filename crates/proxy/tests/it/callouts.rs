//! Calls of the proxy itself, over a worker's upstreams to real servers of HTTP/1, HTTP/2 and gRPC: what they send, how they
//! end, what cancels them, and that they leave nothing behind.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_filters::callouts::grpc::{GrpcFailure, GrpcMethod, GrpcStream, call};
use evenkeel_filters::callouts::{CallOptions, Callouts, HttpAnswer, HttpCall, Problem};
use evenkeel_http::{Headers, RequestHead};
use evenkeel_proxy::bootstrap;
use evenkeel_proxy::callouts::WorkerCallouts;
use evenkeel_proxy::callouts::places::MAX_CHECKS_PER_WORKER;
use evenkeel_proxy::options::{BootstrapSource, NodeOverrides};
use evenkeel_runtime_config::retry::{RetryOn, RetryPolicy};
use evenkeel_runtime_config::{Builder, Config, Environment};
use evenkeel_stats::Registry;
use evenkeel_testkit::free_port;
use evenkeel_tls::SecretStore;
use evenkeel_upstream::{SharedClusters, Upstreams};
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::harness::{protocol, static_cluster};

/// For what should be there at once.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Between two looks.
pub const LOOK: Duration = Duration::from_millis(5);

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A server, and what it has seen.
struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    /// Taken when it ends, which it does while other tasks run.
    runtime: Option<Runtime>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// Requests that were given up by the client.
    cancelled: AtomicUsize,
}

/// Counts a request that ends before its answer is made.
struct Unanswered(Arc<Seen>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

impl Server {
    fn start(http2: bool) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let seen = Arc::clone(&shared);
                let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
                let io = TokioIo::new(socket);
                tokio::spawn(async move {
                    // A client may leave.
                    if http2 {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        _ = server.serve_connection(io, service).await;
                    } else {
                        _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                    }
                });
            }
        });
        Self { address, seen, runtime: Some(runtime) }
    }

    fn cluster(&self, http2: bool) -> String {
        static_cluster("backend", self.address, &if http2 { protocol(HTTP2) } else { String::new() })
    }
}

const HTTP2: &str = "explicit_http_config: {http2_protocol_options: {}}";

async fn answer(request: Request<Incoming>, seen: Arc<Seen>) -> Result<Response<Body>, std::io::Error> {
    let number = seen.requests.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let full = |text: String| Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed_unsync();
    match path.as_str() {
        "/never" => {
            let _unanswered = Unanswered(seen);
            pending().await
        }
        "/slow" => {
            sleep(Duration::from_millis(300)).await;
            Ok(Response::new(full("slow".into())))
        }
        "/broken" => Err(std::io::Error::other("on purpose")),
        "/third" if number < 2 => Ok(Response::builder().status(503).body(full("not yet".into())).expect("valid")),
        "/hundred" => Ok(Response::new(full("x".repeat(100)))),
        path if path.starts_with("/grpc.") => Ok(grpc(path, request)),
        _ => {
            let mut lines = vec![format!("{} {path}", request.method())];
            let host = request.uri().authority().map(ToString::to_string);
            lines.extend(host.map(|host| format!("host: {host}")));
            let fields = request.headers().iter();
            lines.extend(fields.map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))));
            lines.sort();
            let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
            lines.push(format!("{} bytes", body.len()));
            Ok(Response::builder().header("x-own", "yes").body(full(lines.join("\n"))).expect("valid"))
        }
    }
}

/// Calls of gRPC, by their methods.
fn grpc(path: &str, request: Request<Incoming>) -> Response<Body> {
    let head = Response::builder().header("content-type", "application/grpc");
    let trailers = |fields: &[(&'static str, &'static str)]| {
        let fields =
            fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        HeaderMap::from_iter(fields)
    };
    let empty = || http_body_util::Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync();
    let body = request.into_body().map_err(std::io::Error::other);
    match path {
        "/grpc.Test/Echo" => {
            let ok = trailers(&[("grpc-status", "0"), ("x-last", "yes")]);
            head.body(body.with_trailers(async { Some(Ok(ok)) }).boxed_unsync())
        }
        "/grpc.Test/Denies" => head.header("grpc-status", "7").header("grpc-message", "not%20you").body(empty()),
        "/grpc.Test/Fails" => {
            let failed = trailers(&[("grpc-status", "5"), ("grpc-message", "none")]);
            head.body(body.with_trailers(async { Some(Ok(failed)) }).boxed_unsync())
        }
        "/grpc.Test/IsDown" => Response::builder().status(503).body(empty()),
        "/grpc.Test/IsHtml" => Response::builder().header("content-type", "text/html").body(empty()),
        "/grpc.Test/ForgetsStatus" => head.body(body.boxed_unsync()),
        // It never reads, and never ends.
        _ => {
            let held = futures_util::stream::once(async move {
                let _held = body;
                pending::<Result<Frame<Bytes>, std::io::Error>>().await
            });
            head.body(StreamBody::new(held).boxed_unsync())
        }
    }
    .expect("valid")
}

/// One worker's calls.
struct Client {
    upstreams: Rc<Upstreams>,
    callouts: WorkerCallouts,
    registry: Arc<Registry>,
    config: Arc<Config>,
}

impl Client {
    fn new(clusters: &[String]) -> Self {
        let registry = Registry::new();
        let upstreams = Rc::new(Upstreams::new(Arc::new(SharedClusters::default()), Arc::clone(&registry), true));
        let config = config(clusters);
        upstreams.apply(&config, &Config::default());
        Self { callouts: WorkerCallouts::new(Rc::clone(&upstreams)), upstreams, registry, config }
    }

    async fn ask(&self, call: HttpCall) -> Result<HttpAnswer, Problem> {
        timeout(LIMIT, self.callouts.http(call)).await.expect("in time").map_err(|error| error.problem)
    }

    fn stat(&self, name: &str) -> u64 {
        let text = self.registry.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cluster.backend.{name}: ")));
        line.map_or(0, |value| value.parse().expect("a number"))
    }

    /// Nothing is under way, and nothing is left of what was.
    async fn settled(&self) {
        let settled = async {
            while self.callouts.active() > 0 || self.stat("upstream_rq_active") > 0 {
                sleep(LOOK).await;
            }
        };
        timeout(LIMIT, settled).await.expect("all calls end");
    }
}

pub fn config(clusters: &[String]) -> Arc<Config> {
    let text = format!("static_resources: {{clusters: [{}]}}", clusters.join(", "));
    let source = BootstrapSource { path: None, text: Some(text) };
    let loaded = bootstrap::load(&source, &NodeOverrides::default()).expect("a bootstrap");
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    for cluster in &loaded.bootstrap.clusters {
        builder.set_static_cluster(cluster).unwrap_or_else(|error| panic!("{error}"));
    }
    builder.build()
}

/// Runs `scenario` as a worker would, against a server of HTTP/1 and one of HTTP/2.
fn each<F: Future<Output = ()>>(scenario: impl Fn(Rc<Server>, Client, bool) -> F) {
    for http2 in [false, true] {
        let server = Rc::new(Server::start(http2));
        run(async {
            let client = Client::new(&[server.cluster(http2)]);
            scenario(Rc::clone(&server), client, http2).await;
        });
    }
}

pub fn run(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, scenario);
}

fn to(path: &str) -> HttpCall {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(path.as_bytes());
    HttpCall { cluster: "backend".into(), head, ..HttpCall::default() }
}

fn with_timeout(millis: u64) -> CallOptions {
    CallOptions { timeout: Some(Duration::from_millis(millis)), ..CallOptions::default() }
}

fn text(answer: &HttpAnswer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_call_says_what_envoys_do() {
    each(|_server, client, http2| async move {
        let mut call = HttpCall { body: vec![7; 100_000], options: with_timeout(20_000), ..to("/say") };
        call.head.headers.append(b"x-mine", b"1");
        let answer = client.ask(call).await.expect("an answer");
        assert_eq!((answer.head.status, answer.head.headers.find(b"x-own")), (200, Some(&b"yes"[..])));
        let expected = "POST /say\ncontent-length: 100000\nhost: backend\nx-envoy-expected-rq-timeout-ms: \
                        20000\nx-envoy-internal: true\nx-forwarded-for: 127.0.0.1\nx-mine: 1\n100000 bytes";
        assert_eq!(text(&answer), expected, "HTTP/2: {http2}");

        let mut call = to("/say");
        call.head.set_method(b"GET");
        call.head.set_authority(b"own.test:81");
        call.options.envoy_headers = false;
        let answer = client.ask(call).await.expect("an answer");
        assert_eq!(text(&answer), "GET /say\nhost: own.test:81\n0 bytes", "HTTP/2: {http2}");

        client.settled().await;
        for (name, value) in
            [("upstream_rq_total", 2), ("upstream_rq_completed", 2), ("upstream_rq_2xx", 2), ("upstream_cx_total", 1)]
        {
            assert_eq!(client.stat(name), value, "{name}");
        }
    });
}

#[test]
fn what_goes_wrong_is_told_apart() {
    let server = Server::start(false);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let closed = static_cluster("closed", nowhere, "");
    let full = static_cluster("full", server.address, "circuit_breakers: {thresholds: [{max_requests: 0}]}");
    let empty = "{name: empty, type: STATIC, load_assignment: {cluster_name: empty}}".to_owned();
    let limited = CallOptions { max_answer_bytes: 99, ..CallOptions::default() };
    let enough = CallOptions { max_answer_bytes: 100, ..CallOptions::default() };
    let none = CallOptions::default;
    let connect =
        "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}";
    run(async {
        let client = Client::new(&[server.cluster(false), closed, full, empty]);
        for (cluster, path, options, problem, status, details) in [
            ("nobody", "/", none(), Problem::UnknownCluster, 503, "cluster_not_found"),
            ("empty", "/", none(), Problem::NoHealthyHost, 503, "no_healthy_upstream"),
            ("full", "/", none(), Problem::Refused, 503, "upstream_reset_before_response_started{overflow}"),
            ("closed", "/", none(), Problem::Connect, 503, connect),
            (
                "backend",
                "/broken",
                none(),
                Problem::Reset,
                503,
                "upstream_reset_before_response_started{connection_termination}",
            ),
            ("backend", "/never", with_timeout(50), Problem::Timeout, 504, "response_timeout"),
            ("backend", "/hundred", limited, Problem::TooLarge, 502, "response_payload_too_large"),
        ] {
            let call = HttpCall { cluster: cluster.into(), options, ..to(path) };
            let error = timeout(LIMIT, client.callouts.http(call)).await.expect("in time").expect_err(details);
            assert_eq!((error.problem, error.status, &*error.details), (problem, status, details), "{cluster}{path}");
        }
        let call = HttpCall { options: enough, ..to("/hundred") };
        assert_eq!(client.ask(call).await.expect("an answer").body.len(), 100);
        client.settled().await;
        assert_eq!(client.stat("upstream_rq_timeout"), 1);
    });
}

#[test]
fn a_call_is_tried_again_as_its_policy_says() {
    each(|server, client, http2| async move {
        let mut on = RetryOn::default();
        on.add("5xx").expect("a condition");
        let retry = |num_retries| {
            let interval = Duration::from_millis(1);
            let policy = RetryPolicy { on, num_retries, base_interval: interval, ..RetryPolicy::default() };
            CallOptions { retry: Some(Arc::new(policy)), ..CallOptions::default() }
        };
        let call = HttpCall { body: b"again".to_vec(), options: retry(2), ..to("/third") };
        let answer = client.ask(call).await.expect("an answer");
        assert_eq!((answer.head.status, server.seen.requests.load(Ordering::SeqCst)), (200, 3), "HTTP/2: {http2}");
        assert!(text(&answer).ends_with("\n5 bytes"), "{}", text(&answer));
        assert_eq!(client.stat("upstream_rq_retry"), 2);
        assert_eq!(client.stat("upstream_rq_retry_success"), 1);

        server.seen.requests.store(0, Ordering::SeqCst);
        let call = HttpCall { options: retry(1), ..to("/third") };
        assert_eq!(client.ask(call).await.expect("an answer").head.status, 503);
        assert_eq!(client.stat("upstream_rq_retry_limit_exceeded"), 1);

        let policy = RetryPolicy { on, per_try_timeout: Some(Duration::from_millis(30)), ..RetryPolicy::default() };
        let options = CallOptions { retry: Some(Arc::new(policy)), ..CallOptions::default() };
        let problem = client.ask(HttpCall { options, ..to("/never") }).await.expect_err("no answer");
        assert_eq!((problem, client.stat("upstream_rq_per_try_timeout")), (Problem::Timeout, 2));
        client.settled().await;
    });
}

#[test]
fn dropping_the_handle_cancels_the_call() {
    each(|server, client, http2| async move {
        let call = client.callouts.http(to("/never"));
        let asked = async {
            while server.seen.requests.load(Ordering::SeqCst) == 0 {
                sleep(LOOK).await;
            }
        };
        timeout(LIMIT, asked).await.expect("the call goes on without being waited for");
        assert_eq!(client.callouts.active(), 1);
        drop(call);
        client.settled().await;
        let gone = async {
            while server.seen.cancelled.load(Ordering::SeqCst) == 0 {
                sleep(LOOK).await;
            }
        };
        timeout(LIMIT, gone).await.expect("the server hears of it");
        // A shared connection goes on; one that belonged to the call is closed.
        assert_eq!(client.stat("upstream_cx_active"), u64::from(http2));
    });
}

#[test]
fn ten_thousand_calls_leave_no_connection_behind() {
    each(|server, client, http2| async move {
        let calls = futures_util::stream::iter(0..10_000).map(|number: u32| {
            let (path, options) = match number % 10 {
                0 => ("/never", with_timeout(5)),
                1 => ("/hundred", CallOptions { max_answer_bytes: 10, ..CallOptions::default() }),
                _ => ("/hundred", with_timeout(20_000)),
            };
            let call = client.callouts.http(HttpCall { options, ..to(path) });
            async move {
                match number % 10 {
                    2 => drop(call),
                    kind => {
                        let problem = timeout(LIMIT, call).await.expect("in time").err().map(|error| error.problem);
                        let expected = [Some(Problem::Timeout), Some(Problem::TooLarge)].get(kind as usize).copied();
                        assert_eq!(problem, expected.flatten(), "call {number}");
                    }
                }
            }
        });
        calls.buffer_unordered(16).collect::<Vec<()>>().await;
        client.settled().await;
        let open = client.stat("upstream_cx_active");
        let kept: u64 = if http2 { 2 } else { 16 };
        assert!((1..=kept).contains(&open), "{open} connections are open");
        assert_eq!(client.stat("upstream_rq_pending_active"), 0);
        let made = server.seen.connections.load(Ordering::SeqCst) as u64;
        assert!(client.stat("upstream_cx_total") >= made, "{made} connections");
        client.upstreams.close_idle();
        let closed = async {
            while client.stat("upstream_cx_active") > 0 {
                sleep(LOOK).await;
            }
        };
        timeout(LIMIT, closed).await.expect("all were kept, none was lost");
    });
}

#[test]
fn a_cluster_may_go_during_a_call() {
    each(|_server, client, _| async move {
        let call = client.callouts.http(to("/slow"));
        tokio::task::yield_now().await;
        client.upstreams.apply(&config(&[]), &client.config);
        let answer = timeout(LIMIT, call).await.expect("in time").expect("an answer");
        assert_eq!(text(&answer), "slow");
        assert_eq!(client.ask(to("/slow")).await.expect_err("it is gone"), Problem::UnknownCluster);
        client.settled().await;
    });
}

#[test]
fn calls_are_bounded_in_number() {
    let server = Server::start(true);
    let thresholds = "circuit_breakers: {thresholds: [{max_requests: 100000, max_pending_requests: 100000}]}";
    run(async {
        let client = Client::new(&[static_cluster("backend", server.address, thresholds)]);
        let calls: Vec<_> = (0..MAX_CHECKS_PER_WORKER / 2).map(|_| client.callouts.http(to("/never"))).collect();
        assert_eq!(client.ask(to("/say")).await.expect_err("one too many"), Problem::TooManyCalls);
        drop(calls);
        client.settled().await;
    });
}

fn method(name: &str) -> GrpcMethod {
    GrpcMethod { cluster: "backend".into(), path: format!("/grpc.Test/{name}").into(), ..GrpcMethod::default() }
}

#[test]
fn unary_calls_of_grpc() {
    let server = Server::start(true);
    run(async {
        let client = Client::new(&[server.cluster(true)]);
        let ask = async |name: &str, options: CallOptions| {
            let method = GrpcMethod { options, ..method(name) };
            timeout(LIMIT, call(&client.callouts, &method, b"hello")).await.expect("in time")
        };
        let answer = ask("Echo", CallOptions::default()).await.expect("an answer");
        assert_eq!((&*answer.message, answer.trailers.find(b"x-last")), (&b"hello"[..], Some(&b"yes"[..])));
        for (name, status, message, cause) in [
            ("Denies", 7, "not you", None),
            ("Fails", 5, "none", None),
            ("IsDown", 14, "", None),
            ("IsHtml", 2, "the answer is not gRPC's by its content type", None),
            ("ForgetsStatus", 2, "the call has ended without a status", None),
            ("Hangs", 14, "response_timeout", Some(Problem::Timeout)),
        ] {
            let GrpcFailure { status: ended, message: said, cause: why } =
                ask(name, with_timeout(if name == "Hangs" { 50 } else { 20_000 })).await.expect_err(name);
            assert_eq!((ended, &*said, why.map(|why| why.problem)), (status, message, cause), "{name}");
        }
        let limited = CallOptions { max_answer_bytes: 4, ..CallOptions::default() };
        let failure = ask("Echo", limited).await.expect_err("too long");
        assert_eq!(failure.cause.map(|cause| cause.problem), Some(Problem::TooLarge));
        client.settled().await;
        assert_eq!(client.stat("upstream_cx_active"), 1);
    });
}

#[test]
fn streams_of_grpc_go_both_ways() {
    let server = Server::start(true);
    run(async {
        let client = Client::new(&[server.cluster(true)]);
        let mut stream = GrpcStream::open(&client.callouts, &method("Echo"));
        let long = vec![7; 300_000];
        for message in [&b"one"[..], b"", &long] {
            let echoed = async {
                // The echo of a long message is read while it is sent.
                stream.send(message).await.expect("it takes more");
                stream.receive().await.expect("the stream lasts").expect("a message")
            };
            assert_eq!(timeout(LIMIT, echoed).await.expect("in time"), message);
        }
        stream.half_close();
        assert_eq!(timeout(LIMIT, stream.receive()).await.expect("in time"), Ok(None));
        assert_eq!(stream.trailers().find(b"x-last"), Some(&b"yes"[..]));
        assert!(stream.send(b"late").await.is_err());
        drop(stream);

        let mut stream = GrpcStream::open(&client.callouts, &method("Fails"));
        stream.half_close();
        let failure = timeout(LIMIT, stream.receive()).await.expect("in time").expect_err("it fails");
        assert_eq!((failure.status, &*failure.message), (5, "none"));

        let nowhere = GrpcMethod { cluster: "nobody".into(), ..method("Echo") };
        let failure = GrpcStream::open(&client.callouts, &nowhere).receive().await.expect_err("nobody is there");
        assert_eq!(failure.cause.map(|cause| cause.problem), Some(Problem::UnknownCluster));
        client.settled().await;
    });
}

/// A server that does not read holds the sender up, and dropping the stream lets go of it all.
#[test]
fn a_stream_that_is_not_read_holds_its_sender_up() {
    let server = Server::start(true);
    run(async {
        let client = Client::new(&[server.cluster(true)]);
        let mut stream = GrpcStream::open(&client.callouts, &method("Hangs"));
        let message = vec![7; 50_000];
        let mut sent = 0;
        while let Ok(result) = timeout(Duration::from_millis(500), stream.send(&message)).await {
            result.expect("the stream lasts");
            sent += message.len();
            assert!(sent < 4_000_000, "nothing holds it up");
        }
        poll_fn(|cx| {
            assert!(stream.poll_receive(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(client.callouts.active(), 1);
        drop(stream);
        client.settled().await;
    });
}

/// The time of a stream begins with the end of its request, whatever its task waits for by then.
#[test]
fn a_stream_that_hangs_ends_in_time() {
    each(|_server, client, http2| async move {
        let mut head = RequestHead::default();
        head.set_method(b"POST");
        head.set_path(b"/never");
        let mut stream = client.callouts.stream(&"backend".into(), head, with_timeout(50));
        stream.send(&[7; 1000]);
        // It has been handed over, and the task waits for an answer.
        sleep(Duration::from_millis(100)).await;
        stream.finish(Headers::default());
        let answer = timeout(LIMIT, poll_fn(|cx| stream.poll_head(cx))).await.expect("in time");
        assert_eq!(answer.map(|_| ()).map_err(|error| error.problem), Err(Problem::Timeout), "HTTP/2: {http2}");
        client.settled().await;
    });
}
