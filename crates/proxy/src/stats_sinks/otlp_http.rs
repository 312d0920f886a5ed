//! OTLP over HTTP/1.1: a POST with a message, and a message as the answer.

use bytes::Bytes;
use evenkeel_runtime_config::stats_sinks::HttpTarget;
use evenkeel_upstream::alpn::WantedProtocol;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use prost::Message;

use super::otlp_message::Exported;
use crate::state::Shared;
use crate::subscribe::channel::{self, ChannelError};

/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Exchange(#[from] hyper::Error),
    #[error("the configured path, host or headers make no request: {0}")]
    Request(#[from] http::Error),
    #[error("the answer is longer than {MAX_ANSWER_BYTES} bytes, or ends early: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("status {0}")]
    Status(StatusCode),
}

/// Sends a message over a connection of its own: flushes are seconds apart, and collectors close idle connections.
pub(super) async fn post(
    shared: &Shared,
    target: &HttpTarget,
    attempt: usize,
    message: Vec<u8>,
) -> Result<Exported, HttpError> {
    let stream = channel::stream(shared, &target.cluster, attempt, WantedProtocol::Http1).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::task::spawn_local(connection);
    let answered = exchange(&mut sender, target, message).await;
    driver.abort();
    answered
}

async fn exchange(
    sender: &mut hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    target: &HttpTarget,
    message: Vec<u8>,
) -> Result<Exported, HttpError> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&*target.path)
        .header(HOST, &*target.host)
        .header(CONTENT_TYPE, PROTOBUF)
        .body(Full::new(Bytes::from(message)))?;
    for (name, value) in &target.headers {
        let name: HeaderName = name.parse().map_err(http::Error::from)?;
        let value = HeaderValue::from_str(value).map_err(http::Error::from)?;
        request.headers_mut().insert(name, value);
    }
    let response = sender.send_request(request).await?;
    let status = response.status();
    if !status.is_success() {
        return Err(HttpError::Status(status));
    }
    let is_protobuf = response.headers().get(CONTENT_TYPE) == Some(&PROTOBUF);
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(HttpError::Body)?;
    // An answer in another form, as of proxies in between, has taken the message all the same.
    let exported = if is_protobuf { Exported::decode(body.to_bytes()).ok() } else { None };
    Ok(exported.unwrap_or_default())
}
