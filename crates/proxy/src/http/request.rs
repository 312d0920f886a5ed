//! The state of one request, and the views that matchers and logs have of it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::decide::Tunnel;
use evenkeel_filters::tracing::Trace;
use evenkeel_filters::{EarlierTry, FilterStreams, HeadView, StreamInfo, Times};
use evenkeel_http::{Framing, Headers, RequestHead, RequestInfo, ResponseHead, Version};
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_stats::Writer;
use evenkeel_tls::Session;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::{ConnectTimes, Host, edge, turn};
use tokio::time::Instant;

use super::failure::Failure;
use crate::recent::Notes;
use crate::stats::http;

/// Maximum number of request objects that a worker keeps for reuse, mainly for the memory allocated by their heads.
const MAX_POOLED_REQUESTS: usize = 256;

/// Time after a response's first byte in which waits for the client are not noted.
const SHORT_WAIT: Duration = Duration::from_millis(5);

/// The info of a request that has no head yet.
const NO_INFO: RequestInfo = RequestInfo {
    head_bytes: 0,
    framing: Framing::None,
    keep_alive: false,
    upgrade: false,
    expect_continue: false,
    https_target: false,
    dropped: 0,
};

thread_local! {
    // Boxed: a request is large, and is moved into and out of the pool.
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
    /// A gRPC request, by its content type.
    pub(super) grpc: bool,
    /// The tunnel that the request asks for and is allowed to have.
    pub(super) tunnel: Option<Tunnel>,
    /// The properties that logs and filters can read.
    pub(super) stream: StreamInfo,
    /// The host of the latest try.
    pub(super) host: Option<Rc<Host>>,
    /// The TLS session with it, once there is a connection.
    pub(super) session: Option<Arc<Session>>,
    /// The filters' own state.
    pub(super) filters: FilterStreams,
    /// Selects among weighted clusters and decides runtime fractions: the same value each time the route is chosen.
    pub(super) random: Option<u64>,
    /// Its whole body, if a filter collected it, until it is sent upstream.
    pub(super) body: Option<HeldBytes>,
    /// `body` is only the beginning: the rest is still to come.
    pub(super) body_begins: bool,
    /// `:scheme` tells whether the upstream's connection is encrypted, instead of the client's.
    pub(super) scheme_of_upstream: bool,
    /// The upstream's response head had `transfer-encoding: chunked`, for responses to HEAD.
    pub(super) head_chunked: bool,
    /// Holding it for on-demand discovery has failed: it is not held again.
    pub(super) hold_failed: bool,
    /// The upstream's response head had a load report, so that its trailers have none to heed.
    pub(super) load_reported: bool,
    /// The gRPC status of the response, if filters have moved it out of the trailers.
    pub(super) outcome: Option<u8>,
    /// Counters of the traffic with the server of the latest try.
    pub(super) edge: Option<Rc<Writer<edge::Stats>>>,
    /// What is noted for its record as a recent request ([`crate::recent`]): in all those that are part of the sample, and in others
    /// once they wait or fail.
    pub(super) notes: Option<Box<Notes>>,
    /// Its trace, if its connection manager traces.
    pub(super) trace: Option<Box<Trace>>,
}

impl Request {
    fn new() -> Self {
        Self {
            head: RequestHead::default(),
            info: NO_INFO,
            trailers: Headers::default(),
            response: ResponseHead::default(),
            response_trailers: Headers::default(),
            grpc: false,
            tunnel: None,
            stream: StreamInfo::new(turn::now().into_std()),
            host: None,
            session: None,
            filters: FilterStreams::default(),
            random: None,
            body: None,
            body_begins: false,
            scheme_of_upstream: false,
            head_chunked: false,
            hold_failed: false,
            load_reported: false,
            outcome: None,
            edge: None,
            notes: None,
            trace: None,
        }
    }

    /// A request without a head.
    pub(super) fn begin() -> Box<Self> {
        let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        let Some(mut request) = pooled else { return Box::new(Self::new()) };
        request.stream.times.set_start(turn::now().into_std());
        request
    }

