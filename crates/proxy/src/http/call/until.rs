//! The time limits of a call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};

use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::turn;
use tokio::time::Instant;

use crate::http::failure::Failure;
use crate::http::timers::Timers;

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
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Sets the deadline, unless there is an earlier one.
    pub(crate) fn bound(&self, at: Instant) {
        if self.at.get().is_none_or(|known| at < known) {
            self.set(Some(at));
        }
    }

    /// The deadline so far. The task is woken when it is set anew.
    fn watch(&self, cx: &Context<'_>) -> Option<Instant> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.at.get()
    }
}

/// What a call waits with: its deadline, and the timer for the next of all its limits.
pub(super) struct Limit<'c> {
    until: &'c Until,
    deadline: Deadline,
}

impl<'c> Limit<'c> {
    pub(super) fn new(until: &'c Until) -> Self {
        Self { until, deadline: Deadline::default() }
    }

    /// Ready when a limit has passed.
    pub(super) fn poll(&mut self, timers: &mut Timers, cx: &mut Context<'_>) -> Poll<Failure> {
        timers.route = self.until.watch(cx);
        let now = turn::now();
        ready!(self.deadline.poll(timers.next(now), cx));
        Poll::Ready(timers.passed(now, true))
    }

    /// Waits, unless a limit passes before.
    pub(super) async fn unless_over<T>(
        &mut self,
        timers: &mut Timers,
        awaited: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut awaited = pin!(awaited);
        poll_fn(|cx| match awaited.as_mut().poll(cx) {
            Poll::Ready(come) => Poll::Ready(Ok(come)),
            Poll::Pending => self.poll(timers, cx).map(Err),
        })
        .await
    }
}
