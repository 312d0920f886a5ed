//! A small HTTP/1.1 client that opens its sockets inside a replica's network: for readiness probes and for `--check`.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::{ClientError, Connection};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use tokio::net::{TcpSocket, TcpStream};

use crate::namespace::Namespace;

/// The largest answer body that is read, in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection could not be established, or broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The answer is not HTTP, or was cut off.
    #[error("no HTTP answer: {0}")]
    Http(String),
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The `Host` header.
    pub host: String,
    /// More headers.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Body; empty for none.
    pub body: String,
    /// Time allowed from connect to the last byte.
    pub timeout: Duration,
}

impl Call {
    /// A GET with a timeout of two seconds.
    pub fn get(host: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            host: host.into(),
            headers: Vec::new(),
            body: String::new(),
            timeout: Duration::from_secs(2),
        }
    }

    /// Sets another method.
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a JSON body.
    pub fn json(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self.header("content-type", "application/json")
    }

    /// Connects to `address` from inside `namespace` (or from the supervisor's own) and waits for the whole answer.
    pub async fn send(&self, namespace: Option<&Namespace>, address: SocketAddr) -> Result<Answer, CallError> {
        let exchange = async { Session::open(connect(namespace, address).await?).await?.exchange(self).await };
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or(Err(CallError::TimedOut(self.timeout)))
    }
}

/// A connection that is kept alive between calls.
#[derive(Debug)]
pub struct Session(Connection);

impl Session {
    /// Speaks HTTP/1.1 over an open connection.
    pub async fn open(stream: TcpStream) -> Result<Self, CallError> {
        Ok(Self(Connection::open(stream).await?))
    }

    /// One exchange, within the call's timeout.
    pub async fn call(&mut self, call: &Call) -> Result<Answer, CallError> {
        let exchange = tokio::time::timeout(call.timeout, self.exchange(call));
        exchange.await.unwrap_or(Err(CallError::TimedOut(call.timeout)))
    }

    async fn exchange(&mut self, call: &Call) -> Result<Answer, CallError> {
        let mut request = Request::builder().method(&call.method).uri(&call.path).header("host", &call.host);
        for (name, value) in &call.headers {
            request = request.header(name.as_ref(), value);
        }
        let request = request.body(Full::new(Bytes::from(call.body.clone()))).map_err(ClientError::from)?;
        let (head, body) = self.0.send(request, MAX_BODY_BYTES).await?.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body: String::from_utf8_lossy(&body).into_owned() })
    }
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Io(error) => Self::Io(error),
            ClientError::Http(error) => Self::Http(error.to_string()),
            error => Self::Http(error.to_string()),
        }
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body; bytes that are not UTF-8 are replaced.
    pub body: String,
}

impl Answer {
    /// A header's value, if it is there and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Status and the first bytes of the body: what a failed check prints.
impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body: String = self.body.trim().chars().take(120).collect();
        write!(f, "{} {body:?}", self.status.as_u16())
    }
}

/// Opens a TCP connection from inside `namespace`.
pub async fn connect(namespace: Option<&Namespace>, address: SocketAddr) -> io::Result<TcpStream> {
    let open = TcpSocket::new_v4;
    let socket = match namespace {
        Some(namespace) => namespace.within(open)??,
        None => open()?,
    };
    socket.connect(address).await
}
