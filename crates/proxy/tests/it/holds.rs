//! Requests that wait for resources the control plane has not sent yet, in every protocol: held, not refused, forwarded
//! completely, and visible in the access log and the statistics.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_filters::test_filter::{CustomFilter, State, register};
use evenkeel_filters::{Decision, RequestContext};
use evenkeel_testkit::{Backend, Connection, Reply, eventually};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::{ControlPlane, Proxy, dynamic_bootstrap, http_listener, resource, set, stat, static_cluster};

/// No exchange of these tests takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Between a proxy and its control plane.
struct Valve {
    address: SocketAddr,
    shared: Arc<(Mutex<Flow>, Condvar)>,
}

#[derive(Default)]
struct Flow {
    /// Nothing that the control plane says gets through.
    shut: bool,
    /// There is no control plane.
    cut: bool,
    connections: Vec<TcpStream>,
}

impl Valve {
    fn before(control_plane: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::<(Mutex<Flow>, Condvar)>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for proxy in listener.incoming().map_while(Result::ok) {
                // Fails when the other side has gone already.
                _ = Self::join(proxy, control_plane, &of_thread);
            }
        });
        Self { address, shared }
    }

    fn join(proxy: TcpStream, control_plane: SocketAddr, shared: &Arc<(Mutex<Flow>, Condvar)>) -> std::io::Result<()> {
        let mut flow = shared.0.lock().expect("no panic");
        if flow.cut {
            return Ok(());
        }
        let server = TcpStream::connect(control_plane)?;
        let (to_server, to_proxy) = (server.try_clone()?, proxy.try_clone()?);
        flow.connections.extend([server.try_clone()?, proxy.try_clone()?]);
        drop(flow);
        std::thread::spawn(move || pass(proxy, to_server, || ()));
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            pass(server, to_proxy, || drop(shared.1.wait_while(shared.0.lock().expect("no panic"), |flow| flow.shut)));
        });
        Ok(())
    }

    fn set(&self, shut: bool) {
        self.shared.0.lock().expect("no panic").shut = shut;
        self.shared.1.notify_all();
    }

    fn cut(&self) {
        let mut flow = self.shared.0.lock().expect("no panic");
        (flow.cut, flow.shut) = (true, false);
        // Either may be gone already.
        flow.connections.drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        self.shared.1.notify_all();
    }
}

/// Copies bytes until either side ends, each piece after `turn`.
fn pass(mut from: TcpStream, mut to: TcpStream, turn: impl Fn()) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        turn();
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // Either may be gone already.
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}

/// A proxy that knows clusters, and hosts only once it has asked for them.
struct Stage {
    _control_plane: ControlPlane,
    valve: Valve,
    proxy: Proxy,
    web: SocketAddr,
    folder: tempfile::TempDir,
}

