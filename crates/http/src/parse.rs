//! Strict parsing of heads. httparse handles the grammar; this file refuses what httparse accepts but should not.

use std::mem::MaybeUninit;

use crate::bytes::{ADDRESS_LITERAL, HOST, TARGET};
use crate::error::HeadError;
use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead, Version};
use crate::headers::{Headers, MAX_CONNECTION_OPTIONS, connection_options, is_between_proxies};
use crate::names::HeaderId;
use crate::underscores::Underscores;

/// Number of header lines that httparse first gets room for.
const HEADER_SLOTS: usize = 256;
/// The shortest header line, in bytes: a name of one letter, a colon and the line's end.
const LEAST_LINE_BYTES: usize = 4;

/// Limits of one head.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size of a head in bytes, request line and blank line included.
    pub max_head_bytes: usize,
    /// Maximum number of header lines.
    pub max_headers: usize,
}

impl Default for Limits {
    /// Envoy's: 60 KiB, 100 lines.
    fn default() -> Self {
        Self { max_head_bytes: 60 * 1024, max_headers: 100 }
    }
}

/// The rules for one request head.
#[derive(Debug, Clone, Copy)]
pub struct RequestRules {
    /// Limits on the head.
    pub limits: Limits,
    /// How header names with underscores are handled.
    pub underscores: Underscores,
    /// Whether the target may be a URL. Otherwise a URL is kept unchanged as the path, for whoever answers the request.
    pub absolute_urls: bool,
    /// Whether the letter case of names is kept for the next hop.
    pub keep_case: bool,
}

impl Default for RequestRules {
    /// Envoy's.
    fn default() -> Self {
        Self { limits: Limits::default(), underscores: Underscores::Allow, absolute_urls: true, keep_case: false }
    }
}

/// The rules for one response head.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseRules {
    /// Limits on the head.
    pub limits: Limits,
    /// Whether the request was HEAD, so that no body follows whatever the headers say.
    pub to_head: bool,
    /// Whether the letter case of names is kept for the next hop.
    pub keep_case: bool,
}

/// Remembers how far an incomplete head was scanned, so that a head that arrives byte by byte is not parsed from its
/// start each time.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadScan {
    seen: usize,
}

impl HeadScan {
    /// Whether `buffer` may hold a complete head now. The first bytes are always parsed, to detect garbage early.
    fn worth_parsing(&mut self, buffer: &[u8]) -> bool {
        let from = self.seen.saturating_sub(3);
        let first = self.seen == 0;
        self.seen = buffer.len();
        first
            || memchr::memchr_iter(b'\n', &buffer[from.min(buffer.len())..]).any(|at| {
                let after = &buffer[from + at + 1..];
                after.starts_with(b"\r\n") || after.starts_with(b"\n")
            })
    }
}

/// Properties of a request head about its message and connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestInfo {
    /// Bytes of the head; the body starts after them.
    pub head_bytes: usize,
    /// Body.
    pub framing: Framing,
    /// The client keeps the connection for another request.
    pub keep_alive: bool,
    /// The client asks for an upgrade (`Connection: upgrade` and `Upgrade`).
    pub upgrade: bool,
    /// The client waits for `100 Continue`.
    pub expect_continue: bool,
    /// The target was in absolute form with the scheme `https`.
    pub https_target: bool,
    /// Header lines that were left out for their underscores.
    pub dropped: u32,
}

/// Properties of a response head about its message and connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseInfo {
    /// Bytes of the head; the body starts after them.
    pub head_bytes: usize,
    /// Body.
    pub framing: Framing,
    /// The connection may be used again after the body.
    pub keep_alive: bool,
}

