//! Requests to the proxy's admin interface over loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::Connection;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer, in bytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Sends one request on a new connection and returns the answer's status and body.
pub(crate) async fn ask(port: u16, method: Method, path: &str) -> io::Result<(StatusCode, Bytes)> {
    let request = Request::builder().method(method).uri(path).header("host", address(port).to_string());
    let request = request.body(Full::new(Bytes::new())).map_err(io::Error::other)?;
    let asked = async {
        let stream = TcpStream::connect(address(port)).await?;
        let mut connection = Connection::open(stream).await.map_err(io::Error::other)?;
        connection.send(request, MAX_BODY_BYTES).await.map_err(io::Error::other)
    };
    let answer = timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok((answer.status(), answer.into_body()))
}

/// Returns the address of the admin interface.
pub(crate) fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Whether the proxy reports that it is ready; otherwise the error is its answer in one line.
pub(crate) async fn ready(port: u16) -> Result<(), String> {
    match ask(port, Method::GET, "/ready").await {
        Ok((StatusCode::OK, _)) => Ok(()),
        Ok((_, said)) => Err(String::from_utf8_lossy(&said).trim().replace('\n', ": ")),
        Err(error) => Err(error.to_string()),
    }
}
