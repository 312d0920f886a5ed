//! Server and client over real sockets.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_xds::client::connection::Service as Method;
use evenkeel_xds::client::{Client, ClientResponse, Connection, Protocol, Rejected};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::server::grpc::{self, Budget, Limits};
use evenkeel_xds::server::{AdsServer, Session, Source, Status};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Body as _, BoxFuture, Service};
use tonic::transport::{Channel, Endpoint, Server};

struct OneSet {
    resources: watch::Receiver<Arc<ResourceSet>>,
    status: watch::Sender<Status>,
}

impl Source for OneSet {
    async fn connect(&self, node: &Node, extensions: &tonic::Extensions) -> Result<Session, tonic::Status> {
        assert!(extensions.get::<SocketAddr>().or(peer(extensions).as_ref()).is_some());
        if node.id != "known" {
            return Err(tonic::Status::permission_denied(format!("node {:?} is not known", node.id)));
        }
        let status = self.status.clone();
        let limit = |bytes| match bytes {
            ..=NAME_BYTES => Ok(()),
            _ => Err(tonic::Status::resource_exhausted(format!("names of {bytes} bytes"))),
        };
        Ok(Session::new(self.resources.clone()).observed(move |now| _ = status.send(now)).limited(limit))
    }
}

/// The client's address as tonic's server gives it.
fn peer(extensions: &tonic::Extensions) -> Option<SocketAddr> {
    extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr()
}

/// What the state machines are put on.
#[derive(Clone, Copy, Debug)]
enum Transport {
    /// A service in a tonic server.
    Tonic,
    /// The server of our own.
    Own,
}

const BOTH: [Transport; 2] = [Transport::Tonic, Transport::Own];

