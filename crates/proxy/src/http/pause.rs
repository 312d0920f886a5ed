//! Pauses of filters.

use std::pin::Pin;
use std::task::{Context, Poll};

use evenkeel_filters::{Pause, Wait, Woken};
use tokio::time::{Sleep, sleep};

/// Waits for what the filter waits for, at most as long as the pause may last.
pub(super) async fn until_woken(pause: Pause) -> Woken {
    let Some(wait) = pause.wait else {
        tokio::time::sleep(pause.limit).await;
        return Woken::TimedOut;
    };
    match tokio::time::timeout(pause.limit, wait).await {
        Ok(()) => Woken::Ready,
        Err(_) => Woken::TimedOut,
    }
}

/// The pause of a filter that holds back some of a response.
pub(super) struct Held {
    wait: Option<Wait>,
    limit: Pin<Box<Sleep>>,
    /// Whether more of the body is read meanwhile.
    pub(super) reads_on: bool,
}

impl Held {
    pub(super) fn new(pause: Pause) -> Self {
        Self { wait: pause.wait, limit: Box::pin(sleep(pause.limit)), reads_on: pause.reads_on }
    }

    /// Ready when the filter is to be called again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Woken> {
        let ready = self.wait.as_mut().is_some_and(|wait| wait.as_mut().poll(cx).is_ready());
        if ready { Poll::Ready(Woken::Ready) } else { self.limit.as_mut().poll(cx).map(|()| Woken::TimedOut) }
    }
}
