//! Two proxies with mutual TLS between them, like two sidecars of a mesh: an application's requests of either protocol share
//! the connections between the proxies, and reach the other application unchanged.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use evenkeel_testkit::eventually;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::harness::{MeshTls, Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// No scenario takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// An application, the sidecar in front of it, and the sidecar of its clients.
pub struct Mesh {
    pub runtime: Runtime,
    pub outbound: Proxy,
    pub inbound: Proxy,
    /// Where clients call.
    pub entry: SocketAddr,
    pub app: Arc<App>,
    pub tls: MeshTls,
}

/// What the application saw.
#[derive(Default)]
pub struct App {
    connections: AtomicUsize,
    pub requests: AtomicUsize,
    /// Calls of `Wait` that were cut off, and others that never end.
    pub cut_off: AtomicUsize,
    /// Bytes of answers without end that were taken from it.
    pub produced: AtomicU64,
}

/// What a scenario changes.
pub struct Setup {
    /// Of the inbound connection manager.
    pub codec_type: &'static str,
    /// Of the inbound sidecar, and of the outbound one.
    pub workers: (usize, usize),
    /// Routes of the inbound sidecar before the one that is taken.
    pub routes: String,
    /// Fields of the inbound sidecar's listener.
    pub listener: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self { codec_type: "AUTO", workers: (2, 2), routes: String::new(), listener: "traffic_direction: INBOUND" }
    }
}

impl Mesh {
    pub fn new(setup: &Setup) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let tls = MeshTls::new();
        let app = Arc::<App>::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(serve(listener, Arc::clone(&app)));

        let as_received = protocol("use_downstream_protocol_config: {http2_protocol_options: {}}");
        let routes = |codec: &str, before: &str| {
            format!(
                "codec_type: {codec}\n      route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], \
                 routes: [{before}{{match: {{prefix: /}}, route: {{cluster: next, timeout: 0s}}}}]}}]}}"
            )
        };
        let chain = tls.listener("h2, http/1.1") + setup.listener;
        let inbound = http_listener("inbound", &routes(setup.codec_type, &setup.routes), &chain);
        let inbound = static_bootstrap(&inbound, &[static_cluster("next", address, &as_received)]);
        let inbound = Proxy::start_with(&inbound, setup.workers.0);
        inbound.wait_live();
        let to_sidecar = format!("{as_received}, {}", tls.cluster("istio-http/1.1, istio"));
        let next = static_cluster("next", inbound.listener("inbound"), &to_sidecar);
        let outbound = static_bootstrap(&http_listener("outbound", &routes("AUTO", ""), ""), &[next]);
        let outbound = Proxy::start_with(&outbound, setup.workers.1);
        outbound.wait_live();
        let entry = outbound.listener("outbound");
        Self { runtime, outbound, inbound, entry, app, tls }
    }

    pub fn run<T>(&self, scenario: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(LIMIT, scenario).await.expect("the scenario ends in time") })
    }

    /// Connections between the sidecars that carry many requests, and those that carry one at a time.
    pub fn connections(&self) -> (u64, u64) {
        let count = |suffix| stat(&self.outbound, suffix).iter().sum();
        (count("cluster.next.upstream_cx_http2_total"), count("cluster.next.upstream_cx_http1_total"))
    }
}

/// Serves HTTP/1.1 and HTTP/2 by prior knowledge; gRPC below `/test.Echo/`.
async fn serve(listener: TcpListener, app: Arc<App>) {
    while let Ok((stream, _)) = listener.accept().await {
        app.connections.fetch_add(1, Ordering::Relaxed);
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&app)));
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // One stream that is not read leaves room for the others.
            builder.http2().initial_stream_window_size(256 << 10).initial_connection_window_size(16 << 20);
            _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, app: Arc<App>) -> Result<Response<tonic::body::Body>, Infallible> {
    app.requests.fetch_add(1, Ordering::Relaxed);
    match request.uri().path() {
        "/endless" => {
            let frames = endless(app).map(|piece| Ok::<_, Infallible>(hyper::body::Frame::data(Bytes::from(piece))));
            return Ok(Response::new(tonic::body::Body::new(http_body_util::StreamBody::new(frames))));
        }
        "/unread" => {
            let _kept = (CutOff(app), request);
            return std::future::pending().await;
        }
        "/headers" => {
            let text = format!("{:?}", request.headers());
            return Ok(Response::new(tonic::body::Body::new(Full::new(Bytes::from(text)))));
        }
        path if path.starts_with("/test.Echo/") => return Ok(grpc(request, app).await),
        _ => {}
    }
    let version = format!("{:?}", request.version());
    let host = request.headers().get("host").map_or_else(
        || request.uri().authority().map(ToString::to_string).unwrap_or_default(),
        |host| host.to_str().expect("text").to_owned(),
    );
    let length = request.into_body().collect().await.map_or(usize::MAX, |body| body.to_bytes().len());
    let text = Full::new(Bytes::from(format!("{version} {host} {length}")));
    Ok(Response::new(tonic::body::Body::new(text)))
}

