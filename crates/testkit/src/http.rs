//! A raw HTTP/1.1 client: sends exactly the bytes it is given and shows exactly what came back.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Time limit of any answer, including one that waits for an upstream's timeout.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Larger than any test's response.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// One client connection, plain or TLS.
pub struct Connection {
    stream: Box<dyn Stream>,
    socket: TcpStream,
    /// Received and not yet part of a returned response.
    buffer: Vec<u8>,
}

/// The outcome when the peer was expected to close the connection, or to leave it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed its side in order.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// Nothing arrived in the given time.
    Open,
    /// More bytes arrived.
    Bytes,
}

impl Connection {
    /// Connects over plain TCP.
    ///
    /// # Errors
    /// When nothing accepts within five seconds.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = Self::socket(address)?;
        Ok(Self { stream: Box::new(socket.try_clone()?), socket, buffer: Vec::new() })
    }

    /// Wraps an established stream, TLS for one, over `socket`.
    pub fn over(stream: impl Read + Write + Send + 'static, socket: TcpStream) -> Self {
        Self { stream: Box::new(stream), socket, buffer: Vec::new() }
    }

    /// A connected socket with this client's timeouts.
    ///
    /// # Errors
    /// When nothing accepts within five seconds.
    pub fn socket(address: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        socket.set_write_timeout(Some(READ_TIMEOUT))?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// This side's address.
    ///
    /// # Errors
    /// When the socket is no longer connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends the bytes as they are.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }

    /// Ends this side's sending (TCP half-close).
    ///
    /// # Errors
    /// The socket's.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Sends a `GET` with the given extra header lines (each ending in CRLF) and reads the answer.
    ///
    /// # Errors
    /// As [`Connection::response`].
    pub fn get(&mut self, host: &str, path: &str, extra: &str) -> io::Result<Response> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n"))?;
        self.response()
    }

    /// Reads one response to a request that is not `HEAD`.
    ///
    /// # Errors
    /// The socket's, a timeout, or bytes that are not an HTTP/1 response (`InvalidData`).
    pub fn response(&mut self) -> io::Result<Response> {
        self.read_response(false)
    }

    /// Reads one response to a `HEAD` request: a head without a body, whatever its content-length says.
    ///
    /// # Errors
    /// As [`Connection::response`].
    pub fn head_response(&mut self) -> io::Result<Response> {
        self.read_response(true)
    }

    /// Reads exactly `count` bytes, for what follows an upgrade or is not HTTP at all.
    ///
    /// # Errors
    /// The socket's, or `UnexpectedEof`.
    pub fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill_or_eof()?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads until the peer closes.
    ///
    /// # Errors
    /// The socket's.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? {}
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Looks for what the peer does next, for `patience` at most.
    ///
    /// # Errors
    /// Only when the timeout cannot be set.
    pub fn ending(&mut self, patience: Duration) -> io::Result<Ending> {
        if !self.buffer.is_empty() {
            return Ok(Ending::Bytes);
        }
        self.socket.set_read_timeout(Some(patience))?;
        let ending = match self.fill() {
            Ok(true) => Ending::Bytes,
            Ok(false) => Ending::Closed,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ending::Open,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ending::Closed,
            Err(_) => Ending::Reset,
        };
        self.socket.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(ending)
    }

    fn read_response(&mut self, to_head: bool) -> io::Result<Response> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill_or_eof()?;
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let mut response = Response::parse(&head)?;
        let bodyless = to_head || response.status < 200 || response.status == 204 || response.status == 304;
        if bodyless {
            return Ok(response);
        }
        if response.has_token("transfer-encoding", "chunked") {
            self.chunked_body(&mut response)?;
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(|_| invalid(format!("content-length {length:?}")))?;
            response.body = self.read_exact(length)?;
        } else {
            response.body = self.read_to_end()?;
            response.until_close = true;
        }
        Ok(response)
    }

    fn chunked_body(&mut self, response: &mut Response) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).map_err(|_| invalid(format!("chunk size {line:?}")))?;
            if size == 0 {
                break;
            }
            response.body.extend(self.read_exact(size)?);
            if self.read_exact(2)? != b"\r\n" {
                return Err(invalid("a chunk without CRLF at its end".to_owned()));
            }
        }
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(());
            }
            response.trailers.push(field(&line)?);
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            self.fill_or_eof()?;
        }
    }

    fn fill_or_eof(&mut self) -> io::Result<()> {
        if self.fill()? {
            return Ok(());
        }
        let seen = String::from_utf8_lossy(&self.buffer).into_owned();
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the peer closed after {seen:?}")))
    }

    fn fill(&mut self) -> io::Result<bool> {
        if self.buffer.len() > MAX_RESPONSE_BYTES {
            return Err(invalid(format!("more than {MAX_RESPONSE_BYTES} bytes")));
        }
        let mut chunk = [0; 16 << 10];
        let read = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..read]);
        Ok(read > 0)
    }
}

/// One response as it was received.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// Header fields in their order; names as sent.
    pub headers: Vec<(String, String)>,
    /// Body without its framing.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body.
    pub trailers: Vec<(String, String)>,
    /// The body ended with the connection.
    pub until_close: bool,
}

impl Response {
    /// The first field of that name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns all fields of that name, ignoring case.
    pub fn header_all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether a comma-separated field lists `token`, ignoring case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.header_all(name).iter().flat_map(|value| value.split(',')).any(|t| t.trim().eq_ignore_ascii_case(token))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the sender keeps the connection open after this response (RFC 9112 section 9.3).
    pub fn keeps_open(&self) -> bool {
        if self.until_close || self.has_token("connection", "close") {
            return false;
        }
        self.version == "HTTP/1.1" || self.has_token("connection", "keep-alive")
    }

    fn parse(head: &[u8]) -> io::Result<Self> {
        let text = String::from_utf8_lossy(head);
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let mut parts = status_line.splitn(3, ' ');
        let version = parts.next().unwrap_or_default().to_owned();
        let status = parts.next().and_then(|code| code.parse().ok());
        let (true, Some(status)) = (version.starts_with("HTTP/1."), status) else {
            return Err(invalid(format!("status line {status_line:?}")));
        };
        let reason = parts.next().unwrap_or_default().to_owned();
        let headers = lines.map(field).collect::<io::Result<_>>()?;
        Ok(Self { status, reason, version, headers, body: Vec::new(), trailers: Vec::new(), until_close: false })
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.version, self.status, self.reason)?;
        for (name, value) in self.headers.iter().chain(&self.trailers) {
            writeln!(f, "{name}: {value}")?;
        }
        write!(f, "\n{}", self.text())
    }
}

fn field(line: &str) -> io::Result<(String, String)> {
    let (name, value) = line.split_once(':').ok_or_else(|| invalid(format!("header line {line:?}")))?;
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP/1 response: {what}"))
}
