//! What is known of one request, and how matchers and logs look at it.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_http::{Framing, HeaderId, RequestHead, RequestInfo, ResponseHead};
use evenkeel_runtime_config::view::RequestView;
use tokio::time::Instant;

use crate::access_log::HeadLookup;
use crate::response_flags::ResponseFlags;
use crate::upstream::Host;

/// One request from its head to its log line. Kept by the connection and used again for the next one.
pub(super) struct Request {
    pub(super) head: RequestHead,
    pub(super) info: RequestInfo,
    pub(super) response: ResponseHead,
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    /// The last byte of the request was read.
    pub(super) received_all: Option<Instant>,
    /// The upstream's response head was read.
    pub(super) answered: Option<Instant>,
    /// Status sent; 0 when none was.
    pub(super) status: u16,
    pub(super) flags: ResponseFlags,
    pub(super) details: Cow<'static, str>,
    /// The client, as `x-forwarded-for` or the socket says.
    pub(super) client: Option<std::net::SocketAddr>,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    pub(super) route_name: Option<Arc<str>>,
    pub(super) cluster_name: Option<Arc<str>>,
    pub(super) host: Option<Rc<Host>>,
    pub(super) upstream_local: Option<std::net::SocketAddr>,
    pub(super) transport_failure: String,
    pub(super) attempts: u32,
    /// The upstream's response head said `chunked`, for answers to HEAD.
    pub(super) head_chunked: bool,
    /// A response head left for the client.
    pub(super) response_begun: bool,
}

impl Request {
    pub(super) fn new() -> Self {
        Self {
            head: RequestHead::default(),
            info: RequestInfo {
                head_bytes: 0,
                framing: Framing::None,
                keep_alive: false,
                upgrade: false,
                expect_continue: false,
                https_target: false,
            },
            response: ResponseHead::default(),
            started: Instant::now(),
            started_at: SystemTime::UNIX_EPOCH,
            received_all: None,
            answered: None,
            status: 0,
            flags: ResponseFlags::NONE,
            details: "".into(),
            client: None,
            bytes_received: 0,
            bytes_sent: 0,
            route_name: None,
            cluster_name: None,
            host: None,
            upstream_local: None,
            transport_failure: String::new(),
            attempts: 0,
            head_chunked: false,
            response_begun: false,
        }
    }

    /// Makes it ready for another request, keeping the heads' memory.
    pub(super) fn restart(&mut self) {
        let (head, response) = (std::mem::take(&mut self.head), std::mem::take(&mut self.response));
        *self = Self { head, response, ..Self::new() };
        self.head.clear();
        self.response.clear();
        self.started_at = SystemTime::now();
    }

    /// The head with its scheme.
    pub(super) fn view(&self) -> HeadView<'_> {
        HeadView(&self.head)
    }
}

/// A request head as matchers see it.
pub(super) struct HeadView<'r>(pub(super) &'r RequestHead);

impl RequestView for HeadView<'_> {
    fn method(&self) -> &[u8] {
        self.0.method()
    }

    fn path(&self) -> &[u8] {
        self.0.path()
    }

    fn authority(&self) -> &[u8] {
        self.0.authority()
    }

    fn scheme(&self) -> &[u8] {
        self.0.headers.get(HeaderId::ForwardedProto).unwrap_or(b"http")
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match name {
            ":method" => return Some(self.method().into()),
            ":path" => return Some(self.path().into()),
            ":authority" | "host" => return Some(self.authority().into()),
            ":scheme" => return Some(self.scheme().into()),
            _ => {}
        }
        let first = self.0.headers.find(name.as_bytes())?;
        let mut all =
            self.0.headers.iter().filter(|(_, n, _)| *n == name.as_bytes()).map(|(_, _, value)| value).skip(1);
        let Some(second) = all.next() else { return Some(first.into()) };
        let mut joined = [first, second].join(&b","[..]);
        for value in all {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(joined.into())
    }
}

impl HeadLookup for HeadView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":method" => Some(self.0.method()),
            ":path" => Some(self.0.path()),
            ":authority" | "host" => Some(self.0.authority()),
            ":scheme" => Some(self.scheme()),
            name => self.0.headers.find(name.as_bytes()),
        }
    }
}

/// A response head as the log sees it.
pub(super) struct ResponseView<'r>(pub(super) &'r ResponseHead);

impl HeadLookup for ResponseView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        self.0.headers.find(name.as_bytes())
    }
}
