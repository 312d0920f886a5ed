//! A request to a server: picks a host, connects, exchanges heads; repeats that until there is a response or no try is left. Whoever makes
//! the request ([`ClientSide`]), its tries are made, limited, counted and repeated here.

use std::rc::Rc;
use std::time::Duration;

use evenkeel_filters::ResponseFlags;
use evenkeel_http::{HeaderId, ResponseInfo};
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_runtime_config::route::Priority;
use evenkeel_upstream::cluster_stats::Counter;
use evenkeel_upstream::{Cluster, Host, Outcome, Permit, RequestGuard, turn};

use super::client_side::ClientSide;
use super::failure::{Failure, Retry};
use super::retry::{self, BackOff, is_idempotent};
use super::timers::Timers;
use super::upstream::Upstream;
use super::upstream::count::{count_failed_try, count_reset};
use crate::clock::unix_seconds;

/// A request to a server.
pub(super) struct Exchange<'e> {
    pub(super) cluster: &'e Rc<Cluster>,
    tries: Tries<'e>,
    pub(super) priority: Priority,
    pub(super) timers: Timers,
    /// The hosts of the tries so far, if there may be others.
    tried: Vec<Rc<Host>>,
    /// A retry counts against `max_retries` until its try ends.
    retrying: Option<Permit>,
}

/// What a try is, and which ones follow it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tries<'e> {
    /// A request, which is retried as the policy says.
    Requests(Option<&'e RetryPolicy>),
    /// An attempt to connect, one of this many at most. The next follows at once, and is not counted as a retry.
    Connects(u32),
}

impl<'e> Tries<'e> {
    fn policy(self) -> Option<&'e RetryPolicy> {
        match self {
            Self::Requests(policy) => policy,
            Self::Connects(_) => None,
        }
    }

    /// Whether another try may follow one that failed in this way, if it is not the last.
    fn cover_failure(self, failure: &Failure) -> bool {
        match self {
            Self::Requests(policy) => policy.is_some_and(|policy| retry::covers_failure(&policy.on, failure)),
            Self::Connects(_) => failure.row().retry != Retry::Never,
        }
    }

    /// Whether that many tries are as many as there may be.
    fn end_with(self, attempts: u32) -> bool {
        match self {
            Self::Requests(policy) => policy.is_none_or(|policy| attempts > policy.num_retries),
            Self::Connects(most) => attempts >= most,
        }
    }

    /// What a failure tells outlier detection of its host.
    fn outcome(self, failure: &Failure) -> Option<Outcome> {
        match (self, failure) {
            (Self::Requests(_), failure) => failure.row().outcome,
            (Self::Connects(_), Failure::ConnectTimeout) => Some(Outcome::TimedOut),
            (Self::Connects(_), failure) => self.cover_failure(failure).then_some(Outcome::ConnectFailed),
        }
    }
}

/// A response head, and the stream it came on.
pub(super) struct Answered {
    pub(super) up: Upstream,
    pub(super) info: ResponseInfo,
    pub(super) guard: RequestGuard,
}

/// The retry policy's verdict about a try.
#[derive(Clone, Copy)]
enum Verdict {
    Final,
    Exhausted,
    /// The policy allows another try, but the request body can no longer be repeated.
    Unrepeatable,
    Again,
}

impl<'e> Exchange<'e> {
    pub(super) fn new(cluster: &'e Rc<Cluster>, tries: Tries<'e>, priority: Priority, timers: Timers) -> Self {
        Self { cluster, tries, priority, timers, tried: Vec::new(), retrying: None }
    }

    /// Tries until there is a response or no try is left.
    pub(super) async fn response(&mut self, side: &mut impl ClientSide) -> Result<Answered, Failure> {
        loop {
            side.request_mut().stream.attempts += 1;
            let policy = self.tries.policy();
            if let Some(policy) = policy {
                self.timers.begin_try(turn::now(), policy.per_try_timeout, policy.per_try_idle_timeout);
            }
            let attempt = self.attempt(side).await;
            self.report(side, &attempt);
            if let Err(failure) = &attempt {
                side.failed(failure);
                count_failed_try(self.cluster, side.request().host.as_ref(), failure, self.tries.outcome(failure));
            }
            if let Some(host) = side.request().host.as_ref().filter(|_| policy.is_some()) {
                self.tried.push(Rc::clone(host));
            }
            let verdict = self.verdict(side, &attempt);
            match (verdict, self.tries) {
                (Verdict::Again, Tries::Connects(_)) => continue,
                (Verdict::Again, Tries::Requests(Some(policy))) if self.may_retry(side, attempt.is_err()) => {
                    self.await_retry(side, policy, attempt).await?;
                }
                _ => {
                    self.end(side, verdict, attempt.is_ok());
                    return attempt;
                }
            }
        }
    }

