//! The deadlines of an exchange.

use std::time::Duration;

use evenkeel_upstream::conn::deadline::{after, earlier};
use tokio::time::Instant;

use super::failure::Failure;

/// The deadlines of an exchange.
#[derive(Default)]
pub(super) struct Timers {
    /// The route's timeout, which runs from the end of the request.
    pub(super) route: Option<Instant>,
    /// `per_try_timeout`.
    pub(super) per_try: Option<Instant>,
    /// `max_stream_duration`.
    pub(super) longest: Option<Instant>,
    /// When the whole request must have arrived (`request_timeout`).
    pub(super) request: Option<Instant>,
    /// The stream idle timeout, if nothing moves before.
    idle: Option<Instant>,
    idle_limit: Option<Duration>,
    /// `per_try_idle_timeout`, if nothing moves before.
    try_idle: Option<Instant>,
    pub(super) try_idle_limit: Option<Duration>,
    route_limit: Option<Duration>,
    /// Since when the client has read none of the bytes buffered for it, and [`Downstream::backlog`] at that time.
    backlog: Option<(Instant, u64)>,
    /// How long these bytes may wait while the client reads none of them (`stream_flush_timeout`).
    pub(super) flush_limit: Option<Duration>,
    /// Whether something moved since `idle` was set.
    pub(super) moved: bool,
}

impl Timers {
    pub(super) fn new(idle: Option<Duration>, route: Option<Duration>, request: Option<Instant>) -> Self {
        Self { idle_limit: idle, route_limit: route, request, moved: true, ..Self::default() }
    }

    /// Watches the bytes buffered for the client: it may read slowly, but has to read some.
    pub(super) fn watch_backlog(&mut self, now: Instant, backlog: Option<u64>) {
        self.backlog = backlog.map(|backlog| match self.backlog {
            Some((since, same)) if same == backlog && !self.moved => (since, same),
            _ => (now, backlog),
        });
    }

    fn flush(&self) -> Option<Instant> {
        self.backlog.and_then(|(since, _)| after(since, self.flush_limit))
    }

    /// The whole request was received.
    pub(super) fn complete(&mut self, now: Instant) {
        self.request = None;
        self.route = self.route.or(after(now, self.route_limit));
    }

    /// Records progress: the idle timeouts begin again.
    pub(super) fn move_on(&mut self) {
        self.moved = true;
    }

    /// The earliest of the deadlines.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        if std::mem::take(&mut self.moved) {
            self.idle = after(now, self.idle_limit);
            self.try_idle = after(now, self.try_idle_limit);
        }
        let tries = earlier(self.per_try, self.try_idle);
        let moves = earlier(earlier(self.idle, self.request), self.flush());
        earlier(earlier(earlier(self.route, tries), moves), self.longest)
    }

    /// Sets the limits of a new try, which end with it.
    pub(super) fn begin_try(&mut self, now: Instant, limit: Option<Duration>, idle: Option<Duration>) {
        self.per_try = after(now, limit);
        self.try_idle_limit = idle;
        self.try_idle = None;
        self.moved = true;
    }

    /// Ends a try; the next one gets new limits.
    pub(super) fn end_try(&mut self) {
        (self.per_try, self.try_idle, self.try_idle_limit) = (None, None, None);
    }

    /// The response has begun: `per_try_timeout` no longer applies, but `per_try_idle_timeout` still does.
    pub(super) fn end_tries(&mut self) {
        self.per_try = None;
    }

    /// The failure for the deadline that has passed. `complete`: the whole request was received.
    pub(super) fn passed(&self, now: Instant, complete: bool) -> Failure {
        let past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if past(self.route) {
            Failure::ResponseTimeout
        } else if past(self.per_try) {
            Failure::PerTryTimeout
        } else if past(self.longest) {
            Failure::LastedTooLong { complete }
        } else if past(self.try_idle) {
            Failure::PerTryIdleTimeout
        } else if past(self.request) {
            Failure::RequestTimeout
        } else if past(self.flush()) {
            Failure::FlushTimeout
        } else {
            Failure::Idle { complete }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call: what happens at which second, and the deadline after it.
    #[test]
    fn a_client_may_be_slow_but_takes_something() {
        let began = Instant::now();
        let at = |second: u64| began + Duration::from_secs(second);
        let mut timers = Timers::new(None, None, None);
        timers.flush_limit = Some(Duration::from_secs(300));
        let mut check = |second, unsent, moved: bool, until: Option<u64>| {
            if moved {
                timers.move_on();
            }
            timers.watch_backlog(at(second), Some(unsent).filter(|unsent| *unsent > 0));
            assert_eq!(timers.next(at(second)), until.map(at), "at {second}");
        };
        check(0, 0, false, None);
        check(10, 5000, false, Some(310));
        check(200, 5000, false, Some(310));
        // The client read a byte.
        check(309, 4999, false, Some(609));
        // The client read everything, and as many bytes are buffered again.
        check(400, 4999, true, Some(700));
        check(600, 4999, false, Some(700));
        assert!(matches!(timers.passed(at(700), true), Failure::FlushTimeout));
        let mut check = |second, unsent, until: Option<u64>| {
            timers.watch_backlog(at(second), Some(unsent).filter(|unsent| *unsent > 0));
            assert_eq!(timers.next(at(second)), until.map(at), "at {second}");
        };
        check(699, 0, None);
    }
}
