//! The metrics of every proxy and of the control plane on the host's loopback, for a Prometheus on the machine: replicas have addresses
//! of the mesh's network, which it cannot reach.
//!
//! `/targets` lists them for Prometheus' HTTP service discovery (<https://prometheus.io/docs/prometheus/latest/http_sd/>), each with the
//! path of its page here, `/metrics/NAMESPACE/POD`.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::addresses::CONTROL_DEBUG;
use crate::replica::Replicas;

/// The port of a proxy's metrics in a Pod.
const USUAL_PORT: u16 = 15090;
/// The agent's page with the metrics of the proxy and of the program.
const AGENT_PORT: u16 = 15020;
/// Connections at a time; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long a page may take until its head arrives, and a client for a request. Prometheus waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// The page of the control plane.
const CONTROL_PLANE: &str = "/metrics/control-plane";

/// A page as it arrives, or a text of this server.
type Body = Either<Incoming, Full<Bytes>>;

/// A socket of the host's network for the metrics.
#[derive(Debug)]
pub struct MetricsPages {
    listener: TcpListener,
    /// The address of the pages.
    pub address: SocketAddr,
}

/// A page of the mesh's network.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    address: SocketAddr,
    path: &'static str,
}

impl MetricsPages {
    /// Opens the usual port, or a free one if something else has it.
    pub fn open() -> io::Result<Self> {
        let usual = TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT));
        let listener = usual.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        listener.set_nonblocking(true)?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// The URL for `http_sd_configs`.
    pub fn url(&self) -> String {
        format!("http://{}/targets", self.address)
    }

    /// Answers requests until aborted.
    pub async fn serve(&self, replicas: watch::Receiver<Replicas>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (replicas, address) = (replicas.clone(), self.address);
                    tokio::spawn(async move {
                        serve_connection(stream, replicas, address).await;
                        drop(slot);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, replicas: watch::Receiver<Replicas>, own: SocketAddr) {
    let service = service_fn(|request: Request<Incoming>| {
        let now = replicas.borrow().clone();
        async move { Ok::<_, Infallible>(respond(&request, &now, own).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    // A client that breaks off needs no message.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: &Request<Incoming>, replicas: &Replicas, own: SocketAddr) -> Response<Body> {
    // A page in a browser may name this address, but not under its own name (DNS rebinding).
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !evenkeel_base::local_host::is_local(host) {
        return text(StatusCode::FORBIDDEN, "text/plain", "the Host header names another machine\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is known here\n");
    }
    let path = request.uri().path();
    if path == "/targets" {
        let names = replicas
            .iter()
            .filter(|(_, replica)| replica.pod.in_mesh)
            .map(|((namespace, pod), replica)| (namespace.as_str(), pod.as_str(), replica.pod.workload.as_str()));
        return text(StatusCode::OK, "application/json", &targets(names, own).to_string());
    }
    let find = |namespace: &str, pod: &str| {
        let replica = replicas.get(&(namespace.to_owned(), pod.to_owned()))?;
        replica.pod.in_mesh.then(|| SocketAddr::from((replica.pod.address, AGENT_PORT)))
    };
    let Some(target) = target(path, find) else {
        return text(StatusCode::NOT_FOUND, "text/plain", "no such page: /targets lists those that exist\n");
    };
    match tokio::time::timeout(PATIENCE, fetch(&target, request.headers())).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => text(StatusCode::BAD_GATEWAY, "text/plain", &format!("{}: {error}\n", target.address)),
        Err(_) => text(StatusCode::GATEWAY_TIMEOUT, "text/plain", &format!("{} does not answer\n", target.address)),
    }
}

/// The list for HTTP service discovery, of replicas by namespace, Pod and workload.
fn targets<'a>(replicas: impl Iterator<Item = (&'a str, &'a str, &'a str)>, own: SocketAddr) -> Value {
    let entry = |path: String, labels: &[(&str, &str)]| {
        let mut all = serde_json::Map::from_iter([("__metrics_path__".to_owned(), Value::from(path))]);
        all.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))));
        json!({"targets": [own.to_string()], "labels": all})
    };
    let control_plane = entry(CONTROL_PLANE.to_owned(), &[("instance", "control-plane"), ("app", "istiod")]);
    let replicas = replicas.map(|(namespace, pod, workload)| {
        let instance = format!("{pod}.{namespace}");
        let labels = [("instance", instance.as_str()), ("namespace", namespace), ("pod", pod), ("app", workload)];
        entry(format!("/metrics/{namespace}/{pod}"), &labels)
    });
    std::iter::once(control_plane).chain(replicas).collect()
}

