//! What is known of one request, and how matchers and logs look at it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::decide::Tunnel;
use evenkeel_filters::{FilterFacts, FilterStreams, HeadView};
use evenkeel_http::{Framing, Headers, RequestHead, RequestInfo, ResponseHead, Version};
use evenkeel_runtime_config::view::RequestView;
use evenkeel_upstream::Host;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::turn;
use tokio::time::Instant;

use crate::access_log::HeadLookup;
use crate::response_flags::ResponseFlags;

/// Requests a worker keeps for reuse: their heads' memory is worth more than they are.
const MAX_POOLED_REQUESTS: usize = 256;

thread_local! {
    // Boxed: a request goes to and fro, and is not small.
    #[allow(clippy::vec_box)]
    static POOL: RefCell<Vec<Box<Request>>> = const { RefCell::new(Vec::new()) };
}

/// One request from its head to its log line.
pub(super) struct Request {
    pub(super) head: RequestHead,
    pub(super) info: RequestInfo,
    /// The request's trailers, once its body is complete.
    pub(super) trailers: Headers,
    pub(super) response: ResponseHead,
    /// The response's trailers, once its body is complete.
    pub(super) response_trailers: Headers,
    /// It is gRPC's, by its content type.
    pub(super) grpc: bool,
    /// The request asks for a tunnel, and may have one.
    pub(super) tunnel: Option<Tunnel>,
    pub(super) started: Instant,
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
    /// What filters keep of it for themselves.
    pub(super) filters: FilterStreams,
    /// What filters leave for others.
    pub(super) facts: FilterFacts,
    /// Decides between weighted clusters and fractions, however often the route is chosen.
    pub(super) random: Option<u64>,
    /// All of its body, if a filter wanted that, until it goes on.
    pub(super) body: Option<HeldBytes>,
    /// The upstream's response head said `chunked`, for answers to HEAD.
    pub(super) head_chunked: bool,
    /// It had to wait for what it needs, between these.
    pub(super) held: Option<(Instant, Instant)>,
    /// It was held for what it needs, and gets no more time.
    pub(super) unheld: bool,
}

impl Request {
    fn new() -> Self {
        Self {
            head: RequestHead::default(),
            info: RequestInfo {
                head_bytes: 0,
                framing: Framing::None,
                keep_alive: false,
                upgrade: false,
                expect_continue: false,
                https_target: false,
                dropped: 0,
            },
            trailers: Headers::default(),
            response: ResponseHead::default(),
            response_trailers: Headers::default(),
            grpc: false,
            tunnel: None,
            started: turn::now(),
            received_all: None,
            answered: None,
            status: 0,
            flags: ResponseFlags::NONE,
            details: Cow::Borrowed(""),
            client: None,
            bytes_received: 0,
            bytes_sent: 0,
            route_name: None,
            cluster_name: None,
            host: None,
            upstream_local: None,
            transport_failure: String::new(),
            attempts: 0,
            filters: FilterStreams::default(),
            facts: FilterFacts::default(),
            random: None,
            body: None,
            head_chunked: false,
            held: None,
            unheld: false,
        }
    }

    /// A request about which nothing is known yet.
    pub(super) fn begin() -> Box<Self> {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        let Some(mut request) = pooled else { return Box::new(Self::new()) };
        request.started = turn::now();
        request
    }

    /// Forgets it and keeps its memory for another.
    pub(super) fn recycle(mut self: Box<Self>) {
        *self = Self {
            head: std::mem::take(&mut self.head),
            response: std::mem::take(&mut self.response),
            trailers: std::mem::take(&mut self.trailers),
            response_trailers: std::mem::take(&mut self.response_trailers),
            filters: std::mem::take(&mut self.filters),
            ..Self::new()
        };
        self.head.clear();
        self.response.clear();
        self.trailers.clear();
        self.response_trailers.clear();
        self.filters.clear();
        // During thread exit the pool may be gone; then the request is freed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED_REQUESTS {
                pool.push(self);
            }
        });
    }

    /// Its head is none: only that it was HTTP/1 is known of it.
    pub(super) fn forget_head(&mut self) {
        let version = self.head.version;
        self.head.clear();
        self.head.version = version;
    }

    /// The head as matchers see it.
    pub(super) fn view(&self) -> HeadView<'_> {
        HeadView::new(&self.head, &self.facts.metadata)
    }

    /// The client speaks HTTP/1.0.
    pub(super) fn is_http_10(&self) -> bool {
        self.head.version == Version::Http10
    }

    /// No response body follows, whatever the response's head says.
    pub(super) fn is_head(&self) -> bool {
        self.head.method() == b"HEAD"
    }
}

impl HeadLookup for HeadView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        // CONNECT has no path, and a head that was refused nothing at all.
        match name {
            ":method" => there(self.head.method()),
            ":path" => there(self.head.path()),
            ":authority" | "host" => there(self.head.authority()),
            ":scheme" => Some(self.scheme()),
            name => self.head.headers.find(name.as_bytes()),
        }
    }
}

fn there(text: &[u8]) -> Option<&[u8]> {
    Some(text).filter(|text| !text.is_empty())
}

/// A response's head or trailers as the log sees them.
pub(super) struct FieldsView<'r>(pub(super) &'r Headers);

impl HeadLookup for FieldsView<'_> {
    fn lookup(&self, name: &str) -> Option<&[u8]> {
        self.0.find(name.as_bytes())
    }
}
