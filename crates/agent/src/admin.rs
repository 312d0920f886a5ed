//! Requests to the proxy's admin interface over loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer read, in bytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Sends one request on a connection of its own and returns the answer's status and body.
pub(crate) async fn ask(port: u16, method: Method, path: &str) -> io::Result<(StatusCode, Bytes)> {
    timeout(TIMEOUT, exchange(port, method, path)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether the proxy reports that it is ready; otherwise the error is its answer in one line.
pub(crate) async fn ready(port: u16) -> Result<(), String> {
    match ask(port, Method::GET, "/ready").await {
        Ok((StatusCode::OK, _)) => Ok(()),
        Ok((_, said)) => Err(String::from_utf8_lossy(&said).trim().replace('\n', ": ")),
        Err(error) => Err(error.to_string()),
    }
}

/// A connection to it.
pub(crate) async fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

async fn exchange(port: u16, method: Method, path: &str) -> io::Result<(StatusCode, Bytes)> {
    let (stream, address) = (connect(port).await?, SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::builder().method(method).uri(path).header("host", address.to_string());
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes()))
    };
    // The connection makes progress only while it is polled; it ends with the answer.
    tokio::select! {
        answer = answer => answer,
        Err(error) = connection => Err(io::Error::other(error)),
    }
}
