//! Runs the connection manager's filters: when they are called, and how their decisions are carried out.

use std::future::{poll_fn, ready};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::Duration;

use evenkeel_filters::callouts::Callouts;
use evenkeel_filters::decide::{Filtered, Matched};
use evenkeel_filters::{
    BadBody, Body, Clock, Clusters, Data, Decision, Flow, HostLookup, LookupError, Names, Pause, RequestContext,
    RequestFacts, RequestTrailersContext, ResponseContext, ResponseDecision, RouteContext, Services, Tasks,
    TrailersContext, Woken,
};
use evenkeel_http::{Framing, HeaderId, Headers};
use evenkeel_runtime_config::dynamic_forward_proxy::DnsCache;
use evenkeel_runtime_config::route::{Route, RouteAction};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::conn::deadline::{after, earlier};
use evenkeel_upstream::turn;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::active_stream::ActiveStream;
use super::failure::Failure;
use super::grpc;
use super::pause::Held;
use super::reply::Reply;
use super::request::Request;
use super::timers::Timers;
use super::transfer::Transfer;
use crate::dns_cache::Lookup;
use crate::listener::socket::ListenerKey;
use crate::recent::Span;
use crate::services::{WorkerClock, WorkerTasks};
use crate::stats::http::Counter;
use crate::worker::Worker;

/// The condition under which a filter is called again.
pub(super) enum Waits {
    Body {
        max_bytes: usize,
    },
    Start {
        bytes: usize,
    },
    Filter(Pause),
    /// A filter holds back some of a collected body.
    Data(Pause),
}

/// A response in place of the upstream's.
pub(super) enum Instead {
    Reply(Reply),
    Failed(Failure),
}

impl From<Failure> for Instead {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Services for Worker {
    fn clusters(&self) -> &dyn Clusters {
        &*self.upstreams
    }

    fn clock(&self) -> &dyn Clock {
        &WorkerClock
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn callouts(&self) -> &dyn Callouts {
        &self.callouts
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(&WorkerTasks)
    }

    fn names(&self) -> Option<&dyn Names> {
        Some(self)
    }
}

impl Names for Worker {
    fn resolve(&self, cache: &Arc<DnsCache>, name: &Arc<str>) -> HostLookup {
        let (answer, answered) = oneshot::channel();
        let lookup = Lookup { cache: Arc::clone(cache), name: Arc::clone(name), answer };
        if self.lookups.try_send(lookup).is_err() {
            return Box::pin(ready(Err(LookupError::PendingOverflow)));
        }
        Box::pin(async { answered.await.unwrap_or(Err(LookupError::Failed("no_answer".into()))) })
    }

    /// Whether `address` belongs to a listener or the admin port of this proxy. One on all addresses has at least the loopback ones and the
    /// one that the client has connected to; the unspecified address leads to loopback.
    fn is_own_listener(&self, address: SocketAddr, connection: &ConnectionView) -> bool {
        let ip = address.ip().to_canonical();
        let is_local = ip.is_loopback() || ip.is_unspecified() || ip == connection.local.ip().to_canonical();
        let generation = self.generation();
        let listens =
            |ip: IpAddr| generation.shared.bound.contains_key(&ListenerKey::at(SocketAddr::new(ip, address.port())));
        let everywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        self.upstreams.own().is_admin(address, is_local)
            || listens(ip)
            || listens(address.ip())
            || is_local && everywhere.into_iter().any(listens)
            || ip.is_unspecified() && loopback.into_iter().any(listens)
    }
}

impl ActiveStream<'_> {
    /// Calls the remaining filters. An error is what one of them waits for; see [`ActiveStream::ask_after`].
    pub(super) fn ask(&mut self, client: SocketAddr, matched: Option<Matched<'_>>) -> Result<Filtered<Reply>, Waits> {
        let filters = &self.conn.manager.filters;
        if filters.is_empty() {
            return Ok(Filtered::Passes);
        }
        let route = Matched::context(matched);
        if !self.request.filters.is_begun() {
            filters.begin(&mut self.request.filters, &route.filters);
        }
        match self.ask_filters(client, route) {
            Decision::Continue => {
                if !(self.request.filters.pass() && self.request.filters.sees_request_data()) {
                    return Ok(Filtered::Passes);
                }
                match self.filter_whole_body() {
                    Ok(Flow::Continue) => Ok(Filtered::Passes),
                    Ok(Flow::Pause(pause)) => Err(Waits::Data(pause)),
                    Err(bad) => Ok(Filtered::Answered(Reply::from(&Failure::BadBody(bad)))),
                }
            }
            Decision::Reroute => Ok(Filtered::Rerouted),
            Decision::Reply(reply) => Ok(Filtered::Answered(Reply::from(reply))),
            Decision::Collect { max_bytes } => Err(Waits::Body { max_bytes }),
            Decision::CollectStart { bytes } => Err(Waits::Start { bytes }),
            Decision::Pause(pause) => Err(Waits::Filter(pause)),
        }
    }

