//! The metrics of every proxy and of the control plane on the host's loopback, for a Prometheus on the machine: replicas have addresses
//! of the mesh's network, which it cannot reach.
//!
//! `/targets` lists them for Prometheus' HTTP service discovery (<https://prometheus.io/docs/prometheus/latest/http_sd/>), each with the
//! path of its page here, `/metrics/NAMESPACE/POD`.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_process::newest::serve_newest;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::addresses::CONTROL_DEBUG;
use crate::replica::Replicas;

/// The port of a proxy's metrics in a Pod.
const USUAL_PORT: u16 = 15090;
/// The agent's page with the metrics of the proxy and of the program.
const AGENT_PORT: u16 = 15020;
/// Connections at a time. A further one takes the place of the oldest: whoever keeps connections open keeps nobody else out.
const MAX_CONNECTIONS: usize = 64;
/// How long a page may take until its head arrives, and a client for a request. Prometheus waits for 10 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection lasts, with its one request: a page that stops in its middle, or a client that does not read, ends with it.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
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
        Self::open_at(USUAL_PORT).or_else(|_| Self::open_at(0))
    }

    fn open_at(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// The URL for `http_sd_configs`.
    pub fn url(&self) -> String {
        format!("http://{}/targets", self.address)
    }

    /// Answers requests until aborted.
    pub async fn serve(&self, replicas: watch::Receiver<Replicas>) -> io::Result<()> {
        let own = self.address;
        self.serve_pages(move |path: &str| page(path, &replicas.borrow(), own), CONNECTION_TIME).await
    }

    /// Answers requests for these pages, each for so long.
    async fn serve_pages<F>(&self, pages: F, longest: Duration) -> io::Result<()>
    where
        F: Fn(&str) -> Page + Clone + Send + Sync + 'static,
    {
        let listener = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
        let never = serve_newest(&listener, MAX_CONNECTIONS, |stream, _| {
            let served = tokio::time::timeout(longest, serve_connection(stream, pages.clone()));
            async move { _ = served.await }
        });
        match never.await {}
    }
}

/// What a path leads to.
#[derive(Debug, Clone)]
enum Page {
    /// The list for HTTP service discovery.
    Targets(String),
    /// A page of the mesh's network.
    At(Target),
    /// Nothing.
    Missing,
}

fn page(path: &str, replicas: &Replicas, own: SocketAddr) -> Page {
    if path == "/targets" {
        let names = replicas
            .iter()
            .filter(|(_, replica)| replica.pod.in_mesh)
            .map(|((namespace, pod), replica)| (namespace.as_str(), pod.as_str(), replica.pod.workload.as_str()));
        return Page::Targets(targets(names, own).to_string());
    }
    let find = |namespace: &str, pod: &str| {
        let replica = replicas.get(&(namespace.to_owned(), pod.to_owned()))?;
        replica.pod.in_mesh.then(|| SocketAddr::from((replica.pod.address, AGENT_PORT)))
    };
    target(path, find).map_or(Page::Missing, Page::At)
}

async fn serve_connection(stream: TcpStream, pages: impl Fn(&str) -> Page) {
    let service = service_fn(|request: Request<Incoming>| {
        let page = pages(request.uri().path());
        async move { Ok::<_, Infallible>(respond(&request, page).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
    // A client that breaks off needs no message.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: &Request<Incoming>, page: Page) -> Response<Body> {
    // A page in a browser may name this address, but not under its own name (DNS rebinding).
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !evenkeel_base::local_host::is_local(host) {
        return text(StatusCode::FORBIDDEN, "text/plain", "the Host header names another machine\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is known here\n");
    }
    let target = match page {
        Page::At(target) => target,
        Page::Targets(list) => return text(StatusCode::OK, "application/json", &list),
        Page::Missing => {
            return text(StatusCode::NOT_FOUND, "text/plain", "no such page: /targets lists those that exist\n");
        }
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;

    /// A replica's page that begins with this, and goes on with that for ever or stops. Says when a connection to it has ended.
    async fn replica(begins: &'static str, then: Option<&'static [u8]>, ended: mpsc::Sender<()>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let ended = ended.clone();
                tokio::spawn(async move {
                    let _ = stream.write_all(begins.as_bytes()).await;
                    while let Some(more) = then
                        && stream.write_all(more).await.is_ok()
                    {}
                    // Until the other side closes.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                    ended.send(()).await
                });
            }
        });
        address
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n# TYPE a counter\n";

    /// The list, and below any other path the page of this replica, on connections that last so long.
    async fn pages(replica: SocketAddr, longest: Duration) -> SocketAddr {
        let pages = MetricsPages::open_at(0).expect("a port");
        let address = pages.address;
        let find = move |path: &str| match path {
            "/targets" => Page::Targets("[]".to_owned()),
            _ => Page::At(Target { address: replica, path: "/" }),
        };
        tokio::spawn(async move { pages.serve_pages(find, longest).await });
        address
    }

    async fn client(address: SocketAddr, sent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(sent.as_bytes()).await.expect("it takes bytes");
        stream
    }

    /// What comes until the other side ends the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        // A connection that is cut off may end with a reset.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    const LIST: &str = "GET /targets HTTP/1.1\r\nhost: localhost\r\n\r\n";
    const PAGE: &str = "GET /metrics/shop/cart-0 HTTP/1.1\r\nhost: localhost\r\n\r\n";

    /// With such clients on all places, and more of them, others are answered. No time limit ends anything here.
    #[tokio::test]
    async fn nobody_keeps_others_from_the_pages() {
        let (ended, _still) = mpsc::channel(1000);
        let stalls = replica(HEAD, None, ended).await;
        for sent in ["", "GET /targets HTTP/1.1\r\nhost: local", PAGE, LIST] {
            let address = pages(stalls, Duration::from_secs(3600)).await;
            let mut held = Vec::new();
            for _ in 0..2 * MAX_CONNECTIONS {
                held.push(client(address, sent).await);
            }
            for _ in 0..3 {
                let answer = rest(client(address, LIST).await).await;
                assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("[]"), "{sent:?}: {answer:?}");
            }
        }
    }

    /// What ends neither by itself nor by its client: a page that stops in its middle, and one that flows to a client that reads nothing.
    #[tokio::test]
    async fn no_connection_lasts_for_ever() {
        let (ended, mut is_over) = mpsc::channel(1000);
        for then in [None, Some(&[b'a'; 64 * 1024][..])] {
            let replica = replica(HEAD, then, ended.clone()).await;
            let address = pages(replica, Duration::from_millis(300)).await;
            let unread = client(address, PAGE).await;
            is_over.recv().await.expect("the end of the replica's connection");
            drop(unread);
        }
        let stalls = replica(HEAD, None, ended).await;
        let cut_off = rest(client(pages(stalls, Duration::from_millis(300)).await, PAGE).await).await;
        // No chunk of length 0: nobody takes it for a whole page.
        assert!(cut_off.contains("# TYPE a counter") && !cut_off.ends_with("0\r\n\r\n"), "{cut_off:?}");
    }

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
