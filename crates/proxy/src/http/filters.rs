//! The filters' part in a request's life: when they are asked, and what becomes of what they say.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_filters::callouts::Callouts;
use evenkeel_filters::decide::{Filtered, Matched};
use evenkeel_filters::{
    Body, ClusterScope, Decision, Pause, RequestContext, ResponseContext, RouteContext, Services, TrailersContext,
    Woken,
};
use evenkeel_runtime_config::route::{Route, RouteAction};
use evenkeel_upstream::conn::deadline::{after, earlier};
use evenkeel_upstream::turn;
use tokio::time::Instant;

use super::active_stream::ActiveStream;
use super::exchange::Timers;
use super::failure::Failure;
use super::reply::Reply;
use super::request::Request;
use crate::response_flags::ResponseFlags;
use crate::worker::Worker;

impl Services for Worker {
    fn cluster(&self, name: &str) -> Option<Rc<ClusterScope>> {
        self.upstreams.cluster(name).map(|cluster| cluster.filter_scope())
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn callouts(&self) -> &dyn Callouts {
        &self.callouts
    }
}

impl ActiveStream<'_> {
    /// Asks the filters that are left.
    pub(super) async fn ask(&mut self, client: SocketAddr, matched: Option<Matched<'_>>) -> Filtered<Reply> {
        let filters = &self.origin.manager.filters;
        if filters.is_empty() {
            return Filtered::Passes;
        }
        let route = Matched::context(matched);
        if !self.request.filters.is_begun() {
            filters.begin(&mut self.request.filters, &route.filters);
        }
        loop {
            // Boxed: few requests wait for a filter or their bodies, and those that do not need no room for it.
            let waited = match self.ask_filters(client, route) {
                Decision::Continue => break,
                Decision::Reroute => return Filtered::Rerouted,
                Decision::Reply(reply) => return Filtered::Answered(Reply::from(reply)),
                Decision::Collect { max_bytes } => Box::pin(self.collect(max_bytes, route.route)).await,
                Decision::Pause(pause) => {
                    let woken = Box::pin(self.pause(pause, route.route)).await;
                    woken.map(|woken| self.request.filters.wake(woken))
                }
            };
            if let Err(failure) = waited {
                return Filtered::Answered(Reply::from(&failure));
            }
        }
        let request = &mut *self.request;
        if request.filters.pass()
            && let Some(body) = request.body.as_deref()
        {
            filters.request_data(&mut request.filters, body);
        }
        Filtered::Passes
    }

    fn ask_filters(&mut self, client: SocketAddr, route: RouteContext<'_>) -> Decision {
        let (origin, request) = (self.origin, &mut *self.request);
        let now = turn::now().into_std();
        let no_body = request.tunnel.is_some() || request.info.framing.is_empty();
        let body = match &request.body {
            Some(body) => Body::Whole(body),
            None if no_body => Body::Empty,
            None => Body::Coming,
        };
        let view = origin.view();
        let (from, message) = ((&*view, client.ip()), (&mut request.head, body));
        let mut context = RequestContext::new(from, message, route, &mut request.facts, (&*origin.worker, now));
        let decision = origin.manager.filters.request_head(&mut request.filters, &mut context);
        for flag in request.facts.flags.drain(..) {
            request.flags |= ResponseFlags::from_short_name(flag).unwrap_or_default();
        }
        decision
    }

    /// Waits for what a filter waits for, as long as the client and the request's limits let it.
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
        ready!(self.deadline.poll(earlier(timers.next(now), until), cx));
        Poll::Ready(match until.is_some_and(|until| until <= now) {
            true => Ok(Woken::TimedOut),
            false => Err(timers.passed(now, self.down.received_all())),
        })
    }

    /// The limits of a request that waits before it goes on.
    pub(super) fn waiting_timers(&self, route: Option<&Route>) -> Timers {
        let (hcm, started) = (&*self.origin.hcm, self.request.started);
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

    /// Shows the filters the head of an answer. `ends`: nothing follows it. `local`: it is the proxy's own.
    pub(super) fn filter_response(&mut self, ends: bool, local: bool) {
        let (origin, request) = (self.origin, &mut *self.request);
        if !request.filters.sees_response_head() {
            return;
        }
        let since_request = if local { None } else { since_request(request) };
        let host = request.host.as_ref().map(|host| &*host.label);
        let mut context = ResponseContext { head: &mut request.response, host, local, ends, since_request };
        origin.manager.filters.response_head(&mut request.filters, &mut context);
    }

    /// Shows the filters the end of an answer.
    pub(super) fn filter_response_end(&mut self) {
        let request = &mut *self.request;
        if request.filters.sees_response_trailers() {
            let since_request = since_request(request);
            let mut context = TrailersContext { trailers: &mut request.response_trailers, since_request };
            self.origin.manager.filters.response_trailers(&mut request.filters, &mut context);
        }
    }
}

fn since_request(request: &mut Request) -> Option<Duration> {
    let now = turn::now();
    request.received_all.map(|at| now.duration_since(at))
}
