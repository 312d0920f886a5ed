//! The server's end of a connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http::RequestHead;
use evenkeel_http::h2::{RequestMeta, Violation};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_stats::Writer;

use super::driver::{Driver, Limits};
use super::memory;
use super::stats::Stats;
use super::stream::Stream;
use crate::conn::Buffer;
use crate::stream::Stream as Socket;

/// A client's connection. Nothing moves on it, and on none of its streams, but while [`Server::poll_accept`] is polled.
pub(crate) struct Server {
    driver: Driver,
    over: bool,
}

/// A request and the stream it came on.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) stream: Stream,
    pub(crate) head: RequestHead,
    pub(crate) meta: RequestMeta,
}

impl Server {
    /// A connection whose first bytes may have been read already.
    pub(crate) fn new(
        socket: Socket,
        input: Buffer,
        options: &Http2Options,
        limits: Limits,
        stats: Rc<Writer<Stats>>,
    ) -> Self {
        Self { driver: Driver::new(true, (socket, input), options, limits, stats), over: false }
    }

    /// The next request; `None` when the connection has ended. Cancel safe.
    pub(crate) fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        if let Some(incoming) = self.next_request() {
            return Poll::Ready(Some(incoming));
        }
        if !self.over && self.driver.poll_turn(cx).is_ready() {
            self.over = true;
        }
        match self.next_request() {
            Some(incoming) => Poll::Ready(Some(incoming)),
            None if self.over => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Whether the connection has ended because its client reset streams as soon as it had opened them.
    pub(crate) fn reset_too_many(&self) -> bool {
        self.driver.violation == Some(Violation::PrematureResets)
    }

    /// Asks the client to open no more streams. Those there are go on, then the connection ends.
    pub(crate) fn drain(&mut self) {
        self.driver.drain();
    }

    fn next_request(&mut self) -> Option<Incoming> {
        loop {
            let mut core = self.driver.shared.0.borrow_mut();
            let (index, head, meta) = core.streams.requests.pop_front()?;
            // Reset before anybody looked at it: nobody needs to.
            if core.streams.entries.get(index).is_none_or(|entry| entry.reset.is_some()) {
                memory::give_request(head);
                core.forget(index);
                continue;
            }
            let stream = Stream::new(Rc::clone(&self.driver.shared), index);
            return Some(Incoming { stream, head, meta });
        }
    }
}
