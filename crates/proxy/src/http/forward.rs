//! Forwards a client's request: gets a response from a server ([`super::exchange`]), and responds to the client.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, ready};

use evenkeel_http::Framing;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::decide::Forward;
use super::downstream_side::DownstreamSide;
use super::exchange::{Exchange, Tries};
use super::failure::{Failure, Retry};
use super::reply::Reply;
use super::retry::is_idempotent;
use super::timers::Timers;
use super::upload::Upload;
use super::upstream::count::count_failure;

/// Maximum size of a request body, in bytes, that is kept for a repetition without a retry policy: a reused connection may be
/// closed just when the request is sent.
const MAX_KEPT_BYTES: u64 = 16 * 1024;

impl ActiveStream<'_> {
    /// Forwards the request, and counts it if its route has statistics of its own.
    pub(super) async fn forward(&mut self, forward: &Forward<'_>) -> bool {
        let keeps = self.forward_to(forward).await;
        if let Some(prefix) = &forward.matched.route.stat_prefix {
            self.count_by_route(forward, prefix);
        }
        keeps
    }

    /// Tries until there is a response or no try is left, then responds to the client.
    async fn forward_to(&mut self, forward: &Forward<'_>) -> bool {
        let rewrites = forward.action.prefix_rewrite.is_some() || forward.action.regex_rewrite.is_some();
        self.request.stream.rewritten = rewrites && !self.conn.hcm.suppress_envoy_headers;
        if !self.conn.hcm.proxy_100_continue {
            self.send_continue();
        }
        let paused = self.request.tunnel.is_some() && self.request.info.framing.is_empty();
        let mut upload = self.upload(forward, paused);
        if self.request.filters.sees_request_data() && !paused {
            upload.filtered(self.request.info.framing);
            // The filters have seen the collected body.
            if !upload.filtered_end && !upload.left.take(upload.known().map_or(0, <[u8]>::len)) {
                return self.give_up(forward, Failure::FilteredLength).await;
            }
        }
        let timers = self.timers(forward, paused);
        let mut exchange = Exchange::new(
            &forward.to.cluster,
            Tries::Requests(forward.retry.as_deref()),
            forward.action.priority,
            timers,
        );
        let mut side = DownstreamSide { active: self, forward, upload: &mut upload };
        match exchange.response(&mut side).await {
            Ok(answered) => {
                let keeps = self.respond(forward, answered, &mut upload, &mut exchange.timers).await;
                self.end_traced_try(None, !self.response_ended);
                keeps
            }
            Err(failure) => self.give_up(forward, failure).await,
        }
    }

    /// The request's body on its way. `paused`: it is a tunnel's.
    fn upload(&mut self, forward: &Forward<'_>, paused: bool) -> Upload {
        let small = matches!(self.request.info.framing, Framing::Length(bytes) if bytes <= MAX_KEPT_BYTES);
        let keep = small || forward.retry.is_some() || forward.to.cluster.may_refuse();
        let begins = std::mem::take(&mut self.request.body_begins);
        match self.request.body.take() {
            Some(body) if begins => Upload::begun(body),
            Some(body) => Upload::collected(body),
            None => Upload::new(keep, paused),
        }
    }

    fn timers(&self, forward: &Forward<'_>, paused: bool) -> Timers {
        let started = self.request.started();
        let request_until = after(started, forward.limits.request).filter(|_| !paused);
        let mut timers = Timers::new(forward.limits.idle, forward.limits.timeout, request_until);
        // The stream idle timeout covers an unread response as well, so the flush timeout applies only where there is none.
        timers.flush_limit = forward.limits.idle.is_none().then_some(self.conn.hcm.stream_flush_timeout);
        timers.longest = after(started, forward.limits.longest);
        timers
    }

    /// Ends a request that got no response from any try, with a reply of the proxy's own.
    async fn give_up(&mut self, forward: &Forward<'_>, failure: Failure) -> bool {
        let failure = match failure {
            Failure::Filter(reply) => return self.reply(Reply::from(*reply), Some(forward.levels)).await,
            failure => failure,
        };
        count_failure(&forward.to.cluster, &failure);
        if self.is_for_another_host(&failure) && self.send_elsewhere(&failure) {
            return true;
        }
        let reply = match self.request.stream.attempts {
            1 => Reply::from(&failure),
            _ => Reply::after_retries(&failure),
        };
        self.reply(reply, Some(forward.levels)).await
    }

    /// Waits for a condition that has to precede an exchange, unless the client leaves or a deadline passes.
    pub(super) async fn unless_over<T>(
        &mut self,
        timers: &mut Timers,
        awaited: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut awaited = pin!(awaited);
        let complete = self.down.received_all();
        if complete {
            self.request.note_first(TimePoint::DownstreamRxEnd);
            timers.complete(turn::now());
        }
        poll_fn(|cx| {
            if let Poll::Ready(come) = awaited.as_mut().poll(cx) {
                return Poll::Ready(Ok(come));
            }
            if let Poll::Ready(failure) = self.down.poll_gone(cx) {
                return Poll::Ready(Err(failure));
            }
            let now = turn::now();
            ready!(self.deadline.poll(timers.next(now), cx));
            Poll::Ready(Err(timers.passed(now, complete)))
        })
        .await
    }

    /// Whether a client that is a sidecar or a gateway should retry on another host: this one received nothing of the request, or lost one
    /// that may be sent twice. When a program is killed, its callers then lose only the requests that cannot be repeated.
    fn is_for_another_host(&self, failure: &Failure) -> bool {
        let lost = match failure.row().retry {
            Retry::Connect | Retry::Refused | Retry::Unsent => true,
            Retry::Reset if matches!(failure, Failure::UpstreamClosed { .. }) => {
                is_idempotent(self.request.head.method())
            }
            Retry::Reset | Retry::Never => false,
        };
        lost && self.request.tunnel.is_none() && self.conn.client_is_proxy()
    }
}
