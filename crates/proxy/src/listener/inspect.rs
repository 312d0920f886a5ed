//! Detects a connection's protocol by the client's first bytes. The bytes are read and passed on, not peeked at, so
//! that nothing is read twice.

use std::io;
use std::task::{Context, Poll, ready};

use evenkeel_tls::{ClientHello, ClientHelloReader, Inspection};
use evenkeel_upstream::proxy_protocol::{self, Header};
use tokio::net::TcpStream;

/// Maximum length of a request line that the HTTP inspector waits for, in bytes.
const MAX_REQUEST_LINE_BYTES: usize = 8 * 1024;
/// Buffer size for one read, in bytes: enough for a ClientHello with a post-quantum key share.
const READ_BYTES: usize = 2 * 1024;
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The methods that Envoy's HTTP inspector recognises: those of the IANA registry that its parser knows. Text that
/// begins with any other word belongs to another protocol, which the first bytes show.
const METHODS: [&str; 35] = [
    "ACL",
    "BIND",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LINK",
    "LOCK",
    "M-SEARCH",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MOVE",
    "MSEARCH",
    "NOTIFY",
    "OPTIONS",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "TRACE",
    "UNBIND",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
];

/// The result of inspecting a connection's first bytes.
#[derive(Default)]
pub(super) struct Inspected {
    /// The ClientHello, if the protocol is TLS.
    pub(super) hello: Option<Box<ClientHello>>,
    /// Bytes read that are not part of `hello`.
    pub(super) bytes: Vec<u8>,
    /// `http/1.0`, `http/1.1` or `h2c`, if the plaintext is HTTP.
    pub(super) http: Option<&'static str>,
    /// The client has half-closed: no more bytes will come.
    pub(super) ended: bool,
}

/// The properties to detect.
#[derive(Debug, Clone, Copy)]
pub(super) struct InspectionGoals {
    pub(super) tls: bool,
    pub(super) http: bool,
}

