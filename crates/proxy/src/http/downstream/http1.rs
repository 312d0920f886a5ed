//! A client's HTTP/1 connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_http::{Framing, HeadError, Headers, RequestInfo, ResponseHead, Underscores, Version, encode};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::hangup::{Hangup, Sign};
use evenkeel_upstream::conn::{Buffer, Outgoing};
use evenkeel_upstream::stream::Stream;
use tokio::io::AsyncWrite;

use super::Answer;
use super::half_close::{ClientSocket, client_socket};
use crate::http::failure::Failure;
use crate::http::framed::{BodyWriter, FramedBody, Piece, Take};
use crate::http::head_rules::rules;

/// How long, and for how many bytes, a client that was refused may go on sending before the connection is closed: closing at once would
/// reset it, and the client could lose the response.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;

/// The connection, and its position in the current message.
pub(in crate::http) struct Http1 {
    output: Outgoing,
    /// Watches `stream` while the client waits for its response and nothing is read from it.
    hangup: Option<Box<Hangup>>,
    pub(in crate::http) stream: Stream,
    pub(in crate::http) input: Buffer,
    body: FramedBody,
    writer: BodyWriter,
    /// Requests read on this connection.
    requests: u32,
    /// Whether the client wants to send another request after the current one.
    keep_alive: bool,
    /// Whether the client may still be sending bytes that nobody will read.
    linger: bool,
    /// The client has ended its direction, and waits for its responses.
    half_closed: bool,
    /// Both directions carry arbitrary bytes, and end independently.
    tunnel: bool,
    /// The direction to the client is to be closed once all is sent.
    shutdown: bool,
    proper_case: bool,
    trailers: bool,
    /// How trailers with underscores in their names are handled.
    underscores: Underscores,
    /// Number of trailers with such names that are not counted yet.
    pub(in crate::http) underscored: u32,
}

impl Http1 {
    /// `requests` were read on this connection before.
    pub(in crate::http) fn new(stream: Stream, input: Buffer, requests: u32, hcm: &HttpConnectionManager) -> Self {
        Self {
            stream,
            input,
            output: Outgoing::default(),
            hangup: None,
            body: FramedBody::new(Framing::None, false),
            writer: BodyWriter::new(Framing::None, false),
            requests,
            keep_alive: false,
            linger: false,
            half_closed: false,
            tunnel: false,
            shutdown: false,
            proper_case: hcm.proper_case_response_headers,
            trailers: hcm.enable_trailers,
            underscores: rules(hcm).underscores,
            underscored: 0,
        }
    }

    /// Requests read on this connection.
    pub(in crate::http) fn requests(&self) -> u32 {
        self.requests
    }

    /// A request head was consumed from the input.
    pub(in crate::http) fn begin(&mut self, info: &RequestInfo) {
        self.requests += 1;
        self.keep_alive = info.keep_alive;
        self.body = FramedBody::new(info.framing, self.trailers);
    }

