//! Finding out what a connection speaks before a filter chain is chosen. What is read here is handed on, not peeked at, so
//! nothing is read twice.

use std::io;

use evenkeel_runtime_config::listener::ListenerFilters;
use evenkeel_tls::{ClientHello, ClientHelloReader, Inspection};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Longest request line the HTTP inspector waits for, in bytes.
const MAX_REQUEST_LINE_BYTES: usize = 8 * 1024;
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is known of a connection's first bytes.
#[derive(Default)]
pub(super) struct Inspected {
    /// The ClientHello, when it is TLS.
    pub(super) hello: Option<Box<ClientHello>>,
    /// Bytes read and not part of `hello`.
    pub(super) bytes: Vec<u8>,
    /// `http/1.0`, `http/1.1` or `h2c`, out of plaintext.
    pub(super) http: Option<&'static str>,
}

/// Why a connection ends before a filter chain is chosen.
#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("nothing to tell the protocol by arrived in time")]
    Timeout,
    #[error("the ClientHello is too large")]
    TooLarge,
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Runs the inspectors that are on for `port`, within the listener's time.
pub(super) async fn inspect(
    stream: &mut TcpStream,
    filters: &ListenerFilters,
    port: u16,
) -> Result<Inspected, InspectError> {
    let (tls, http) = (filters.inspects_tls(port), filters.inspects_http(port));
    let mut inspected = Inspected::default();
    if !tls && !http {
        return Ok(inspected);
    }
    let reading = read(stream, tls, http, &mut inspected);
    match filters.timeout {
        None => reading.await?,
        Some(limit) => match tokio::time::timeout(limit, reading).await {
            Ok(result) => result?,
            Err(_) if filters.continue_on_timeout => {}
            Err(_) => return Err(InspectError::Timeout),
        },
    }
    Ok(inspected)
}

/// Reads a ClientHello where TLS is the only possibility; `bytes` were read before.
pub(super) async fn client_hello(stream: &mut TcpStream, bytes: &[u8]) -> Result<Box<ClientHello>, InspectError> {
    let mut inspected = Inspected { bytes: bytes.to_vec(), ..Inspected::default() };
    read(stream, true, false, &mut inspected).await?;
    let not_tls = || io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS");
    inspected.hello.ok_or_else(|| not_tls().into())
}

/// Cancel safe: whatever was read is in `inspected.bytes` when the future is dropped.
async fn read(stream: &mut TcpStream, tls: bool, http: bool, inspected: &mut Inspected) -> Result<(), InspectError> {
    loop {
        if !inspected.bytes.is_empty() {
            if tls && looks_like_tls(&inspected.bytes) {
                // Few ClientHellos come in more than one piece, so starting over with each piece is cheap.
                match ClientHelloReader::new().push(&inspected.bytes) {
                    Inspection::Hello(hello) => {
                        inspected.bytes.clear();
                        inspected.hello = Some(hello);
                        return Ok(());
                    }
                    Inspection::TooLarge => return Err(InspectError::TooLarge),
                    Inspection::NotTls(_) => return Ok(()),
                    Inspection::NeedMore(_) => {}
                }
            } else {
                match request_line(&inspected.bytes) {
                    _ if !http => return Ok(()),
                    RequestLine::Http(version) => {
                        inspected.http = Some(version);
                        return Ok(());
                    }
                    RequestLine::Other => return Ok(()),
                    RequestLine::Unknown => {}
                }
            }
        }
        if stream.read_buf(&mut inspected.bytes).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// A TLS record with a handshake message.
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
    let method = bytes.iter().take_while(|byte| byte.is_ascii_alphabetic() || b"-_!".contains(byte)).count();
    if method == 0 || bytes.get(method).is_some_and(|byte| *byte != b' ') {
        return RequestLine::Other;
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() < MAX_REQUEST_LINE_BYTES { RequestLine::Unknown } else { RequestLine::Other };
    };
    let line = bytes[..end].trim_ascii_end();
    if line.ends_with(b" HTTP/1.1") {
        RequestLine::Http("http/1.1")
    } else if line.ends_with(b" HTTP/1.0") {
        RequestLine::Http("http/1.0")
    } else {
        RequestLine::Other
    }
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
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", RequestLine::Http("h2c"));
        check("PRI * HTTP/2.0\r\n\r\nSM", RequestLine::Unknown);
        check("P", RequestLine::Unknown);
        check("GET / HTTP/1.", RequestLine::Unknown);
        check("SSH-2.0-OpenSSH\r\n", RequestLine::Other);
        check("\0\0\0\x0f", RequestLine::Other);
        check("hello world\r\n", RequestLine::Other);
        check(&format!("GET /{}", "a".repeat(9000)), RequestLine::Other);
    }
}
