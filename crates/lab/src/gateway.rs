//! A real gateway: `evenkeel proxy`, configured by the server under test, with a backend behind it and a client before it.
//!
//! Backend and client live on a thread of their own: a busy fleet does not delay what they measure.

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::error::LabError;
use crate::mesh::{self, Address};
use crate::process::{Program, Usage, free_ports};

/// Addresses of the backend, each an endpoint of its own.
pub const BACKENDS: [Address; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
/// The header by which an answer is the backend's and not the gateway's own.
const FROM_BACKEND: &str = "x-lab-backend";
/// Pause between two requests for hosts that are not ready.
const POLL: Duration = Duration::from_millis(1);
/// How long one request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// Hosts that may wait to be asked for, in hosts.
const MAX_WAITING: usize = 4096;
/// How often a port is looked for that is free on both backend addresses.
const PORT_ATTEMPTS: usize = 20;

/// The gateway's ports, known before anything is started: the mesh's files name them.
#[derive(Debug)]
pub struct GatewayPorts {
    /// Where it serves HTTP.
    pub http: SocketAddr,
    /// Its admin port.
    pub admin: SocketAddr,
    backends: [std::net::TcpListener; 2],
}

impl GatewayPorts {
    /// Free ones, and bound sockets for the backend.
    pub fn choose() -> Result<Self, LabError> {
        let [http, admin] = free_ports()?;
        Ok(Self { http, admin, backends: bind_backends()? })
    }

    /// The port of the backend, on both its addresses.
    pub fn backend_port(&self) -> u16 {
        self.backends[0].local_addr().map_or(0, |address| address.port())
    }
}

fn bind_backends() -> Result<[std::net::TcpListener; 2], LabError> {
    let [first, second] = BACKENDS;
    let bind = || {
        let one = std::net::TcpListener::bind((first, 0))?;
        let other = std::net::TcpListener::bind((second, one.local_addr()?.port()))?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok([one, other])
    };
    let mut result = bind();
    for _ in 1..PORT_ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = bind();
    }
    result.map_err(LabError::io("binding the backend's sockets"))
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    program: Program,
    probes: mpsc::Sender<Probe>,
    stop: Arc<AtomicBool>,
}

/// A host whose first answer is waited for.
struct Probe {
    host: String,
    answered: oneshot::Sender<Instant>,
}

impl Gateway {
    /// Starts the proxy, the backend and the client.
    pub fn start(program: &Path, work: &Path, ports: GatewayPorts, xds: SocketAddr) -> Result<Self, LabError> {
        let file = work.join("gateway.json");
        let text = bootstrap(xds, ports.admin).to_string();
        fs::write(&file, text).map_err(LabError::io(format!("writing {}", file.display())))?;
        let mut command = Command::new(program);
        command.arg("proxy").arg("-c").arg(&file).args(["--concurrency", "1", "-l", "warning"]);
        let program = Program::start("gateway", command, &work.join("gateway.log"))?;
        let (probes, waiting) = mpsc::channel(MAX_WAITING);
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(LabError::io("starting the backend"))?;
        let stopped = stop.clone();
        std::thread::spawn(move || runtime.block_on(serve(ports, waiting, stopped)));
        Ok(Self { program, probes, stop })
    }

    /// Resolves when a request for the host was first answered by the backend; with an error when the gateway is stopped.
    pub fn first_answer(&self, host: String) -> oneshot::Receiver<Instant> {
        let (answered, answer) = oneshot::channel();
        // When the queue is full the receiver says that nobody will answer.
        let _ = self.probes.try_send(Probe { host, answered });
        answer
    }

    /// What the proxy has used.
    pub fn usage(&self) -> Result<Usage, LabError> {
        self.program.usage()
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        self.program.check()
    }

    /// An error about it, with the end of its log.
    pub fn failure(&self, what: impl Into<String>) -> LabError {
        self.program.failure(what)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Serves the backend and asks for the hosts that wait, until the gateway is dropped.
async fn serve(ports: GatewayPorts, mut waiting: mpsc::Receiver<Probe>, stop: Arc<AtomicBool>) {
    for listener in ports.backends {
        if let Ok(listener) = TcpListener::from_std(listener) {
            tokio::spawn(backend(listener));
        }
    }
    let mut pending: Vec<Probe> = Vec::new();
    let mut connection: Option<SendRequest<Empty<Bytes>>> = None;
    while !stop.load(Ordering::Relaxed) {
        if pending.is_empty() {
            match waiting.recv().await {
                Some(probe) => pending.push(probe),
                None => return,
            }
        }
        while let Ok(probe) = waiting.try_recv() {
            pending.push(probe);
        }
        let mut still_pending = Vec::new();
        for probe in pending {
            match ask(&mut connection, ports.http, &probe.host).await {
                // Who asked may have given up.
                true => drop(probe.answered.send(Instant::now())),
                false => still_pending.push(probe),
            }
        }
        pending = still_pending;
        pending.retain(|probe| !probe.answered.is_closed());
        if !pending.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Whether the backend answers a request for the host. The connection is kept while it works.
async fn ask(connection: &mut Option<SendRequest<Empty<Bytes>>>, gateway: SocketAddr, host: &str) -> bool {
    let exchange = async {
        let mut sender = match connection.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(gateway).await.ok()?;
                stream.set_nodelay(true).ok()?;
                let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
                tokio::spawn(driver);
                sender
            }
        };
        sender.ready().await.ok()?;
        let request = Request::get("/").header(http::header::HOST, host).body(Empty::new()).ok()?;
        let response = sender.send_request(request).await.ok()?;
        let answered = response.status().is_success() && response.headers().contains_key(FROM_BACKEND);
        response.into_body().collect().await.ok()?;
        *connection = Some(sender);
        Some(answered)
    };
    matches!(tokio::time::timeout(REQUEST_PATIENCE, exchange).await, Ok(Some(true)))
}

async fn backend(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = service_fn(|request: Request<Incoming>| async move {
            // What is not read would keep the connection from being used again.
            let _ = request.into_body().collect().await;
            let mut response = Response::new(Full::new(Bytes::from_static(b"ok\n")));
            response.headers_mut().insert(FROM_BACKEND, HeaderValue::from_static("1"));
            Ok::<_, Infallible>(response)
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// The proxy's bootstrap: a gateway of the mesh that gets everything over ADS in plain text.
fn bootstrap(xds: SocketAddr, admin: SocketAddr) -> Value {
    let socket = |address: SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let ads = json!({"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"});
    let (namespace, name) = (mesh::NAMESPACE, mesh::GATEWAY);
    json!({
        "node": {
            "id": format!("router~127.0.0.1~{name}-0.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": format!("{name}.{namespace}"),
            "metadata": {
                "NAME": format!("{name}-0"),
                "NAMESPACE": namespace,
                "SERVICE_ACCOUNT": name,
                "WORKLOAD_NAME": name,
                "CLUSTER_ID": "Kubernetes",
                "LABELS": {"istio": name},
            },
        },
        "admin": {"address": socket(admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "lds_config": ads.clone(),
            "cds_config": ads,
        },
        "static_resources": {
            "clusters": [{
                "name": "xds-grpc",
                "type": "STATIC",
                "connect_timeout": "1s",
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": {"http2_protocol_options": {}},
                    },
                },
                "load_assignment": {
                    "cluster_name": "xds-grpc",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(xds)}}]}],
                },
            }],
        },
    })
}
