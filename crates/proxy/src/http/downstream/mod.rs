//! The client's side of one request, for any protocol: only what the phases need of it.
//!
//! Only methods named `poll_…` wait. The caller bounds what it hands over for sending: it asks [`Downstream::poll_room`] first.

mod half_close;
pub(super) mod http1;
pub(super) mod http2;
pub(super) mod lent;

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::{Framing, Headers, ResponseHead};

pub(super) use http1::Http1;
pub(super) use http2::Http2;
pub(super) use lent::Lent;

use super::failure::Failure;
use super::framed::{Piece, Take};

/// The source of a request and the receiver of its response.
pub(super) enum Downstream<'d> {
    /// An HTTP/1 connection and its current request.
    Http1(&'d mut Http1),
    /// A stream of an HTTP/2 connection.
    Http2(Http2),
    /// A stream of an HTTP/2 connection that another worker holds.
    Lent(Lent),
}

/// How a response head is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    /// The framing of the body, as its origin chose it.
    pub(super) framing: Framing,
    /// No body follows, whatever the head says: the request was HEAD, or the status allows none.
    pub(super) bodiless: bool,
    /// The connection carries no other request after this one.
    pub(super) close: bool,
    /// The protocol the connection or stream becomes (`websocket`); empty after CONNECT.
    pub(super) tunnel: Option<&'a [u8]>,
    /// The request was made in HTTP/1.0.
    pub(super) http_10: bool,
}

impl Downstream<'_> {
    /// Gives the next available piece of the request body to `take`.
    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        match self {
            Self::Http1(side) => side.piece(trailers, take),
            Self::Http2(side) => side.piece(trailers, take, cx),
            Self::Lent(side) => side.piece(trailers, take, cx),
        }
    }

    /// Receives more of the body.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Http1(side) => side.poll_receive(cx),
            // `Downstream::piece` has registered the task: it is woken when there is a piece.
            Self::Http2(_) | Self::Lent(_) => Poll::Pending,
        }
    }

    /// Watches for a client that goes away while nothing is expected of it.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        match self {
            Self::Http1(side) => side.poll_gone(cx),
            Self::Http2(side) => side.poll_gone(cx),
            Self::Lent(side) => side.poll_gone(cx),
        }
    }

    /// Returns why the client accepts nothing any more.
    pub(super) fn why_gone(&mut self, cx: &mut Context<'_>) -> Failure {
        match self.poll_gone(cx) {
            Poll::Ready(failure) => failure,
            Poll::Pending => Failure::ClientGone,
        }
    }

    /// The whole request was received.
    pub(super) fn received_all(&self) -> bool {
        match self {
            Self::Http1(side) => side.received_all(),
            Self::Http2(side) => side.received_all(),
            Self::Lent(side) => side.received_all(),
        }
    }

    /// Sends a 1xx response.
    pub(super) fn send_interim(&mut self, head: &ResponseHead) {
        match self {
            Self::Http1(side) => side.send_interim(head),
            Self::Http2(side) => side.send_interim(head),
            Self::Lent(side) => side.send_interim(head),
        }
    }

    /// Sends a response head. A [`Answer::tunnel`] opens both directions for arbitrary bytes.
    pub(super) fn send_head(&mut self, head: &mut ResponseHead, answer: Answer<'_>) {
        match self {
            Self::Http1(side) => side.send_head(head, answer),
            Self::Http2(side) => side.send_head(head, answer),
            Self::Lent(side) => side.send_head(head, answer),
        }
    }

    /// Resets the stream, in place of a response, so that the client may send the request again. False if the protocol has no such reset.
    pub(super) fn refuse(&mut self) -> bool {
        match self {
            Self::Http1(_) => return false,
            Self::Http2(side) => side.refuse(),
            Self::Lent(side) => side.refuse(),
        }
        true
    }

    /// Ready when [`Downstream::send`] accepts at least a byte. This bounds what is buffered for a slow client.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(side) => side.poll_room(cx),
            Self::Http2(side) => side.poll_room(cx),
            Self::Lent(side) => side.poll_room(cx),
        }
    }

    /// Sends a piece of the body. `last`: nothing follows it.
    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        match self {
            Self::Http1(side) => side.send(data),
            Self::Http2(side) => side.send(data, last),
            Self::Lent(side) => side.send(data, last),
        }
    }

    /// Ends the response.
    pub(super) fn finish(&mut self, trailers: &Headers) {
        match self {
            Self::Http1(side) => side.finish(trailers),
            Self::Http2(side) => side.finish(trailers),
            Self::Lent(side) => side.finish(trailers),
        }
    }

    /// Ready when all that was handed over was sent.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(side) => side.poll_flush(cx),
            Self::Http2(side) => side.poll_flush(cx),
            Self::Lent(side) => side.poll_flush(cx),
        }
    }

    /// As [`Downstream::poll_flush`], for the end of the response, which may be sent a moment later together with others.
    pub(super) fn poll_flush_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(side) => side.poll_flush_end(cx),
            Self::Http2(side) => side.poll_flush(cx),
            Self::Lent(side) => side.poll_flush(cx),
        }
    }

    /// A number that changes whenever the client takes some of the bytes that wait for it; `None` if none wait.
    pub(super) fn backlog(&self) -> Option<u64> {
        match self {
            Self::Http1(side) => side.backlog(),
            Self::Http2(side) => backlog(side.unsent()),
            Self::Lent(side) => backlog(side.unsent()),
        }
    }

    /// The client took too long to read: nothing more is sent to it.
    pub(super) fn give_up(&mut self) {
        match self {
            // The connection ends with the response.
            Self::Http1(_) => {}
            Self::Http2(side) => side.give_up(),
            // The worker that holds the stream sees that bytes were left in the pipe.
            Self::Lent(_) => {}
        }
    }

    /// Whether everything that was handed over has been sent.
    pub(super) fn is_flushed(&self) -> bool {
        match self {
            Self::Http1(side) => side.is_flushed(),
            // The task that owns the connection flushes it.
            Self::Http2(_) | Self::Lent(_) => true,
        }
    }

    /// The connection must close after this response, however the exchange went: the client or a limit says so.
    pub(super) fn must_close(&self, max_requests: Option<u32>) -> bool {
        match self {
            Self::Http1(side) => side.must_close(max_requests),
            Self::Http2(_) | Self::Lent(_) => false,
        }
    }

    /// Ends the request. True when its connection may carry another.
    pub(super) fn end(&mut self, close: bool) -> bool {
        match self {
            Self::Http1(side) => side.end(close),
            Self::Http2(_) | Self::Lent(_) => true,
        }
    }
}

fn backlog(unsent: usize) -> Option<u64> {
    (unsent > 0).then_some(unsent as u64)
}
