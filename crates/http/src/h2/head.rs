//! Converts header blocks to messages and back: the rules of RFC 9113 section 8 on top of HPACK.

use super::hpack::{Decoded, Encoder, Name};
use super::options::Options;
use super::sink::{Fault, RequestMeta, ResponseMeta};
use crate::bytes::{TARGET, TOKEN};
use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead, Version};
use crate::headers::Headers;
use crate::names::HeaderId;
use crate::parse::{check_authority, content_length};
use crate::underscores::Underscores;

/// Why a message is refused, with a text. Decoding still continues to the end of the block, to keep the HPACK tables in sync.
pub(super) type Refusal = (Fault, &'static str);

/// State shared by all kinds of header lists.
#[derive(Debug)]
struct Fields {
    lines_left: u32,
    bytes_left: u32,
    /// An ordinary field was seen, after which no pseudo-header field may come.
    ordinary: bool,
    cookies: u32,
    length: Option<u64>,
    underscores: Underscores,
    /// Fields left out for their underscores.
    dropped: u32,
    refusal: Option<Refusal>,
}

impl Fields {
    fn new(options: &Options) -> Self {
        let (lines_left, bytes_left) = (options.max_headers, options.max_header_list_bytes);
        Self {
            lines_left,
            bytes_left,
            ordinary: false,
            cookies: 0,
            length: None,
            underscores: options.underscores,
            dropped: 0,
            refusal: None,
        }
    }

    /// Records that a field is malformed.
    fn fail(&mut self, why: &'static str) {
        self.refusal.get_or_insert((Fault::Field, why));
    }

    /// Records that the fields together do not make a valid message.
    fn fail_message(&mut self, why: &'static str) {
        self.refusal.get_or_insert((Fault::Message, why));
    }

    /// Counts a field against the limits; false if the field must be skipped.
    #[inline]
    fn admit(&mut self, field: &Decoded<'_>) -> bool {
        if self.refusal.is_some() || self.is_left_out(field) {
            return false;
        }
        let bytes = (field.name_bytes.len() + field.value.len() + 32) as u64;
        if self.lines_left == 0 || bytes > u64::from(self.bytes_left) {
            self.refusal = Some((Fault::TooLarge, "header list over the limit"));
            return false;
        }
        self.lines_left -= 1;
        self.bytes_left -= bytes as u32;
        if !field.valid {
            self.fail("forbidden characters in a field value");
        }
        field.valid
    }

    /// Whether a field is skipped because of its name. A malformed field is an error whatever its name.
    #[inline]
    fn is_left_out(&mut self, field: &Decoded<'_>) -> bool {
        if self.underscores == Underscores::Allow
            || field.name != Name::Field(HeaderId::Other)
            || !field.valid
            || !self.underscores.concern(field.name_bytes)
        {
            return false;
        }
        self.ordinary = true;
        match self.underscores {
            Underscores::Reject => self.refusal = Some((Fault::Underscore, "underscore in a field name")),
            Underscores::Drop | Underscores::Allow => self.dropped += 1,
        }
        true
    }

    /// Takes an ordinary field.
    #[inline]
    fn ordinary(&mut self, headers: &mut Headers, id: HeaderId, field: &Decoded<'_>) {
        self.ordinary = true;
        match id {
            HeaderId::Connection
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade => return self.fail("connection-specific header field"),
            HeaderId::Te if !field.value.eq_ignore_ascii_case(b"trailers") => {
                return self.fail("te is not trailers");
            }
            HeaderId::ContentLength => match content_length(field.value) {
                Some(length) if self.length.is_none() => self.length = Some(length),
                _ => return self.fail("malformed or repeated content-length"),
            },
            HeaderId::Cookie => self.cookies += 1,
            _ => {}
        }
        headers.push_decoded(id, field.name_bytes, field.value, field.sensitive);
    }

    /// Ends the list.
    fn finish(&self, headers: &mut Headers) -> Result<(), Refusal> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        if self.cookies > 1 {
            headers.join(HeaderId::Cookie, b"; ");
        }
        Ok(())
    }
}

