//! One HTTP/1.1 client for pages, over TCP, Unix sockets, and streams that somebody else has opened.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

/// Maximum size of a page, in bytes.
pub const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be established, or broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The response is not HTTP, or was cut off.
    #[error("no HTTP response: {0}")]
    Http(#[from] hyper::Error),
    /// The request cannot be written.
    #[error("the request is not valid: {0}")]
    Request(#[from] http::Error),
    /// The body cannot be read.
    #[error("the response ended early: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The body is longer than the limit, in bytes.
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
    /// No response in time.
    #[error("no response within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// Where a program shows its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Requests a page: by GET, or by POST with a body. The time limit is for all of it.
///
/// # Errors
/// If there is no response in time, or one with more than [`MAX_PAGE_BYTES`].
pub async fn page(
    address: &Address,
    path: &str,
    body: Option<Bytes>,
    timeout: Duration,
) -> Result<Response<Bytes>, ClientError> {
    let (method, body) = match body {
        Some(body) => (Method::POST, body),
        None => (Method::GET, Bytes::new()),
    };
    let request = Request::builder().method(method).uri(path);
    let response = async {
        match address {
            Address::Tcp(address) => {
                let request = request.header(HOST, address.to_string()).body(Full::new(body))?;
                Connection::open(TcpStream::connect(address).await?).await?.send(request, MAX_PAGE_BYTES).await
            }
            Address::Unix(path) => {
                let request = request.header(HOST, "localhost").body(Full::new(body))?;
                Connection::open(UnixStream::connect(path).await?).await?.send(request, MAX_PAGE_BYTES).await
            }
        }
    };
    tokio::time::timeout(timeout, response).await.unwrap_or(Err(ClientError::TimedOut(timeout)))
}

/// [`page`] for threads without a runtime.
///
/// # Errors
/// As [`page`], or if the runtime cannot be made.
pub fn blocking_page(
    address: &Address,
    path: &str,
    body: Option<Bytes>,
    timeout: Duration,
) -> Result<Response<Bytes>, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(page(address, path, body, timeout))
}

/// A connection that is kept alive between requests. Nothing limits the time of a request but its caller.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    /// Speaks HTTP/1.1 over an open stream.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn open(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, ClientError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: tokio::spawn(connection) })
    }

    /// Sends a request, and reads a response whose body has at most this many bytes.
    ///
    /// # Errors
    /// If the connection ends before, or the body is longer.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        max_body_bytes: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, max_body_bytes).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                ClientError::TooLarge(max_body_bytes)
            } else {
                ClientError::Body(error)
            }
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Whether a response has a page.
pub fn is_page<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::OK
}
