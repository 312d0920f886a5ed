//! The upstream's side of one request: what the request's life needs of it and no more. The counterpart of
//! [`super::downstream`].

pub(in crate::http) mod count;
pub(super) mod filtered;
pub(super) mod http1;
pub(super) mod http2;

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_filters::StreamInfo;
use evenkeel_http::{Headers, ResponseInfo};
use evenkeel_upstream::{Cluster, ConnectTimes, Connection, Host, PooledConnection};
use tokio::time::Instant;

use super::failure::Failure;
use super::framed::{Piece, Take};
use super::request::Request;
use filtered::Filtered;
use http1::Http1;
use http2::Http2;

/// Interim responses (1xx) an upstream may send before its answer: one that has much to do says so every few seconds.
pub(super) const MAX_INTERIM: u32 = 100;

/// One try's exchange with an upstream.
pub(super) enum Upstream {
    /// An HTTP/1 connection of its own. Boxed: it changes hands several times, and would have its place in each of the
    /// futures that it goes through.
    Http1(Box<Http1>),
    /// A stream of a connection that many share.
    Http2(Http2),
    /// Either of them, through the filters of the cluster.
    Filtered(Box<Filtered>),
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
    /// `cluster`: the host's; it says how hosts are spoken to.
    pub(super) fn new(connection: PooledConnection, cluster: &Cluster) -> Self {
        let codec = match connection {
            PooledConnection::Http1(connection) => Self::Http1(Box::new(Http1::new(connection, cluster))),
            PooledConnection::Http2(place) => Self::Http2(Http2::new(place)),
        };
        match cluster.http_filters() {
            None => codec,
            Some(filters) => Self::Filtered(Box::new(Filtered::new(codec, filters))),
        }
    }

    /// The exchange itself, behind the filters.
    pub(super) fn codec(&self) -> &Self {
        match self {
            Self::Filtered(filtered) => &filtered.inner,
            codec => codec,
        }
    }

    /// The stream of a shared connection, if it is one.
    pub(super) fn http2(&mut self) -> Option<&mut Http2> {
        match self {
            Self::Http2(side) => Some(side),
            Self::Filtered(filtered) => filtered.inner.http2(),
            Self::Http1(_) => None,
        }
    }

    /// Tells the cluster's filters that the try is over.
    pub(super) fn complete(&mut self, info: &mut StreamInfo) {
        if let Self::Filtered(filtered) = self {
            filtered.complete(info);
        }
    }

    /// A connection that carries a tunnel's bytes and no HTTP.
    pub(super) fn raw(connection: Connection) -> Self {
        Self::Http1(Box::new(Http1::raw(connection)))
    }

    /// The connection served a request before: the peer may have been about to close it.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Filtered(filtered) => filtered.inner.is_reused(),
            Self::Http1(side) => side.is_reused(),
            Self::Http2(side) => side.is_reused(),
        }
    }

    /// The upstream closed the connection before any byte of the request reached it, for certain.
    pub(super) fn is_unread(&self) -> bool {
        match self {
            Self::Filtered(filtered) => filtered.inner.is_unread(),
            Self::Http1(side) => side.is_unread(),
            // It refuses such streams by name.
            Self::Http2(_) => false,
        }
    }

    /// The upstream closed the connection just when it was used again.
    pub(super) fn lost_race(&self, now: Instant) {
        if let Self::Http1(side) = self.codec() {
            side.lost_race(now);
        }
    }

    /// Whom it leads to.
    pub(super) fn host(&self) -> &Rc<Host> {
        match self {
            Self::Filtered(filtered) => filtered.inner.host(),
            Self::Http1(side) => side.host(),
            Self::Http2(side) => side.host(),
        }
    }

    /// This end's address.
    pub(super) fn local_addr(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Filtered(filtered) => filtered.inner.local_addr(),
            Self::Http1(side) => side.local_addr(),
            Self::Http2(side) => side.local_addr(),
        }
    }

    /// When the connection was made, for whichever request.
    pub(super) fn connect_times(&self) -> &ConnectTimes {
        match self {
            Self::Http1(side) => side.connect_times(),
            Self::Http2(side) => side.connect_times(),
            Self::Filtered(filtered) => filtered.inner.connect_times(),
        }
    }

    /// Sends the head.
    pub(super) fn send_head(&mut self, request: &mut Request) -> Result<(), Failure> {
        match self {
            Self::Filtered(filtered) => filtered.inner.send_head(request),
            Self::Http1(side) => side.send_head(request),
            Self::Http2(side) => side.send_head(request),
        }
    }

    /// Ready when [`Upstream::send`] takes at least a byte.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Filtered(filtered) => filtered.inner.poll_room(cx),
            Self::Http1(side) => side.poll_room(cx),
            Self::Http2(side) => side.poll_room(cx),
        }
    }

    /// Sends a piece of the body. `last`: there is nothing behind it.
    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        match self {
            Self::Filtered(filtered) => filtered.send(data, last),
            Self::Http1(side) => side.send(data),
            Self::Http2(side) => side.send(data, last),
        }
    }

    /// Ends the request.
    pub(super) fn finish(&mut self, trailers: &Headers) {
        match self {
            Self::Filtered(filtered) => filtered.finish(trailers),
            Self::Http1(side) => side.finish(trailers),
            Self::Http2(side) => side.finish(trailers),
        }
    }

    /// Ready when all that was handed over has left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Filtered(filtered) => filtered.inner.poll_flush(cx),
            Self::Http1(side) => side.poll_flush(cx),
            Self::Http2(side) => side.poll_flush(cx),
        }
    }

    /// As [`Upstream::poll_flush`] for the end of the request, which may leave a moment later, with others: whoever waits is woken by the
    /// response, or if something is left to do.
    pub(super) fn poll_flush_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Filtered(filtered) => filtered.inner.poll_flush_end(cx),
            Self::Http1(side) => side.poll_flush_end(cx),
            Self::Http2(side) => side.poll_flush(cx),
        }
    }

    /// Receives a response head.
    pub(super) fn poll_head(&mut self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Arrived, Failure>> {
        match self {
            Self::Filtered(filtered) => filtered.poll_head(request, cx),
            Self::Http1(side) => side.poll_head(request, cx),
            Self::Http2(side) => side.poll_head(request, cx),
        }
    }

    /// Both directions are open for anything from here on, and end on their own.
    pub(super) fn open_tunnel(&mut self) {
        match self {
            Self::Filtered(filtered) => filtered.inner.open_tunnel(),
            Self::Http1(side) => side.open_tunnel(),
            // Its streams are open for anything as they are.
            Self::Http2(_) => {}
        }
    }

    /// Gives the next piece of the response's body that is there to `take`.
    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        match self {
            Self::Filtered(filtered) => filtered.piece(trailers, take, cx),
            Self::Http1(side) => side.piece(trailers, take),
            Self::Http2(side) => side.piece(trailers, take, cx),
        }
    }

    /// Receives more of the body.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Filtered(filtered) => filtered.poll_receive(cx),
            Self::Http1(side) => side.poll_receive(cx),
            // Whoever asked for a piece is woken when there is one.
            Self::Http2(_) => Poll::Pending,
        }
    }

    /// The exchange is complete. `whole`: the request was sent to its end, so that nothing of it is left on the connection.
    pub(super) fn release(self, cluster: &Cluster, whole: bool, now: Instant) {
        match self {
            Self::Filtered(filtered) => filtered.inner.release(cluster, whole, now),
            Self::Http1(side) => side.release(cluster, whole, now),
            // A stream that is over costs nothing, and one that is not is reset.
            Self::Http2(_) => {}
        }
    }
}
