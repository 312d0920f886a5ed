//! An exchange over an exclusive HTTP/1 connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::decide::Tunnel;
use evenkeel_http::{Framing, HeadScan, Headers, Limits, ResponseInfo, ResponseRules, encode, parse_response};
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::{Buffer, Outgoing};
use evenkeel_upstream::{Cluster, ConnectTimes, Connection, Host, ended_before};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::Arrived;
use super::opened::Opened;
use crate::http::failure::Failure;
use crate::http::framed::{BodyWriter, FramedBody, Piece, Take};
use crate::http::request::Request;

/// The connection, and its position in the exchange.
pub(in crate::http) struct Http1 {
    output: Outgoing,
    connection: Connection,
    /// Bytes read but not consumed.
    input: Buffer,
    writer: BodyWriter,
    scan: HeadScan,
    /// Limits of a response head.
    limits: Limits,
    /// The names of its fields are passed on as they are spelled.
    keep_case: bool,
    body: FramedBody,
    /// Request bytes were handed to the socket.
    begun: bool,
    /// Ciphertext bytes the socket had taken before the request, if it carries TLS.
    sealed_before: u64,
    /// Sending failed with a reset: reading no longer tells a reset from an end.
    reset: bool,
    /// The upstream ended its direction without a byte of a response.
    ended: bool,
    keep_alive: bool,
    tunnel: bool,
    /// The direction to the upstream is to be closed once all is sent.
    shutdown: bool,
    trailers: bool,
    /// The connection carries no HTTP: the tunnel is open as soon as it is connected.
    raw: bool,
}

impl Http1 {
    /// `cluster`: the host's cluster, with its protocol options.
    pub(in crate::http) fn new(connection: Connection, cluster: &Cluster) -> Self {
        let (limits, trailers) = (cluster.response_limits(), cluster.enables_trailers());
        Self { limits, trailers, keep_case: cluster.preserves_case(), ..Self::over(connection) }
    }

    fn over(connection: Connection) -> Self {
        let sealed_before = connection.stream.ciphertext_sent();
        Self {
            connection,
            input: Buffer::default(),
            output: Outgoing::default(),
            writer: BodyWriter::new(Framing::None, false),
            scan: HeadScan::default(),
            limits: Limits::default(),
            keep_case: false,
            body: FramedBody::new(Framing::None, false),
            begun: false,
            sealed_before,
            reset: false,
            ended: false,
            keep_alive: false,
            tunnel: false,
            shutdown: false,
            trailers: false,
            raw: false,
        }
    }

    /// A connection that carries a tunnel's bytes and no HTTP.
    pub(super) fn raw(connection: Connection) -> Self {
        Self { raw: true, ..Self::over(connection) }
    }

    /// The upstream closed the connection just when it was reused.
    pub(super) fn lost_race(&self, now: Instant) {
        self.connection.lost_race(now);
    }

    pub(super) fn is_reused(&self) -> bool {
        self.connection.reused
    }

    /// The upstream closed the connection before any byte of the request reached it.
    pub(super) fn is_unread(&self) -> bool {
        let sealed = self.connection.stream.ciphertext_sent() - self.sealed_before;
        let written = usize::try_from(sealed).unwrap_or(usize::MAX).max(self.output.taken());
        self.ended && (written == 0 || !self.reset) && ended_before(&self.connection.stream, written)
    }

    pub(super) fn host(&self) -> &Rc<Host> {
        &self.connection.host
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.connection.local_addr()
    }

    pub(super) fn connect_times(&self) -> &ConnectTimes {
        self.connection.connect_times()
    }

