//! One stream of a client's HTTP/2 connection that another worker holds: the messages between the two workers.

use std::io;
use std::task::{Context, Poll};

use evenkeel_http::{Framing, Headers, ResponseHead};
use evenkeel_upstream::conn::pipe::{Receiver, Sender};

use super::Answer;
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};

/// From the client, to the borrower.
#[derive(Debug)]
pub(in crate::http) enum RequestPiece {
    /// Bytes, and whether they are the last, with no trailers behind them.
    Data(Vec<u8>, bool),
    /// The request is complete, with these trailers.
    End(Headers),
    /// The request ends early, and no response can be sent.
    Gone(Failure),
}

/// From the borrower, to the client.
#[derive(Debug)]
pub(in crate::http) enum AnswerPiece {
    Interim(ResponseHead),
    Head {
        head: ResponseHead,
        framing: Framing,
        bodiless: bool,
        tunnel: bool,
    },
    /// Bytes, and whether they are the last.
    Data(Vec<u8>, bool),
    End(Headers),
    /// No response was sent, and the client may send the request again.
    Refused,
}

/// The stream as the borrowing worker sees it.
pub(in crate::http) struct Lent {
    up: Receiver<RequestPiece>,
    down: Sender<AnswerPiece>,
    received_all: bool,
    ended: bool,
}

impl Lent {
    /// `received_all`: the request ended with its head.
    pub(in crate::http) fn new(up: Receiver<RequestPiece>, down: Sender<AnswerPiece>, received_all: bool) -> Self {
        Self { up, down, received_all, ended: false }
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
        let Poll::Ready(next) = self.up.poll_next(cx) else { return Ok(Piece::Nothing) };
        match next {
            Some(RequestPiece::Data(bytes, last)) => {
                take(&bytes, last);
                self.received_all = last;
                Ok(Piece::Data)
            }
            Some(RequestPiece::End(received)) => {
                *trailers = received;
                self.received_all = true;
                Ok(Piece::End)
            }
            Some(RequestPiece::Gone(failure)) => Err(failure),
            None => Err(Failure::ClientGone),
        }
    }

    /// Ready when the client has left, even while pieces of its request still wait: the departure is the last item in the pipe.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let gone = |item: &RequestPiece| match item {
            RequestPiece::Gone(failure) => Some(failure.clone()),
            RequestPiece::Data(..) | RequestPiece::End(_) => None,
        };
        self.up.poll_last(gone, cx).map(|failure| failure.unwrap_or(Failure::ClientGone))
    }

    pub(super) fn received_all(&self) -> bool {
        self.received_all
    }

    pub(super) fn send_interim(&mut self, head: &ResponseHead) {
        self.down.send(AnswerPiece::Interim(head.clone()), 0);
    }

    pub(super) fn send_head(&mut self, head: &mut ResponseHead, answer: Answer<'_>) {
        let Answer { framing, bodiless, tunnel, .. } = answer;
        let tunnel = tunnel.is_some();
        self.ended = !tunnel && (bodiless || framing.is_empty());
        self.down.send(AnswerPiece::Head { head: head.clone(), framing, bodiless, tunnel }, 0);
    }

    pub(super) fn refuse(&mut self) {
        self.ended = true;
        self.down.send(AnswerPiece::Refused, 0);
    }

    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.down.poll_room(cx).map_err(|_| io::ErrorKind::ConnectionReset.into())
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        self.ended |= last;
        self.down.send(AnswerPiece::Data(data.to_vec(), last), data.len());
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        if !std::mem::replace(&mut self.ended, true) {
            self.down.send(AnswerPiece::End(trailers.clone()), 0);
        }
    }

    pub(super) fn unsent(&self) -> usize {
        self.down.held()
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.down.poll_empty(cx).map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}
