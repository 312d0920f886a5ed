//! A request of the proxy's own, which has no downstream. It goes upstream like any other ([`super::forward`]), with a [`Source`] for its
//! body and a [`Sink`] for its response.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use evenkeel_base::grpc::{http_of_status, is_grpc, status};
use evenkeel_filters::decide::{Policy, effective};
use evenkeel_filters::{Body, ConnectionInfo, Decision, RequestContext, RouteContext, Services};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead, ResponseInfo};
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_runtime_config::route::Priority;
use evenkeel_upstream::cluster_stats::{Counter, Histogram};
use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::turn;
use evenkeel_upstream::{Cluster, Host, Need, RequestGuard, Target};
use tokio::time::Instant;

use super::failure::Failure;
use super::framed::Piece;
use super::grpc;
use super::pause::until_woken;
use super::request::Request;
use super::retry::{self, BackOff, is_idempotent};
use super::upstream::count::{count_failed_try, count_failure, count_reset, count_response};
use super::upstream::filtered::Filtered;
use super::upstream::{Arrived, MAX_INTERIM, Upstream};
use crate::clock::unix_seconds;

/// The source of a call's body.
pub(crate) trait Source {
    /// Gives the next available piece to `take`.
    fn poll_piece(&mut self, take: &mut dyn FnMut(&[u8]), cx: &mut Context<'_>) -> Poll<Sent>;

    /// All that was given so far can be given again.
    fn can_rewind(&self) -> bool;

    /// Starts again from the beginning.
    fn rewind(&mut self);
}

/// The state of a [`Source`] after a piece.
pub(crate) enum Sent {
    Piece,
    /// The body is complete; these are its trailers.
    End(Headers),
}

/// The receiver of a call's response.
pub(crate) trait Sink {
    /// The response head. Called once.
    fn head(&mut self, head: &ResponseHead);

    /// Ready when the sink accepts more of the body.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// A piece of the body.
    ///
    /// # Errors
    /// The body is longer than the sink accepts.
    fn data(&mut self, data: &[u8]) -> Result<(), TooLarge>;

    /// The body is complete.
    fn end(&mut self, trailers: &Headers);
}

/// The response body is longer than the sink accepts.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// Why a call has no response, or an incomplete one.
#[derive(Debug)]
pub(crate) enum Broken {
    Failed(Failure),
    TooLarge,
}

impl<F: Into<Failure>> From<F> for Broken {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// The deadline of a call, which may be set after the call has begun.
#[derive(Debug, Default)]
pub(crate) struct Until {
    at: Cell<Option<Instant>>,
    /// The task that waits, and has to learn of another deadline.
    waker: RefCell<Option<Waker>>,
}

impl Until {
    /// Creates a limit with this deadline, if any.
    pub(crate) fn at(at: Option<Instant>) -> Self {
        Self { at: Cell::new(at), waker: RefCell::default() }
    }

