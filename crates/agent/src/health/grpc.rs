//! A single call of gRPC's health service (`grpc.health.v1.Health/Check`).

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_base::grpc;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;
/// `SERVING` of `HealthCheckResponse.ServingStatus`.
const SERVING: u8 = 1;

/// Checks a service, or with an empty name the server as a whole; the error says what was wrong.
pub async fn check(stream: TcpStream, authority: &str, service: &str) -> Result<(), String> {
    let text = |error: hyper::Error| error.to_string();
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(text)?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", grpc::CONTENT_TYPE)
        .header("te", "trailers")
        .body(Full::new(question(service)))
        .map_err(|error| error.to_string())?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(text)?;
        let said = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (status, at_once) = (answer.status(), said("grpc-status"));
        if !status.is_success() {
            return Err(format!("answers {}", status.as_u16()));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|e| e.to_string())?;
        let trailer =
            body.trailers().and_then(|trailers| trailers.get("grpc-status")?.to_str().ok().map(str::to_owned));
        match at_once.or(trailer).as_deref() {
            None | Some("0") => judge(&body.to_bytes()),
            Some("12") => Err("has no health service (gRPC status 12)".to_owned()),
            Some(other) => Err(format!("answers with gRPC status {other}")),
        }
    };
    let result = answered.await;
    connection.abort();
    result
}

/// `HealthCheckRequest{service}` after gRPC's five bytes of framing.
fn question(service: &str) -> Bytes {
    let name = service.as_bytes().get(..127).unwrap_or(service.as_bytes());
    let length = u8::try_from(name.len()).unwrap_or(0);
    let mut message = BytesMut::new();
    if length > 0 {
        message.put_slice(&[0x0a, length]);
        message.put_slice(name);
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(0));
    framed.put_slice(&message);
    framed.freeze()
}

/// `HealthCheckResponse{status}`: one field, an enumeration.
fn judge(framed: &[u8]) -> Result<(), String> {
    match framed.get(5..) {
        Some([0x08, status, ..]) if *status == SERVING => Ok(()),
        Some([0x08, 2, ..]) => Err("says NOT_SERVING".to_owned()),
        Some([0x08, 3, ..]) => Err("says SERVICE_UNKNOWN".to_owned()),
        _ => Err("does not report its health".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed_as_grpc_has_them() {
        assert_eq!(&question("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&question("db")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'd', b'b']);
        assert_eq!(judge(&[0, 0, 0, 0, 2, 8, 1]), Ok(()));
        for answer in [&[0, 0, 0, 0, 2, 8, 2][..], &[0, 0, 0, 0, 2, 8, 3], &[0, 0, 0, 0, 0], &[]] {
            assert!(judge(answer).is_err(), "{answer:?}");
        }
    }
}