/// Why a connection is closed before a filter chain is chosen.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("nothing to tell the protocol by arrived in time")]
    Timeout,
    #[error("the ClientHello is too large")]
    TooLarge,
    #[error(transparent)]
    ProxyProtocol(#[from] proxy_protocol::ParseError),
    #[error("version {0} of the PROXY protocol is not allowed here")]
    DisallowedVersion(u8),
    #[error("no PROXY protocol header")]
    NoProxyHeader,
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Why no ClientHello was read where only TLS is possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoHello {
    #[error("the client sent an HTTP request")]
    Http,
    #[error("the client sent no ClientHello")]
    Other,
    #[error("the ClientHello is too large")]
    TooLarge,
    /// The socket failed, or the client closed it.
    #[error(transparent)]
    Socket(io::Error),
}

impl Inspected {
    /// Reads until the `wanted` properties are known. The bytes read are kept in `bytes` between polls.
    pub(super) fn poll(
        &mut self,
        stream: &TcpStream,
        wanted: InspectionGoals,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), InspectError>> {
        while !self.examine(wanted)? {
            ready!(self.poll_more(stream, cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and removes a PROXY protocol header; `None`: the connection begins with something else.
    pub(super) fn poll_proxy_header(
        &mut self,
        stream: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Header>, InspectError>> {
        loop {
            match proxy_protocol::parse(&self.bytes)? {
                proxy_protocol::Parsed::Header(header, length) => {
                    self.bytes.drain(..length);
                    return Poll::Ready(Ok(Some(header)));
                }
                proxy_protocol::Parsed::Absent => return Poll::Ready(Ok(None)),
                proxy_protocol::Parsed::Incomplete if self.ended => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
                }
                proxy_protocol::Parsed::Incomplete => ready!(self.poll_more(stream, cx))?,
            }
        }
    }

    /// Returns true when more bytes would add nothing.
    fn examine(&mut self, wanted: InspectionGoals) -> Result<bool, InspectError> {
        if self.ended || self.bytes.is_empty() {
            return Ok(self.ended || (!wanted.tls && !wanted.http));
        }
        if wanted.tls && looks_like_tls(&self.bytes) {
            // Few ClientHellos arrive in more than one piece, so starting over with each piece is cheap.
            return match ClientHelloReader::new().push(&self.bytes) {
                Inspection::Hello(hello) => {
                    self.bytes = Vec::new();
                    self.hello = Some(hello);
                    Ok(true)
                }
                Inspection::TooLarge => Err(InspectError::TooLarge),
                Inspection::NotTls(_) => Ok(true),
                Inspection::NeedMore(_) => Ok(false),
            };
        }
        if !wanted.http {
            return Ok(true);
        }
        match request_line(&self.bytes) {
            RequestLine::Http(version) => {
                self.http = Some(version);
                Ok(true)
            }
            RequestLine::Other => Ok(true),
            RequestLine::Unknown => Ok(false),
        }
    }

    fn poll_more(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // The buffer is made only once bytes are there: a silent connection costs no buffer.
            ready!(stream.poll_read_ready(cx))?;
            let mut room = [0; READ_BYTES];
            match stream.try_read(&mut room) {
                Ok(count) => {
                    self.ended = count == 0;
                    // The exact size: a connection that stays silent after its first bytes holds no more than these.
                    self.bytes.reserve_exact(count);
                    self.bytes.extend_from_slice(room.get(..count).unwrap_or_default());
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Reads a ClientHello where only TLS is possible; `bytes` were read before.
pub(super) async fn client_hello(stream: &TcpStream, bytes: Vec<u8>) -> Result<Box<ClientHello>, NoHello> {
    let mut inspected = Inspected { bytes, ..Inspected::default() };
    let wanted = InspectionGoals { tls: true, http: false };
    match std::future::poll_fn(|cx| inspected.poll(stream, wanted, cx)).await {
        Ok(()) => {}
        Err(InspectError::Socket(error)) => return Err(NoHello::Socket(error)),
        Err(InspectError::TooLarge) => return Err(NoHello::TooLarge),
        Err(_) => return Err(NoHello::Other),
    }
    let Inspected { hello, bytes, ended, .. } = inspected;
    match hello {
        Some(hello) => Ok(hello),
        None if ended && (bytes.is_empty() || looks_like_tls(&bytes)) => {
            Err(NoHello::Socket(io::ErrorKind::UnexpectedEof.into()))
        }
        None if may_begin_request(&bytes) || bytes.starts_with(b"PRI ") => Err(NoHello::Http),
        None => Err(NoHello::Other),
    }
}

/// Whether this is a TLS record with a handshake message, or the beginning of one.
fn looks_like_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&22) && bytes.get(1).is_none_or(|major| *major == 3)
}

#[derive(Debug, PartialEq, Eq)]
enum RequestLine {
    Http(&'static str),
    Other,
    /// More bytes are needed.
    Unknown,
}

fn request_line(bytes: &[u8]) -> RequestLine {
    if bytes.starts_with(HTTP2_PREFACE) {
        return RequestLine::Http("h2c");
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return RequestLine::Unknown;
    }
    let line = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => bytes.get(..end).unwrap_or_default().trim_ascii_end(),
        None if bytes.len() < MAX_REQUEST_LINE_BYTES && may_begin_request(bytes) => return RequestLine::Unknown,
        None => return RequestLine::Other,
    };
    if !may_begin_request(line) {
        RequestLine::Other
    } else if line.ends_with(b" HTTP/1.1") {
        RequestLine::Http("http/1.1")
    } else if line.ends_with(b" HTTP/1.0") {
        RequestLine::Http("http/1.0")
    } else {
        RequestLine::Other
    }
}

/// Whether the bytes are a method and a space, or a prefix of that.
fn may_begin_request(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| match bytes.get(method.len()) {
        Some(byte) => *byte == b' ' && bytes.starts_with(method.as_bytes()),
        None => method.as_bytes().starts_with(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_http_from_other_plaintext() {
        let check =
            |bytes: &str, expected: RequestLine| assert_eq!(request_line(bytes.as_bytes()), expected, "{bytes:?}");
        check("GET / HTTP/1.1\r\n", RequestLine::Http("http/1.1"));
        check("GET / HTTP/1.0\r\nHost", RequestLine::Http("http/1.0"));
        check("M-SEARCH * HTTP/1.1\n", RequestLine::Http("http/1.1"));
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", RequestLine::Http("h2c"));
        check("PRI * HTTP/2.0\r\n\r\nSM", RequestLine::Unknown);
        check("P", RequestLine::Unknown);
        check("MK", RequestLine::Unknown);
        check("GET", RequestLine::Unknown);
        check("GET / HTTP/1.", RequestLine::Unknown);
        check("GETS / HTTP/1.1\r\n", RequestLine::Other);
        check("get / HTTP/1.1\r\n", RequestLine::Other);
        check("EHLO example.com", RequestLine::Other);
        check("PING\r\n", RequestLine::Other);
        check("GET\r\n", RequestLine::Other);
        check("GET key\r\n", RequestLine::Other);
        check("SSH-2.0-OpenSSH\r\n", RequestLine::Other);
        check("\0\0\0\x0f", RequestLine::Other);
        check("hello world\r\n", RequestLine::Other);
        check(&format!("GET /{}", "a".repeat(9000)), RequestLine::Other);
    }
}