impl Stage {
    /// Each host leads to the cluster of that name, at this address; `protocol` is that of all of them.
    fn new(hosts: &[(&str, SocketAddr)], protocol: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = format!(
            "rds: {{route_config_name: main, config_source: {{ads: {{}}, resource_api_version: V3}}}}\n      upgrade_configs: \
             [{{upgrade_type: websocket}}]\n      access_log: [{{name: file, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, log_format: \
             {{text_format_source: {{inline_string: \"%REQ(:AUTHORITY)% %RESPONSE_CODE% \
             held=%COMMON_DURATION(ON_DEMAND_BEG:ON_DEMAND_END:us)%\\n\"}}}}}}}}]",
            folder.path().join("log").display(),
        );
        let on_demand = "http_filters:\n      - {name: on_demand, typed_config: {\"@type\": \
                         type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand}}";
        let listener = http_listener("web", &manager, "").replace("http_filters:", on_demand);
        let table = "{name: main, vhds: {config_source: {ads: {}, resource_api_version: V3}}}";
        let mut resources = vec![
            (ResourceType::Listener, resource::<Listener>("web", &listener)),
            (ResourceType::Route, resource::<RouteConfiguration>("main", table)),
        ];
        let options = format!(
            "typed_extension_protocol_options: {{envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{\"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
             {{{protocol}: {{}}}}}}}}"
        );
        for (host, address) in hosts {
            let name = format!("main/{host}");
            let yaml = format!(
                "{{name: {name}, domains: [{host}], routes: [{{match: {{prefix: /}}, route: {{cluster: {host}}}}}]}}"
            );
            resources.push((ResourceType::VirtualHost, resource::<VirtualHost>(&name, &yaml)));
            let cluster = static_cluster(host, *address, &options);
            resources.push((ResourceType::Cluster, resource::<Cluster>(host, &cluster)));
        }
        let control_plane = ControlPlane::start(set(resources));
        let valve = Valve::before(control_plane.address);
        let proxy = Proxy::start_with(&dynamic_bootstrap(valve.address, "DELTA_GRPC", ""), 1);
        proxy.wait_live();
        let web = proxy.listener("web");
        Self { _control_plane: control_plane, valve, proxy, web, folder }
    }

    fn count(&self, name: &str) -> u64 {
        stat(&self.proxy, &format!("http.web.{name}")).iter().sum()
    }

    /// Waits until so many requests were held.
    fn wait_held(&self, requests: u64) {
        eventually("a held request", || (self.count("on_demand_attempt") == requests).then_some(()));
    }

    /// The log, once it has so many lines; the time held is `-` or `TIME`.
    fn log(&self, lines: usize) -> Vec<String> {
        eventually("the access log", || {
            let text = std::fs::read_to_string(self.folder.path().join("log")).ok()?;
            (text.lines().count() >= lines).then(|| {
                let plain = |line: &str| match line.rsplit_once("held=") {
                    Some((rest, time)) if time.parse::<u64>().is_ok_and(|us| us > 0) => format!("{rest}held=TIME"),
                    _ => line.to_owned(),
                };
                text.lines().map(plain).collect()
            })
        })
    }
}

#[test]
fn a_body_waits_with_its_head() {
    let backend = Backend::echo("one");
    let hosts = [("plain.test", backend.address()), ("chunked.test", backend.address())];
    let stage = Stage::new(&hosts, "http_protocol_options");
    let [first, second] = ["a", "b"].map(|letter| letter.repeat(20_000));
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let framed = [
        ("plain.test", format!("content-length: {}\r\n\r\n{first}", 2 * first.len()), second.clone()),
        ("chunked.test", format!("transfer-encoding: chunked\r\n\r\n{}", chunk(&first)), chunk(&second) + "0\r\n\r\n"),
    ];
    for (number, (host, head, rest)) in framed.into_iter().enumerate() {
        stage.valve.set(true);
        let mut client = Connection::open(stage.web).expect("it accepts");
        client.send(format!("POST / HTTP/1.1\r\nhost: {host}\r\n{head}")).expect("it reads");
        stage.wait_held(number as u64 + 1);
        assert_eq!(backend.requests().len(), 2 * number);
        stage.valve.set(false);
        client.send(rest).expect("it reads");
        let answer = client.response().expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().ends_with(&format!("\n\n{first}{second}")), "another body");
        // The connection goes on, and the next request waits for nothing.
        assert_eq!(client.get(host, "/", "").expect("an answer").status, 200);
    }
    let held = ["on_demand_attempt", "on_demand_success", "on_demand_missing"].map(|name| stage.count(name));
    assert_eq!(held, [2, 2, 0]);
    let times = stage.proxy.get("/stats/prometheus").text();
    let times: Vec<&str> = times.lines().filter(|line| line.contains("on_demand_time_count")).collect();
    assert!(times.len() == 1 && times[0].ends_with(" 2"), "{times:?}");
    let lines =
        ["plain.test 200 held=TIME", "plain.test 200 held=-", "chunked.test 200 held=TIME", "chunked.test 200 held=-"];
    assert_eq!(stage.log(4), lines);
}

