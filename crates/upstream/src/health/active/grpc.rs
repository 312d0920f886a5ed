//! `GrpcHealthCheck`: `grpc.health.v1.Health/Check` must return `SERVING`.

use bytes::Bytes;
use evenkeel_base::grpc;
use evenkeel_runtime_config::health_check::GrpcProbe;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use prost::Message;

use super::http::Client;
use super::{Check, CheckTarget, MAX_RESPONSE_BYTES, Verdict};
use crate::alpn::WantedProtocol;

const PATH: &str = "/grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Checks one host.
pub(super) struct Prober {
    probe: GrpcProbe,
    kept: Option<Client>,
}

impl Check for Prober {
    type Probe = GrpcProbe;

    fn wanted(_: &Self::Probe) -> WantedProtocol {
        WantedProtocol::Http2
    }

    fn new(probe: Self::Probe) -> Self {
        Self { probe, kept: None }
    }

    async fn check(&mut self, target: &CheckTarget) -> Verdict {
        match self.exchange(target).await {
            Ok(verdict) | Err(verdict) => verdict,
        }
    }
}

impl Prober {
    async fn exchange(&mut self, target: &CheckTarget) -> Result<Verdict, Verdict> {
        let request = self.request(target).ok_or(Verdict::NetworkFailure)?;
        let mut client = match self.kept.take() {
            Some(client) => client,
            None => Client::connect(target, true).await?,
        };
        let (head, body) = client.send(request).await?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(|_| Verdict::NetworkFailure)?;
        let trailers = body.trailers().cloned();
        if target.reuse_connection {
            self.kept = Some(client);
        }
        Ok(judge(head.status, &head.headers, trailers.as_ref(), &body.to_bytes()))
    }

    fn request(&self, target: &CheckTarget) -> Option<Request<Full<Bytes>>> {
        let authority = target.authority(&self.probe.authority);
        let uri = Uri::builder().scheme("http").authority(authority).path_and_query(PATH).build().ok()?;
        let message = HealthCheckRequest { service: self.probe.service.to_string() }.encode_to_vec();
        let mut body = Vec::new();
        grpc::frame(&message, &mut body);
        let mut request = Request::builder().method(Method::POST).uri(uri).body(Full::from(body)).ok()?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, HeaderValue::from_static("Envoy/HC"));
        for (name, value) in &self.probe.metadata {
            headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?);
        }
        Some(request)
    }
}

fn judge(status: StatusCode, head: &HeaderMap, trailers: Option<&HeaderMap>, body: &[u8]) -> Verdict {
    // A response with `grpc-status` in its head is complete without a message, so it cannot report `SERVING`.
    let grpc_status = trailers.and_then(|trailers| trailers.get("grpc-status"));
    let is_grpc = head.get(CONTENT_TYPE).is_some_and(|kind| grpc::is_grpc(kind.as_bytes()));
    let fine = status == StatusCode::OK && is_grpc && grpc_status.is_some_and(|status| status.as_bytes() == b"0");
    match only_message(body) {
        Some(message) if fine && message.status == SERVING => Verdict::Healthy { degraded: false },
        _ => Verdict::Unhealthy { retriable: false },
    }
}

/// The only non-empty message of a response; `None` if there are several or it is truncated.
fn only_message(mut body: &[u8]) -> Option<HealthCheckResponse> {
    let mut only = None;
    while let Some((&[flags, a, b, c, d], rest)) = body.split_first_chunk() {
        // Compression was not offered.
        if flags != 0 {
            return None;
        }
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        if !message.is_empty() && only.replace(HealthCheckResponse::decode(message).ok()?).is_some() {
            return None;
        }
        body = rest;
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_healthy() {
        let headers =
            |name: HeaderName, value: &'static str| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        let grpc_status = HeaderName::from_static("grpc-status");
        let check = |status: u16, content_type: &'static str, grpc: &'static str, body: &[u8]| {
            let status = StatusCode::from_u16(status).expect("a status");
            let trailers = headers(grpc_status.clone(), grpc);
            let verdict = judge(status, &headers(CONTENT_TYPE, content_type), Some(&trailers), body);
            matches!(verdict, Verdict::Healthy { .. })
        };
        let grpc = "application/grpc";
        let serving: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];
        assert!(check(200, grpc, "0", serving));
        assert!(check(200, "application/grpc+proto", "0", serving));
        assert!(!check(200, "application/grpcweb", "0", serving));
        assert!(!check(200, "text/plain", "0", serving));
        assert!(!check(200, grpc, "0", &[0, 0, 0, 0, 2, 0x08, 2]), "NOT_SERVING");
        assert!(!check(200, grpc, "12", serving), "UNIMPLEMENTED");
        assert!(!check(503, grpc, "0", serving));
        for (body, expected) in [
            (&[0, 0, 0][..], false),
            (&[0, 0, 0, 0, 2, 0x08], false),
            (&[0, 0, 0, 0, 2, 0xff, 0xff], false),
            (&[1, 0, 0, 0, 2, 0x08, 1], false),
            (&[0, 0, 0, 0, 2, 0x08, 1, 0, 0, 0, 0, 2, 0x08, 1], false),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x08, 1], true),
            (&[0, 255, 255, 255, 255], false),
        ] {
            assert_eq!(check(200, grpc, "0", body), expected, "{body:?}");
        }
        let head = headers(grpc_status, "0");
        assert!(matches!(judge(StatusCode::OK, &head, None, b""), Verdict::Unhealthy { .. }), "no message");
    }
}
