//! `GrpcHealthCheck`: `grpc.health.v1.Health/Check` answers `SERVING`.

use bytes::Bytes;
use evenkeel_runtime_config::health_check::GrpcProbe;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use prost::Message;

use super::http::Client;
use super::{CheckTarget, MAX_RESPONSE_BYTES, Verdict};

const PATH: &str = "/grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;
/// Compression flag and length of a gRPC message.
const PREFIX_BYTES: usize = 5;

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

impl Prober {
    pub fn new(probe: GrpcProbe) -> Self {
        Self { probe, kept: None }
    }

    pub async fn check(&mut self, target: &CheckTarget) -> Verdict {
        match self.exchange(target).await {
            Ok(verdict) | Err(verdict) => verdict,
        }
    }

    async fn exchange(&mut self, target: &CheckTarget) -> Result<Verdict, Verdict> {
        let request = self.request(target).ok_or(Verdict::NetworkFailure)?;
        let mut client = match self.kept.take() {
            Some(client) => client,
            None => Client::connect(target, true).await?,
        };
        let (head, body) = client.send(request).await?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(|_| Verdict::NetworkFailure)?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        if target.reuse_connection {
            self.kept = Some(client);
        }
        Ok(judge(head.status, &head.headers, &trailers, &body.to_bytes()))
    }

    fn request(&self, target: &CheckTarget) -> Option<Request<Full<Bytes>>> {
        let authority = target.authority(&self.probe.authority);
        let uri = Uri::builder().scheme("http").authority(authority).path_and_query(PATH).build().ok()?;
        let message = HealthCheckRequest { service: self.probe.service.to_string() }.encode_to_vec();
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).ok()?.to_be_bytes());
        body.extend_from_slice(&message);
        let mut request = Request::builder().method(Method::POST).uri(uri).body(Full::from(body)).ok()?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, HeaderValue::from_static("Envoy/HC"));
        for (name, value) in &self.probe.metadata {
            headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?);
        }
        Some(request)
    }
}

fn judge(status: StatusCode, head: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Verdict {
    let grpc_status = trailers.get("grpc-status").or_else(|| head.get("grpc-status"));
    let fine = status == StatusCode::OK && grpc_status.is_some_and(|status| status.as_bytes() == b"0");
    let message = body.get(PREFIX_BYTES..).map(HealthCheckResponse::decode);
    match message {
        Some(Ok(message)) if fine && message.status == SERVING => Verdict::Healthy { degraded: false },
        _ => Verdict::Unhealthy { retriable: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_healthy() {
        let trailers = |status: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static(status))])
        };
        let none = HeaderMap::new();
        let serving: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];
        let check = |status: u16, grpc: &'static str, body: &[u8]| {
            let status = StatusCode::from_u16(status).expect("a status");
            matches!(judge(status, &none, &trailers(grpc), body), Verdict::Healthy { .. })
        };
        assert!(check(200, "0", serving));
        assert!(!check(200, "0", &[0, 0, 0, 0, 2, 0x08, 2]), "NOT_SERVING");
        assert!(!check(200, "12", serving), "UNIMPLEMENTED");
        assert!(!check(503, "0", serving));
        assert!(!check(200, "0", &[0, 0, 0]), "no message");
        assert!(matches!(judge(StatusCode::OK, &trailers("5"), &none, b""), Verdict::Unhealthy { .. }));
    }
}
