//! Encodes heads and chunks. Framing is never passed on, but always written from scratch.

use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead, Version};
use crate::headers::Headers;
use crate::names::HeaderId;

/// The `connection` header of an encoded head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection<'a> {
    /// The version's default: no header.
    Default,
    /// `close`.
    Close,
    /// `keep-alive`, which HTTP/1.0 peers must be told.
    KeepAlive,
    /// `upgrade`, with the protocol in `upgrade`.
    Upgrade(&'a [u8]),
}

/// Writes a request head in HTTP/1.1.
pub fn request(out: &mut Vec<u8>, head: &RequestHead, framing: Framing, connection: Connection<'_>) {
    out.reserve(512);
    out.extend_from_slice(head.method());
    out.push(b' ');
    out.extend_from_slice(if head.method() == b"CONNECT" { head.authority() } else { head.path() });
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let headers = &head.headers;
    own_line(out, headers, b"host", head.authority());
    fields(out, headers);
    match framing {
        Framing::Length(length) => content_length(out, headers, length),
        Framing::Chunked => own_line(out, headers, b"transfer-encoding", b"chunked"),
        // Without a body no framing header is sent; `content-length: 0` is sent where the method implies a body (RFC
        // 9110 section 8.6).
        Framing::None | Framing::UntilClose => {}
    }
    end(out, headers, connection);
}

/// How a response is encoded.
#[derive(Debug, Clone, Copy)]
pub struct ResponseStyle<'a> {
    /// Version in the status line.
    pub version: Version,
    /// Body framing.
    pub framing: Framing,
    /// The request was HEAD or the status allows no body: the framing is passed on for information only.
    pub bodiless: bool,
    /// `connection`.
    pub connection: Connection<'a>,
    /// Header names in `Proper-Case`.
    pub proper_case: bool,
}

/// Writes a response head.
pub fn response(out: &mut Vec<u8>, head: &ResponseHead, style: ResponseStyle<'_>) {
    out.reserve(512);
    status_line(out, style.version, head.status);
    let (lines, headers) = (out.len(), &head.headers);
    fields(out, headers);
    if style.bodiless {
        if let Some(length) = headers.get(HeaderId::ContentLength).filter(|_| head.status >= 200 && head.status != 204)
        {
            own_line(out, headers, b"content-length", length);
        } else if style.framing == Framing::Chunked {
            own_line(out, headers, b"transfer-encoding", b"chunked");
        }
    } else {
        match style.framing {
            Framing::Length(length) => content_length(out, headers, length),
            Framing::Chunked => own_line(out, headers, b"transfer-encoding", b"chunked"),
            Framing::None => content_length(out, headers, 0),
            Framing::UntilClose => {}
        }
    }
    end(out, headers, style.connection);
    if style.proper_case {
        out[lines..].split_mut(|byte| *byte == b'\n').for_each(proper_case_name);
    }
}

