//! Admission webhooks of a cluster, over HTTPS (port 15017 as in Istio): `/inject` gives Pods their sidecars, `/validate` judges
//! configuration before it is stored.
//!
//! Both answer from the configuration in force and keep no state, so every replica serves them, and a second call for the same
//! object gives the same answer. The certificate is that of the TLS port: it is renewed while connections go on.

mod options;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_api::load_object;
use evenkeel_base::{Rank, SourceId};
use evenkeel_inject::{AdmissionRequest, Mesh};
use evenkeel_process::newest::serve_newest;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::metrics::Metrics;
use crate::world::World;
pub use options::InjectionOptions;

/// Maximum number of connections. An API server opens few, and sends many requests on each.
const MAX_CONNECTIONS: usize = 256;
/// How long a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take for a request's head and for its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a review, in bytes: the API server's own limit of objects is 3 MiB, and a review has two of them.
const MAX_REVIEW_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of concurrent requests on a connection.
const MAX_STREAMS: u32 = 32;

/// What the webhooks answer with.
#[derive(Debug)]
pub struct Webhooks {
    /// What injected sidecars get.
    pub injection: InjectionOptions,
    /// The configuration in force.
    pub world: watch::Receiver<Arc<World>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Serves the webhooks until the task is dropped.
pub async fn serve(listener: TcpListener, tls: watch::Receiver<Arc<ServerConfig>>, webhooks: Arc<Webhooks>) {
    let each = move |stream, address| {
        let (acceptor, webhooks) = (TlsAcceptor::from(Arc::new(of_both_versions(&tls.borrow()))), webhooks.clone());
        async move {
            if let Err(error) = connection(stream, acceptor, webhooks).await {
                tracing::debug!(%address, error, "a connection to the webhooks ended");
            }
        }
    };
    match serve_newest(&listener, MAX_CONNECTIONS, each).await {}
}

/// The configuration of the TLS port, for HTTP/1.1 as well: with a Service in `clientConfig`, an API server offers only that.
fn of_both_versions(config: &ServerConfig) -> ServerConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, webhooks: Arc<Webhooks>) -> Result<(), String> {
    let accepted = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let stream = accepted.map_err(|_| "the handshake took too long")?.map_err(|error| error.to_string())?;
    let service = service_fn(move |request: Request<Incoming>| {
        let webhooks = webhooks.clone();
        async move { Ok::<_, Infallible>(webhooks.answer(request).await) }
    });
    let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    server.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    server.serve_connection(TokioIo::new(stream), service).await.map_err(|error| error.to_string())
}

impl Webhooks {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if *request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "POST an AdmissionReview");
        }
        // Istio's paths go on with the cluster and the network: `/inject/cluster/NAME/net/NAME`.
        let path = request.uri().path().trim_start_matches('/');
        let answered = match path.split('/').next() {
            Some("inject") => {
                let read = review(request).await;
                read.and_then(|review| self.inject(&review)).inspect_err(|_| self.metrics.admission.not_injected())
            }
            Some("validate") => {
                let read = review(request).await.and_then(|review| self.validate(&review));
                read.inspect_err(|refusal| self.metrics.admission.not_judged(refusal.status()))
            }
            _ => return text(StatusCode::NOT_FOUND, "webhooks: /inject, /validate"),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(refusal) => return *refusal,
        };
        let mut response = Response::new(Full::from(answer.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }

    fn inject(&self, review: &Value) -> Result<Value, Refusal> {
        let (request, begun) = (admission_request(review)?, Instant::now());
        let snapshot = self.world.borrow().snapshot.clone();
        let mesh = Mesh {
            template: &self.injection.template(&snapshot.mesh),
            namespace: request.namespace,
            namespace_labels: &|namespace| snapshot.namespaces.get(namespace).cloned().unwrap_or_default(),
            config: &|namespace, labels| snapshot.proxy_config(namespace, labels),
        };
        let answer = request.inject(&mesh);
        self.metrics.admission.injected(&answer, begun.elapsed());
        Ok(answer)
    }

    fn validate(&self, review: &Value) -> Result<Value, Refusal> {
        let request = admission_request(review)?;
        let answer = request.judge(&load_object(&SourceId::new("kubernetes", Rank(200)), request.object).1);
        self.metrics.admission.judged(review, &answer);
        Ok(answer)
    }
}

/// The answer to what is no review.
type Refusal = Box<Response<Full<Bytes>>>;

fn refusal(status: StatusCode, reason: &str) -> Refusal {
    Box::new(text(status, reason))
}

/// Reads the review in a request.
async fn review(request: Request<Incoming>) -> Result<Value, Refusal> {
    let body = Limited::new(request.into_body(), MAX_REVIEW_BYTES);
    let body = match timeout(REQUEST_TIMEOUT, body.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return Err(refusal(StatusCode::BAD_REQUEST, &error.to_string())),
        Err(_) => return Err(refusal(StatusCode::REQUEST_TIMEOUT, "the review did not come")),
    };
    serde_json::from_slice(&body)
        .map_err(|error| refusal(StatusCode::BAD_REQUEST, &format!("the body is no JSON: {error}")))
}

fn admission_request(review: &Value) -> Result<AdmissionRequest<'_>, Refusal> {
    let expected = "expected an AdmissionReview of admission.k8s.io/v1 with an object";
    AdmissionRequest::of(review).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, expected))
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}