struct Harness {
    resources: watch::Sender<Arc<ResourceSet>>,
    status: watch::Receiver<Status>,
    channel: Channel,
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

async fn serve(transport: Transport) -> Harness {
    let (resources, resources_rx) = watch::channel(clusters(1, &[("a", 1)]));
    let (status_tx, status) = watch::channel(Status::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let source = Arc::new(OneSet { resources: resources_rx, status: status_tx });
    let (stop, stopped) = watch::channel(false);
    match transport {
        Transport::Tonic => {
            let service = AdsServer::new(source);
            tokio::spawn(Server::builder().serve_with_incoming(service, TcpListenerStream::new(listener)));
        }
        Transport::Own => {
            let others = grpc::Services::default().with(AdsServer::new(source.clone())).with(Calls(stuck));
            tokio::spawn(accept(listener, source, others, stopped));
        }
    }
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Harness { resources, status, channel, address, stop }
}

async fn accept(listener: TcpListener, source: Arc<OneSet>, others: grpc::Services, stopped: watch::Receiver<bool>) {
    let server = Arc::new(grpc::Server::new(source, others, LIMITS, stopped));
    while let Ok((socket, address)) = listener.accept().await {
        let server = server.clone();
        let mut extensions = tonic::Extensions::default();
        extensions.insert(address);
        let client = grpc::Client { extensions, budget: Budget::new(MEMORY_BYTES), anonymous: false, expires: None };
        tokio::spawn(async move { server.serve(socket, client).await });
    }
}

/// What the names of a stream may take.
const NAME_BYTES: usize = 6 * 1024 * 1024;
/// What unfinished messages of a client may hold.
const MEMORY_BYTES: usize = 32 * 1024 * 1024;

const LIMITS: Limits = Limits {
    max_streams: 100,
    max_request_bytes: 8 * 1024 * 1024,
    max_call_bytes: 64 * 1024,
    keepalive_interval: Duration::from_millis(200),
    keepalive_timeout: Duration::from_millis(200),
};

fn clusters(generation: u64, items: &[(&str, u64)]) -> Arc<ResourceSet> {
    let mut set = ResourceSet::new(generation);
    for (name, timeout) in items {
        let cluster = Cluster { name: (*name).into(), alt_stat_name: timeout.to_string(), ..Default::default() };
        set.insert(
            ResourceType::Cluster,
            Arc::new(Resource::from_message(*name, &cluster).with_origin("dir/a.yaml:3:1")),
        );
    }
    Arc::new(set)
}

fn client(protocol: Protocol, id: &str) -> Client {
    let mut client = Client::new(protocol, Node { id: id.into(), ..Default::default() });
    client.subscribe_all(ResourceType::Cluster);
    client.on_connect();
    client
}

async fn exchange(transport: Transport, protocol: Protocol) {
    let mut harness = serve(transport).await;
    let mut client = client(protocol, "known");
    let first = client.poll_request().unwrap();
    let mut connection = Connection::open(harness.channel.clone(), Method::Aggregated, first).await.unwrap();

    let update = client.on_response(connection.next().await.unwrap()).unwrap();
    assert_eq!(update.added[0].name, "a");
    client.answer(&update, &[]);
    connection.send(client.poll_request().unwrap()).await.unwrap();
    harness.status.wait_for(|status| status.is_live(1)).await.unwrap();

    harness.resources.send(clusters(2, &[("a", 1), ("b", 9)])).unwrap();
    let response: ClientResponse = connection.next().await.unwrap();
    let update = client.on_response(response).unwrap();
    client.answer(&update, &[Rejected { name: "b".into(), reason: "Cluster \"b\": bad".into() }]);
    connection.send(client.poll_request().unwrap()).await.unwrap();
    let status = harness.status.wait_for(|status| status.types[0].nack.is_some()).await.unwrap().clone();
    let nack = status.types[0].nack.as_ref().unwrap();
    assert_eq!(nack.message, "Cluster \"b\": bad");
    assert_eq!(nack.resources.last().unwrap().origin.as_deref(), Some("dir/a.yaml:3:1"));
    assert_eq!(client.held(ResourceType::Cluster).map(|(name, _)| name).collect::<Vec<_>>(), ["a"]);
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("no answer in 20 s")
}

#[tokio::test]
async fn accepts_and_refuses() {
    for transport in BOTH {
        for protocol in [Protocol::Delta, Protocol::Sotw] {
            within(exchange(transport, protocol)).await;
        }
    }
}

async fn open(harness: &Harness, client: &mut Client) -> Connection {
    let first = client.poll_request().unwrap();
    Connection::open(harness.channel.clone(), Method::Aggregated, first).await.unwrap()
}

#[tokio::test]
async fn a_node_the_source_refuses_gets_the_reason() {
    for transport in BOTH {
        let refused = async {
            let harness = serve(transport).await;
            let first = client(Protocol::Delta, "stranger").poll_request().unwrap();
            let error = match Connection::open(harness.channel.clone(), Method::Aggregated, first).await {
                Ok(mut connection) => connection.next().await.unwrap_err(),
                Err(error) => error,
            };
            assert!(error.to_string().contains("node \"stranger\" is not known"), "{transport:?}: {error}");
            // The connection is as good as before.
            let mut known = client(Protocol::Delta, "known");
            let response = open(&harness, &mut known).await.next().await.unwrap();
            assert_eq!(known.on_response(response).unwrap().added[0].name, "a");
        };
        within(refused).await;
    }
}

/// The first ADS stream of a connection is served by the connection itself, others by tonic's service: no client sees it.
#[tokio::test]
async fn streams_share_a_connection() {
    within(async {
        let harness = serve(Transport::Own).await;
        let mut streams = Vec::new();
        for protocol in [Protocol::Delta, Protocol::Sotw, Protocol::Delta] {
            let mut client = client(protocol, "known");
            let stream = open(&harness, &mut client).await;
            streams.push((client, stream));
        }
        for generation in 1..4 {
            for (client, stream) in &mut streams {
                let update = client.on_response(stream.next().await.unwrap()).unwrap();
                assert_eq!(update.added[0].name, "a");
                client.answer(&update, &[]);
                stream.send(client.poll_request().unwrap()).await.unwrap();
            }
            harness.resources.send(clusters(generation + 1, &[("a", generation + 10)])).unwrap();
        }
    })
    .await;
}

/// Responses and requests far larger than the windows arrive whole, and in turns with others.
#[tokio::test]
async fn large_messages_pass_in_both_directions() {
    for transport in BOTH {
        let large = async {
            let harness = serve(transport).await;
            let names: Vec<String> = (0..60_000).map(|index| format!("a-cluster-with-a-long-name-{index}")).collect();
            let items: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
            harness.resources.send(clusters(2, &items)).unwrap();
            let mut client = Client::new(Protocol::Delta, Node { id: "known".into(), ..Default::default() });
            names.iter().for_each(|name| client.subscribe(ResourceType::Cluster, name.as_str()));
            client.on_connect();
            let mut stream = open(&harness, &mut client).await;
            // A response has at most 4 MiB; what is left follows each answer.
            let mut added = 0;
            while added < names.len() {
                let update = client.on_response(stream.next().await.unwrap()).unwrap();
                added += update.added.len();
                client.answer(&update, &[]);
                stream.send(client.poll_request().unwrap()).await.unwrap();
            }
            assert_eq!(added, names.len(), "{transport:?}");
        };
        within(large).await;
    }
}

/// Whoever keeps more names subscribed than he may is told so, also where each request was small.
#[tokio::test]
async fn a_stream_that_keeps_too_many_names_ends() {
    for transport in BOTH {
        let refused = async {
            let harness = serve(transport).await;
            let mut client = client(Protocol::Delta, "known");
            let mut stream = open(&harness, &mut client).await;
            let mut rounds = 0..;
            let error = loop {
                let response = match stream.next().await {
                    Ok(response) => response,
                    Err(error) => break error,
                };
                let update = client.on_response(response).unwrap();
                client.answer(&update, &[]);
                let round = rounds.next().unwrap();
                for name in 0..20_000 {
                    client.subscribe(ResourceType::Endpoint, &format!("round-{round}-with-a-long-name-{name}"));
                }
                while let Some(request) = client.poll_request() {
                    stream.send(request).await.unwrap();
                }
            };
            assert!(error.to_string().contains("names of"), "{transport:?}: {error}");
            assert_eq!(rounds.start, 4, "{transport:?}");
        };
        within(refused).await;
    }
}

/// A client that is there and silent stays; one that does not read its PING is let go.
#[tokio::test]
async fn a_dead_client_is_noticed() {
    within(async {
        let mut harness = serve(Transport::Own).await;
        let mut client = client(Protocol::Delta, "known");
        let mut stream = open(&harness, &mut client).await;
        let update = client.on_response(stream.next().await.unwrap()).unwrap();
        client.answer(&update, &[]);
        stream.send(client.poll_request().unwrap()).await.unwrap();
        harness.status.wait_for(|status| status.is_live(1)).await.unwrap();
        let mut silent = tokio::net::TcpStream::connect(harness.address).await.unwrap();
        silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut said = Vec::new();
        silent.read_to_end(&mut said).await.unwrap();
        assert!(said.ends_with(b"evenkeel"), "a PING, and the end: {said:?}");

        // The other one was asked meanwhile, too.
        harness.resources.send(clusters(2, &[("a", 2)])).unwrap();
        assert_eq!(client.on_response(stream.next().await.unwrap()).unwrap().added.len(), 1, "still served");
    })
    .await;
}

/// At shutdown clients are asked to leave, and a stream that its source ends says so.
#[tokio::test]
async fn a_server_that_stops_says_so() {
    within(async {
        let harness = serve(Transport::Own).await;
        let mut client = client(Protocol::Delta, "known");
        let mut stream = open(&harness, &mut client).await;
        stream.next().await.unwrap();
        drop(harness.resources);
        harness.stop.send(true).unwrap();
        let error = stream.next().await.unwrap_err();
        assert!(error.to_string().contains("shutting down"), "{error}");
    })
    .await;
}

/// A service that does this with each call.
#[derive(Clone)]
struct Calls(fn(Request<Body>) -> BoxFuture<Response<Body>, Infallible>);

impl tonic::server::NamedService for Calls {
    const NAME: &'static str = "test.Calls";
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        (self.0)(request)
    }
}

/// Never reads what it is called with.
fn stuck(request: Request<Body>) -> BoxFuture<Response<Body>, Infallible> {
    Box::pin(async move {
        let _kept = request;
        std::future::pending().await
    })
}

/// A body without end, and how much of it has been taken.
struct Endless(watch::Sender<usize>);

impl tonic::codegen::Body for Endless {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        let piece = bytes::Bytes::from_static(&[7; 8 * 1024]);
        self.0.send_modify(|taken| *taken += piece.len());
        Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }
}

