//! One stream of a client's HTTP/2 connection.

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::h2::Reason;
use evenkeel_http::{Framing, Headers, ResponseHead};
use evenkeel_upstream::h2::{Reset, ResetBy, Stream};

use super::Answer;
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};
use crate::http::streamed::Streamed;

/// The stream, and which of its directions have ended.
pub(in crate::http) struct Http2(Streamed);

impl Http2 {
    /// `received_all`: the request ended with its head.
    pub(in crate::http) fn new(stream: Stream, received_all: bool) -> Self {
        Self(Streamed::new(stream, received_all, false))
    }

    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        self.0.piece(trailers, take, cx).map_err(failure)
    }

    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        self.0.stream.poll_reset(cx).map(failure)
    }

    pub(super) fn received_all(&self) -> bool {
        self.0.received_all
    }

    pub(super) fn send_interim(&mut self, head: &ResponseHead) {
        self.0.stream.interim(head);
    }

    /// A tunnel is opened by 200, while HTTP/1 uses 101 for upgrades (RFC 8441 section 5).
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
        self.0.ended = framing.is_empty();
        self.0.stream.respond(head, framing, self.0.ended);
        head.status = status;
    }

    pub(super) fn refuse(&mut self) {
        self.0.ended = true;
        self.0.stream.refuse();
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        self.0.send(data, last);
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        self.0.finish(trailers);
    }

    pub(super) fn unsent(&self) -> usize {
        self.0.stream.unsent()
    }

    pub(super) fn give_up(&mut self) {
        self.0.stream.give_up();
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_sent(cx)
    }
}

/// Why the client's stream ended early.
pub(in crate::http) fn failure(reset: Reset) -> Failure {
    match reset.by {
        // A reset that was sent because of what the client did is logged by Envoy as if the client had sent it.
        ResetBy::Peer | ResetBy::Local => Failure::ClientReset(reset.reason),
        ResetBy::Fault(fault) => Failure::ClientMessage(fault),
        ResetBy::Connection if reset.reason != Reason::NO_ERROR => Failure::ClientConnection,
        ResetBy::Connection => Failure::ClientGone,
    }
}
