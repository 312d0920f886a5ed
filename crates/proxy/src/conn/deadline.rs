//! One timer per connection, moved lazily.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that is moved far more often than it passes. The timer wheel is only touched when the timer fires too early
/// or stands too late, which for a busy connection is once per timeout and not once per request.
#[derive(Default)]
pub(crate) struct Deadline {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Ready once `at` has passed; never for `None`.
    pub(crate) fn poll(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = at else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    }
}

/// The earlier of two deadlines.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// `now + after`, and never for a duration too long to add.
pub(crate) fn after(now: Instant, after: Option<Duration>) -> Option<Instant> {
    after.and_then(|duration| now.checked_add(duration))
}