/// Fills a request head.
pub(super) struct RequestReader<'a> {
    head: &'a mut RequestHead,
    fields: Fields,
    takes_extended_connect: bool,
    method: bool,
    scheme: Option<bool>,
    path: bool,
    authority: bool,
    protocol: bool,
    host: bool,
}

impl<'a> RequestReader<'a> {
    pub(super) fn new(head: &'a mut RequestHead, options: &Options) -> Self {
        head.clear();
        head.headers.prepare();
        head.version = Version::Http2;
        Self {
            head,
            fields: Fields::new(options),
            takes_extended_connect: options.enable_connect_protocol,
            method: false,
            scheme: None,
            path: false,
            authority: false,
            protocol: false,
            host: false,
        }
    }

    #[inline]
    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if !self.fields.admit(&field) {
            return;
        }
        match field.name {
            Name::Field(HeaderId::Host) => self.host(field.value),
            Name::Field(id) => self.fields.ordinary(&mut self.head.headers, id, &field),
            _ if self.fields.ordinary => self.fields.fail("pseudo-header field behind others"),
            name => self.pseudo(name, field.value),
        }
    }

    fn pseudo(&mut self, name: Name, value: &[u8]) {
        let repeated = match name {
            Name::Method => std::mem::replace(&mut self.method, true),
            Name::Scheme => self.scheme.replace(value.eq_ignore_ascii_case(b"https")).is_some(),
            Name::Path => std::mem::replace(&mut self.path, true),
            Name::Authority => std::mem::replace(&mut self.authority, true),
            Name::Protocol => std::mem::replace(&mut self.protocol, true),
            Name::Status | Name::Field(_) | Name::Invalid => return self.fields.fail("invalid field name"),
        };
        if repeated {
            return self.fields.fail("repeated pseudo-header field");
        }
        match name {
            Name::Method if is_token(value) => self.head.method = self.head.headers.intern(value),
            Name::Scheme if is_scheme(value) => {}
            Name::Path => self.head.path = self.head.headers.intern(value),
            Name::Authority if check_authority(value).is_ok() => self.head.authority = self.head.headers.intern(value),
            Name::Protocol if is_token(value) => self.head.protocol = self.head.headers.intern(value),
            _ => self.fields.fail("invalid pseudo-header field"),
        }
    }

    /// `host` must equal `:authority`, or replaces it if that is missing (RFC 9113 section 8.3.1).
    fn host(&mut self, value: &[u8]) {
        self.fields.ordinary = true;
        if std::mem::replace(&mut self.host, true) {
            return self.fields.fail("repeated host");
        }
        if self.authority {
            if !self.head.authority().eq_ignore_ascii_case(value) {
                self.fields.fail("host and :authority differ");
            }
        } else if check_authority(value).is_ok() {
            self.head.authority = self.head.headers.intern(value);
        } else {
            self.fields.fail("invalid host");
        }
    }

    /// Fields left out for their underscores.
    pub(super) fn dropped(&self) -> u32 {
        self.fields.dropped
    }

    /// Ends the head; `end`: the stream ends with it.
    pub(super) fn finish(mut self, end: bool) -> Result<RequestMeta, Refusal> {
        if self.fields.refusal.is_none() {
            self.check_pseudo();
        }
        self.fields.finish(&mut self.head.headers)?;
        let connect = self.head.method() == b"CONNECT";
        if connect && self.fields.length.is_some() {
            return Err((Fault::Message, "content-length with CONNECT"));
        }
        let framing = match self.fields.length {
            Some(length) if end && length > 0 => {
                return Err((Fault::Message, "the body is shorter than content-length"));
            }
            Some(length) => Framing::Length(length),
            None if end => Framing::None,
            None => Framing::Chunked,
        };
        Ok(RequestMeta { framing, end, https: self.scheme == Some(true) })
    }

    fn check_pseudo(&mut self) {
        let connect = self.head.method() == b"CONNECT";
        let complete = self.method && self.scheme.is_some() && self.path;
        if self.protocol {
            if !self.takes_extended_connect {
                return self.fields.fail("extended CONNECT, which is not taken");
            }
            if !connect || !complete || !self.authority {
                return self.fields.fail_message("invalid extended CONNECT");
            }
        } else if connect {
            // CONNECT needs `:authority`; `host` cannot replace it here (RFC 9113 section 8.5).
            if self.scheme.is_some() || self.path || !self.authority || self.head.authority().is_empty() {
                self.fields.fail_message("invalid CONNECT");
            }
            return;
        } else if !complete {
            return self.fields.fail_message("missing pseudo-header field");
        }
        let (path, options) = (self.head.path(), self.head.method() == b"OPTIONS");
        let valid_start = path.starts_with(b"/") || (path == b"*" && options);
        if !valid_start {
            self.fields.fail_message("invalid :path");
        } else if !TARGET.holds_all(path) {
            self.fields.fail("forbidden characters in :path");
        }
    }
}

