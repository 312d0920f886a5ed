//! The client and the backend of the real proxy.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

/// The header that distinguishes the backend's responses from the proxy's own.
const FROM_BACKEND: &str = "x-lab-backend";
/// The pause between two rounds of requests for hosts that are not ready.
const POLL: Duration = Duration::from_millis(1);
/// The timeout of one request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// A request to report the first answer of a host.
pub struct Probe {
    /// The host.
    pub host: String,
    /// Receives the time of the answer.
    pub answered: oneshot::Sender<Instant>,
}

/// Sends requests for the waiting hosts until the channel is closed.
pub async fn ask_for(mut waiting: mpsc::Receiver<Probe>, proxy: SocketAddr) {
    let mut pending: Vec<Probe> = Vec::new();
    let mut connection: Option<SendRequest<Empty<Bytes>>> = None;
    loop {
        if pending.is_empty() {
            match waiting.recv().await {
                Some(probe) => pending.push(probe),
                None => return,
            }
        }
        loop {
            match waiting.try_recv() {
                Ok(probe) => pending.push(probe),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let mut still_pending = Vec::new();
        for probe in pending {
            if ask(&mut connection, proxy, &probe.host).await {
                // The receiver may already be dropped.
                _ = probe.answered.send(Instant::now());
            } else {
                still_pending.push(probe)
            }
        }
        pending = still_pending;
        pending.retain(|probe| !probe.answered.is_closed());
        if !pending.is_empty() {
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Whether the backend answers a request for the host. The connection is reused while it works.
async fn ask(connection: &mut Option<SendRequest<Empty<Bytes>>>, proxy: SocketAddr, host: &str) -> bool {
    let exchange = async {
        let mut sender = match connection.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(proxy).await.ok()?;
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

/// Answers every request.
pub async fn backend(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = service_fn(|request: Request<Incoming>| async move {
            // An unread body would prevent the reuse of the connection.
            let _ = request.into_body().collect().await;
            let mut response = Response::new(Full::new(Bytes::from_static(b"ok\n")));
            response.headers_mut().insert(FROM_BACKEND, HeaderValue::from_static("1"));
            Ok::<_, Infallible>(response)
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}