#[test]
fn a_websocket_waits_before_it_opens() {
    let backend = Backend::start(|_| Reply::Upgrade("websocket".to_owned()));
    let stage = Stage::new(&[("chat.test", backend.address())], "http_protocol_options");
    stage.valve.set(true);
    let mut client = Connection::open(stage.web).expect("it accepts");
    let fields = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.send(format!("GET /chat HTTP/1.1\r\nhost: chat.test\r\n{fields}\r\n")).expect("it reads");
    stage.wait_held(1);
    stage.valve.set(false);
    assert_eq!(client.head_response().expect("an answer").status, 101);
    client.send("hello").expect("the tunnel is open");
    assert_eq!(client.read_exact(5).expect("an echo"), b"hello");
}

async fn connect<B>(web: SocketAddr) -> SendRequest<B>
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static,
{
    let io = TokioIo::new(tokio::net::TcpStream::connect(web).await.expect("it accepts"));
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

#[test]
fn other_streams_pass_one_that_is_held() {
    let backend = Backend::echo("one");
    let hosts = [("known.test", backend.address()), ("new.test", backend.address())];
    let stage = Stage::new(&hosts, "http_protocol_options");
    let post = |host: &str, body: &str| {
        Request::post(format!("http://{host}/")).body(Full::new(Bytes::from(body.to_owned()))).expect("a request")
    };
    let runtime = runtime();
    let mut sender = runtime.block_on(connect(stage.web));
    let answered = |answer: Response<Incoming>| async {
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body().collect().await.expect("a whole answer").to_bytes()
    };
    let known = runtime.block_on(sender.send_request(post("known.test", "")));
    runtime.block_on(answered(known.expect("an answer")));
    stage.valve.set(true);
    let held = runtime.spawn(sender.send_request(post("new.test", "the body")));
    stage.wait_held(2);
    let known =
        runtime.block_on(async { tokio::time::timeout(LIMIT, sender.send_request(post("known.test", ""))).await });
    runtime.block_on(answered(known.expect("it does not wait").expect("an answer")));
    assert!(!held.is_finished());
    stage.valve.set(false);
    let held = runtime.block_on(async { tokio::time::timeout(LIMIT, held).await });
    let body = runtime.block_on(answered(held.expect("in time").expect("no panic").expect("an answer")));
    assert!(body.ends_with(b"\n\nthe body"), "{body:?}");
    let lines = ["known.test 200 held=TIME", "known.test 200 held=-", "new.test 200 held=TIME"];
    assert_eq!(stage.log(3), lines);
}

/// Sends every message back, and that all went well.
async fn echo(
    request: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = hyper::Error>>, Infallible> {
    let trailers = async {
        Some(Ok(HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("0"))])))
    };
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(request.into_body().with_trailers(Box::pin(trailers))).expect("a response"))
}

async fn serve(listener: tokio::net::TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(echo)));
    }
}

/// Both ways, a message at a time: the first before the route is known.
#[test]
fn a_call_of_grpc_streams_as_if_it_had_not_waited() {
    let runtime = runtime();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    runtime.spawn(serve(listener));
    let stage = Stage::new(&[("grpc.test", address)], "http2_protocol_options");
    stage.valve.set(true);
    let message = |text: &str| {
        let prefix = u32::try_from(text.len()).expect("short").to_be_bytes();
        Bytes::from([&[0][..], &prefix, text.as_bytes()].concat())
    };
    let (messages, body) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let request = Request::post("http://grpc.test/echo.Echo/Both").header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(StreamBody::new(ReceiverStream::new(body)));
    let mut sender = runtime.block_on(connect(stage.web));
    let call = runtime.spawn(sender.send_request(request.expect("a request")));
    runtime.block_on(messages.send(Ok(Frame::data(message("one"))))).expect("it is read");
    stage.wait_held(1);
    stage.valve.set(false);
    let exchange = async {
        let response = call.await.expect("no panic").expect("an answer");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let mut body = response.into_body();
        for text in ["one", "two", "three"] {
            let mut received = Vec::new();
            while received.len() < message(text).len() {
                let frame = body.frame().await.expect("a message").expect("a whole one");
                received.extend_from_slice(&frame.into_data().expect("a message"));
            }
            assert_eq!(received, message(text));
            let next = match text {
                "one" => "two",
                "two" => "three",
                _ => break,
            };
            messages.send(Ok(Frame::data(message(next)))).await.expect("it is read");
        }
        drop(messages);
        let rest = body.collect().await.expect("the end");
        assert_eq!(rest.trailers().expect("trailers")["grpc-status"], "0");
    };
    runtime.block_on(async { tokio::time::timeout(LIMIT, exchange).await }).expect("in time");
    assert_eq!(stage.log(1), ["grpc.test 200 held=TIME"]);
}

