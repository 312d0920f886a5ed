//! Bodies on an HTTP/2 stream, read and written: the same on both sides of the proxy.

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::Headers;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::h2::{Chunk, Received, Reset, Stream};

use super::framed::{Piece, Take};

/// A stream, and which of its directions have ended.
pub(super) struct Streamed {
    pub(super) stream: Stream,
    /// The peer ended its message.
    pub(super) received_all: bool,
    /// The end of our message was handed over for sending.
    pub(super) ended: bool,
}

impl Streamed {
    /// `received_all`: the peer's message ended with its head; `ended`: ours did.
    pub(super) fn new(stream: Stream, received_all: bool, ended: bool) -> Self {
        Self { stream, received_all, ended }
    }

    /// Gives the next available piece of the peer's body to `take`.
    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Reset> {
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
            Poll::Ready(Err(reset)) => Err(reset),
        }
    }

    /// Sends a piece of our body. `last`: nothing follows it.
    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        self.ended |= last;
        self.stream.send_data(data, last);
    }

    /// Ends our message, unless it has ended.
    pub(super) fn finish(&mut self, trailers: &Headers) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if trailers.is_empty() { self.stream.send_data(b"", true) } else { self.stream.send_trailers(trailers) }
    }

    /// Ready when all that was handed over was sent.
    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_sent(cx).map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}