fn target(path: &str, find: impl Fn(&str, &str) -> Option<SocketAddr>) -> Option<Target> {
    if path == CONTROL_PLANE {
        return Some(Target { address: CONTROL_DEBUG, path: "/metrics" });
    }
    let (namespace, pod) = path.strip_prefix("/metrics/")?.split_once('/')?;
    find(namespace, pod).map(|address| Target { address, path: "/stats/prometheus" })
}

/// Fetches a page; its body is passed on as it arrives.
async fn fetch(target: &Target, asked: &HeaderMap) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target.address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with its body, or when the client breaks off and drops the body.
    tokio::spawn(connection);
    let mut request = Request::get(target.path).header(header::HOST, "localhost");
    for (name, value) in passed(asked) {
        request = request.header(name, value);
    }
    let (head, body) = sender.send_request(request.body(Full::new(Bytes::new()))?).await?.into_parts();
    let mut response = Response::new(Either::Left(body));
    *response.status_mut() = head.status;
    response.headers_mut().extend(passed(&head.headers).map(|(name, value)| (name.clone(), value.clone())));
    Ok(response)
}

/// The headers by which a client and a page agree on a format.
fn passed(headers: &HeaderMap) -> impl Iterator<Item = (&header::HeaderName, &HeaderValue)> {
    let names = [header::ACCEPT, header::ACCEPT_ENCODING, header::CONTENT_TYPE, header::CONTENT_ENCODING];
    headers.iter().filter(move |(name, _)| names.contains(name))
}

fn text(status: StatusCode, content_type: &'static str, text: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::copy_from_slice(text.as_bytes()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replica_has_a_page() {
        let own = SocketAddr::from(([127, 0, 0, 1], 15090));
        let listed = targets([("shop", "cart-0", "cart")].into_iter(), own);
        assert_eq!(
            listed,
            json!([
                {
                    "targets": ["127.0.0.1:15090"],
                    "labels": {"__metrics_path__": "/metrics/control-plane", "instance": "control-plane", "app": "istiod"},
                },
                {
                    "targets": ["127.0.0.1:15090"],
                    "labels": {
                        "__metrics_path__": "/metrics/shop/cart-0",
                        "instance": "cart-0.shop",
                        "namespace": "shop",
                        "pod": "cart-0",
                        "app": "cart",
                    },
                },
            ])
        );
    }

    #[test]
    fn paths_name_pages() {
        let address = SocketAddr::from(([10, 244, 0, 9], AGENT_PORT));
        let find = |namespace: &str, pod: &str| (namespace == "shop" && pod == "cart-0").then_some(address);
        let of = |path| target(path, find).map(|target| (target.address, target.path));
        for (path, expected) in [
            ("/metrics/shop/cart-0", Some((address, "/stats/prometheus"))),
            ("/metrics/control-plane", Some((CONTROL_DEBUG, "/metrics"))),
            ("/metrics/shop/cart-1", None),
            ("/metrics/shop/cart-0/", None),
            ("/metrics/shop", None),
            ("/debug/config", None),
            ("/", None),
        ] {
            assert_eq!(of(path), expected, "{path}");
        }
    }
}