    /// Sets the deadline.
    pub(crate) fn set(&self, at: Option<Instant>) {
        self.at.set(at);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Sets the deadline, unless there is an earlier one.
    pub(crate) fn bound(&self, at: Instant) {
        if self.at.get().is_none_or(|known| at < known) {
            self.set(Some(at));
        }
    }

    fn poll(&self, deadline: &mut Deadline, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        deadline.poll(self.at.get(), cx)
    }
}

/// Options of a call for its cluster, besides a host.
#[derive(Debug, Default)]
pub(crate) struct UpstreamOptions {
    pub(crate) retry: Option<Arc<RetryPolicy>>,
    pub(crate) hash: Option<u64>,
    pub(crate) metadata_match: Option<Arc<MetadataMatch>>,
    /// Append the local address of the upstream connection to `x-forwarded-for`, so that the host learns who calls.
    pub(crate) names_itself: bool,
}

/// A call that has not been made yet.
pub(crate) struct Call {
    cluster: Rc<Cluster>,
    request: Option<Box<Request>>,
    wanted: UpstreamOptions,
    services: Rc<dyn Services>,
}

/// A response head, and the stream it came on.
struct Answered {
    up: Upstream,
    info: ResponseInfo,
    guard: RequestGuard,
    upload: Upload,
}

/// The part of the request that one try has sent.
#[derive(Debug, Default)]
struct Upload {
    ended: bool,
    /// The host has taken all of it.
    finished: bool,
    /// The host accepts no more; its response may still come.
    refused: bool,
    /// The whole body, if a filter of the cluster asked for it.
    collected: Option<Collected>,
}

/// A collected body, and how much of it was sent.
#[derive(Debug, Default)]
struct Collected {
    body: Vec<u8>,
    given: usize,
    trailers: Headers,
}

/// Collects a body of up to `max_bytes`.
async fn collect(source: &mut impl Source, max_bytes: usize) -> Result<Collected, Failure> {
    let mut collected = Collected::default();
    poll_fn(|cx| {
        loop {
            match ready!(source.poll_piece(&mut |data| collected.body.extend_from_slice(data), cx)) {
                Sent::Piece if collected.body.len() > max_bytes => return Poll::Ready(Err(Failure::BodyTooLarge)),
                Sent::Piece => {}
                Sent::End(trailers) => {
                    collected.trailers = trailers;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    })
    .await?;
    Ok(collected)
}

/// Gives the reply of a cluster's filter to the sink, in place of the host's response.
fn answer_with(reply: evenkeel_filters::Reply, sink: &mut impl Sink) -> Result<(), Broken> {
    let mut head = ResponseHead { status: reply.status, ..ResponseHead::default() };
    reply.headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value));
    sink.head(&head);
    sink.data(&reply.body).map_err(|TooLarge| Broken::TooLarge)?;
    sink.end(&Headers::default());
    Ok(())
}

impl Call {
    pub(crate) fn new(
        cluster: Rc<Cluster>,
        head: RequestHead,
        framing: Framing,
        wanted: UpstreamOptions,
        services: Rc<dyn Services>,
    ) -> Self {
        let mut request = Request::begin();
        request.grpc = head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
        request.head = head;
        request.info.framing = framing;
        Self { cluster, request: Some(request), wanted, services }
    }

    /// Makes the call. Dropping the future cancels it.
    pub(crate) async fn run(
        mut self,
        source: &mut impl Source,
        sink: &mut impl Sink,
        until: &Until,
    ) -> Result<(), Broken> {
        let Some(mut request) = self.request.take() else { return Ok(()) };
        let mut running = Running { call: &self, request: &mut request, named: false, answered: false };
        let mut deadline = Deadline::default();
        let result = {
            let mut tries = pin!(running.tries(source, sink));
            poll_fn(|cx| match tries.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => until.poll(&mut deadline, cx).map(|()| None),
            })
            .await
        };
        let answered = running.answered;
        let result = result.unwrap_or_else(|| {
            let late = Failure::ResponseTimeout;
            if !answered {
                running.report(Err(&late));
                count_failed_try(&self.cluster, running.request.host.as_ref(), &late);
            }
            Err(late.into())
        });
        if let Err(Broken::Failed(failure)) = &result
            && !answered
        {
            count_failure(&self.cluster, failure);
        }
        request.recycle();
        result
    }
}

/// A call in progress.
struct Running<'c> {
    call: &'c Call,
    request: &'c mut Request,
    /// The local address was appended to `x-forwarded-for`.
    named: bool,
    /// The response head was given to the sink.
    answered: bool,
}

impl<'c> Running<'c> {
    async fn tries(&mut self, source: &mut impl Source, sink: &mut impl Sink) -> Result<(), Broken> {
        let call = self.call;
        let cluster = &*call.cluster;
        cluster.drop_share().map_err(Failure::from)?;
        let policy = effective(call.wanted.retry.as_deref(), None, &self.request.view());
        let mut tried: Vec<Rc<Host>> = Vec::new();
        // A retry counts against `max_retries` until its try ends.
        let mut retrying = None;
        loop {
            self.request.stream.attempts += 1;
            let attempt = match policy.as_ref().and_then(|policy| policy.per_try_timeout) {
                None => self.attempt(source, &tried, policy.as_ref()).await,
                Some(limit) => {
                    let limited = tokio::time::timeout(limit, self.attempt(source, &tried, policy.as_ref())).await;
                    limited.unwrap_or(Err(Failure::PerTryTimeout))
                }
            };
            self.report(attempt.as_ref());
            if let Err(failure) = &attempt {
                count_failed_try(cluster, self.request.host.as_ref(), failure);
            }
            tried.extend(self.request.host.clone().filter(|_| policy.is_some()));
            if let Some(policy) = policy.as_ref().filter(|policy| self.wants_another(policy, &attempt, source)) {
                drop(retrying.take());
                if let Ok(permit) = cluster.begin_retry(Priority::Default, attempt.is_err()) {
                    retrying = Some(permit);
                    let pause = self.back_off(policy, attempt.is_ok());
                    drop(attempt);
                    tokio::time::sleep(pause).await;
                    continue;
                }
            }
            let answered = match attempt {
                Err(Failure::Filter(reply)) => {
                    self.answered = true;
                    return answer_with(*reply, sink);
                }
                attempt => attempt?,
            };
            if self.request.stream.attempts > 1 {
                cluster.stats().inc(Counter::upstream_rq_retry_success);
            }
            return self.respond(answered, source, sink).await;
        }
    }

