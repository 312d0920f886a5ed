//! gRPC: Fortio's ping, and the health check.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use evenkeel_loadtest::grpc::{HealthCheckRequest, HealthCheckResponse, PingMessage, with_prefix};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use prost::Message;

use crate::http::{Body, full};

/// Maximum size of a request, which is that of gRPC's servers.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// A message's flags and length.
const PREFIX_BYTES: usize = 5;
/// The services whose health is known; the empty name is the server's.
const SERVICES: [&str; 2] = ["", "ping"];

/// Codes of gRPC.
const INVALID_ARGUMENT: u8 = 3;
const NOT_FOUND: u8 = 5;
const UNIMPLEMENTED: u8 = 12;

/// Whether a request is a call.
pub fn is_call(request: &Request<Incoming>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Answers a call.
pub async fn answer(request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let Ok(body) = Limited::new(request.into_body(), MAX_MESSAGE_BYTES).collect().await else {
        return failed(INVALID_ARGUMENT);
    };
    let body = body.to_bytes();
    let Some(message) = body.get(PREFIX_BYTES..).filter(|_| body.first() == Some(&0)) else {
        return failed(INVALID_ARGUMENT);
    };
    match path.as_str() {
        "/fgrpc.PingServer/Ping" => ping(message).await,
        "/grpc.health.v1.Health/Check" => check(message),
        _ => failed(UNIMPLEMENTED),
    }
}

async fn ping(message: &[u8]) -> Response<Body> {
    let Ok(mut ping) = PingMessage::decode(message) else { return failed(INVALID_ARGUMENT) };
    if let Some(delay) = u64::try_from(ping.delay_nanos).ok().filter(|delay| *delay > 0) {
        tokio::time::sleep(Duration::from_nanos(delay)).await;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ping.ts = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    succeeded(&ping)
}

fn check(message: &[u8]) -> Response<Body> {
    let Ok(request) = HealthCheckRequest::decode(message) else { return failed(INVALID_ARGUMENT) };
    if SERVICES.contains(&request.service.as_str()) {
        succeeded(&HealthCheckResponse { status: 1 })
    } else {
        failed(NOT_FOUND)
    }
}

fn succeeded(message: &impl Message) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(with_prefix(&message.encode_to_vec())));
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    of_grpc(Response::new(body.map_err(|never| match never {}).boxed()))
}

fn failed(code: u8) -> Response<Body> {
    let mut response = of_grpc(Response::new(full("")));
    response.headers_mut().insert("grpc-status", HeaderValue::from(u16::from(code)));
    response
}

fn of_grpc(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
