//! The calls of gRPC: Fortio's ping, and the health check.

use prost::Message as _;

use crate::codec::Reading;
use crate::flags::{RequestFlags, RunFlags};
use crate::request::{Field, HttpRequest, fields, payload};
use crate::target::Target;

/// Fortio's `fgrpc.PingMessage`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PingMessage {
    /// Sequence number.
    #[prost(int64, tag = "1")]
    pub seq: i64,
    /// Time, in nanoseconds since 1970.
    #[prost(int64, tag = "2")]
    pub ts: i64,
    /// More data.
    #[prost(string, tag = "3")]
    pub payload: String,
    /// How long the server waits before it responds.
    #[prost(int64, tag = "4")]
    pub delay_nanos: i64,
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// Name of the service; empty: the server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    /// 1: it serves.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// The request of a call as the flags say.
///
/// # Errors
/// A flag's value is wrong; says which.
pub(crate) fn request(target: &Target, request: &RequestFlags, run: &RunFlags) -> Result<HttpRequest, String> {
    let (path, message) = if run.ping {
        let payload = payload(request)?.unwrap_or_default();
        let payload = String::from_utf8(payload).map_err(|_| "the payload of a ping has to be UTF-8".to_owned())?;
        let delay_nanos = i64::try_from(run.grpc_ping_delay.as_nanos()).unwrap_or(i64::MAX);
        let ping = PingMessage { seq: 0, ts: 0, payload, delay_nanos };
        ("/fgrpc.PingServer/Ping", ping.encode_to_vec())
    } else {
        let check = HealthCheckRequest { service: run.healthservice.clone() };
        ("/grpc.health.v1.Health/Check", check.encode_to_vec())
    };
    let field = |name: &str, value: &str| Field { name: name.to_owned(), value: value.to_owned() };
    let own = [field("content-type", "application/grpc"), field("te", "trailers")];
    let agent = field("user-agent", crate::request::USER_AGENT);
    let metadata = fields(request)?;
    let has_agent = metadata.iter().any(|field| field.name == "user-agent");
    let fields = own.into_iter().chain((!has_agent).then_some(agent)).chain(metadata).collect();
    Ok(HttpRequest {
        method: "POST".to_owned(),
        path: path.to_owned(),
        authority: target.authority.clone(),
        fields,
        payload: with_prefix(&message),
    })
}

/// A message as a stream carries it: not compressed, its length, and its bytes.
pub fn with_prefix(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], length.to_be_bytes().as_slice(), message].concat()
}

/// How the response of a call is read.
pub(crate) fn reading(is_ping: bool) -> Reading {
    Reading::Grpc(if is_ping { read_ping } else { read_health })
}

fn read_ping(body: &[u8]) -> &'static str {
    let message = body.get(5..).map(PingMessage::decode);
    if matches!(message, Some(Ok(_))) { "SERVING" } else { "ERROR" }
}

fn read_health(body: &[u8]) -> &'static str {
    match body.get(5..).map(HealthCheckResponse::decode) {
        Some(Ok(response)) => match response.status {
            0 => "UNKNOWN",
            1 => "SERVING",
            2 => "NOT_SERVING",
            3 => "SERVICE_UNKNOWN",
            _ => "ERROR",
        },
        _ => "ERROR",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read() {
        let check = |body: &[u8], ping: &str, health: &str| {
            assert_eq!((read_ping(body), read_health(body)), (ping, health), "{body:?}");
        };
        check(b"", "ERROR", "ERROR");
        check(&with_prefix(b""), "SERVING", "UNKNOWN");
        check(&with_prefix(&[8, 1]), "SERVING", "SERVING");
        check(&with_prefix(&[8, 2]), "SERVING", "NOT_SERVING");
        check(&with_prefix(&[255]), "ERROR", "ERROR");
    }
}