    /// One try: host, connection, request up, response head down.
    async fn attempt(
        &mut self,
        source: &mut impl Source,
        tried: &[Rc<Host>],
        policy: Option<&Policy<'_>>,
    ) -> Result<Answered, Failure> {
        let call = self.call;
        let (cluster, version) = (&*call.cluster, self.request.head.version);
        let target = Target {
            previous: tried,
            retry: policy.filter(|_| self.request.stream.attempts > 1).map(|policy| &**policy),
            hash: call.wanted.hash,
            metadata_match: call.wanted.metadata_match.as_deref(),
            ..Target::default()
        };
        // A request that was lost because its connection just ended is sent once more, whatever the retry policy.
        let mut raced = false;
        loop {
            let host = cluster.pick(&target)?;
            self.request.set_host(&host);
            let guard = cluster.begin_request(&host, Priority::Default).map_err(|_| Failure::Overflow)?;
            let door = cluster.called(&host, self.request.head.authority());
            let connection = match cluster.try_acquire(&door, version).filter(|_| !raced) {
                Some(connection) => connection,
                None if raced => cluster.acquire_for(&door, version, Need::Fresh, Priority::Default).await?,
                None => cluster.acquire(&door, version, Priority::Default).await?,
            };
            let mut up = Upstream::new(connection, cluster);
            cluster.report_connected(&host);
            self.name_itself(up.local_addr());
            source.rewind();
            let mut upload = Upload::default();
            match self.exchange_heads(&mut up, source, &mut upload).await {
                Ok(info) => return Ok(Answered { up, info, guard, upload }),
                Err(failure) => {
                    count_reset(cluster, &up, &failure);
                    up.complete(self.request);
                    if matches!(failure, Failure::UpstreamClosed { .. }) {
                        up.lost_race(turn::now());
                    }
                    if raced || !source.can_rewind() || !self.lost_race(&failure, &up) {
                        return Err(failure);
                    }
                    raced = true;
                }
            }
        }
    }

    /// Whether the host closed or refused the request before looking at it, as far as that can be told.
    fn lost_race(&self, failure: &Failure, up: &Upstream) -> bool {
        match failure {
            Failure::UpstreamRefused => true,
            Failure::UpstreamClosed { .. } => {
                up.is_reused() && (is_idempotent(self.request.head.method()) || up.is_unread())
            }
            _ => false,
        }
    }

    fn name_itself(&mut self, local: Option<SocketAddr>) {
        if let Some(local) = local.filter(|_| self.call.wanted.names_itself && !self.named) {
            self.named = true;
            let address = local.ip().to_string();
            self.request.head.headers.append_to_list(HeaderId::ForwardedFor, address.as_bytes());
        }
    }

