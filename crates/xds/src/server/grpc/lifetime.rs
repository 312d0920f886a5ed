//! The lifetime of a connection: a client with a certificate is served until the certificate expires, and one without
//! only for a short time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Sleep};

/// How long a client without a certificate is served before it is asked to reconnect; it only needs to get a
/// certificate.
const ANONYMOUS_TIME: Duration = Duration::from_secs(20);
/// Time after that for calls in progress.
const ANONYMOUS_GRACE: Duration = Duration::from_secs(10);
/// Maximum time before a certificate expires at which the client is asked to reconnect with the next one; a tenth of the
/// remaining validity at connect time, if that is less.
const MAX_NOTICE: Duration = Duration::from_secs(5 * 60);
/// How often the wall clock is checked, because it may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(30);

/// The stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The client is served.
    Serving,
    /// The client should reconnect.
    Draining,
    /// The connection is closed now.
    Closed,
}

/// The limit of a connection's lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LifetimeLimit {
    /// The validity of the client's certificate, by the wall clock.
    Certificate { leave: SystemTime, end: SystemTime },
    /// A fixed time for a client without a certificate.
    Anonymous { since: Instant },
}

impl LifetimeLimit {
    /// The stage, and the time until the next.
    fn stage(self, now: SystemTime, instant: Instant) -> (Stage, Duration) {
        let (to_leave, to_end) = match self {
            Self::Certificate { leave, end } => {
                (leave.duration_since(now).unwrap_or_default(), end.duration_since(now).unwrap_or_default())
            }
            Self::Anonymous { since } => {
                let left = |limit: Duration| limit.saturating_sub(instant.saturating_duration_since(since));
                (left(ANONYMOUS_TIME), left(ANONYMOUS_TIME + ANONYMOUS_GRACE))
            }
        };
        match (to_leave.is_zero(), to_end.is_zero()) {
            (_, true) => (Stage::Closed, Duration::MAX),
            (true, _) => (Stage::Draining, to_end),
            _ => (Stage::Serving, to_leave),
        }
    }
}

/// The lifetime of a connection.
#[derive(Debug)]
pub(super) struct ConnectionLifetime {
    limit: LifetimeLimit,
    stage: Stage,
    timer: Pin<Box<Sleep>>,
}

impl ConnectionLifetime {
    /// For a client without a certificate.
    pub(super) fn anonymous() -> Self {
        Self::new(LifetimeLimit::Anonymous { since: Instant::now() })
    }

    /// For a client whose certificate is valid until `end`.
    pub(super) fn of_certificate(end: SystemTime) -> Self {
        Self::new(certificate(end, SystemTime::now()))
    }

    fn new(limit: LifetimeLimit) -> Self {
        // The first poll sets the timer.
        Self { limit, stage: Stage::Serving, timer: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }

    /// Ready with the new stage when it changes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Stage> {
        while self.stage != Stage::Closed && self.timer.as_mut().poll(cx).is_ready() {
            let (stage, next) = self.limit.stage(SystemTime::now(), Instant::now());
            // Rounded up, so that the timer does not fire before the clock has reached the time.
            self.timer.as_mut().reset(Instant::now() + next.min(CLOCK_CHECK) + Duration::from_millis(1));
            // Stages never go back, even if the clock is set back.
            if stage > self.stage {
                self.stage = stage;
                return Poll::Ready(stage);
            }
        }
        Poll::Pending
    }
}

fn certificate(end: SystemTime, now: SystemTime) -> LifetimeLimit {
    let left = end.duration_since(now).unwrap_or_default();
    LifetimeLimit::Certificate { leave: end.checked_sub((left / 10).min(MAX_NOTICE)).unwrap_or(end), end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_ends_a_connection_and_a_notice_comes_before() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let check = |lifetime: u64, at: u64, expected: Stage, next: Duration| {
            let limit = certificate(begin + Duration::from_secs(lifetime), begin);
            let found = limit.stage(begin + Duration::from_secs(at), Instant::now());
            assert_eq!(found, (expected, next), "{at} s of {lifetime} s");
        };
        let seconds = Duration::from_secs;
        check(86_400, 0, Stage::Serving, seconds(86_100));
        check(86_400, 86_099, Stage::Serving, seconds(1));
        check(86_400, 86_100, Stage::Draining, seconds(300));
        check(86_400, 86_400, Stage::Closed, Duration::MAX);
        check(100, 89, Stage::Serving, seconds(1));
        check(100, 90, Stage::Draining, seconds(10));
        // A clock that jumps over both.
        check(100, 10_000, Stage::Closed, Duration::MAX);
        // A client that comes again with the old one is let be until its end, nearly.
        check(10, 8, Stage::Serving, seconds(1));
        // It ended before the connection was served.
        check(0, 0, Stage::Closed, Duration::MAX);
    }

    #[test]
    fn a_stranger_is_asked_to_leave_and_then_left() {
        let since = Instant::now();
        let check = |after: Duration, expected: Stage| {
            // Whatever the clock on the wall says.
            for now in [SystemTime::UNIX_EPOCH, SystemTime::now()] {
                assert_eq!(LifetimeLimit::Anonymous { since }.stage(now, since + after).0, expected, "{after:?}");
            }
        };
        let second = Duration::from_secs(1);
        check(Duration::ZERO, Stage::Serving);
        check(ANONYMOUS_TIME - second, Stage::Serving);
        check(ANONYMOUS_TIME, Stage::Draining);
        check(ANONYMOUS_TIME + ANONYMOUS_GRACE - second, Stage::Draining);
        check(ANONYMOUS_TIME + ANONYMOUS_GRACE, Stage::Closed);
    }
}