/// Fills a response head.
pub(super) struct ResponseReader<'a> {
    head: &'a mut ResponseHead,
    fields: Fields,
}

impl<'a> ResponseReader<'a> {
    pub(super) fn new(head: &'a mut ResponseHead, options: &Options) -> Self {
        head.clear();
        head.headers.prepare();
        head.version = Version::Http2;
        Self { head, fields: Fields::new(options) }
    }

    #[inline]
    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if !self.fields.admit(&field) {
            return;
        }
        match field.name {
            Name::Field(id) => self.fields.ordinary(&mut self.head.headers, id, &field),
            Name::Status if !self.fields.ordinary && self.head.status == 0 => match status(field.value) {
                Some(status) => self.head.status = status,
                None => self.fields.fail("invalid :status"),
            },
            _ => self.fields.fail("invalid field name"),
        }
    }

    /// Ends the head. `to_head` and `to_connect`: what the request was.
    pub(super) fn finish(self, end: bool, to_head: bool, to_connect: bool) -> Result<ResponseMeta, Refusal> {
        self.fields.finish(&mut self.head.headers)?;
        let status = self.head.status;
        let malformed = |why| Err((Fault::Message, why));
        if status == 0 {
            return malformed("no :status");
        }
        if status == 101 {
            return malformed("101 has no meaning in HTTP/2");
        }
        if status < 200 && end {
            return malformed("the stream ends with an interim response");
        }
        // RFC 9110 section 8.6.
        if matches!(status, 100..=199 | 204) && self.fields.length.is_some_and(|length| length > 0) {
            return malformed("a length where there is no body");
        }
        let framing = match self.fields.length {
            _ if to_head || matches!(status, 100..=199 | 204 | 304) => Framing::None,
            _ if to_connect && status < 300 => Framing::Chunked,
            Some(length) if end && length > 0 => return malformed("the body is shorter than content-length"),
            Some(length) => Framing::Length(length),
            None if end => Framing::None,
            None => Framing::Chunked,
        };
        Ok(ResponseMeta { framing, end })
    }
}

/// Fills trailers.
pub(super) struct TrailersReader<'a> {
    trailers: &'a mut Headers,
    fields: Fields,
}

impl<'a> TrailersReader<'a> {
    pub(super) fn new(trailers: &'a mut Headers, options: &Options) -> Self {
        trailers.clear();
        Self { trailers, fields: Fields::new(options) }
    }

    #[inline]
    pub(super) fn field(&mut self, field: Decoded<'_>) {
        if !self.fields.admit(&field) {
            return;
        }
        match field.name {
            Name::Field(id) => self.fields.ordinary(self.trailers, id, &field),
            _ => self.fields.fail("pseudo-header field in trailers"),
        }
    }