/// Sends `count` requests over one connection each, all at once.
pub async fn ask(entry: SocketAddr, version: Version, count: usize) -> Vec<String> {
    let asking = (0..count).map(|index| async move {
        let stream = TokioIo::new(TcpStream::connect(entry).await.expect("it accepts"));
        let body = Full::new(Bytes::from(vec![b'x'; index * 10]));
        let request = Request::post("http://app.test/").header("host", "app.test").version(version);
        let answer = match version {
            Version::HTTP_2 => {
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("a handshake");
                tokio::spawn(connection);
                sender.send_request(request.body(body).expect("valid")).await
            }
            _ => {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(stream).await.expect("a connection");
                tokio::spawn(connection);
                sender.send_request(request.uri("/").body(body).expect("valid")).await
            }
        };
        let body = answer.expect("an answer").into_body().collect().await.expect("a whole answer");
        String::from_utf8(body.to_bytes().to_vec()).expect("text")
    });
    futures_util::future::join_all(asking).await
}

#[test]
fn requests_share_a_connection_per_worker_and_arrive_as_they_were() {
    let mesh = Mesh::new(&Setup::default());
    for (version, name) in [(Version::HTTP_11, "HTTP/1.1"), (Version::HTTP_2, "HTTP/2.0")] {
        let answers = mesh.run(ask(mesh.entry, version, 50));
        let expected: Vec<_> = (0..50).map(|index| format!("{name} app.test {}", index * 10)).collect();
        assert_eq!(answers, expected);
    }
    let (shared, single) = mesh.connections();
    assert!(shared <= 4 && single == 0, "{shared} shared connections, {single} others");
    assert_eq!(stat(&mesh.inbound, "http.inbound.downstream_rq_completed").iter().sum::<u64>(), 100);
    assert_eq!(stat(&mesh.inbound, "http2.rx_reset").iter().sum::<u64>(), 0);
}

#[test]
fn a_sidecar_that_does_not_share_gets_a_connection_per_request() {
    let mesh = Mesh::new(&Setup { codec_type: "HTTP1", workers: (1, 1), ..Setup::default() });
    let answers = mesh.run(ask(mesh.entry, Version::HTTP_11, 20));
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 app.test")), "{answers:?}");
    let (shared, single) = mesh.connections();
    assert!(shared == 0 && single > 0, "{shared} shared connections, {single} others");
}

#[test]
fn a_client_that_leaves_is_missed_at_the_other_end() {
    let mesh = Mesh::new(&Setup::default());
    mesh.run(async {
        let mut client = tonic::client::Grpc::new(channel(mesh.entry).await);
        client.ready().await.expect("ready");
        let call = client.unary(tonic::Request::new(b"x".to_vec()), path("Wait"), Raw);
        assert!(timeout(Duration::from_millis(100), call).await.is_err());
    });
    eventually("the call to be cut off", || (mesh.app.cut_off.load(Ordering::Relaxed) == 1).then_some(()));
}

#[test]
fn grpc_of_every_kind_passes_with_its_trailers() {
    let mesh = Mesh::new(&Setup::default());
    mesh.run(async {
        let client = tonic::client::Grpc::new(channel(mesh.entry).await);
        let ready = async || {
            let mut client = client.clone();
            client.ready().await.expect("ready");
            client
        };
        let answer = ready().await.unary(tonic::Request::new(b"one".to_vec()), path("Unary"), Raw).await;
        let answer = answer.expect("an answer");
        assert_eq!((answer.get_ref().as_slice(), answer.metadata().get("x-kind").is_some()), (&b"one"[..], true));

        let status =
            ready().await.unary(tonic::Request::new(Vec::new()), path("Fail"), Raw).await.expect_err("a status");
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "on purpose, 100 %"));
        assert_eq!(status.metadata().get("x-why").map(|why| why.as_bytes()), Some(&b"trailer"[..]));

        let pieces = futures_util::stream::iter((0..100).map(|index| vec![b'a'; index]));
        let sum = ready().await.client_streaming(tonic::Request::new(pieces), path("ClientStream"), Raw).await;
        assert_eq!(sum.expect("an answer").into_inner(), b"4950");

        let many = ready().await.server_streaming(tonic::Request::new(b"50".to_vec()), path("ServerStream"), Raw).await;
        let many: Vec<_> =
            many.expect("a stream").into_inner().map(|item| item.expect("an item").len()).collect().await;
        assert_eq!(many, vec![10_000; 50]);

        // Each piece is sent when the one before has come back.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(b"0".to_vec()).await.expect("room");
        let request = tonic::Request::new(ReceiverStream::new(receiver));
        let mut echoes = ready().await.streaming(request, path("Bidi"), Raw).await.expect("a stream").into_inner();
        for index in 1..=50 {
            let echo: Vec<u8> = echoes.message().await.expect("no error").expect("an echo");
            assert_eq!(echo, (index - 1).to_string().into_bytes());
            sender.send(index.to_string().into_bytes()).await.expect("room");
        }
        drop(sender);
        assert_eq!(echoes.message().await.expect("no error"), Some(b"50".to_vec()));
        assert_eq!(echoes.message().await.expect("no error"), None);
        assert!(echoes.trailers().await.expect("no error").is_some());
    });
}

