//! One HTTP/1.1 client for pages, over TCP, Unix sockets, and streams that somebody else has opened.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
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
    Http(#[source] hyper::Error),
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

impl From<hyper::Error> for ClientError {
    fn from(error: hyper::Error) -> Self {
        // A stream that breaks says why: a port-forward has its reason from the other end.
        // A request that comes just after is canceled, with what has broken the stream as the cause of the cause.
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        match causes.find_map(|cause| cause.downcast_ref::<io::Error>()) {
            Some(cause) => Self::Io(io::Error::new(cause.kind(), cause.to_string())),
            None => Self::Http(error),
        }
    }
}

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The future of [`Dial::dial`].
pub type Dialing<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'a>>;

/// Opens streams to one port of a program that no address of this machine leads to. `Display` names the port.
pub trait Dial: fmt::Debug + fmt::Display + Send + Sync {
    /// Opens a stream, within a time limit of its own.
    fn dial(&self) -> Dialing<'_>;
}

/// Where a program shows its pages.
#[derive(Debug, Clone)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// A port to which somebody else opens streams.
    Dialed(Arc<dyn Dial>),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
            Self::Dialed(dial) => dial.fmt(f),
        }
    }
}

impl Address {
    /// The host that requests name: programs answer only requests for an address, or for their own machine.
    fn host(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(_) | Self::Dialed(_) => "localhost".to_owned(),
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
    let request = Request::builder().method(method).uri(path).header(HOST, address.host()).body(Full::new(body))?;
    let response = async { Connection::to(address).await?.send(request, MAX_PAGE_BYTES).await };
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
    /// `None`: it has ended.
    driver: Option<JoinHandle<hyper::Result<()>>>,
}

impl Connection {
    /// Connects to where a program shows its pages.
    ///
    /// # Errors
    /// If nobody accepts the connection.
    pub async fn to(address: &Address) -> Result<Self, ClientError> {
        match address {
            Address::Tcp(address) => Self::open(TcpStream::connect(address).await?).await,
            Address::Unix(path) => Self::open(UnixStream::connect(path).await?).await,
            Address::Dialed(dial) => Self::open(dial.dial().await?).await,
        }
    }

    /// Requests a page by GET, and reads a response whose body has at most this many bytes.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn page(&mut self, path: &str, max_body_bytes: usize) -> Result<Response<Bytes>, ClientError> {
        let request = Request::get(path).header(HOST, "localhost").body(Full::default())?;
        self.send(request, max_body_bytes).await
    }

    /// Speaks HTTP/1.1 over an open stream.
    ///
    /// # Errors
    /// If the stream is closed.
    pub async fn open(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, ClientError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: Some(tokio::spawn(connection)) })
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
        let response = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let response = match response.await {
            Ok(response) => response,
            Err(error) => return Err(self.cause(error).await),
        };
        let (head, body) = response.into_parts();
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

impl Connection {
    /// Why a request got no response: if the connection has ended before, its own error says more.
    async fn cause(&mut self, error: hyper::Error) -> ClientError {
        if !(error.is_canceled() || error.is_closed()) {
            return error.into();
        }
        match self.driver.take() {
            Some(driver) => driver.await.ok().and_then(Result::err).unwrap_or(error).into(),
            None => error.into(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.iter().for_each(JoinHandle::abort);
    }
}

/// Whether a response has a page.
pub fn is_page<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Reads a request, and sends this.
    fn respond(mut stream: impl io::Read + io::Write, response: &str) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            request.extend(byte);
        }
        stream.write_all(response.as_bytes()).expect("the client reads");
        String::from_utf8(request).expect("text")
    }

    #[test]
    fn pages_are_read_from_ports_and_sockets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages.sock");
        let check = |response: &'static str, expected: Result<(u16, &str), &str>| {
            let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = Address::Tcp(port.local_addr().expect("bound"));
            let server = std::thread::spawn(move || respond(port.accept().expect("a client").0, response));
            let read = |address: &Address| {
                let page = blocking_page(address, "/ready", None, PATIENCE).map_err(|error| error.to_string());
                page.map(|page| (page.status().as_u16(), String::from_utf8_lossy(page.body()).into_owned()))
            };
            let holds = |found: Result<(u16, String), String>| match (found, expected) {
                (Ok((status, body)), Ok(expected)) => (status, &*body) == expected,
                (Err(error), Err(expected)) => error.starts_with(expected),
                _ => false,
            };
            assert!(holds(read(&address)), "{response}");
            let request = server.join().expect("no panic");
            assert!(
                request.starts_with("GET /ready HTTP/1.1\r\n") && request.contains("host: 127.0.0.1:"),
                "{request}"
            );
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
            let server = std::thread::spawn(move || respond(listener.accept().expect("a client").0, response));
            assert!(holds(read(&Address::Unix(path.clone()))), "{response}");
            server.join().expect("no panic");
            std::fs::remove_file(&path).expect("the socket");
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Ok((200, "ok")));
        check("HTTP/1.0 503 Service Unavailable\r\n\r\nnot yet", Ok((503, "not yet")));
        check("SSH-2.0\r\n\r\n", Err("no HTTP response"));
        check("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nok", Err("the response ended early"));
    }

    #[test]
    fn whoever_is_absent_or_silent_or_long_is_named() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address::Tcp(port.local_addr().expect("bound"));
        let within = |patience: Duration| blocking_page(&address, "/", None, patience);
        assert!(matches!(within(Duration::from_millis(20)), Err(ClientError::TimedOut(_))));
        drop(port);
        assert!(matches!(within(PATIENCE), Err(ClientError::Io(_))));
        let (client, server) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let server = std::thread::spawn(|| respond(server, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789"));
        client.set_nonblocking(true).expect("a socket of the runtime");
        let long = async {
            let request = Request::get("/").body(Full::default()).expect("a request");
            let stream = UnixStream::from_std(client).expect("a socket");
            Connection::open(stream).await.expect("open").send(request, 8).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        assert!(matches!(runtime.block_on(long), Err(ClientError::TooLarge(8))));
        server.join().expect("no panic");
    }
}
