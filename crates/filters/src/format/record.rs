//! The data about a request or connection that format strings refer to.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_http::{Headers, ResponseHead};
use evenkeel_runtime_config::cluster::Endpoint;
use evenkeel_runtime_config::matching::HeaderMatcher;
use evenkeel_runtime_config::view::RequestView;
use evenkeel_tls::Session;

use crate::http::HeadView;
use crate::info::{ConnectionInfo, StreamInfo};

/// The header in which a proxy keeps a path that it has replaced.
pub(super) const ORIGINAL_PATH: &str = "x-envoy-original-path";

/// Looks up header values.
pub trait HeadLookup {
    /// First value of a lower-case name; `:method`, `:path`, `:authority`, `:scheme`, `:status` are pseudo headers.
    fn lookup(&self, name: &str) -> Option<&[u8]>;

    /// Whether the matcher matches the header of its name.
    fn matches(&self, header: &HeaderMatcher) -> bool {
        header.matches_values(self.lookup(&header.name))
    }

    /// All values of a name, joined with commas.
    fn joined(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.lookup(name).map(Cow::Borrowed)
    }

    /// Calls `visit` with the name and value of each header; not with pseudo headers.
    fn each(&self, _visit: &mut dyn FnMut(&[u8], &[u8])) {}

    /// Bytes of names and values, pseudo headers included, as Envoy counts a header map's.
    fn bytes(&self) -> u64 {
        0
    }
}

/// No headers: TCP connections, requests that got no response.
#[derive(Debug, Clone, Copy)]
pub struct NoHead;

impl HeadLookup for NoHead {
    fn lookup(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

impl HeadLookup for HeadView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        // CONNECT has no path, and a head that was refused has been cleared.
        match name {
            ":method" => there(self.head.method()),
            ":path" => there(self.head.path()),
            ":authority" | "host" => there(self.head.authority()),
            ":scheme" => Some(self.scheme()),
            name => self.head.headers.find(name.as_bytes()),
        }
    }

    fn matches(&self, header: &HeaderMatcher) -> bool {
        header.matches(self)
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if name.starts_with(':') || name == "host" { self.lookup(name).map(Cow::Borrowed) } else { self.header(name) }
    }

    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        each(&self.head.headers, visit);
    }

    fn bytes(&self) -> u64 {
        let pseudo = [":method", ":path", ":authority", ":scheme"].into_iter();
        let pseudo = pseudo.filter_map(|name| Some(name.len() + self.lookup(name)?.len()));
        pseudo.sum::<usize>() as u64 + bytes(&self.head.headers)
    }
}

fn each(headers: &Headers, visit: &mut dyn FnMut(&[u8], &[u8])) {
    headers.iter().for_each(|(_, name, value)| visit(name, value));
}

fn bytes(headers: &Headers) -> u64 {
    headers.iter().map(|(_, name, value)| name.len() + value.len()).sum::<usize>() as u64
}

fn joined<'h>(headers: &'h Headers, name: &'h str) -> Option<Cow<'h, [u8]>> {
    let mut values = headers.find_all(name.as_bytes());
    let first = values.next()?;
    let mut all = Cow::Borrowed(first);
    for value in values {
        all.to_mut().push(b',');
        all.to_mut().extend_from_slice(value);
    }
    Some(all)
}

fn there(text: &[u8]) -> Option<&[u8]> {
    Some(text).filter(|text| !text.is_empty())
}

/// A response's head.
#[derive(Debug, Clone, Copy)]
pub struct ResponseView<'r>(pub &'r ResponseHead);

impl HeadLookup for ResponseView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":status" => {
                STATUS_TEXTS.get(usize::from(self.0.status)).filter(|_| self.0.status >= 100).map(|text| &text[..])
            }
            name => self.0.headers.find(name.as_bytes()),
        }
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if name.starts_with(':') {
            self.lookup(name).map(Cow::Borrowed)
        } else {
            Some(Cow::Owned(joined(&self.0.headers, name)?.into_owned()))
        }
    }

    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        each(&self.0.headers, visit);
    }

    fn bytes(&self) -> u64 {
        let status = self.lookup(":status").map_or(0, |status| ":status".len() + status.len());
        status as u64 + bytes(&self.0.headers)
    }
}

