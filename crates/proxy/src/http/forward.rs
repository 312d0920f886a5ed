//! Sends the request upstream: picks a host, connects, exchanges heads; repeats that until there is a response or no try is left.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use evenkeel_filters::decide::{announce_timeout, set_host};
use evenkeel_filters::{HostOverride, ResponseFlags};
use evenkeel_http::{Framing, HeaderId, ResponseInfo};
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_runtime_config::route::HostRewrite;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::cluster_stats as cluster;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::turn;
use evenkeel_upstream::{Host, Need, OverrideHost, PooledConnection, RequestGuard, Target};

use super::active_stream::ActiveStream;
use super::decide::Forward;
use super::exchange::Exchange;
use super::failure::{Failure, Retry};
use super::mirror::is_mirrored;
use super::reply::Reply;
use super::retry::{self, BackOff, is_idempotent};
use super::timers::Timers;
use super::upload::Upload;
use super::upstream::Upstream;
use super::upstream::count::{count_failed_try, count_failure, count_reset};
use crate::clock::unix_seconds;

/// Maximum size of a request body, in bytes, that is kept for a repetition without a retry policy: a reused connection may be
/// closed just when the request is sent.
const MAX_KEPT_BYTES: u64 = 16 * 1024;

/// A response head, and the stream it came on.
pub(super) struct Answered {
    pub(super) up: Upstream,
    pub(super) info: ResponseInfo,
    pub(super) guard: RequestGuard,
}