/// Calls that nobody reads take the windows of their own streams, not that of the connection: its ADS stream goes on.
#[tokio::test]
async fn calls_that_are_stuck_do_not_hold_up_the_ads_stream() {
    const CALLS: usize = 8;
    within(async {
        let mut harness = serve(Transport::Own).await;
        let mut client = client(Protocol::Delta, "known");
        let mut stream = open(&harness, &mut client).await;
        let update = client.on_response(stream.next().await.unwrap()).unwrap();
        client.answer(&update, &[]);
        stream.send(client.poll_request().unwrap()).await.unwrap();
        harness.status.wait_for(|status| status.is_live(1)).await.unwrap();
        for _ in 0..CALLS {
            let (taken, mut seen) = watch::channel(0);
            let request = Request::post(format!("http://{}/test.Calls/Call", harness.address))
                .header("content-type", "application/grpc")
                .body(Body::new(Endless(taken)));
            let mut channel = harness.channel.clone();
            poll_fn(|cx| Service::poll_ready(&mut channel, cx)).await.unwrap();
            tokio::spawn(Service::call(&mut channel, request.unwrap()));
            // As much as a stream's window, one after the other: together far more than the connection's.
            seen.wait_for(|taken| *taken >= 240 * 1024).await.unwrap();
        }
        // A request far larger than what would be left of the window, and its answer.
        let names: Vec<String> = (0..20_000).map(|index| format!("a-cluster-with-a-long-name-{index}")).collect();
        names.iter().for_each(|name| client.subscribe(ResourceType::Endpoint, name.as_str()));
        stream.send(client.poll_request().unwrap()).await.unwrap();
        harness
            .status
            .wait_for(|status| status.of(ResourceType::Endpoint).is_some_and(|of| of.names == 20_000))
            .await
            .unwrap();
        harness.resources.send(clusters(2, &[("a", 2)])).unwrap();
        let mut kinds = std::collections::BTreeSet::new();
        while kinds.len() < 2 {
            let update = client.on_response(stream.next().await.unwrap()).unwrap();
            client.answer(&update, &[]);
            stream.send(client.poll_request().unwrap()).await.unwrap();
            kinds.insert(update.kind);
        }
        harness.status.wait_for(|status| status.is_live(2)).await.unwrap();
    })
    .await;
}