/// What is known works on; what is not is decided by what there is (here: nothing), at once.
#[test]
fn without_a_control_plane_nothing_waits() {
    let backend = Backend::echo("one");
    let hosts = [("known.test", backend.address()), ("new.test", backend.address())];
    let stage = Stage::new(&hosts, "http_protocol_options");
    let get =
        |host: &str| Connection::open(stage.web).expect("it accepts").get(host, "/", "").expect("an answer").status;
    assert_eq!(get("known.test"), 200);
    stage.valve.set(true);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| get("new.test"));
        stage.wait_held(2);
        assert!(!held.is_finished());
        stage.valve.cut();
        assert_eq!(held.join().expect("no panic"), 404);
    });
    eventually("the end of the stream", || (stat(&stage.proxy, "control_plane.connected_state") == [0]).then_some(()));
    assert_eq!((get("known.test"), get("other.test")), (200, 404));
    assert_eq!(stat(&stage.proxy, "on_demand.given_up"), [2]);
    let scope = stage.proxy.get("/scope").text();
    assert!(scope.contains("main/new.test given up") && scope.contains("main/other.test given up"), "{scope}");
}

/// Counts the requests it is asked about.
struct Counter(Arc<AtomicUsize>);

impl CustomFilter for Counter {
    fn request_head(&self, _: &mut State, context: &mut RequestContext<'_>) -> Decision {
        assert!(context.services.clusters().scope("wanted").is_some(), "it is asked before the cluster is there");
        self.0.fetch_add(1, Ordering::SeqCst);
        Decision::Continue
    }
}

#[test]
fn a_request_is_held_for_its_cluster_before_the_filters_are_asked() {
    let backend = Backend::echo("one");
    let asked = Arc::<AtomicUsize>::default();
    register("counter", Counter(Arc::clone(&asked)));
    let filters = "http_filters:\n      - {name: counter, typed_config: {\"@type\": \
                   type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 1}}\n      - {name: \
                   on_demand, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand, \
                   odcds: {source: {ads: {}, resource_api_version: V3}, timeout: 30s}}}";
    let routes = "route_config: {name: local, validate_clusters: false, virtual_hosts: [{name: all, domains: [\"*\"], routes: \
                  [{match: {prefix: /}, route: {cluster: wanted}}]}]}";
    let listener = http_listener("held", routes, "").replace("http_filters:", filters);
    let cluster = static_cluster("wanted", backend.address(), "");
    let control_plane = ControlPlane::start(set(vec![
        (ResourceType::Listener, resource::<Listener>("held", &listener)),
        (ResourceType::Cluster, resource::<Cluster>("wanted", &cluster)),
    ]));
    let valve = Valve::before(control_plane.address);
    // Clusters come only when they are asked for.
    let all = "  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}\n";
    let bootstrap = dynamic_bootstrap(valve.address, "DELTA_GRPC", "");
    assert!(bootstrap.contains(all), "{bootstrap}");
    let proxy = Proxy::start_with(&bootstrap.replace(all, ""), 1);
    proxy.wait_live();
    let web = proxy.listener("held");
    valve.set(true);
    std::thread::scope(|scope| {
        let get = || Connection::open(web).expect("it accepts").get("a.test", "/", "").expect("an answer").status;
        let held = scope.spawn(get);
        eventually("a held request", || (stat(&proxy, "http.held.on_demand_attempt") == [1]).then_some(()));
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        valve.set(false);
        assert_eq!(held.join().expect("no panic"), 200);
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