#[test]
fn a_grpc_deadline_ends_the_call_at_both_ends() {
    let mesh = Mesh::new(&Setup::default());
    mesh.run(async {
        let mut client = tonic::client::Grpc::new(channel(mesh.entry).await);
        client.ready().await.expect("ready");
        let mut request = tonic::Request::new(b"x".to_vec());
        request.set_timeout(Duration::from_millis(50));
        let status = client.unary(request, path("Wait"), Raw).await.expect_err("no answer");
        assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status:?}");
    });
    eventually("the call to be cut off", || (mesh.app.cut_off.load(Ordering::Relaxed) == 1).then_some(()));
}

pub async fn channel(entry: SocketAddr) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{entry}")).expect("a URI");
    endpoint.connect().await.expect("it accepts")
}

pub fn path(method: &str) -> http::uri::PathAndQuery {
    format!("/test.Echo/{method}").parse().expect("a path")
}

/// Messages are bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(input.copy_to_bytes(input.remaining()).to_vec()))
    }
}

type Answers = Pin<Box<dyn futures_util::Stream<Item = Result<Vec<u8>, Status>> + Send>>;

/// Every method is a bidirectional stream to the server.
async fn grpc(request: Request<Incoming>, app: Arc<App>) -> Response<tonic::body::Body> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let service = tower::service_fn(move |request: tonic::Request<Streaming<Vec<u8>>>| {
        let (method, app) = (method.clone(), Arc::clone(&app));
        async move { call(&method, request.into_inner(), app).await }
    });
    tonic::server::Grpc::new(Raw).streaming(service, request).await
}

async fn call(method: &str, mut input: Streaming<Vec<u8>>, app: Arc<App>) -> Result<tonic::Response<Answers>, Status> {
    let once = |item: Vec<u8>| Box::pin(futures_util::stream::iter([Ok(item)])) as Answers;
    let answers = match method {
        "Unary" => once(input.message().await?.unwrap_or_default()),
        "Bidi" => Box::pin(input) as Answers,
        "Fail" => {
            let mut status = Status::failed_precondition("on purpose, 100 %");
            status.metadata_mut().insert("x-why", "trailer".parse().expect("a value"));
            return Err(status);
        }
        "ClientStream" => {
            let mut sum = 0;
            while let Some(item) = input.message().await? {
                sum += item.len();
            }
            once(sum.to_string().into_bytes())
        }
        "ServerStream" => {
            let count = input.message().await?.unwrap_or_default();
            let count: usize = String::from_utf8_lossy(&count).parse().unwrap_or(0);
            Box::pin(futures_util::stream::iter((0..count).map(|_| Ok(vec![b'z'; 10_000])))) as Answers
        }
        "Endless" => Box::pin(endless(app).map(Ok)) as Answers,
        "Unread" => {
            let _kept = (CutOff(app), input);
            return std::future::pending().await;
        }
        _ => {
            let _cut_off = CutOff(app);
            std::future::pending::<()>().await;
            unreachable!("a pending future")
        }
    };
    let mut response = tonic::Response::new(answers);
    response.metadata_mut().insert("x-kind", method.parse().expect("a value"));
    Ok(response)
}

/// As many bytes as are taken, and a count when that ends.
fn endless(app: Arc<App>) -> impl futures_util::Stream<Item = Vec<u8>> + Send {
    let cut_off = CutOff(app);
    futures_util::stream::repeat(vec![b'x'; 10_000]).inspect(move |piece| {
        cut_off.0.produced.fetch_add(piece.len() as u64, Ordering::Relaxed);
    })
}

/// Counts calls that end before they are done.
struct CutOff(Arc<App>);

impl Drop for CutOff {
    fn drop(&mut self) {
        self.0.cut_off.fetch_add(1, Ordering::Relaxed);
    }
}