    /// Waits for what a filter wants, then calls the remaining filters.
    pub(super) async fn ask_after(
        &mut self,
        mut waits: Waits,
        client: SocketAddr,
        matched: Option<Matched<'_>>,
    ) -> Filtered<Reply> {
        let route = matched.map(|matched| &**matched.route);
        loop {
            let began = turn::now();
            let waited = self.await_filter(waits, route).await;
            self.note_filter_wait(began);
            match waited {
                Ok(None) => {}
                Ok(Some(again)) => {
                    waits = again;
                    continue;
                }
                Err(failure) => return Filtered::Answered(Reply::from(&failure)),
            }
            waits = match self.ask(client, matched) {
                Ok(decided) => return decided,
                Err(again) => again,
            };
        }
    }

    /// Waits for what a filter wants. Returns what it wants next, if it is not to be called again yet.
    async fn await_filter(&mut self, waits: Waits, route: Option<&Route>) -> Result<Option<Waits>, Failure> {
        match waits {
            Waits::Body { max_bytes } => self.collect(max_bytes, route).await?,
            Waits::Start { bytes } => self.collect_start(bytes, route).await?,
            Waits::Filter(pause) => {
                let woken = self.pause(pause, route).await?;
                self.request.filters.wake(woken);
            }
            Waits::Data(pause) => {
                self.pause(pause, route).await?;
                return match self.resume_whole_body().map_err(Failure::BadBody)? {
                    Flow::Pause(again) => Ok(Some(Waits::Data(again))),
                    Flow::Continue => Ok(None),
                };
            }
        }
        Ok(None)
    }

    fn note_filter_wait(&mut self, began: Instant) {
        let filter = self.conn.manager.filters.awaited(&self.request.filters).cloned();
        self.request.notes().waited_for_filter(filter, Span { begin: began, end: turn::now() });
    }

    /// Passes a collected body through the filters. For a body still to come, takes over the length the head announces.
    fn filter_whole_body(&mut self) -> Result<Flow, BadBody> {
        let request = &mut *self.request;
        let Some(body) = request.body.take() else {
            request.info.framing = announced(request.info.framing, &request.head.headers);
            return Ok(Flow::Continue);
        };
        let mut data = Data { bytes: (&*body).into(), ends: !request.body_begins, now: turn::now().into_std() };
        let flow = self.conn.manager.filters.request_data(&mut request.filters, &mut data)?;
        let changed = data.bytes.into_owned();
        self.set_whole_body(HeldBytes::from(changed));
        Ok(flow)
    }

    /// Calls the filter again that holds back some of a collected body.
    fn resume_whole_body(&mut self) -> Result<Flow, BadBody> {
        let request = &mut *self.request;
        let mut data = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
        let flow = self.conn.manager.filters.resume_request(&mut request.filters, &mut data)?;
        let mut body = request.body.take().unwrap_or_default();
        body.extend(&data.bytes);
        self.set_whole_body(body);
        Ok(flow)
    }

    /// Frames the body, or its beginning, as the filters have released it.
    fn set_whole_body(&mut self, body: HeldBytes) {
        let request = &mut *self.request;
        if request.body_begins {
            request.info.framing = announced(request.info.framing, &request.head.headers);
        } else {
            let mut digits = itoa::Buffer::new();
            if request.head.headers.contains(HeaderId::ContentLength) {
                request.head.headers.set(HeaderId::ContentLength, digits.format(body.len()).as_bytes());
            }
            request.info.framing = Framing::Length(body.len() as u64);
        }
        request.body = Some(body);
    }