/// The retry policy's verdict about a try.
enum Verdict {
    Final,
    Exhausted,
    /// The policy allows another try, but the request body can no longer be repeated.
    Unrepeatable,
    Again,
}

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
        let small = matches!(self.request.info.framing, Framing::Length(bytes) if bytes <= MAX_KEPT_BYTES);
        let keep = small || forward.retry.is_some() || forward.to.cluster.may_refuse();
        let begins = std::mem::take(&mut self.request.body_begins);
        let mut upload = match self.request.body.take() {
            Some(body) if begins => Upload::begun(body),
            Some(body) => Upload::collected(body),
            None => Upload::new(keep, paused),
        };
        if self.request.filters.sees_request_data() && !paused {
            upload.filtered(self.request.info.framing);
            // The filters have seen the collected body.
            if !upload.filtered_end && !upload.left.take(upload.known().map_or(0, <[u8]>::len)) {
                return self.give_up(forward, Failure::FilteredLength).await;
            }
        }
        let started = self.request.started();
        let request_until = after(started, forward.limits.request).filter(|_| !paused);
        let mut timers = Timers::new(forward.limits.idle, forward.limits.timeout, request_until);
        // The stream idle timeout covers an unread response as well, so the flush timeout applies only where there is none.
        timers.flush_limit = forward.limits.idle.is_none().then_some(self.conn.hcm.stream_flush_timeout);
        timers.longest = after(started, forward.limits.longest);
        let mut tried: Vec<Rc<Host>> = Vec::new();
        // A retry counts against `max_retries` until its try ends.
        let mut retrying = None;
        loop {
            self.request.stream.attempts += 1;
            if let Some(policy) = forward.retry.as_deref() {
                timers.begin_try(turn::now(), policy.per_try_timeout, policy.per_try_idle_timeout);
            }
            let attempt = self.attempt(forward, &mut upload, &mut timers, &tried).await;
            self.report(forward, &attempt);
            if let Err(failure) = &attempt {
                self.end_traced_try(Some(failure), false);
                count_failed_try(&forward.to.cluster, self.request.host.as_ref(), failure);
            }
            if let Some(host) = self.request.host.as_ref().filter(|_| forward.retry.is_some()) {
                tried.push(Rc::clone(host));
            }
            let verdict = self.retry_verdict(forward, &upload, &attempt);
            if let Verdict::Again = verdict {
                // The previous retry is over: it no longer counts.
                drop(retrying.take());
                match forward.to.cluster.begin_retry(forward.action.priority, attempt.is_err()) {
                    Ok(permit) => {
                        retrying = Some(permit);
                        let more = attempt.as_ref().is_ok_and(|answered| !answered.info.framing.is_empty());
                        self.end_traced_try(None, more);
                        let pause = self.back_off(forward, attempt.is_ok());
                        drop(attempt);
                        timers.end_try();
                        let paused = Box::pin(self.unless_over(&mut timers, tokio::time::sleep(pause))).await;
                        if let Err(failure) = paused {
                            let counter = failure.row().cluster_counter;
                            counter.into_iter().for_each(|counter| forward.to.cluster.stats().inc(counter));
                            return self.give_up(forward, failure).await;
                        }
                        self.announce_time_left(forward);
                        continue;
                    }
                    Err(_) => self.request.stream.flags |= ResponseFlags::UPSTREAM_OVERFLOW,
                }
            }
            if let Verdict::Exhausted = verdict {
                self.request.stream.flags |= ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
                forward.to.cluster.stats().inc(cluster::Counter::upstream_rq_retry_limit_exceeded);
            }
            return match attempt {
                Ok(answered) => {
                    if self.request.stream.attempts > 1 && matches!(verdict, Verdict::Final) {
                        forward.to.cluster.stats().inc(cluster::Counter::upstream_rq_retry_success);
                    }
                    let keeps = self.respond(forward, answered, &mut upload, &mut timers).await;
                    self.end_traced_try(None, !self.response_ended);
                    keeps
                }
                Err(failure) => self.give_up(forward, failure).await,
            };
        }
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

    /// One try: host, connection, request up, response head down.
    async fn attempt(
        &mut self,
        forward: &Forward<'_>,
        upload: &mut Upload,
        timers: &mut Timers,
        tried: &[Rc<Host>],
    ) -> Result<Answered, Failure> {
        match self.request.stream.attempts {
            1 => forward.to.cluster.drop_share()?,
            _ => self.request.stream.times.begin_try(),
        }
        // A filter's override host is tried once: a retry picks by load balancing.
        let wanted = self.request.stream.host_override.clone().filter(|_| self.request.stream.attempts == 1);
        let dynamic = self.request.stream.dynamic_host.clone();
        let target = Target {
            override_host: wanted.as_deref().map(override_host),
            original_dst: Some(self.conn.info.view.local),
            dynamic: dynamic.as_deref(),
            previous: tried,
            retry: forward.retry.as_deref().filter(|_| self.request.stream.attempts > 1),
            ..forward.to.affinity.target()
        };
        // A request that was lost because its connection just ended is sent once more, whatever the retry policy.
        let mut raced = false;
        loop {
            let host = forward.to.cluster.pick(&target)?;
            self.request.set_host(&host);
            self.begin_traced_try();
            if self.request.stream.attempts == 1 && !raced && is_mirrored(forward) {
                upload.mirrors = self.mirror(forward, upload.known());
            }
            let guard =
                forward.to.cluster.begin_request(&host, forward.action.priority).map_err(|_| Failure::Overflow)?;
            let door = forward.to.cluster.called(&host, self.request.head.authority());
            let door = forward.to.cluster.on_behalf_of(&door, self.conn.info.source());
            let ready = match raced || self.request.tunnel.is_some() {
                true => None,
                false => forward.to.cluster.try_acquire(&door, self.request.head.version),
            };
            let mut up = match ready.map(|connection| self.upstream(forward, connection)) {
                Some(up) => up,
                // Boxed: few requests wait for a connection, and the others should not reserve memory for it.
                None => Box::pin(self.connect(forward, timers, &door, raced)).await?,
            };
            forward.to.cluster.report_connected(&host);
            self.request.connected(up.local_addr(), up.connect_times());
            let peer = (&*host, up.connect_times());
            self.request.edge = self.conn.worker.edges.of_server(&self.conn.info, peer, turn::now()).cloned();
            let result = self.exchange_heads(forward, &mut up, upload, timers).await;
            if let Err(failure) = &result {
                count_reset(&forward.to.cluster, &up, failure);
                up.complete(self.request);
            }
            if matches!(result, Err(Failure::UpstreamClosed { .. })) {
                up.lost_race(turn::now());
            }
            match result {
                Ok(info) => return Ok(Answered { up, info, guard }),
                Err(failure) if !raced && upload.can_replay() && self.lost_race(forward, &failure, &up) => raced = true,
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Gets a connection that the pool does not have ready.
    async fn connect(
        &mut self,
        forward: &Forward<'_>,
        timers: &mut Timers,
        host: &Rc<Host>,
        raced: bool,
    ) -> Result<Upstream, Failure> {
        let (version, priority) = (self.request.head.version, forward.action.priority);
        let (is_tcp, is_tunnel) =
            (forward.terminates_connect(self.request.tunnel.as_ref()), self.request.tunnel.is_some());
        let view = &self.conn.info.view;
        let connecting = async {
            match raced {
                _ if is_tcp => forward.to.cluster.connect_tcp(host, view).await.map(PooledConnection::Http1),
                _ if host.names_clients() => forward.to.cluster.acquire_naming(host, version, view).await,
                _ if is_tunnel => forward.to.cluster.acquire_for(host, version, Need::Tunnel, priority).await,
                true => forward.to.cluster.acquire_for(host, version, Need::Fresh, priority).await,
                false => forward.to.cluster.acquire(host, version, priority).await,
            }
        };
        let connected = self.unless_over(timers, connecting).await?;
        let connection = connected.map_err(Failure::from).inspect_err(|failure| {
            if let Failure::Connect(reason) = failure {
                self.request.stream.transport_failure.clone_from(reason);
            }
        })?;
        Ok(self.upstream(forward, connection))
    }

    fn upstream(&self, forward: &Forward<'_>, connection: PooledConnection) -> Upstream {
        match connection {
            PooledConnection::Http1(connection) if forward.terminates_connect(self.request.tunnel.as_ref()) => {
                Upstream::raw(connection)
            }
            connection => Upstream::new(connection, &forward.to.cluster),
        }
    }

    /// Whether the upstream closed or refused the request before looking at it, as far as that can be told: it may close an idle connection
    /// just when that is used again.
    fn lost_race(&self, forward: &Forward<'_>, failure: &Failure, up: &Upstream) -> bool {
        match failure {
            // If the policy covers it, the retry picks another host.
            Failure::UpstreamRefused => !self.may_retry(forward, failure),
            Failure::UpstreamClosed { .. } => {
                up.is_reused() && (is_idempotent(self.request.head.method()) || up.is_unread())
            }
            _ => false,
        }
    }

    /// Whether the policy covers this failure, and a retry is left.
    fn may_retry(&self, forward: &Forward<'_>, failure: &Failure) -> bool {
        let covers = |policy: &RetryPolicy| {
            retry::covers_failure(&policy.on, failure) && self.request.stream.attempts <= policy.num_retries
        };
        forward.retry.as_deref().is_some_and(covers)
    }

    async fn exchange_heads(
        &mut self,
        forward: &Forward<'_>,
        up: &mut Upstream,
        upload: &mut Upload,
        timers: &mut Timers,
    ) -> Result<ResponseInfo, Failure> {
        if forward.host.include_request_attempt_count {
            let mut digits = itoa::Buffer::new();
            let count = digits.format(self.request.stream.attempts);
            self.request.head.headers.set(HeaderId::EnvoyAttemptCount, count.as_bytes());
        }
        if matches!(forward.action.host_rewrite, HostRewrite::Auto) && !up.host().hostname.is_empty() {
            let keeps_original = !self.conn.hcm.suppress_envoy_headers;
            set_host(&mut self.request.head, up.host().hostname.as_bytes(), keeps_original);
        }
        if !upload.begin() {
            return Err(Failure::UpstreamClosed { sent: true });
        }
        if let Upstream::Filtered(filtered) = up {
            // Boxed: few clusters have filters.
            Box::pin(self.filter_try(forward, filtered, upload, timers)).await?;
        }
        self.send_traced(up);
        self.request.note(TimePoint::UpstreamTxBegin);
        if let Err(failure) = up.send_head(self.request) {
            let Some(side) = up.http2() else { return Err(failure) };
            if self.request.tunnel.is_none() {
                return Err(failure);
            }
            // The peer's SETTINGS tell whether it accepts extended CONNECT (RFC 8441).
            Box::pin(side.settled()).await;
            side.send_head(self.request)?;
        }
        let hcm = &*self.conn.hcm;
        let mut exchange = Exchange::new(self, up, upload, timers);
        poll_fn(|cx| exchange.poll_head(hcm, cx)).await
    }

    /// Reports how a try ended to outlier detection.
    fn report(&mut self, forward: &Forward<'_>, attempt: &Result<Answered, Failure>) {
        let Some(host) = &self.request.host else { return };
        if attempt.is_ok()
            && let Some(value) = self.request.response.headers.get(HeaderId::KeepAlive)
        {
            host.keep_alive().announced(value);
        }
        if attempt.is_ok() {
            forward.to.cluster.heed_health_header(host, &self.request.response.headers);
            self.request.load_reported = forward.to.cluster.heed_load_report(host, &self.request.response.headers);
        }
        let outcome = match attempt {
            Ok(_) => Some(retry::outcome_of_response(&self.request.response)),
            Err(failure) => failure.row().outcome,
        };
        if let Some(outcome) = outcome {
            forward.to.cluster.report(host, outcome);
        }
    }

    /// Returns whether the policy allows another try, and whether one is left.
    fn retry_verdict(&self, forward: &Forward<'_>, upload: &Upload, attempt: &Result<Answered, Failure>) -> Verdict {
        let Some(policy) = forward.retry.as_deref() else { return Verdict::Final };
        let covered = match attempt {
            Ok(_) => retry::covers_response(policy, &self.request.response),
            Err(failure) => retry::covers_failure(&policy.on, failure),
        };
        match covered {
            false => Verdict::Final,
            true if !upload.can_replay() => Verdict::Unrepeatable,
            true if self.request.stream.attempts > policy.num_retries => Verdict::Exhausted,
            true => Verdict::Again,
        }
    }

    /// How long to wait before the next try. `answered`: there is a response, which may ask for a pause.
    fn back_off(&self, forward: &Forward<'_>, answered: bool) -> Duration {
        let Some(policy) = forward.retry.as_deref() else { return Duration::ZERO };
        let response = answered.then_some(&self.request.response);
        let random = self.conn.worker.random.next();
        let (pause, kind) = retry::back_off(policy, response, self.request.stream.attempts, unix_seconds(), random);
        forward.to.cluster.stats().inc(match kind {
            BackOff::Exponential => cluster::Counter::upstream_rq_retry_backoff_exponential,
            BackOff::RateLimited => cluster::Counter::upstream_rq_retry_backoff_ratelimited,
        });
        pause
    }

    /// Updates the timeout headers for the next try: less time is left.
    fn announce_time_left(&mut self, forward: &Forward<'_>) {
        let request = &mut *self.request;
        let (Some(all), Some(since)) = (forward.limits.timeout, request.received_all()) else { return };
        let left = all.saturating_sub(turn::now().duration_since(since)).max(Duration::from_millis(1));
        let per_try = forward.retry.as_deref().and_then(|policy| policy.per_try_timeout);
        let to_grpc = request.calls_grpc() && forward.action.grpc_timeout.is_some_and(|asked| asked.as_route_timeout);
        let announced = per_try.map_or(left, |limit| limit.min(left));
        announce_timeout(&mut request.head.headers, announced, to_grpc, !self.conn.hcm.suppress_envoy_headers);
    }
}

fn override_host(wanted: &HostOverride) -> OverrideHost<'_> {
    OverrideHost { address: &wanted.address, strict: wanted.strict, status_if_gone: wanted.status_if_gone }
}