    /// Fields left out for their underscores.
    pub(super) fn dropped(&self) -> u32 {
        self.fields.dropped
    }

    pub(super) fn finish(self) -> Result<(), Refusal> {
        self.fields.finish(self.trailers)?;
        for id in [HeaderId::ContentLength, HeaderId::Expect, HeaderId::Host, HeaderId::Te, HeaderId::Trailer] {
            self.trailers.remove(id);
        }
        Ok(())
    }
}

fn status(value: &[u8]) -> Option<u16> {
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return None };
    Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
}

fn is_token(value: &[u8]) -> bool {
    !value.is_empty() && TOKEN.holds_all(value)
}

/// RFC 3986 section 3.1.
fn is_scheme(value: &[u8]) -> bool {
    value.first().is_some_and(u8::is_ascii_alphabetic)
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// Appends a request's header block.
pub(super) fn encode_request(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    head: &RequestHead,
    https: bool,
    framing: Framing,
) {
    encoder.begin(out);
    encoder.field(out, b":method", head.method(), false);
    if head.method() != b"CONNECT" || !head.protocol().is_empty() {
        encoder.field(out, b":scheme", if https { b"https" } else { b"http" }, false);
        encoder.field(out, b":path", if head.path().is_empty() { b"/" } else { head.path() }, false);
        if !head.protocol().is_empty() {
            encoder.field(out, b":protocol", head.protocol(), false);
        }
    }
    if !head.authority().is_empty() {
        encoder.field(out, b":authority", head.authority(), false);
    }
    encode_fields(encoder, out, &head.headers);
    if let Framing::Length(length) = framing {
        encoder.field(out, b"content-length", itoa::Buffer::new().format(length).as_bytes(), false);
    }
}

/// Appends a response's header block. `bodiless`: `content-length` is information about another response and stays as it is.
pub(super) fn encode_response(
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
    head: &ResponseHead,
    framing: Framing,
    bodiless: bool,
) {
    encoder.begin(out);
    encoder.field(out, b":status", itoa::Buffer::new().format(head.status).as_bytes(), false);
    encode_fields(encoder, out, &head.headers);
    if let Some(length) = head.headers.get(HeaderId::ContentLength).filter(|_| bodiless) {
        encoder.field(out, b"content-length", length, false);
    } else if let Framing::Length(length) = framing
        && !bodiless
    {
        encoder.field(out, b"content-length", itoa::Buffer::new().format(length).as_bytes(), false);
    }
}

/// Appends a header block of trailers.
pub(super) fn encode_trailers(encoder: &mut Encoder, out: &mut Vec<u8>, trailers: &Headers) {
    encoder.begin(out);
    for (_, name, value, sensitive) in
        trailers.iter_with_sensitivity().filter(|(id, ..)| !id.is_forbidden_in_trailers())
    {
        encoder.field(out, name, value, sensitive);
    }
}

/// Encodes all fields except those for framing, `:authority` and hop-by-hop fields.
fn encode_fields(encoder: &mut Encoder, out: &mut Vec<u8>, headers: &Headers) {
    for (id, name, value, sensitive) in headers.iter_with_sensitivity() {
        match id {
            HeaderId::Connection
            | HeaderId::ContentLength
            | HeaderId::Host
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade => continue,
            HeaderId::Te if !value.eq_ignore_ascii_case(b"trailers") => continue,
            _ => {}
        }
        let secret = match id {
            HeaderId::Authorization | HeaderId::ProxyAuthorization => true,
            // The value of a short cookie could be guessed byte by byte from its compressed size (RFC 7541 section
            // 7.1.3).
            HeaderId::Cookie | HeaderId::SetCookie => value.len() < 20,
            _ => false,
        };
        encoder.field(out, name, value, sensitive || secret);
    }
}
