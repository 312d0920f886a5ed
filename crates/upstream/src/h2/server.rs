//! The server role of a connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http::RequestHead;
use evenkeel_http::h2::{Fault, RequestMeta, Violation};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_stats::Writer;

use super::driver::{Driver, Limits};
use super::memory;
use super::reset::Reset;
use super::stats::Stats;
use super::stream::Stream;
use crate::conn::Buffer;
use crate::stream::Stream as Socket;

/// A downstream connection. It and all of its streams make progress only while [`Server::poll_accept`] is polled.
pub struct Server {
    driver: Driver,
    over: bool,
}

/// An event on a downstream connection.
#[derive(Debug)]
pub enum Accepted {
    /// A request.
    Request(Incoming),
    /// A request that was reset before it was accepted.
    Cut(RequestHead, Cut),
    /// A malformed head, which was answered already.
    Refused(Fault),
}

/// The end of a request that was reset before it was accepted.
#[derive(Debug)]
pub struct Cut {
    /// How it was reset.
    pub reset: Reset,
    /// Body bytes received until then.
    pub received: usize,
}

/// A request and its stream.
#[derive(Debug)]
pub struct Incoming {
    /// The stream, on which to respond.
    pub stream: Stream,
    /// The request head.
    pub head: RequestHead,
    /// Properties of the request that the frames carry besides the head.
    pub meta: RequestMeta,
}

impl Server {
    /// Starts a connection whose first bytes may have been read already.
    pub fn new(
        socket: Socket,
        input: Buffer,
        options: &Http2Options,
        limits: Limits,
        stats: Rc<Writer<Stats>>,
    ) -> Self {
        Self { driver: Driver::new(true, (socket, input), options, limits, stats), over: false }
    }

    /// The next event; `None` when the connection has ended. Cancel safe.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Accepted>> {
        if let Some(accepted) = self.next() {
            return Poll::Ready(Some(accepted));
        }
        if !self.over && self.driver.poll_turn(cx).is_ready() {
            self.over = true;
        }
        match self.next() {
            Some(accepted) => Poll::Ready(Some(accepted)),
            None if self.over => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Whether the connection ended because its client reset streams right after opening them.
    pub fn reset_too_many(&self) -> bool {
        self.driver.violation == Some(Violation::PrematureResets)
    }

    /// Whether the connection ended because its client violated the protocol.
    pub fn was_broken(&self) -> bool {
        self.driver.was_broken()
    }

    /// Whether the connection ended because a request's head did not arrive in time.
    pub fn head_was_late(&self) -> bool {
        self.driver.head_was_late
    }

    /// Asks the client to open no more streams. Existing ones continue, then the connection ends.
    pub fn drain(&mut self) {
        self.driver.drain();
    }

    fn next(&mut self) -> Option<Accepted> {
        loop {
            let mut core = self.driver.shared.0.borrow_mut();
            if let Some(fault) = core.streams.refused.pop_front() {
                return Some(Accepted::Refused(fault));
            }
            let (index, head, meta) = core.streams.requests.pop_front()?;
            let cut = core.streams.entries.get(index).map(|entry| (entry.reset, entry.received.len()));
            match cut {
                Some((None, _)) => {}
                Some((Some(reset), received)) => {
                    core.forget(index);
                    return Some(Accepted::Cut(head, Cut { reset, received }));
                }
                None => {
                    memory::give_request(head);
                    continue;
                }
            }
            let stream = Stream::new(Rc::clone(&self.driver.shared), index);
            return Some(Accepted::Request(Incoming { stream, head, meta }));
        }
    }
}