/// Parses the request head at the start of `buffer` into `head`; `None` until it is complete.
///
/// # Errors
/// [`HeadError`]; the connection can only be closed after an answer.
pub fn parse_request(
    buffer: &[u8],
    scan: &mut HeadScan,
    rules: RequestRules,
    head: &mut RequestHead,
) -> Result<Option<RequestInfo>, HeadError> {
    let limits = rules.limits;
    if !scan.worth_parsing(buffer) {
        return incomplete(buffer, limits);
    }
    let mut slots = [MaybeUninit::<httparse::Header<'_>>::uninit(); HEADER_SLOTS];
    let mut more = Vec::new();
    let mut request = httparse::Request::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let mut parsed = parser.parse_request_with_uninit_headers(&mut request, buffer, &mut slots);
    // If lines are dropped by name, all lines must be parsed: dropped ones do not count.
    let all = rules.underscores != Underscores::Allow;
    if parsed == Err(httparse::Error::TooManyHeaders) && (all || limits.max_headers > HEADER_SLOTS) {
        more.resize(most_lines(buffer, all, limits), MaybeUninit::uninit());
        request = httparse::Request::new(&mut []);
        parsed = parser.parse_request_with_uninit_headers(&mut request, buffer, &mut more);
    }
    let head_bytes = match parsed {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return incomplete(buffer, limits),
        Err(error) => return Err(head_error(error)),
    };
    *scan = HeadScan::default();
    let dropped = check_underscores(request.headers, rules.underscores)?;
    check_limits(buffer, head_bytes, request.headers.len() - dropped, limits)?;
    let (Some(method), Some(target)) = (request.method, request.path) else { return Err(HeadError::Malformed) };
    if !is_known_method(method.as_bytes()) {
        return Err(HeadError::Method);
    }
    head.clear();
    head.headers.prepare();
    head.version = version(request.version)?;
    head.method = head.headers.intern(method.as_bytes());
    let mut scanned = Scanned::default();
    let mut host = None;
    for header in request.headers.iter() {
        if rules.keep_case {
            head.headers.keep_spelling(header.name.as_bytes());
        }
        if header.name.len() == 4 && header.name.eq_ignore_ascii_case("host") {
            if host.replace(header.value).is_some() {
                return Err(HeadError::DuplicateHost);
            }
            if has_tab_around(buffer, header.value) {
                return Err(HeadError::InvalidAuthority);
            }
        } else if dropped == 0 || !rules.underscores.concern(header.name.as_bytes()) {
            scanned.add(&mut head.headers, header, buffer)?;
        }
    }
    if scanned.options > MAX_CONNECTION_OPTIONS || scanned.names_proxies_own {
        return Err(HeadError::Connection);
    }
    // A header that `Connection` names ends at this hop, so there is no `Host` then.
    let host = host.filter(|_| !scanned.names_host);
    let https_target = set_target(head, target, host, rules.absolute_urls)?;
    let framing = match scanned.framing(head.version)? {
        // A body of CONNECT would be content to one reader and the tunnel's first bytes to the next.
        Some(Framing::Length(1..)) if head.method() == b"CONNECT" => return Err(HeadError::ContentLength),
        Some(Framing::Chunked) if head.method() == b"CONNECT" => return Err(HeadError::TransferEncoding),
        Some(framing) => framing,
        None => Framing::None,
    };
    Ok(Some(RequestInfo {
        head_bytes,
        framing,
        keep_alive: scanned.keeps_alive(head.version),
        upgrade: scanned.upgrade && scanned.has_upgrade,
        expect_continue: scanned.expect && head.version == Version::Http11,
        https_target,
        dropped: u32::try_from(dropped).unwrap_or(u32::MAX),
    }))
}

/// Parses the response head at the start of `buffer` into `head`; `None` until it is complete.
///
/// # Errors
/// [`HeadError`]; the upstream broke the protocol and the connection must be closed.
pub fn parse_response(
    buffer: &[u8],
    scan: &mut HeadScan,
    rules: ResponseRules,
    head: &mut ResponseHead,
) -> Result<Option<ResponseInfo>, HeadError> {
    let ResponseRules { limits, to_head, keep_case } = rules;
    if !scan.worth_parsing(buffer) {
        return incomplete(buffer, limits);
    }
    // httparse skips empty lines, which only a request may have before it (RFC 9112 section 2.2).
    if buffer.starts_with(b"\r") || buffer.starts_with(b"\n") {
        return Err(HeadError::Malformed);
    }
    let mut slots = [MaybeUninit::<httparse::Header<'_>>::uninit(); HEADER_SLOTS];
    let mut more = Vec::new();
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let mut parsed = parser.parse_response_with_uninit_headers(&mut response, buffer, &mut slots);
    if parsed == Err(httparse::Error::TooManyHeaders) && limits.max_headers > HEADER_SLOTS {
        more.resize(most_lines(buffer, false, limits), MaybeUninit::uninit());
        response = httparse::Response::new(&mut []);
        parsed = parser.parse_response_with_uninit_headers(&mut response, buffer, &mut more);
    }
    let head_bytes = match parsed {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return incomplete(buffer, limits),
        Err(error) => return Err(head_error(error)),
    };
    *scan = HeadScan::default();
    check_limits(buffer, head_bytes, response.headers.len(), limits)?;
    head.clear();
    head.headers.prepare();
    head.version = version(response.version)?;
    head.status = response.code.filter(|code| *code >= 100).ok_or(HeadError::Malformed)?;
    let mut scanned = Scanned::default();
    for header in response.headers.iter() {
        if keep_case {
            head.headers.keep_spelling(header.name.as_bytes());
        }
        scanned.add(&mut head.headers, header, buffer)?;
    }
    let declared = scanned.framing(head.version)?;
    // RFC 9110 section 8.6 and RFC 9112 section 6.1: these responses have no body. A body might be taken for the next
    // response.
    if matches!(head.status, 100..=199 | 204) {
        match declared {
            None | Some(Framing::Length(0)) => {}
            Some(Framing::Length(_)) => return Err(HeadError::ContentLength),
            Some(_) => return Err(HeadError::TransferEncoding),
        }
    }
    let bodiless = to_head || matches!(head.status, 100..=199 | 204 | 304);
    let framing = match declared {
        _ if bodiless => Framing::None,
        Some(framing) => framing,
        None => Framing::UntilClose,
    };
    let keep_alive = scanned.keeps_alive(head.version) && framing != Framing::UntilClose;
    Ok(Some(ResponseInfo { head_bytes, framing, keep_alive }))
}

/// Returns the maximum number of lines of a head within the limits, or with `all` of this head.
fn most_lines(buffer: &[u8], all: bool, limits: Limits) -> usize {
    let most = limits.max_head_bytes / LEAST_LINE_BYTES;
    if all { memchr::memchr_iter(b'\n', buffer).count().min(most) } else { limits.max_headers.min(most) }
}

fn incomplete<T>(buffer: &[u8], limits: Limits) -> Result<Option<T>, HeadError> {
    if buffer.len() >= limits.max_head_bytes { Err(HeadError::TooLarge) } else { Ok(None) }
}

fn head_error(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyHeaders,
        httparse::Error::Version => HeadError::Version,
        _ => HeadError::Malformed,
    }
}

/// httparse accepts a bare LF as line end and skips empty lines before the first; a peer may see other lines then.
fn check_limits(buffer: &[u8], head_bytes: usize, headers: usize, limits: Limits) -> Result<(), HeadError> {
    if head_bytes > limits.max_head_bytes {
        return Err(HeadError::TooLarge);
    }
    if headers > limits.max_headers {
        return Err(HeadError::TooManyHeaders);
    }
    let head = buffer.get(..head_bytes).ok_or(HeadError::Malformed)?;
    let bare = memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r');
    if bare { Err(HeadError::BareLineFeed) } else { Ok(()) }
}

/// How many header lines are to be left out.
fn check_underscores(headers: &[httparse::Header<'_>], underscores: Underscores) -> Result<usize, HeadError> {
    if underscores == Underscores::Allow {
        return Ok(0);
    }
    let concerned = headers.iter().filter(|header| underscores.concern(header.name.as_bytes())).count();
    if underscores == Underscores::Reject && concerned > 0 { Err(HeadError::Underscore) } else { Ok(concerned) }
}

fn version(minor: Option<u8>) -> Result<Version, HeadError> {
    match minor {
        Some(1) => Ok(Version::Http11),
        Some(0) => Ok(Version::Http10),
        _ => Err(HeadError::Version),
    }
}

/// Whether Envoy knows the method: those of the IANA registry that proxies forward. An unknown method may have a
/// framing of its own.
fn is_known_method(method: &[u8]) -> bool {
    const OTHERS: [&[u8]; 31] = [
        b"TRACE",
        b"CONNECT",
        b"COPY",
        b"LOCK",
        b"MKCOL",
        b"MOVE",
        b"PROPFIND",
        b"PROPPATCH",
        b"SEARCH",
        b"UNLOCK",
        b"BIND",
        b"REBIND",
        b"UNBIND",
        b"ACL",
        b"REPORT",
        b"MKACTIVITY",
        b"CHECKOUT",
        b"MERGE",
        b"M-SEARCH",
        b"NOTIFY",
        b"SUBSCRIBE",
        b"UNSUBSCRIBE",
        b"PURGE",
        b"MKCALENDAR",
        b"LINK",
        b"UNLINK",
        b"SOURCE",
        b"QUERY",
        b"VERSION-CONTROL",
        b"CHECKIN",
        b"UPDATE",
    ];
    matches!(method, b"GET" | b"POST" | b"HEAD" | b"PUT" | b"DELETE" | b"PATCH" | b"OPTIONS")
        || OTHERS.contains(&method)
}

/// Sets path and authority from the four forms of request target (RFC 9112 section 3.2); true for an `https` URL.
fn set_target(
    head: &mut RequestHead,
    target: &str,
    host: Option<&[u8]>,
    absolute_urls: bool,
) -> Result<bool, HeadError> {
    let target = target.as_bytes();
    let refused_url = !absolute_urls && head.method() != b"CONNECT" && after_scheme(target).is_some();
    // A fragment does not matter in a URL that is not forwarded.
    let holds = |byte: &u8| TARGET.holds(*byte) || (refused_url && *byte == b'#');
    if !target.iter().all(holds) {
        return Err(if target.contains(&b'#') { HeadError::Fragment } else { HeadError::InvalidTarget });
    }
    // Host must be there whatever the target's form (RFC 9112 section 3.2).
    if host.is_none() && head.version == Version::Http11 {
        // The request is complete except for its target, which is reported.
        head.path = head.headers.intern(target);
        return Err(HeadError::MissingHost);
    }
    let host = host.unwrap_or_default();
    check_authority(host)?;
    let (authority, path, https) = if head.method() == b"CONNECT" {
        // Authority-form, whose port is not optional (RFC 9110 section 9.3.6).
        if !matches!(split_authority(target), Some((_, Some(port))) if !port.is_empty()) {
            return Err(HeadError::InvalidTarget);
        }
        (target, &b""[..], false)
    } else if refused_url || target.starts_with(b"/") {
        (host, target, false)
    } else if target == b"*" && (head.method() == b"OPTIONS" || !absolute_urls) {
        // Where URLs are kept unchanged, so is this target.
        (host, target, false)
    } else if target == b"*" {
        // Asterisk-form is for OPTIONS (RFC 9112 section 3.2.4).
        return Err(HeadError::InvalidTarget);
    } else {
        after_scheme(target).ok_or(HeadError::Malformed)?;
        let absolute = absolute_form(target).ok_or(HeadError::InvalidTarget)?;
        check_authority(absolute.0)?;
        absolute
    };
    head.authority = head.headers.intern(authority);
    if path.first() == Some(&b'?') {
        let mut rooted = vec![b'/'];
        rooted.extend_from_slice(path);
        head.path = head.headers.intern(&rooted);
    } else {
        head.path = head.headers.intern(path);
    }
    Ok(https)
}

/// Authority, path (`/` when empty) and whether the scheme is `https`.
fn absolute_form(target: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let (rest, https) = after_scheme(target)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if authority.is_empty() {
        return None;
    }
    Some((authority, if path.is_empty() { b"/" } else { path }, https))
}

/// Returns the part of a URL after the scheme, and whether the scheme is `https`.
fn after_scheme(target: &[u8]) -> Option<(&[u8], bool)> {
    let scheme = |name: &[u8]| target.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    if scheme(b"http://") {
        Some((target.get(7..)?, false))
    } else if scheme(b"https://") {
        Some((target.get(8..)?, true))
    } else {
        None
    }
}

/// `host[:port]` of RFC 3986: a name or address of its letters, digits and marks, or an address in brackets; a port is a number below
/// 65,536 and has a host before it. No user information. Empty is allowed.
pub(crate) fn check_authority(authority: &[u8]) -> Result<(), HeadError> {
    split_authority(authority).map(|_| ()).ok_or(HeadError::InvalidAuthority)
}

/// Host and port of a valid authority.
fn split_authority(authority: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (host, rest) = if authority.first() == Some(&b'[') {
        let end = memchr::memchr(b']', authority)?;
        let (literal, rest) = authority.split_at(end + 1);
        let inner = literal.get(1..end)?;
        (!inner.is_empty() && ADDRESS_LITERAL.holds_all(inner)).then_some((literal, rest))?
    } else {
        let end = memchr::memchr(b':', authority).unwrap_or(authority.len());
        let (host, rest) = authority.split_at(end);
        HOST.holds_all(host).then_some((host, rest))?
    };
    let Some((colon, port)) = rest.split_first() else { return Some((host, None)) };
    let is_port = port.len() <= 5 && port.iter().all(u8::is_ascii_digit) && content_length(port).unwrap_or(0) < 65_536;
    (*colon == b':' && is_port && !host.is_empty()).then_some((host, Some(port)))
}

/// The framing and connection options found in the headers.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)]
struct Scanned {
    length: Option<u64>,
    chunked: bool,
    /// A transfer coding that is not `chunked`, or more than one.
    other_coding: bool,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    has_upgrade: bool,
    expect: bool,
    /// Options of all `Connection` lines.
    options: usize,
    /// Whether one of them names a header in which proxies pass on facts about the client.
    names_proxies_own: bool,
    /// Whether one of them names `Host`.
    names_host: bool,
}

impl Scanned {
    fn add(&mut self, headers: &mut Headers, header: &httparse::Header<'_>, head: &[u8]) -> Result<(), HeadError> {
        let id = headers.push_parsed(header.name.as_bytes(), header.value);
        match id {
            HeaderId::ContentLength => {
                let length = content_length(header.value).ok_or(HeadError::ContentLength)?;
                if self.length.replace(length).is_some() || has_tab_around(head, header.value) {
                    return Err(HeadError::ContentLength);
                }
            }
            HeaderId::TransferEncoding => {
                let chunked = header.value.eq_ignore_ascii_case(b"chunked");
                self.other_coding |= !chunked || self.chunked || has_tab_around(head, header.value);
                self.chunked = true;
            }
            HeaderId::Connection => {
                for token in connection_options(header.value) {
                    self.options += 1;
                    self.names_proxies_own |= self.options <= MAX_CONNECTION_OPTIONS && is_between_proxies(token);
                    self.names_host |= token.eq_ignore_ascii_case(b"host");
                    self.close |= token.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                    self.upgrade |= token.eq_ignore_ascii_case(b"upgrade");
                }
            }
            HeaderId::Upgrade => self.has_upgrade = true,
            HeaderId::Expect => self.expect |= header.value.eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
        Ok(())
    }

    /// `None` when neither `content-length` nor `transfer-encoding` is there.
    fn framing(&self, version: Version) -> Result<Option<Framing>, HeadError> {
        if self.chunked {
            if self.length.is_some() {
                return Err(HeadError::LengthAndEncoding);
            }
            if self.other_coding || version == Version::Http10 {
                return Err(HeadError::TransferEncoding);
            }
            return Ok(Some(Framing::Chunked));
        }
        Ok(self.length.map(Framing::Length))
    }

    fn keeps_alive(&self, version: Version) -> bool {
        match version {
            Version::Http11 | Version::Http2 => !self.close,
            Version::Http10 => self.keep_alive && !self.close,
        }
    }
}

/// Whether a tab stands next to `value`, which lies in `head`. RFC 9110 section 5.6.3 allows it as whitespace, but not
/// every reader does, so it is refused in headers that define where the message ends.
fn has_tab_around(head: &[u8], value: &[u8]) -> bool {
    let start = (value.as_ptr() as usize).saturating_sub(head.as_ptr() as usize);
    let blanks = |byte: &&u8| matches!(byte, b' ' | b'\t');
    let before = head.get(..start).unwrap_or_default().iter().rev().take_while(blanks);
    let after = head.get(start + value.len()..).unwrap_or_default().iter().take_while(blanks);
    before.chain(after).any(|byte| *byte == b'\t')
}

/// Decimal digits only, at most 18: no sign, no list, no blank.
pub(crate) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use proptest::prelude::*;

    fn request(bytes: &[u8]) -> Result<Option<(RequestHead, RequestInfo)>, HeadError> {
        let mut head = RequestHead::default();
        parse_request(bytes, &mut HeadScan::default(), RequestRules::default(), &mut head)
            .map(|info| info.map(|i| (head, i)))
    }

    fn text(head: &RequestHead) -> String {
        let mut out = Vec::new();
        encode::request(&mut out, head, Framing::None, encode::Connection::Default);
        String::from_utf8_lossy(&out).replace("\r\n", "\n")
    }

    #[test]
    fn as_many_lines_as_the_limit_says() {
        let check = |max_headers: usize, lines: usize, expected: Result<usize, HeadError>| {
            let limits = Limits { max_headers, ..Limits::default() };
            let fields = "a: b\r\n".repeat(lines - 1);
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            let text = format!("GET / HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
            let rules = RequestRules { limits, ..RequestRules::default() };
            let parsed = parse_request(text.as_bytes(), &mut HeadScan::default(), rules, &mut request);
            let found = parsed.map(|info| 1 + info.map_or(0, |_| request.headers.iter().count()));
            assert_eq!(found, expected, "{lines} of a request, {max_headers} allowed");
            let text = format!("HTTP/1.1 200 OK\r\na: b\r\n{fields}\r\n");
            let parsed = parse_response(
                text.as_bytes(),
                &mut HeadScan::default(),
                ResponseRules { limits, ..ResponseRules::default() },
                &mut response,
            );
            let found = parsed.map(|info| info.map_or(0, |_| response.headers.iter().count()));
            assert_eq!(found, expected, "{lines} of a response, {max_headers} allowed");
        };
        for (max_headers, too_many) in [(100, 101), (256, 257), (257, 258), (1000, 1001)] {
            check(max_headers, max_headers, Ok(max_headers));
            check(max_headers, too_many, Err(HeadError::TooManyHeaders));
        }
        // Memory is reserved only for as many headers as fit into a head, however large the limit.
        check(usize::MAX, 5000, Ok(5000));
    }

    #[test]
    fn request_forms() {
        let check = |target: &str, expected: &str| {
            let (head, _) =
                request(format!("{target}\r\nHost: h:1\r\n\r\n").as_bytes()).expect("valid").expect("complete");
            assert_eq!(text(&head).lines().take(2).collect::<Vec<_>>().join("|"), expected, "{target}");
        };
        check("GET /a?b HTTP/1.1", "GET /a?b HTTP/1.1|host: h:1");
        check("GET http://Other:8080/x?y HTTP/1.1", "GET /x?y HTTP/1.1|host: Other:8080");
        check("GET http://other HTTP/1.1", "GET / HTTP/1.1|host: other");
        check("GET HTTP://other?q HTTP/1.1", "GET /?q HTTP/1.1|host: other");
        check("OPTIONS * HTTP/1.1", "OPTIONS * HTTP/1.1|host: h:1");
        check("CONNECT a:443 HTTP/1.1", "CONNECT a:443 HTTP/1.1|host: a:443");
    }

    #[test]
    fn authorities() {
        for host in ["", "a", "a.b:80", "a:", "[::1]", "[fe80::1%25eth0]:443", "10.0.0.1:65535", "a_b~c"] {
            assert_eq!(check_authority(host.as_bytes()), Ok(()), "{host:?}");
        }
    }

    /// Heads used for request smuggling: all of them are rejected, whatever another parser would do.
    #[test]
    fn refused_heads() {
        use HeadError as E;
        let check = |head: &str, expected: E| {
            assert_eq!(request(head.as_bytes()).map(|_| ()), Err(expected), "{head:?}");
        };
        let post = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        check(&post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), E::LengthAndEncoding);
        check(&post("Content-Length: 3\r\nContent-Length: 3\r\n"), E::ContentLength);
        check(&post("Content-Length: 3, 3\r\n"), E::ContentLength);
        check(&post("Content-Length: +3\r\n"), E::ContentLength);
        check(&post("Content-Length: 0x3\r\n"), E::ContentLength);
        check(&post("Content-Length: -1\r\n"), E::ContentLength);
        check(&post("Content-Length:\r\n"), E::ContentLength);
        check(&post("Content-Length: 9999999999999999999\r\n"), E::ContentLength);
        check(&post("Transfer-Encoding: xchunked\r\n"), E::TransferEncoding);
        check(&post("Transfer-Encoding: chunked, identity\r\n"), E::TransferEncoding);
        check(&post("Transfer-Encoding: gzip, chunked\r\n"), E::TransferEncoding);
        check(&post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), E::TransferEncoding);
        check(&post("Transfer-Encoding: \"chunked\"\r\n"), E::TransferEncoding);
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", E::TransferEncoding);
        check(&post("Transfer-Encoding : chunked\r\n"), E::Malformed);
        check(&post("Transfer-Encoding: chun\r\n ked\r\n"), E::Malformed);
        check(&post("Transfer-Encoding:\x0bchunked\r\n"), E::Malformed);
        check(&post(" X: folded\r\n"), E::Malformed);
        check(&post("Connection: close, X-Forwarded-For\r\n"), E::Connection);
        check(&post("Connection: close\r\nConnection: x-forwarded-client-cert\r\n"), E::Connection);
        check(&post("Connection: upgrade, x-envoy-external-address\r\nUpgrade: websocket\r\n"), E::Connection);
        check(&post("Connection: :path\r\n"), E::Connection);
        check(&post("Connection: 1,2,3,4,5,6,7,8,9,10\r\n"), E::Connection);
        check(&post(&"Connection: close, x\r\n".repeat(5)), E::Connection);
        check(&post("X: a\0b\r\n"), E::Malformed);
        check(&post("X: a\x01b\r\n"), E::Malformed);
        check(&post("X: a\rb: c\r\n"), E::Malformed);
        check(&post("no colon\r\n"), E::Malformed);
        check(&post(": empty\r\n"), E::Malformed);
        check("GET / HTTP/1.1\nHost: a\n\n", E::BareLineFeed);
        check("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", E::BareLineFeed);
        check("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", E::BareLineFeed);
        check("GET / HTTP/1.1\r\n\r\n", E::MissingHost);
        check(&post("Connection: close, Host\r\n"), E::MissingHost);
        check("GET http://a/ HTTP/1.1\r\n\r\n", E::MissingHost);
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", E::DuplicateHost);
        check("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", E::InvalidAuthority);
        check("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", E::InvalidAuthority);
        check("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidAuthority);
        for host in
            [":80", "a:b", "a:80:80", "a:65536", "a:-1", "a:+1", "[::1", "[::1]x", "[]", "::1", "a[b]", "\ta", "a\t"]
        {
            check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), E::InvalidAuthority);
        }
        check(&post("Content-Length:\t3\r\n"), E::ContentLength);
        check(&post("Content-Length: 3\t\r\n"), E::ContentLength);
        check(&post("Transfer-Encoding: \tchunked\r\n"), E::TransferEncoding);
        check("CONNECT a: HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("CONNECT a:b HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("CONNECT /a:1 HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("CONNECT [::1] HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", E::ContentLength);
        check("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", E::TransferEncoding);
        check("GET a HTTP/1.1\r\nHost: a\r\n\r\n", E::Malformed);
        check("GET http://?a HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", E::Fragment);
        check("GET * HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", E::InvalidTarget);
        check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", E::Malformed);
        check("get / HTTP/1.1\r\nHost: a\r\n\r\n", E::Method);
        check("GET / HTTP/2.0\r\nHost: a\r\n\r\n", E::Version);
        check("\x16\x03\x01\x02\0\x01", E::Malformed);
        check(&post(&"X: y\r\n".repeat(100)), E::TooManyHeaders);
        check(&post(&"X: y\r\n".repeat(300)), E::TooManyHeaders);
        check(&post(&format!("X: {}\r\n", "y".repeat(61_440))), E::TooLarge);
        check(&format!("GET /{}", "y".repeat(61_440)), E::TooLarge);
    }

    #[test]
    fn what_a_request_says_about_its_connection() {
        let check = |head: &str, expected: (Framing, bool, bool, bool)| {
            let (_, info) = request(head.as_bytes()).expect("valid").expect("complete");
            assert_eq!((info.framing, info.keep_alive, info.upgrade, info.expect_continue), expected, "{head:?}");
        };
        check("GET / HTTP/1.1\r\nhost:a\r\n\r\n", (Framing::None, true, false, false));
        check("GET / HTTP/1.1\r\nhost:a\r\nconnection: x, Close\r\n\r\n", (Framing::None, false, false, false));
        check("GET / HTTP/1.0\r\n\r\n", (Framing::None, false, false, false));
        check("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", (Framing::None, true, false, false));
        check(
            "POST / HTTP/1.1\r\nhost:a\r\ncontent-length: 007\r\nexpect: 100-Continue\r\n\r\n",
            (Framing::Length(7), true, false, true),
        );
        check(
            "POST / HTTP/1.1\r\nhost:a\r\ntransfer-encoding: Chunked\r\n\r\n",
            (Framing::Chunked, true, false, false),
        );
        check(
            "GET / HTTP/1.1\r\nhost:a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
            (Framing::None, true, true, false),
        );
    }

    #[test]
    fn responses() {
        let check = |head: &str, to_head: bool, expected: Result<(Framing, bool), HeadError>| {
            let mut parsed = ResponseHead::default();
            let info = parse_response(
                head.as_bytes(),
                &mut HeadScan::default(),
                ResponseRules { to_head, ..ResponseRules::default() },
                &mut parsed,
            );
            assert_eq!(info.map(|i| i.map(|i| (i.framing, i.keep_alive))), expected.map(Some), "{head:?}");
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", false, Ok((Framing::Length(3), true)));
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", true, Ok((Framing::None, true)));
        check("HTTP/1.1 200\r\n\r\n", false, Ok((Framing::UntilClose, false)));
        check("HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n", false, Ok((Framing::None, true)));
        check("HTTP/1.1 204 x\r\n\r\n", false, Ok((Framing::None, true)));
        check("HTTP/1.1 204 x\r\nContent-Length: 0\r\n\r\n", false, Ok((Framing::None, true)));
        check("HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n", false, Err(HeadError::ContentLength));
        check("HTTP/1.1 100 x\r\nTransfer-Encoding: chunked\r\n\r\n", false, Err(HeadError::TransferEncoding));
        check("\r\nHTTP/1.1 200 x\r\n\r\n", false, Err(HeadError::Malformed));
        check("HTTP/1.0 200 x\r\ncontent-length: 3\r\n\r\n", false, Ok((Framing::Length(3), false)));
        check(
            "HTTP/1.1 200 x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            false,
            Err(HeadError::LengthAndEncoding),
        );
        check("HTTP/1.1 200 x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n", false, Err(HeadError::ContentLength));
        check("SSH-2.0-x\r\n", false, Err(HeadError::Version));
    }

    #[test]
    fn every_split_gives_the_same() {
        let whole = b"POST /a?b=c HTTP/1.1\r\nHost: a.b\r\nX-One: 1\r\nContent-Length: 4\r\n\r\nbody";
        let (expected, expected_info) = request(whole).expect("valid").expect("complete");
        for split in 1..whole.len() - 4 {
            let (mut head, mut scan) = (RequestHead::default(), HeadScan::default());
            let first = parse_request(&whole[..split], &mut scan, RequestRules::default(), &mut head).expect("valid");
            let info = match first {
                Some(info) => info,
                None => parse_request(whole, &mut scan, RequestRules::default(), &mut head)
                    .expect("valid")
                    .expect("complete"),
            };
            assert_eq!((info, text(&head)), (expected_info, text(&expected)), "split at {split}");
        }
        let (mut head, mut scan) = (RequestHead::default(), HeadScan::default());
        let byte_by_byte = (1..=whole.len()).find_map(|end| {
            parse_request(&whole[..end], &mut scan, RequestRules::default(), &mut head).expect("valid")
        });
        assert_eq!(byte_by_byte, Some(expected_info));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = request(&bytes);
            let mut head = ResponseHead::default();
            let _ = parse_response(&bytes, &mut HeadScan::default(), ResponseRules::default(), &mut head);
        }

        #[test]
        fn what_goes_out_parses_to_what_came_in(
            path in "/[a-zA-Z0-9/?&=%._~-]{0,40}",
            fields in prop::collection::vec(("x-[a-z]{1,8}", "[!-~]([ -~]{0,20}[!-~])?"), 0..8),
        ) {
            let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let wire = format!("GET {path} HTTP/1.1\r\nHost: a.b:80\r\n{lines}\r\n");
            let (head, _) = request(wire.as_bytes()).expect("valid").expect("complete");
            let mut out = Vec::new();
            encode::request(&mut out, &head, Framing::None, encode::Connection::Default);
            prop_assert_eq!(String::from_utf8_lossy(&out).to_lowercase(), wire.to_lowercase());
        }

        #[test]
        fn heads_near_the_grammar_never_smuggle(
            lines in prop::collection::vec("(content-length|transfer-encoding|host|x)[ :\t\r\n]{0,3}[0-9a-z, \t\r\n:]{0,12}\r\n", 0..6),
        ) {
            let wire = format!("POST / HTTP/1.1\r\nhost: a\r\n{}\r\n", lines.concat());
            if let Ok(Some((head, info))) = request(wire.as_bytes()) {
                // An accepted head is one unambiguous message: encoded again, it parses to the same framing.
                let mut out = Vec::new();
                encode::request(&mut out, &head, info.framing, encode::Connection::Default);
                let (_, again) = request(&out).expect("valid").expect("complete");
                prop_assert_eq!(again.framing, info.framing);
            }
        }
    }
}