    /// Clears it and keeps its memory for another.
    pub(super) fn recycle(mut self: Box<Self>) {
        self.forget();
        // During thread exit the pool may be gone; then the request is freed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED_REQUESTS {
                pool.push(self);
            }
        });
    }

    /// Clears it in place, field by field: it is large, and most fields were never set.
    fn forget(&mut self) {
        let Self {
            head,
            info,
            trailers,
            response,
            response_trailers,
            grpc,
            tunnel,
            stream,
            host,
            session,
            filters,
            random,
            body,
            body_begins,
            scheme_of_upstream,
            head_chunked,
            hold_failed,
            load_reported,
            outcome,
            edge,
            notes,
            trace,
        } = self;
        head.clear();
        response.clear();
        trailers.clear();
        response_trailers.clear();
        *info = NO_INFO;
        stream.forget();
        (*grpc, *tunnel, *host, *session) = (false, None, None, None);
        if filters.is_begun() {
            filters.clear();
        }
        (*random, *body, *head_chunked, *hold_failed, *outcome) = (None, None, false, false, None);
        *load_reported = false;
        *edge = None;
        *body_begins = false;
        *scheme_of_upstream = false;
        *notes = None;
        *trace = None;
    }

    /// Whether the upstream gets a gRPC call.
    pub(super) fn calls_grpc(&self) -> bool {
        self.grpc || self.stream.made_grpc
    }

    /// Records a failure for the log, and counts it.
    pub(super) fn fail(&mut self, failure: &Failure, details: Cow<'static, str>, stats: &Writer<http::Stats>) {
        let row = failure.row();
        self.stream.flags |= row.flags;
        // A client that resets its stream with NO_ERROR leaves the details as they were.
        if !details.is_empty() {
            self.stream.details = details;
        }
        if let Some(counter) = row.counter {
            stats.inc(counter);
        }
    }

    /// Tells the client what the trace says of the request.
    #[inline]
    pub(super) fn respond_traced(&mut self) {
        if let Some(trace) = &self.trace {
            trace.respond(&mut self.response.headers);
        }
    }

    /// Sets this time point to now.
    #[inline]
    pub(super) fn note(&mut self, point: TimePoint) {
        self.stream.times.set(point, turn::now().into_std());
    }

    /// As [`Request::note`], unless the point was set before.
    #[inline]
    pub(super) fn note_first(&mut self, point: TimePoint) {
        self.stream.times.set_first(point, turn::now().into_std());
    }

    /// What is noted of it, to add to. Only what takes long is noted.
    #[cold]
    pub(super) fn notes(&mut self) -> &mut Notes {
        self.notes.get_or_insert_default()
    }

    /// Notes that the client takes no more bytes of the response, if that has not begun only now: streams often wait shortly for their turn
    /// on the client's socket.
    pub(super) fn note_blocked(&mut self) {
        let now = turn::now();
        let begun = self.stream.times.get(TimePoint::UpstreamRxBegin).map(Instant::from_std);
        if begun.is_some_and(|begun| now.saturating_duration_since(begun) >= SHORT_WAIT) {
            self.notes().client_blocks(now);
        }
    }

    /// Returns when its last byte was received.
    pub(super) fn received_all(&self) -> Option<Instant> {
        self.stream.times.get(TimePoint::DownstreamRxEnd).map(Instant::from_std)
    }

    /// Returns when it began.
    pub(super) fn started(&self) -> Instant {
        Instant::from_std(self.stream.times.start())
    }

    /// Records the local address and the connect times of its upstream connection.
    pub(super) fn connected(&mut self, local: Option<SocketAddr>, made: &ConnectTimes) {
        self.stream.upstream_local = local;
        self.stream.upstream_connection = Some(made.id);
        self.session.clone_from(&made.session);
        set_connect_times(&mut self.stream.times, made);
    }

    /// Sets the host of the current try.
    pub(super) fn set_host(&mut self, host: &Rc<Host>) {
        if self.host.is_some() {
            self.note_earlier_try();
        }
        self.stream.host = Some(Arc::clone(&host.label));
        self.host = Some(Rc::clone(host));
        self.session = None;
    }

    /// Moves the host of the try before to those that were tried.
    #[cold]
    fn note_earlier_try(&mut self) {
        let Some((host, label)) = self.host.as_ref().zip(self.stream.host.take()) else { return };
        let hostname = Arc::clone(&host.endpoint().hostname);
        let connection = self.stream.upstream_connection.take();
        self.stream.upstream_protocol = None;
        self.stream.earlier_tries.push(EarlierTry { host: label, hostname, connection });
    }

    /// Clears an invalid head, except for the version.
    pub(super) fn forget_head(&mut self) {
        let version = self.head.version;
        self.head.clear();
        self.head.version = version;
    }

    /// The head as matchers see it.
    pub(super) fn view(&self) -> HeadView<'_> {
        HeadView::new(&self.head, &self.stream.metadata)
    }

    /// The client speaks HTTP/1.0.
    pub(super) fn is_http_10(&self) -> bool {
        self.head.version == Version::Http10
    }

    /// Whether the request is HEAD, so that no response body follows, whatever the response head says.
    pub(super) fn is_head(&self) -> bool {
        self.head.method() == b"HEAD"
    }
}

/// Sets the connect times of an upstream connection.
pub(crate) fn set_connect_times(times: &mut Times, made: &ConnectTimes) {
    times.set(TimePoint::UpstreamConnectBegin, made.begin.into_std());
    times.set(TimePoint::UpstreamConnectEnd, made.end.into_std());
    if let Some(at) = made.handshake_end {
        times.set(TimePoint::UpstreamHandshakeEnd, at.into_std());
    }
}