    fn ask_filters(&mut self, client: SocketAddr, route: RouteContext<'_>) -> Decision {
        let (conn, request) = (self.conn, &mut *self.request);
        let now = turn::now().into_std();
        let no_body = request.tunnel.is_some() || request.info.framing.is_empty();
        let body = match &request.body {
            Some(body) if request.body_begins => Body::Start(body),
            Some(body) => Body::Whole(body),
            None if no_body => Body::Empty,
            None => Body::Coming,
        };
        let view = conn.view();
        let (from, message) = ((&*view, &*conn.info, client.ip()), (&mut request.head, body));
        let mut context = RequestContext::new(from, message, route, &mut request.stream, (&*conn.worker, now));
        conn.manager.filters.request_head(&mut request.filters, &mut context)
    }

    /// Waits for what a filter waits for, unless the client leaves or a deadline passes.
    async fn pause(&mut self, mut pause: Pause, route: Option<&Route>) -> Result<Woken, Failure> {
        let mut timers = self.waiting_timers(route);
        let until = after(turn::now(), Some(pause.limit));
        poll_fn(|cx| self.poll_pause(&mut pause, until, &mut timers, cx)).await
    }

    fn poll_pause(
        &mut self,
        pause: &mut Pause,
        until: Option<Instant>,
        timers: &mut Timers,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Woken, Failure>> {
        if let Poll::Ready(failure) = self.down.poll_gone(cx) {
            return Poll::Ready(Err(failure));
        }
        if let Some(wait) = &mut pause.wait
            && wait.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Ok(Woken::Ready));
        }
        let now = turn::now();
        task::ready!(self.deadline.poll(earlier(timers.next(now), until), cx));
        Poll::Ready(if until.is_some_and(|until| until <= now) {
            Ok(Woken::TimedOut)
        } else {
            Err(timers.passed(now, self.down.received_all()))
        })
    }

    /// The deadlines of a request that waits before it is forwarded.
    pub(super) fn waiting_timers(&self, route: Option<&Route>) -> Timers {
        let (hcm, started) = (&*self.conn.hcm, self.request.started());
        let (idle, longest) = match route.map(|route| &route.action) {
            Some(RouteAction::Forward(action)) => (action.idle_timeout, action.max_stream_duration),
            _ => (None, None),
        };
        let positive = |limit: &Duration| !limit.is_zero();
        let idle = idle.or(hcm.stream_idle_timeout).filter(positive);
        let request = hcm.request_timeout.filter(|limit| positive(limit) && !self.down.received_all());
        let mut timers = Timers::new(idle, None, after(started, request));
        timers.longest = after(started, longest.or(hcm.max_stream_duration));
        timers
    }

    /// Shows the filters the end of the request.
    pub(super) fn filter_request_end(&mut self) {
        let (conn, request) = (self.conn, &mut *self.request);
        if request.trailers.is_empty() {
            return;
        }
        let facts = RequestFacts { connection: &conn.info, head: &request.head, now: turn::now().into_std() };
        let (info, services) = (&request.stream, &*conn.worker);
        let mut context = RequestTrailersContext { trailers: &mut request.trailers, facts, info, services };
        conn.manager.filters.request_trailers(&mut request.filters, &mut context);
    }

    /// Calls the remaining filters with a response head. `ends`: no body follows. `local`: it is the proxy's own. `whole`: its whole body.
    pub(super) fn filter_response(&mut self, ends: bool, local: bool, whole: Option<&[u8]>) -> ResponseDecision {
        let (conn, request) = (self.conn, &mut *self.request);
        if !request.filters.sees_response_head() {
            return ResponseDecision::Continue;
        }
        let since_request = if local { None } else { since_request(request) };
        let host = request.host.as_ref().map(|host| &*host.label);
        let body = match whole {
            Some(whole) => Body::Whole(whole),
            None if ends => Body::Empty,
            None => Body::Coming,
        };
        let mut context = ResponseContext {
            head: &mut request.response,
            host,
            local,
            ends,
            since_request,
            body,
            facts: RequestFacts { connection: &conn.info, head: &request.head, now: turn::now().into_std() },
            info: &mut request.stream,
            services: &*conn.worker,
            woken: None,
        };
        conn.manager.filters.response_head(&mut request.filters, &mut context)
    }

