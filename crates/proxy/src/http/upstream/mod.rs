//! The upstream's side of one request: what the request's life needs of it and no more. The counterpart of
//! [`super::downstream`].

pub(super) mod http1;

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http::{Headers, RequestHead, ResponseHead, ResponseInfo};
use tokio::time::Instant;

use super::failure::Failure;
use super::framed::Piece;
use super::request::Request;
use crate::upstream::{Cluster, Host};
use http1::Http1;

/// One try's exchange with an upstream.
pub(super) enum Upstream {
    /// An HTTP/1 connection of its own.
    Http1(Http1),
}

/// A response head that arrived.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arrived {
    /// 1xx: another one follows.
    Interim,
    /// The response's own head.
    Final(ResponseInfo),
}

impl Upstream {
    /// The connection served a request before: the peer may have been about to close it.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Http1(side) => side.is_reused(),
        }
    }

    /// Whom it leads to.
    pub(super) fn host(&self) -> &Rc<Host> {
        match self {
            Self::Http1(side) => side.host(),
        }
    }

    /// This end's address.
    pub(super) fn local_addr(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Http1(side) => side.local_addr(),
        }
    }

    /// Sends the head.
    pub(super) fn send_head(&mut self, request: &Request) {
        match self {
            Self::Http1(side) => side.send_head(request),
        }
    }

    /// Ready when [`Upstream::send`] takes at least a byte.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(side) => side.poll_room(cx),
        }
    }

    /// Sends a piece of the body; how much of it was taken.
    pub(super) fn send(&mut self, data: &[u8]) -> usize {
        match self {
            Self::Http1(side) => side.send(data),
        }
    }

    /// Ends the request.
    pub(super) fn finish(&mut self, trailers: &Headers) {
        match self {
            Self::Http1(side) => side.finish(trailers),
        }
    }

    /// Ready when all that was handed over has left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(side) => side.poll_flush(cx),
        }
    }

    /// Receives a response head.
    pub(super) fn poll_head(
        &mut self,
        request: &RequestHead,
        response: &mut ResponseHead,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arrived, Failure>> {
        match self {
            Self::Http1(side) => side.poll_head(request, response, cx),
        }
    }

    /// Both directions are open for anything from here on, and end on their own.
    pub(super) fn open_tunnel(&mut self) {
        match self {
            Self::Http1(side) => side.open_tunnel(),
        }
    }

    /// The next piece of the response's body that is there.
    pub(super) fn piece(&mut self, trailers: &mut Headers) -> Result<Piece, Failure> {
        match self {
            Self::Http1(side) => side.piece(trailers),
        }
    }

    /// The payload of [`Piece::Data`].
    pub(super) fn data(&self) -> &[u8] {
        match self {
            Self::Http1(side) => side.data(),
        }
    }

    /// Marks payload as used.
    pub(super) fn consume(&mut self, count: usize) {
        match self {
            Self::Http1(side) => side.consume(count),
        }
    }

    /// Receives more of the body.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Http1(side) => side.poll_receive(cx),
        }
    }

    /// The exchange is complete. `whole`: the request was sent to its end, so that nothing of it is left on the connection.
    pub(super) fn release(self, cluster: &Cluster, whole: bool, now: Instant) {
        match self {
            Self::Http1(side) => side.release(cluster, whole, now),
        }
    }
}