    pub(super) fn send_head(&mut self, request: &Request) -> Result<(), Failure> {
        if self.raw {
            return Ok(());
        }
        let framing = wire_framing(request);
        let connection = match &request.tunnel {
            Some(Tunnel::Upgrade(protocol)) => encode::Connection::Upgrade(protocol),
            Some(Tunnel::Connect) | None => encode::Connection::Default,
        };
        encode::request(self.output.writer(), &request.head, framing, connection);
        self.writer = BodyWriter::new(framing, self.trailers);
        Ok(())
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.len() < BLOCK_BYTES { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.writer.data(self.output.writer(), data);
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        self.writer.end(self.output.writer(), trailers);
        self.shutdown = self.tunnel;
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begun |= !self.output.is_empty();
        let sent = self.output.poll_send(&mut self.connection.stream, cx);
        // A reset that comes after the upstream's end shows as a broken pipe, which does not count.
        self.reset |= matches!(&sent, Poll::Ready(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe);
        ready!(sent)?;
        if self.shutdown {
            // An upstream that is already gone needs no shutdown.
            let _ = ready!(Pin::new(&mut self.connection.stream).poll_shutdown(cx));
            self.shutdown = false;
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_flush_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begun |= !self.output.is_empty();
        if !self.shutdown && self.output.leaves_in_burst(&self.connection.stream, cx) {
            Poll::Pending
        } else {
            self.poll_flush(cx)
        }
    }

    pub(super) fn poll_head(&mut self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Arrived, Failure>> {
        let response = &mut request.response;
        if self.raw {
            response.clear();
            response.status = 200;
            let info = ResponseInfo { head_bytes: 0, framing: Framing::UntilClose, keep_alive: false };
            return Poll::Ready(Ok(Arrived::Final(info)));
        }
        loop {
            if !self.input.is_empty() {
                let to_head = request.head.method() == b"HEAD";
                let rules = ResponseRules { limits: self.limits, to_head, keep_case: self.keep_case };
                match parse_response(self.input.bytes(), &mut self.scan, rules, response) {
                    Ok(Some(info)) => {
                        self.input.consume(info.head_bytes);
                        if (100..200).contains(&response.status) && response.status != 101 {
                            return Poll::Ready(Ok(Arrived::Interim));
                        }
                        self.keep_alive = info.keep_alive;
                        self.body = FramedBody::new(info.framing, self.trailers);
                        return Poll::Ready(Ok(Arrived::Final(info)));
                    }
                    Ok(None) => {}
                    Err(_) => return Poll::Ready(Err(Failure::UpstreamProtocol)),
                }
            }
            let limit = self.limits.max_head_bytes + 1;
            let end = ready!(self.input.poll_receive(&mut self.connection.stream, limit, cx));
            if let Ok(0) | Err(_) = end {
                // The received bytes are an incomplete head.
                if !self.input.is_empty() {
                    return Poll::Ready(Err(Failure::UpstreamProtocol));
                }
                self.ended = end.is_ok();
                return Poll::Ready(Err(Failure::UpstreamClosed { sent: self.begun }));
            }
        }
    }

    pub(super) fn open_tunnel(&mut self) {
        self.tunnel = true;
        self.body = FramedBody::new(Framing::UntilClose, false);
        self.writer = BodyWriter::new(Framing::UntilClose, false);
    }

    pub(super) fn into_tunnel(self) -> Opened {
        Opened::Connection(self.connection, self.input)
    }

    pub(super) fn piece(&mut self, trailers: &mut Headers, take: &mut Take<'_>) -> Result<Piece, Failure> {
        self.body.piece(&mut self.input, trailers, take).map_err(|_| Failure::UpstreamProtocol)
    }

    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let received = ready!(self.input.poll_receive(&mut self.connection.stream, BLOCK_BYTES, cx));
        if let Ok(1..) = received {
            return Poll::Ready(Ok(()));
        }
        // Any end within a body that announces its end is a protocol error.
        self.body.end().map_err(|_| Failure::UpstreamProtocol)?;
        Poll::Ready(received.map(|_| ()).map_err(|_| Failure::UpstreamClosed { sent: true }))
    }

    pub(super) fn release(self, cluster: &Cluster, whole: bool, now: Instant) {
        if whole && self.keep_alive && !self.tunnel && self.body.is_done() && self.input.is_empty() {
            cluster.release(self.connection, now);
        }
    }
}

/// Methods whose requests have no body, according to Envoy.
fn is_bodiless(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"DELETE" | b"TRACE" | b"CONNECT")
}

/// A request whose method may have a body announces an empty one (RFC 9110 section 8.6).
fn wire_framing(request: &Request) -> Framing {
    match request.info.framing {
        Framing::None if request.tunnel.is_none() && !is_bodiless(request.head.method()) => Framing::Length(0),
        framing => framing,
    }
}