    /// One try: host, connection, request up, response head down.
    async fn attempt(&mut self, side: &mut impl ClientSide) -> Result<Answered, Failure> {
        match side.request().stream.attempts {
            1 if matches!(self.tries, Tries::Requests(_)) => self.cluster.drop_share()?,
            1 => {}
            _ => side.request_mut().stream.times.begin_try(),
        }
        // A request that was lost because its connection just ended is sent once more, whatever the retry policy.
        let mut raced = false;
        loop {
            let host = side.pick(&self.tried)?;
            side.request_mut().set_host(&host);
            side.picked(raced);
            let guard = self.cluster.begin_request(&host, self.priority).map_err(Failure::Overflow)?;
            let connections = side.connections_of(&host);
            let ready = if raced { None } else { side.ready_connection(&connections) };
            let connection = match ready {
                Some(connection) => connection,
                // Boxed: few requests wait for a connection, and the others should not reserve memory for it.
                None => Box::pin(side.connect(&connections, raced, &mut self.timers)).await?,
            };
            let mut up = side.upstream(connection);
            if let Tries::Requests(_) = self.tries {
                self.cluster.report_connected(&host);
            }
            side.connected(&host, &up);
            let failure = match side.exchange_heads(&mut up, &mut self.timers).await {
                Ok(info) => return Ok(Answered { up, info, guard }),
                Err(failure) => failure,
            };
            count_reset(self.cluster, &up, &failure);
            up.complete(side.request());
            if matches!(failure, Failure::UpstreamClosed { .. }) {
                up.lost_race(turn::now());
            }
            if raced || !side.can_replay() || !self.lost_race(side, &failure, &up) {
                return Err(failure);
            }
            raced = true;
        }
    }

    /// Whether the upstream closed or refused the request before looking at it, as far as that can be told: it may close an idle connection
    /// just when that is used again.
    fn lost_race(&self, side: &impl ClientSide, failure: &Failure, up: &Upstream) -> bool {
        match failure {
            // If the policy covers it, the retry picks another host.
            Failure::UpstreamRefused => {
                !self.tries.cover_failure(failure) || self.tries.end_with(side.request().stream.attempts)
            }
            Failure::UpstreamClosed { .. } => {
                up.is_reused() && (is_idempotent(side.request().head.method()) || up.is_unread())
            }
            _ => false,
        }
    }

    /// Reports how a try ended to outlier detection.
    fn report(&self, side: &mut impl ClientSide, attempt: &Result<Answered, Failure>) {
        let request = side.request_mut();
        let Some(host) = &request.host else { return };
        let outcome = match (attempt, self.tries) {
            (Ok(_), Tries::Connects(_)) => Some(Outcome::ConnectedFinally),
            (Ok(_), Tries::Requests(_)) => {
                let headers = &request.response.headers;
                if let Some(value) = headers.get(HeaderId::KeepAlive) {
                    host.keep_alive().announced(value);
                }
                self.cluster.heed_health_header(host, headers);
                request.load_reported = self.cluster.heed_load_report(host, headers);
                Some(retry::outcome_of_response(&request.response))
            }
            (Err(failure), tries) => tries.outcome(failure),
        };
        if let Some(outcome) = outcome {
            self.cluster.report(host, outcome);
        }
    }

    /// Counts the end of the tries.
    fn end(&self, side: &mut impl ClientSide, verdict: Verdict, answered: bool) {
        let stream = &mut side.request_mut().stream;
        let counter = match verdict {
            Verdict::Exhausted => {
                stream.flags |= ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
                Counter::upstream_rq_retry_limit_exceeded
            }
            Verdict::Final if answered && stream.attempts > 1 => Counter::upstream_rq_retry_success,
            Verdict::Final | Verdict::Unrepeatable | Verdict::Again => return,
        };
        if let Tries::Requests(_) = self.tries {
            self.cluster.stats().inc(counter);
        }
    }

    /// Returns whether another try may follow, and whether one is left.
    fn verdict(&self, side: &impl ClientSide, attempt: &Result<Answered, Failure>) -> Verdict {
        let covered = match (attempt, self.tries.policy()) {
            (Ok(_), None) => false,
            (Ok(_), Some(policy)) => retry::covers_response(policy, &side.request().response),
            (Err(failure), _) => self.tries.cover_failure(failure),
        };
        if !covered {
            Verdict::Final
        } else if !side.can_replay() {
            Verdict::Unrepeatable
        } else if self.tries.end_with(side.request().stream.attempts) {
            Verdict::Exhausted
        } else {
            Verdict::Again
        }
    }

    /// Counts a retry, unless as many are in flight as may be. `failed`: the try before had no response.
    fn may_retry(&mut self, side: &mut impl ClientSide, failed: bool) -> bool {
        // The previous retry is over: it no longer counts.
        self.retrying = None;
        self.retrying = self.cluster.begin_retry(self.priority, failed).ok();
        if self.retrying.is_none() {
            side.request_mut().stream.flags |= ResponseFlags::UPSTREAM_OVERFLOW;
        }
        self.retrying.is_some()
    }

    /// Ends a try, and waits before the next.
    async fn await_retry(
        &mut self,
        side: &mut impl ClientSide,
        policy: &RetryPolicy,
        attempt: Result<Answered, Failure>,
    ) -> Result<(), Failure> {
        side.abandoned(attempt.as_ref().is_ok_and(|answered| !answered.info.framing.is_empty()));
        let pause = self.back_off(side, policy, attempt.is_ok());
        drop(attempt);
        self.timers.end_try();
        Box::pin(side.pause(pause, &mut self.timers)).await.inspect_err(|failure| {
            if let Some(counter) = failure.row().cluster_counter {
                self.cluster.stats().inc(counter);
            }
        })
    }

    /// How long to wait before the next try. `answered`: there is a response, which may ask for a pause.
    fn back_off(&self, side: &impl ClientSide, policy: &RetryPolicy, answered: bool) -> Duration {
        let request = side.request();
        let response = answered.then_some(&request.response);
        let attempts = request.stream.attempts;
        let (pause, kind) = retry::back_off(policy, response, attempts, unix_seconds(), side.random());
        self.cluster.stats().inc(match kind {
            BackOff::Exponential => Counter::upstream_rq_retry_backoff_exponential,
            BackOff::RateLimited => Counter::upstream_rq_retry_backoff_ratelimited,
        });
        pause
    }
}