    pub(super) fn piece(&mut self, trailers: &mut Headers, take: &mut Take<'_>) -> Result<Piece, Failure> {
        let piece = self.body.piece(&mut self.input, trailers, take).map_err(|_| Failure::RequestBody)?;
        if self.underscores != Underscores::Allow && self.body.is_done() {
            let concerned = self.underscores.sift(trailers);
            self.underscored += concerned;
            if concerned > 0 && self.underscores == Underscores::Reject {
                return Err(Failure::Head(HeadError::Underscore));
            }
        }
        Ok(piece)
    }

    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match ready!(self.input.poll_receive(&mut self.stream, BLOCK_BYTES, cx)) {
            // A tunnel's client may end its direction and still read.
            Ok(0) if self.tunnel => Poll::Ready(self.body.end().map_err(|_| Failure::ClientGone)),
            Ok(0) | Err(_) => Poll::Ready(Err(Failure::ClientGone)),
            Ok(_) => Poll::Ready(Ok(())),
        }
    }

    /// Reads ahead, up to a block, to see the next request or the client's end; beyond that, watches the socket.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        while !(self.tunnel || self.half_closed) && self.input.len() < BLOCK_BYTES {
            match ready!(self.input.poll_receive(&mut self.stream, BLOCK_BYTES, cx)) {
                Ok(0) if self.client_listens() => self.half_closed = true,
                Ok(0) | Err(_) => return Poll::Ready(Failure::ClientGone),
                Ok(_) => {}
            }
        }
        self.poll_hangup(cx)
    }

    /// Whether the client, which has ended its direction, still waits for its responses. Over TLS the end of one direction counts as the
    /// end of both.
    fn client_listens(&self) -> bool {
        self.stream.plaintext().is_some_and(|stream| client_socket(stream) == ClientSocket::HalfClosed)
    }

    /// Watches for a client that leaves after sending bytes that are not read.
    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let Some(stream) = self.stream.tcp() else { return Poll::Pending };
        if self.hangup.is_none() {
            self.hangup = Hangup::watch(stream).map(Box::new);
        }
        let Some(hangup) = &self.hangup else { return Poll::Pending };
        loop {
            match ready!(hangup.poll(cx)) {
                Sign::Reset => return Poll::Ready(Failure::ClientGone),
                // Bytes sent into a tunnel still go to the upstream, whether or not the client waits for a response.
                Sign::End | Sign::Look if self.tunnel => hangup.stop_looking(),
                Sign::End if self.client_listens() => self.half_closed = true,
                Sign::End => return Poll::Ready(Failure::ClientGone),
                Sign::Look => match client_socket(stream) {
                    ClientSocket::Closed => return Poll::Ready(Failure::ClientGone),
                    ClientSocket::Unknown => hangup.stop_looking(),
                    ClientSocket::Open | ClientSocket::HalfClosed => {}
                },
            }
        }
    }

    pub(super) fn received_all(&self) -> bool {
        self.body.is_done()
    }

    pub(super) fn send_interim(&mut self, head: &ResponseHead) {
        let style = encode::ResponseStyle {
            version: Version::Http11,
            framing: Framing::None,
            bodiless: true,
            connection: encode::Connection::Default,
            proper_case: false,
        };
        encode::response(self.output.writer(), head, style);
    }

    pub(super) fn send_head(&mut self, head: &ResponseHead, answer: Answer<'_>) {
        let version = if answer.http_10 { Version::Http10 } else { Version::Http11 };
        let connection = match (answer.tunnel, answer.close) {
            (Some(b""), _) => encode::Connection::Default,
            (Some(protocol), _) => encode::Connection::Upgrade(protocol),
            (None, true) => encode::Connection::Close,
            (None, false) if answer.http_10 => encode::Connection::KeepAlive,
            (None, false) => encode::Connection::Default,
        };
        // A tunnel has no framing, and must not claim one (RFC 9110 section 9.3.6).
        let framing = if answer.tunnel.is_some() { Framing::None } else { wire_framing(answer) };
        let bodiless = answer.bodiless || answer.tunnel.is_some();
        let proper_case = self.proper_case;
        let style = encode::ResponseStyle { version, framing, bodiless, connection, proper_case };
        encode::response(self.output.writer(), head, style);
        self.writer = BodyWriter::new(if bodiless { Framing::None } else { framing }, self.trailers);
        if answer.tunnel.is_some() {
            self.tunnel = true;
            self.body = FramedBody::new(Framing::UntilClose, false);
        }
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.len() < BLOCK_BYTES { Poll::Ready(Ok(())) } else { self.output.poll_send(&mut self.stream, cx) }
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.writer.data(self.output.writer(), data);
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        self.writer.end(self.output.writer(), trailers);
        self.shutdown = self.tunnel;
    }

    pub(in crate::http) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.output.poll_send(&mut self.stream, cx))?;
        if self.shutdown {
            // A client that is already gone needs no shutdown.
            let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
            self.shutdown = false;
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_flush_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shutdown && self.output.leaves_in_burst(&self.stream, cx) {
            Poll::Ready(Ok(()))
        } else {
            self.poll_flush(cx)
        }
    }

    /// Between two messages: ready when the last response was sent, or is sent with the burst.
    pub(in crate::http) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.is_in_burst() { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    /// As [`super::Downstream::backlog`]. Bytes that are sent with the burst do not wait for the client. Ciphertext counts as well, because
    /// the last bytes may wait within TLS.
    pub(in crate::http) fn backlog(&self) -> Option<u64> {
        let waits = !self.output.is_sent() && !self.output.is_in_burst();
        waits.then(|| self.stream.ciphertext_sent().wrapping_sub(self.output.len() as u64))
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_sent() && !self.shutdown
    }

    pub(super) fn must_close(&self, max_requests: Option<u32>) -> bool {
        // The rest of a request that has its response already is not waited for.
        let last = self.half_closed && self.input.is_empty();
        last || !self.keep_alive
            || !self.received_all()
            || max_requests.is_some_and(|most| most > 0 && self.requests >= most)
    }

    pub(super) fn end(&mut self, close: bool) -> bool {
        let whole = self.body.is_done() && !self.tunnel;
        self.hangup = None;
        self.linger |= close || !whole;
        !close && whole
    }

    /// Closes the connection in order. A client that still sends is read from for a moment, so that no reset makes it lose its response.
    pub(in crate::http) async fn close(mut self) {
        let linger = self.linger;
        let closing = async {
            // Sends what is buffered of a response that broke off.
            if poll_fn(|cx| self.output.poll_send(&mut self.stream, cx)).await.is_err() {
                return;
            }
            if poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await.is_err() || !linger {
                return;
            }
            let mut left = LINGER_BYTES;
            while left > 0 {
                let room = self.input.len() + BLOCK_BYTES;
                match poll_fn(|cx| self.input.poll_receive(&mut self.stream, room, cx)).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => left = left.saturating_sub(count),
                }
                self.input.consume(self.input.len());
            }
        };
        let _ = tokio::time::timeout(LINGER, closing).await;
    }
}

/// How the body is framed towards the client: chunked if it ended with the upstream's connection; until the close for HTTP/1.0 clients,
/// which do not know chunks.
fn wire_framing(answer: Answer<'_>) -> Framing {
    match answer.framing {
        Framing::Chunked | Framing::UntilClose if answer.http_10 && !answer.bodiless => Framing::UntilClose,
        Framing::UntilClose => Framing::Chunked,
        framing => framing,
    }
}
