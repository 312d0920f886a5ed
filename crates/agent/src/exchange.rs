//! One HTTP request on a new connection.

use std::io;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Sends the request, and reads an answer whose body is limited in size. The caller limits the time.
pub(crate) async fn exchange(
    stream: TcpStream,
    request: Request<Empty<Bytes>>,
    max_body_bytes: usize,
) -> io::Result<Response<Bytes>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, max_body_bytes).collect().await.map_err(io::Error::other)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // The connection makes progress only while it is polled; it ends with the answer.
    tokio::select! {
        answer = answer => answer,
        Err(error) = connection => Err(io::Error::other(error)),
    }
}