/// All statuses as text, because a lookup borrows what it finds.
static STATUS_TEXTS: [[u8; 3]; 1000] = {
    let mut texts = [[b'0'; 3]; 1000];
    let mut status = 0;
    while status < texts.len() {
        texts[status] = [b'0' + (status / 100) as u8, b'0' + (status / 10 % 10) as u8, b'0' + (status % 10) as u8];
        status += 1;
    }
    texts
};

/// A message's trailers.
#[derive(Debug, Clone, Copy)]
pub struct Trailers<'r>(pub &'r Headers);

impl HeadLookup for Trailers<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        self.0.find(name.as_bytes())
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        Some(Cow::Owned(joined(self.0, name)?.into_owned()))
    }

    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        each(self.0, visit);
    }

    fn bytes(&self) -> u64 {
        bytes(self.0)
    }
}

/// A request or connection as a formatter reads it: its properties, those of its connection, and its heads.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Its properties.
    pub stream: &'a StreamInfo,
    /// The properties of the client's connection.
    pub connection: &'a ConnectionInfo,
    /// When it began, by the wall clock.
    pub start: SystemTime,
    /// The time at which it is formatted.
    pub now: Instant,
    /// Request head as the upstream got it, with `x-envoy-original-path` when the path was rewritten.
    pub request: &'a dyn HeadLookup,
    /// Response head.
    pub response: &'a dyn HeadLookup,
    /// Response trailers.
    pub trailers: &'a dyn HeadLookup,
    /// The response's status, sent or about to be; 0 when there is none.
    pub status: u16,
    /// The body of a reply of the proxy's own, while `local_reply_config` rewrites it.
    pub local_reply_body: &'a [u8],
    /// The span of the request; `None`: it is not traced.
    pub trace: Option<TraceIds>,
    /// The host of the last try; `None`: none was chosen.
    pub upstream: Option<UpstreamPeer<'a>>,
    /// The request, its response or the connection is incomplete, whichever side caused that. Known at the end only.
    pub cut_off: bool,
}

/// The IDs of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceIds {
    /// Of its trace.
    pub trace: u128,
    /// Its own.
    pub span: u64,
}

/// The host of a request's last try, or of a connection.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamPeer<'a> {
    /// Its configuration, with its metadata and locality.
    pub endpoint: &'a Endpoint,
    /// The TLS session with it, with its certificate; `None`: plain text, or there was no connection.
    pub session: Option<&'a Session>,
}

impl<'a> Record<'a> {
    /// Creates a record without heads: of a connection, or of a request of which only the beginning is known.
    pub fn headless(
        stream: &'a StreamInfo,
        connection: &'a ConnectionInfo,
        (start, now): (SystemTime, Instant),
    ) -> Self {
        Self {
            stream,
            connection,
            start,
            now,
            request: &NoHead,
            response: &NoHead,
            trailers: &NoHead,
            status: 0,
            local_reply_body: b"",
            trace: None,
            upstream: None,
            cut_off: false,
        }
    }

    /// The authority that this proxy received, if it has replaced it.
    pub fn original_host(&self) -> Option<&'a [u8]> {
        self.request.lookup("x-envoy-original-host")
    }

    /// The path that this proxy received, if it has replaced it. What a client says in `x-envoy-original-path` is none: logs and traces
    /// have to show what was asked for (CVE-2023-27487).
    pub fn original_path(&self) -> Option<&'a [u8]> {
        self.request.lookup(ORIGINAL_PATH).filter(|_| self.stream.rewritten)
    }

    /// The time from its start to its end, or until now.
    pub fn duration(&self) -> Duration {
        self.now.saturating_duration_since(self.stream.times.start())
    }
}
