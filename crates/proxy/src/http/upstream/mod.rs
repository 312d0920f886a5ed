//! The upstream side of one request: what the phases need of it and no more. The counterpart of [`super::downstream`].

pub(in crate::http) mod count;
pub(super) mod filtered;
pub(super) mod http1;
pub(super) mod http2;
pub(super) mod opened;

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http::{Headers, ResponseInfo, Version};
use evenkeel_upstream::{Cluster, ConnectTimes, Connection, Host, PooledConnection};
use tokio::time::Instant;

use super::failure::Failure;
use super::framed::{Piece, Take};
use super::request::Request;
use filtered::Filtered;
use http1::Http1;
use http2::Http2;
use opened::Opened;

/// Interim responses (1xx) an upstream may send before the final one: an upstream that takes long may send one every few seconds.
pub(super) const MAX_INTERIM: u32 = 100;

/// One try's exchange with an upstream.
pub(super) enum Upstream {
    /// An exclusive HTTP/1 connection. Boxed: it is moved several times, and would take space in each of the futures it
    /// passes through.
    Http1(Box<Http1>),
    /// A stream of a shared connection.
    Http2(Http2),
    /// Either of them, behind the filters of the cluster.
    Filtered(Box<Filtered>),
}

/// A response head that arrived.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arrived {
    /// 1xx: another one follows.
    Interim,
    /// The head of the final response.
    Final(ResponseInfo),
}

impl Upstream {
    /// `cluster`: the host's cluster, with its protocol options and filters.
    pub(super) fn new(connection: PooledConnection, cluster: &Cluster) -> Self {
        let codec = Self::unfiltered(connection, cluster);
        match cluster.http_filters() {
            None => codec,
            Some(filters) => Self::Filtered(Box::new(Filtered::new(codec, filters))),
        }
    }

    /// The same without the filters.
    pub(super) fn unfiltered(connection: PooledConnection, cluster: &Cluster) -> Self {
        match connection {
            PooledConnection::Http1(connection) => Self::Http1(Box::new(Http1::new(connection, cluster))),
            PooledConnection::Http2(place) => Self::Http2(Http2::new(place)),
        }
    }

    /// The exchange itself, without the filters.
    pub(super) fn codec(&self) -> &Self {
        match self {
            Self::Filtered(filtered) => &filtered.inner,
            codec => codec,
        }
    }

    /// What it speaks.
    pub(super) fn version(&self) -> Version {
        match self.codec() {
            Self::Http2(_) => Version::Http2,
            Self::Http1(_) | Self::Filtered(_) => Version::Http11,
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
    pub(super) fn complete(&mut self, request: &Request) {
        if let Self::Filtered(filtered) = self {
            filtered.complete(request);
        }
    }

    /// A connection that carries a tunnel's bytes and no HTTP.
    pub(super) fn raw(connection: Connection) -> Self {
        Self::Http1(Box::new(Http1::raw(connection)))
    }

    /// The connection served a request before, so that the peer may have been about to close it.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Filtered(filtered) => filtered.inner.is_reused(),
            Self::Http1(side) => side.is_reused(),
            Self::Http2(side) => side.is_reused(),
        }
    }

    /// The upstream is known to have closed the connection before any byte of the request reached it.
    pub(super) fn is_unread(&self) -> bool {
        match self {
            Self::Filtered(filtered) => filtered.inner.is_unread(),
            Self::Http1(side) => side.is_unread(),
            // The peer refuses such streams explicitly.
            Self::Http2(_) => false,
        }
    }

    /// The upstream closed the connection just when it was reused.
    pub(super) fn lost_race(&self, now: Instant) {
        if let Self::Http1(side) = self.codec() {
            side.lost_race(now);
        }
    }

    /// The host it is connected to.
    pub(super) fn host(&self) -> &Rc<Host> {
        match self {
            Self::Filtered(filtered) => filtered.inner.host(),
            Self::Http1(side) => side.host(),
            Self::Http2(side) => side.host(),
        }
    }

    /// The local address of the connection.
    pub(super) fn local_addr(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Filtered(filtered) => filtered.inner.local_addr(),
            Self::Http1(side) => side.local_addr(),
            Self::Http2(side) => side.local_addr(),
        }
    }

    /// When the connection was made, perhaps for another request.
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

    /// Ready when [`Upstream::send`] accepts at least a byte.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Filtered(filtered) => filtered.inner.poll_room(cx),
            Self::Http1(side) => side.poll_room(cx),
            Self::Http2(side) => side.poll_room(cx),
        }
    }

    /// Sends a piece of the body. `last`: nothing follows it.
    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        match self {
            Self::Filtered(filtered) => filtered.send(data, last),
            Self::Http1(side) => side.send(data),
            Self::Http2(side) => side.send(data, last),
        }
    }

    /// Ends the request, with these trailers.
    pub(super) fn finish(&mut self, request: &Request, trailers: &Headers) {
        match self {
            Self::Filtered(filtered) => filtered.finish(request, trailers),
            Self::Http1(side) => side.finish(trailers),
            Self::Http2(side) => side.finish(trailers),
        }
    }

    /// Ready when all that was handed over was sent.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Filtered(filtered) => filtered.inner.poll_flush(cx),
            Self::Http1(side) => side.poll_flush(cx),
            Self::Http2(side) => side.poll_flush(cx),
        }
    }

    /// As [`Upstream::poll_flush`], for the end of the request, which may be sent a moment later together with others: the task is then
    /// woken by the response, or if something is left to send.
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

    /// From here on both directions carry arbitrary bytes, and end independently.
    pub(super) fn open_tunnel(&mut self) {
        match self {
            Self::Filtered(filtered) => filtered.inner.open_tunnel(),
            Self::Http1(side) => side.open_tunnel(),
            // HTTP/2 streams do so without a change.
            Self::Http2(_) => {}
        }
    }

    /// What carries a tunnel's bytes from here on, behind the response head.
    pub(super) fn into_tunnel(self) -> Option<Opened> {
        match self {
            Self::Filtered(_) => None,
            Self::Http1(side) => Some(side.into_tunnel()),
            Self::Http2(side) => side.into_tunnel(),
        }
    }

    /// Gives the next available piece of the response body to `take`.
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

    /// Shows the cluster's filters the end of the response, which has been received.
    #[inline]
    pub(super) fn filter_response_end(&mut self, request: &mut Request) {
        if let Self::Filtered(filtered) = self {
            filtered.end(request);
        }
    }

    /// Receives more of the body.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Filtered(filtered) => filtered.poll_receive(cx),
            Self::Http1(side) => side.poll_receive(cx),
            // `Upstream::piece` has registered the task: it is woken when there is a piece.
            Self::Http2(_) => Poll::Pending,
        }
    }

    /// Ends a complete exchange. `whole`: the request was sent completely, so that nothing of it is left on the connection.
    pub(super) fn release(self, cluster: &Cluster, whole: bool, now: Instant) {
        match self {
            Self::Filtered(filtered) => filtered.inner.release(cluster, whole, now),
            Self::Http1(side) => side.release(cluster, whole, now),
            // Dropping a stream is enough: an incomplete one is reset.
            Self::Http2(_) => {}
        }
    }
}
