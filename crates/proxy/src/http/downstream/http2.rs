//! One stream of a client's HTTP/2 connection.

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::{Framing, Headers, ResponseHead};

use super::Answer;
use crate::conn::buffer::BLOCK_BYTES;
use crate::h2::{Chunk, Received, Reset, ResetBy, Stream};
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};

/// The stream, and what is over on it.
pub(in crate::http) struct Http2 {
    stream: Stream,
    /// The client ended its request.
    received_all: bool,
    /// Our end of the response was handed over.
    ended: bool,
}

impl Http2 {
    /// `received_all`: the request ended with its head.
    pub(in crate::http) fn new(stream: Stream, received_all: bool) -> Self {
        Self { stream, received_all, ended: false }
    }

    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        if self.received_all {
            return Ok(Piece::End);
        }
        let mut chunk = Chunk::default();
        match self.stream.poll_chunk(BLOCK_BYTES, &mut chunk, cx) {
            Poll::Pending => Ok(Piece::Nothing),
            Poll::Ready(Ok(Received::Data)) => {
                let end = self.stream.take_end();
                take(chunk.bytes(), matches!(end, Some(None)));
                if let Some(end) = end {
                    *trailers = end.unwrap_or_default();
                    self.received_all = true;
                }
                Ok(Piece::Data)
            }
            Poll::Ready(Ok(Received::End)) => {
                self.received_all = true;
                Ok(Piece::End)
            }
            Poll::Ready(Ok(Received::Trailers(received))) => {
                *trailers = received;
                self.received_all = true;
                Ok(Piece::End)
            }
            Poll::Ready(Err(reset)) => Err(failure(reset)),
        }
    }

    /// Pending: whoever asked for a piece is woken when there is one.
    pub(super) fn poll_receive(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Pending
    }

    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.stream.poll_reset(cx).map(failure)
    }

    pub(super) fn received_all(&self) -> bool {
        self.received_all
    }

    pub(super) fn send_interim(&mut self, head: &ResponseHead) {
        self.stream.interim(head);
    }

    /// A tunnel is opened by 200, where HTTP/1 has 101 (RFC 8441 section 5).
    pub(super) fn send_head(&mut self, head: &mut ResponseHead, answer: Answer<'_>) {
        let status = head.status;
        if answer.tunnel.is_some() && status == 101 {
            head.status = 200;
        }
        let framing = match answer {
            Answer { tunnel: Some(_), .. } => Framing::Chunked,
            Answer { bodiless: true, .. } => Framing::None,
            Answer { framing, .. } => framing,
        };
        self.ended = framing.is_empty();
        self.stream.respond(head, framing, self.ended);
        head.status = status;
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        self.ended |= last;
        self.stream.send_data(data, last);
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        match trailers.is_empty() {
            true => self.stream.send_data(b"", true),
            false => self.stream.send_trailers(trailers),
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_sent(cx).map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

/// Why the client's stream is over before its time.
fn failure(reset: Reset) -> Failure {
    match reset.by {
        ResetBy::Peer => Failure::ClientReset,
        ResetBy::Local => Failure::ClientMessage,
        ResetBy::Connection => Failure::ClientGone,
    }
}