/// Writes one chunk; an empty piece writes nothing, since an empty chunk ends the body.
pub fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(HEX[data.len() >> (digit * 4) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a chunked body, without trailers.
pub fn last_chunk(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}

/// Writes the end of a chunked body with trailers; fields that are forbidden in trailers are left out.
pub fn last_chunk_with_trailers(out: &mut Vec<u8>, trailers: &Headers) {
    out.extend_from_slice(b"0\r\n");
    for (_, name, value) in trailers.iter().filter(|(id, ..)| !id.is_forbidden_in_trailers()) {
        line(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

/// The reason phrase of a status, as Envoy spells it; `Unknown` for those without one.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Payload Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Entity",
        423 => "Locked",
        424 => "Failed Dependency",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        511 => "Network Authentication Required",
        _ => "Unknown",
    }
}

fn status_line(out: &mut Vec<u8>, version: Version, status: u16) {
    out.extend_from_slice(version.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes all fields except those that [`end`] and the framing write.
fn fields(out: &mut Vec<u8>, headers: &Headers) {
    let spelled = headers.keeps_spellings();
    for (id, name, value) in headers.iter() {
        match id {
            HeaderId::ContentLength
            | HeaderId::TransferEncoding
            | HeaderId::Connection
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::Upgrade
            | HeaderId::Host => {}
            _ if spelled => own_line(out, headers, name, value),
            _ => line(out, name, value),
        }
    }
}

/// Converts the name at the beginning of a line.
fn proper_case_name(line: &mut [u8]) {
    let mut upper = true;
    for byte in line.iter_mut().take_while(|byte| **byte != b':') {
        if upper {
            byte.make_ascii_uppercase();
        }
        upper = !byte.is_ascii_alphanumeric();
    }
}

fn content_length(out: &mut Vec<u8>, headers: &Headers, length: u64) {
    own_line(out, headers, b"content-length", itoa::Buffer::new().format(length).as_bytes());
}

fn end(out: &mut Vec<u8>, headers: &Headers, connection: Connection<'_>) {
    match connection {
        Connection::Default => {}
        Connection::Close => own_line(out, headers, b"connection", b"close"),
        Connection::KeepAlive => own_line(out, headers, b"connection", b"keep-alive"),
        Connection::Upgrade(protocol) => {
            own_line(out, headers, b"connection", b"Upgrade");
            own_line(out, headers, b"upgrade", protocol);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// A line of this head, whose name is spelled as it arrived if that is kept.
#[inline]
fn own_line(out: &mut Vec<u8>, headers: &Headers, name: &[u8], value: &[u8]) {
    if headers.keeps_spellings() { line(out, headers.spelled(name), value) } else { line(out, name, value) }
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{HeadScan, RequestRules, parse_request};

    #[test]
    fn names_are_spelled_as_they_first_came_if_that_is_kept() {
        let text = "POST / HTTP/1.1\r\nHOST: a\r\nX-One: 1\r\nx-ONE: 2\r\ncontent-LENGTH: 2\r\nTE: trailers\r\n\r\n";
        let check = |keep_case, expected: &str| {
            let (mut head, rules) = (RequestHead::default(), RequestRules { keep_case, ..RequestRules::default() });
            let info = parse_request(text.as_bytes(), &mut HeadScan::default(), rules, &mut head);
            let info = info.expect("a valid head").expect("a whole one");
            head.headers.append(b"X-Two", b"3");
            let mut out = Vec::new();
            request(&mut out, &head, info.framing, Connection::Close);
            assert_eq!(
                String::from_utf8_lossy(&out),
                format!("POST / HTTP/1.1\r\n{expected}connection: close\r\n\r\n")
            );
            head.clear();
            assert_eq!(head.headers.spelled(b"x-one"), b"x-one");
        };
        check(false, "host: a\r\nx-one: 1\r\nx-one: 2\r\nte: trailers\r\nx-two: 3\r\ncontent-length: 2\r\n");
        check(true, "HOST: a\r\nX-One: 1\r\nX-One: 2\r\nTE: trailers\r\nx-two: 3\r\ncontent-LENGTH: 2\r\n");
    }

    #[test]
    fn names_in_proper_case_are_those_of_the_framing_too() {
        let mut head = ResponseHead { status: 200, ..ResponseHead::default() };
        head.headers.append(b"x-some-header", b"a-b: c-d");
        let check = |framing, expected: &str| {
            let mut out = Vec::new();
            let style = ResponseStyle {
                version: Version::Http11,
                framing,
                bodiless: false,
                connection: Connection::Close,
                proper_case: true,
            };
            response(&mut out, &head, style);
            let expected =
                format!("HTTP/1.1 200 OK\r\nX-Some-Header: a-b: c-d\r\n{expected}\r\nConnection: close\r\n\r\n");
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        check(Framing::Length(3), "Content-Length: 3");
        check(Framing::Chunked, "Transfer-Encoding: chunked");
    }
}