    /// Carries out what the filters request before they pass a local reply. An error is the reply to send instead.
    pub(super) async fn settle_reply(&mut self, mut decision: ResponseDecision, body: &[u8]) -> Result<(), Reply> {
        loop {
            match decision {
                ResponseDecision::Continue => return Ok(()),
                ResponseDecision::Reply(reply) => return Err(Reply::from(reply)),
                // The filter had the whole body already.
                ResponseDecision::Collect { .. } | ResponseDecision::CollectStart { .. } => {
                    return Err(self.too_large());
                }
                ResponseDecision::Pause(pause) => {
                    let woken = self.pause(pause, None).await;
                    let woken = woken.map_err(|failure| Reply::from(&failure))?;
                    self.request.filters.wake(woken);
                }
            }
            decision = self.filter_response(body.is_empty(), true, Some(body));
        }
    }

    /// The response body is longer than a filter accepts.
    fn too_large(&self) -> Reply {
        self.conn.manager.http.inc(Counter::rs_too_large);
        let too_large = evenkeel_filters::Reply::new(500, "Internal Server Error", "response_payload_too_large");
        Reply::from(too_large)
    }

    /// Shows the filters the end of a response. Returns what they add to its body.
    pub(super) fn filter_response_end(&mut self) -> (Vec<u8>, Flow) {
        let request = &mut *self.request;
        if request.stream.made_grpc {
            request.outcome = grpc::status(request);
        }
        let (conn, since_request) = (self.conn, since_request(request));
        let facts = RequestFacts { connection: &conn.info, head: &request.head, now: turn::now().into_std() };
        let mut context = TrailersContext {
            trailers: &mut request.response_trailers,
            response: &request.response,
            facts,
            info: &mut request.stream,
            services: &*conn.worker,
            since_request,
            body: Vec::new(),
        };
        let flow = conn.manager.filters.response_trailers(&mut request.filters, &mut context);
        (context.body, flow)
    }
}

impl Transfer<'_, '_> {
    /// Carries out what the filters request before they pass the upstream's response head. Returns the body, if one of them
    /// collected it.
    pub(super) async fn settle(
        &mut self,
        mut decision: ResponseDecision,
        ends: bool,
    ) -> Result<Option<HeldBytes>, Instead> {
        let mut whole: Option<HeldBytes> = None;
        loop {
            match decision {
                ResponseDecision::Continue => return Ok(whole),
                ResponseDecision::Reply(reply) => return Err(Instead::Reply(Reply::from(reply))),
                ResponseDecision::Pause(pause) => {
                    let mut held = Held::new(pause);
                    let woken = poll_fn(|cx| self.poll_held(&mut held, cx)).await?;
                    self.active.request.filters.wake(woken);
                }
                ResponseDecision::Collect { max_bytes } => {
                    let mut body = HeldBytes::default();
                    // If a filter asks for the body again, it is too long for that filter.
                    let fits = whole.is_none() && poll_fn(|cx| self.poll_collect(&mut body, max_bytes, cx)).await?;
                    if !fits {
                        return Err(Instead::Reply(self.active.too_large()));
                    }
                    whole = Some(body);
                }
                ResponseDecision::CollectStart { bytes } => {
                    let mut start = HeldBytes::default();
                    poll_fn(|cx| self.poll_start(&mut start, bytes, cx)).await?;
                    whole = Some(start);
                }
            }
            decision = self.active.filter_response(ends, false, whole.as_deref());
        }
    }
}

/// The framing of a body whose length filters may change: their `content-length`, else the length is unknown.
pub(super) fn announced(framing: Framing, headers: &Headers) -> Framing {
    let length = headers.get(HeaderId::ContentLength).and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
    match (framing, length) {
        (Framing::None, _) => Framing::None,
        (_, Some(length)) => Framing::Length(length),
        // The response ends with its head, which has no length any more.
        (Framing::Length(0), None) => Framing::None,
        (Framing::Length(_), None) => Framing::Chunked,
        (framing, None) => framing,
    }
}

fn since_request(request: &mut Request) -> Option<Duration> {
    let now = turn::now();
    request.received_all().map(|at| now.duration_since(at))
}