    async fn exchange_heads(
        &mut self,
        up: &mut Upstream,
        source: &mut impl Source,
        upload: &mut Upload,
    ) -> Result<ResponseInfo, Failure> {
        if let Upstream::Filtered(filtered) = up {
            Box::pin(self.filter_try(filtered, source, upload)).await?;
        }
        up.send_head(self.request)?;
        let mut interim = 0;
        poll_fn(|cx| {
            upload.poll(up, self.request, source, cx);
            loop {
                match ready!(up.poll_head(self.request, cx))? {
                    Arrived::Final(_) if self.request.response.status == 101 => {
                        return Poll::Ready(Err(Failure::UpstreamProtocol));
                    }
                    Arrived::Final(info) => return Poll::Ready(Ok(info)),
                    Arrived::Interim if interim >= MAX_INTERIM => return Poll::Ready(Err(Failure::UpstreamProtocol)),
                    Arrived::Interim => interim += 1,
                }
            }
        })
        .await
    }

    /// Calls the cluster's filters with the request, which has neither a client nor a route.
    async fn filter_try(
        &mut self,
        side: &mut Filtered,
        source: &mut impl Source,
        upload: &mut Upload,
    ) -> Result<(), Failure> {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let nobody = Arc::new(ConnectionInfo::new(0, turn::now().into_std(), nowhere, nowhere));
        let from = (&nobody.view, &*nobody, nowhere.ip());
        let route = RouteContext::default();
        side.serve_with(Rc::clone(&self.call.services), Arc::clone(&nobody));
        loop {
            let body = match &upload.collected {
                _ if self.request.info.framing.is_empty() => Body::Empty,
                Some(collected) => Body::Whole(&collected.body),
                None => Body::Coming,
            };
            let now = turn::now().into_std();
            let (head, facts) = (&mut self.request.head, &mut self.request.stream);
            let mut context = RequestContext::new(from, (head, body), route, facts, (&*self.call.services, now));
            match side.ask(&route.filters, &mut context) {
                Decision::Continue | Decision::Reroute => return Ok(()),
                Decision::Reply(reply) => return Err(Failure::Filter(Box::new(reply))),
                Decision::Pause(pause) => side.wake(until_woken(pause).await),
                // Filters that may stand here do not ask for that.
                Decision::CollectStart { .. } => return Err(Failure::BodyTooLarge),
                Decision::Collect { .. } if upload.collected.is_some() => return Err(Failure::BodyTooLarge),
                Decision::Collect { max_bytes } => {
                    let collected = collect(source, max_bytes).await?;
                    self.request.info.framing = Framing::Length(collected.body.len() as u64);
                    upload.collected = Some(collected);
                }
            }
        }
    }

    /// Reads the response, and sends what is left of the request.
    async fn respond(
        &mut self,
        answered: Answered,
        source: &mut impl Source,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        let Answered { mut up, info, guard, mut upload } = answered;
        let cluster = &*self.call.cluster;
        let request = &mut *self.request;
        // The outcome of a gRPC call is known only from its trailers.
        let answers_later = request.grpc && request.response.status == 200 && !info.framing.is_empty();
        count_response(request, cluster, (!answers_later).then_some(up.host()));
        request.response.headers.remove_hop_by_hop();
        self.answered = true;
        sink.head(&request.response);
        let result = poll_fn(|cx| {
            upload.poll(&mut up, request, source, cx);
            poll_answer(&mut up, request, sink, cx)
        })
        .await;
        if !request.load_reported && !request.response_trailers.is_empty() {
            cluster.heed_load_report(up.host(), &request.response_trailers);
        }
        if answers_later {
            let status = if result.is_ok() { grpc::status(request).unwrap_or_default() } else { status::UNKNOWN };
            up.host().count_response(http_of_status(status));
        }
        drop(guard);
        up.complete(request);
        let now = turn::now();
        let millis = now.duration_since(request.started()).as_millis() as u64;
        cluster.stats().record(Histogram::upstream_rq_time, millis);
        match &result {
            Ok(()) => up.release(cluster, upload.finished, now),
            Err(Broken::Failed(failure)) => count_reset(cluster, &up, failure),
            Err(Broken::TooLarge) => {}
        }
        result
    }