/// What a further ADS stream is sent is taken by another task: the client's windows open then, though nothing else happens on
/// the connection.
#[tokio::test]
async fn a_further_ads_stream_gets_its_window_back() {
    // Two clients are large.
    within(Box::pin(async {
        let harness = serve(Transport::Own).await;
        let mut first = client(Protocol::Delta, "known");
        let mut stream = open(&harness, &mut first).await;
        stream.next().await.unwrap();
        let mut second = Client::new(Protocol::Delta, Node { id: "known".into(), ..Default::default() });
        let names: Vec<String> = (0..60_000).map(|index| format!("a-cluster-with-a-long-name-{index}")).collect();
        names.iter().for_each(|name| second.subscribe(ResourceType::Cluster, name.as_str()));
        second.on_connect();
        // One message of 2 MiB, eight times the window.
        let mut further = open(&harness, &mut second).await;
        harness.resources.send(clusters(2, &[(names[59_999].as_str(), 1)])).unwrap();
        loop {
            let update = second.on_response(further.next().await.unwrap()).unwrap();
            if update.added.iter().any(|added| *added.name == names[59_999]) {
                break;
            }
            second.answer(&update, &[]);
            further.send(second.poll_request().unwrap()).await.unwrap();
        }
    }))
    .await;
}

/// Answers a call, once it has come whole, with a short body, which the suite wants to see.
fn hello(request: Request<Body>) -> BoxFuture<Response<Body>, Infallible> {
    let mut body = request.into_body();
    Box::pin(async move {
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
        Ok(Response::new(Body::new("hello\n".to_owned())))
    })
}

#[test]
fn passes_h2spec() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let port = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (resources, status) = (watch::channel(clusters(1, &[])).1, watch::channel(Status::default()).0);
        tokio::spawn(accept(
            listener,
            Arc::new(OneSet { resources, status }),
            grpc::Services::default().with(Calls(hello)),
            stopped,
        ));
        port
    });
    evenkeel_testkit::assert_h2spec_passes(port, false);
}
