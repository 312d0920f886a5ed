//! A small HTTP server for the debug pages.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_base::local_host;
use evenkeel_process::gzip;
use evenkeel_process::newest::serve_newest;
use evenkeel_profile::PREFIX;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Pages;
use super::access::{Extent, Refusal};
use super::pages::{HISTORY, METRICS, Page, READY};

/// Maximum number of connections. A further one takes the place of the oldest of the address that has most.
const MAX_CONNECTIONS: usize = 256;
/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Maximum number of concurrent queries of the history; more wait for their turn.
const MAX_HISTORIES: usize = 1;
/// Maximum number of other pages rendered at the same time; more wait for their turn.
const MAX_PAGES: usize = 2;
/// How long a page waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves the pages until the task is dropped.
pub async fn serve(listener: TcpListener, pages: Arc<Pages>) {
    let turns = Arc::new(Turns { pages: Semaphore::new(MAX_PAGES), histories: Semaphore::new(MAX_HISTORIES) });
    let each = move |stream, address| {
        let (pages, turns) = (pages.clone(), turns.clone());
        async move { connection(stream, address, &pages, &turns).await }
    };
    match serve_newest(&listener, MAX_CONNECTIONS, each).await {}
}

/// Decides which page is rendered next.
#[derive(Debug)]
struct Turns {
    pages: Semaphore,
    histories: Semaphore,
}

async fn connection(stream: TcpStream, address: SocketAddr, pages: &Arc<Pages>, turns: &Turns) {
    let to_loopback = stream.local_addr().is_ok_and(|local| local.ip().to_canonical().is_loopback());
    let service = service_fn(async |request: Request<Incoming>| {
        let (status, kind, body) = respond(pages, turns, &request, to_loopback).await;
        let accepted = request.headers().get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        // Only scrapers come again and again.
        let compressed = (request.uri().path() == METRICS).then(|| gzip::compressed(&body, accepted));
        let response = match compressed.flatten() {
            None => response(status, kind, body),
            Some(compressed) => {
                let mut response = response(status, kind, compressed);
                let encoding = header::HeaderValue::from_static(gzip::GZIP);
                response.headers_mut().insert(header::CONTENT_ENCODING, encoding);
                response
            }
        };
        Ok::<_, Infallible>(response)
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%address, %error, "HTTP connection ended");
    }
}

/// Answers with bytes: a profile is no text.
async fn respond<B>(
    pages: &Arc<Pages>,
    turns: &Turns,
    request: &Request<B>,
    to_loopback: bool,
) -> (StatusCode, &'static str, Vec<u8>) {
    let (status, kind, body) = match admit(pages, request, to_loopback).await {
        Err(refusal) => refusal,
        Ok(Extent::All) if request.uri().path().starts_with(PREFIX) => return profile(request).await,
        Ok(extent) => answer(pages, turns, request, extent).await,
    };
    (status, kind, body.into_bytes())
}

/// Records for as long as the query says, so it takes no turn from other pages.
async fn profile<B>(request: &Request<B>) -> (StatusCode, &'static str, Vec<u8>) {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    match tokio::task::spawn_blocking(move || evenkeel_profile::answer(&path, &query)).await {
        Ok(evenkeel_profile::Answer { status, content_type, body }) => {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), content_type, body)
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n").into_bytes()),
    }
}

/// What the client may read; else the answer.
async fn admit<B>(pages: &Pages, request: &Request<B>, to_loopback: bool) -> Result<Extent, Page> {
    // A foreign web page may have a browser send requests under a name that its owner resolves to this address (DNS
    // rebinding).
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("."));
    if to_loopback && !host.is_none_or(local_host::is_local) {
        let text =
            "ask for localhost or the address itself: the host may be anybody's name for this address\n".to_owned();
        return Err((StatusCode::FORBIDDEN, "text/plain", text));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is served here\n".to_owned()));
    }
    let root = pages.root_namespace();
    let extent = pages.access().of(request.headers(), request.uri().path(), to_loopback, &root).await;
    extent.map_err(|Refusal { status, reason }| (status, "text/plain", reason + "\n"))
}

async fn answer<B>(pages: &Arc<Pages>, turns: &Turns, request: &Request<B>, extent: Extent) -> Page {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    // Readiness takes no turn: other requests must not delay a probe.
    if path == READY {
        return pages.page(path, query, None);
    }
    let turn = if path == HISTORY { turns.histories.acquire() } else { turns.pages.acquire() };
    let Ok(_turn) = tokio::time::timeout(TURN_TIMEOUT, turn).await else {
        let text = "other pages are being written; ask again later\n".to_owned();
        return (StatusCode::SERVICE_UNAVAILABLE, "text/plain", text);
    };
    // Rendered off the runtime's threads: a page about ten thousand proxies takes as long as telling a thousand of a change.
    let (pages, path, query) = (pages.clone(), path.to_owned(), query.to_owned());
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).map(str::to_owned);
    let made = tokio::task::spawn_blocking(move || match &*path {
        HISTORY => pages.history(&query),
        _ => pages.page_within(&extent, &path, &query, accept.as_deref()),
    });
    made.await.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")))
}

fn response(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