    /// Reports how a try ended to outlier detection.
    fn report(&mut self, attempt: Result<&Answered, &Failure>) {
        let Some(host) = &self.request.host else { return };
        let cluster = &self.call.cluster;
        let headers = &self.request.response.headers;
        let outcome = match attempt {
            Ok(_) => {
                headers.get(HeaderId::KeepAlive).into_iter().for_each(|value| host.keep_alive().announced(value));
                cluster.heed_health_header(host, headers);
                self.request.load_reported = cluster.heed_load_report(host, headers);
                Some(retry::outcome_of_response(&self.request.response))
            }
            Err(failure) => failure.row().outcome,
        };
        outcome.into_iter().for_each(|outcome| cluster.report(host, outcome));
    }

    fn wants_another(&self, policy: &RetryPolicy, attempt: &Result<Answered, Failure>, source: &impl Source) -> bool {
        let covered = match attempt {
            Ok(_) => retry::covers_response(policy, &self.request.response),
            Err(failure) => retry::covers_failure(&policy.on, failure),
        };
        if !covered || !source.can_rewind() {
            return false;
        }
        let left = self.request.stream.attempts <= policy.num_retries;
        if !left {
            self.call.cluster.stats().inc(Counter::upstream_rq_retry_limit_exceeded);
        }
        left
    }

    /// How long to wait before the next try. `answered`: there is a response, which may ask for a pause.
    fn back_off(&self, policy: &RetryPolicy, answered: bool) -> Duration {
        let response = answered.then_some(&self.request.response);
        let random = self.call.services.random();
        let (pause, kind) = retry::back_off(policy, response, self.request.stream.attempts, unix_seconds(), random);
        self.call.cluster.stats().inc(match kind {
            BackOff::Exponential => Counter::upstream_rq_retry_backoff_exponential,
            BackOff::RateLimited => Counter::upstream_rq_retry_backoff_ratelimited,
        });
        pause
    }
}

impl Upload {
    /// Sends as much of the request as possible without waiting.
    fn poll(&mut self, up: &mut Upstream, request: &Request, source: &mut impl Source, cx: &mut Context<'_>) {
        while !(self.finished || self.refused) {
            let step = match self.ended {
                true => up.poll_flush_end(cx).map_ok(|()| self.finished = true),
                false => self.poll_piece(up, request, source, cx),
            };
            match step {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => self.refused = true,
                Poll::Pending => return,
            }
        }
    }

    fn poll_piece(
        &mut self,
        up: &mut Upstream,
        request: &Request,
        source: &mut impl Source,
        cx: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        ready!(up.poll_room(cx))?;
        if let Some(Collected { body, given, trailers }) = &mut self.collected {
            let rest = body.get(*given..).unwrap_or_default();
            let block = rest.get(..BLOCK_BYTES).unwrap_or(rest);
            if block.is_empty() {
                up.finish(request, trailers);
                self.ended = true;
            } else {
                up.send(block, false);
                *given += block.len();
            }
            return Poll::Ready(Ok(()));
        }
        match source.poll_piece(&mut |data| up.send(data, false), cx) {
            Poll::Ready(Sent::Piece) => Poll::Ready(Ok(())),
            Poll::Ready(Sent::End(trailers)) => {
                up.finish(request, &trailers);
                self.ended = true;
                Poll::Ready(Ok(()))
            }
            // Everything available is sent before this waits for more.
            Poll::Pending => match up.poll_flush(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

fn poll_answer(
    up: &mut Upstream,
    request: &mut Request,
    sink: &mut impl Sink,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Broken>> {
    loop {
        ready!(sink.poll_room(cx));
        let mut fits = Ok(());
        let piece = up.piece(&mut request.response_trailers, &mut |data, _| fits = sink.data(data), cx)?;
        if let Err(TooLarge) = fits {
            return Poll::Ready(Err(Broken::TooLarge));
        }
        match piece {
            Piece::Data => {}
            Piece::End => {
                up.filter_response_end(request);
                sink.end(&request.response_trailers);
                return Poll::Ready(Ok(()));
            }
            Piece::Nothing => ready!(up.poll_receive(cx))?,
        }
    }
}
