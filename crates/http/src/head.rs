//! Request and response heads.

use crate::headers::{Headers, Span};

/// HTTP version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// A request head. Start with `default()`, fill it with [`crate::parse_request`] and use it again for the next request.
///
/// Method, path and authority hold visible ASCII only, whoever sets them: anything else is escaped with `%`.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// Header fields without `Host`, which is [`RequestHead::authority`].
    pub headers: Headers,
    /// Version of the message.
    pub version: Version,
    pub(crate) method: Span,
    pub(crate) path: Span,
    pub(crate) authority: Span,
    pub(crate) protocol: Span,
}

impl RequestHead {
    /// Forgets the request and keeps the memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        (self.version, self.method, self.path, self.authority, self.protocol) = Default::default();
    }

    /// Method; case is preserved.
    #[inline]
    pub fn method(&self) -> &[u8] {
        self.headers.bytes(self.method)
    }

    /// Path and query (`/a?b`), `*` for `OPTIONS *`, empty for CONNECT.
    #[inline]
    pub fn path(&self) -> &[u8] {
        self.headers.bytes(self.path)
    }

    /// Host and port of the request: from an absolute-form target, otherwise from `Host`. Case is preserved.
    #[inline]
    pub fn authority(&self) -> &[u8] {
        self.headers.bytes(self.authority)
    }

    /// Returns the protocol of extended CONNECT, such as `websocket` (RFC 8441 `:protocol`); empty for any other request.
    #[inline]
    pub fn protocol(&self) -> &[u8] {
        self.headers.bytes(self.protocol)
    }

    /// Replaces the method.
    pub fn set_method(&mut self, method: &[u8]) {
        self.method = self.headers.intern_target(method);
    }

    /// Replaces path and query.
    pub fn set_path(&mut self, path: &[u8]) {
        self.path = self.headers.intern_target(path);
    }

    /// Replaces the authority.
    pub fn set_authority(&mut self, authority: &[u8]) {
        self.authority = self.headers.intern_target(authority);
    }

    /// Makes the request an extended CONNECT for this protocol, or any other request when empty. HTTP/1 does not write it.
    pub fn set_protocol(&mut self, protocol: &[u8]) {
        self.protocol = self.headers.intern_target(protocol);
    }
}

/// A response head.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    /// Header fields.
    pub headers: Headers,
    /// Version of the message.
    pub version: Version,
    /// Status, 100–999.
    pub status: u16,
}

impl ResponseHead {
    /// Forgets the response and keeps the memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.status = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Framing, encode};

    #[test]
    fn no_part_of_the_first_line_ends_it() {
        let mut head = RequestHead::default();
        head.set_method(b"GET / HTTP/1.1\r\n");
        head.set_path(b"/a b\r\nevil: 1\0\xc3\xbc?q=%0d");
        head.set_authority(b"h\r\nevil: 1");
        let mut out = Vec::new();
        encode::request(&mut out, &head, Framing::None, encode::Connection::Default);
        let expected = "GET%20/%20HTTP/1.1%0D%0A /a%20b%0D%0Aevil:%201%00%C3%BC?q=%0d HTTP/1.1\r\n\
                        host: h%0D%0Aevil:%201\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
