//! The request of a call on its way to the server.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use evenkeel_http::Headers;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;

use super::ends::{Sent, Source};
use crate::http::failure::Failure;
use crate::http::request::Request;
use crate::http::upstream::Upstream;

/// The part of the request that one try has sent.
#[derive(Debug, Default)]
pub(super) struct Upload {
    ended: bool,
    /// The host has taken all of it.
    pub(super) finished: bool,
    /// The host accepts no more; its response may still come.
    refused: bool,
    /// The whole body, if a filter of the cluster asked for it.
    pub(super) collected: Option<Collected>,
}

/// A collected body, and how much of it was sent.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) body: Vec<u8>,
    given: usize,
    trailers: Headers,
}

/// Collects a body of up to `max_bytes`.
pub(super) async fn collect(source: &mut impl Source, max_bytes: usize) -> Result<Collected, Failure> {
    let mut collected = Collected::default();
    poll_fn(|cx| {
        loop {
            match ready!(source.poll_piece(&mut |data| collected.body.extend_from_slice(data), cx)) {
                Sent::Piece if collected.body.len() > max_bytes => return Poll::Ready(Err(Failure::BodyTooLarge)),
                Sent::Piece => {}
                Sent::End(trailers) => {
                    collected.trailers = trailers;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    })
    .await?;
    Ok(collected)
}

impl Upload {
    /// Sends as much of the request as possible without waiting. True if that was something.
    pub(super) fn poll(
        &mut self,
        up: &mut Upstream,
        request: &Request,
        source: &mut impl Source,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut moved = false;
        while !(self.finished || self.refused) {
            let step = if self.ended {
                up.poll_flush_end(cx).map_ok(|()| self.finished = true)
            } else {
                self.poll_piece(up, request, source, cx)
            };
            match step {
                Poll::Ready(Ok(())) => moved = true,
                Poll::Ready(Err(_)) => self.refused = true,
                Poll::Pending => break,
            }
        }
        moved
    }

    fn poll_piece(
        &mut self,
        up: &mut Upstream,
        request: &Request,
        source: &mut impl Source,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(up.poll_room(cx))?;
        if let Some(Collected { body, given, trailers }) = &mut self.collected {
            let rest = body.get(*given..).unwrap_or_default();
            let block = rest.get(..BLOCK_BYTES).unwrap_or(rest);
            if block.is_empty() {
                up.finish(request, trailers);
                self.ended = true;
            } else {
                up.send(block, false);
                *given += block.len();
            }
            return Poll::Ready(Ok(()));
        }
        match source.poll_piece(&mut |data| up.send(data, false), cx) {
            Poll::Ready(Sent::Piece) => Poll::Ready(Ok(())),
            Poll::Ready(Sent::End(trailers)) => {
                up.finish(request, &trailers);
                self.ended = true;
                Poll::Ready(Ok(()))
            }
            // Everything available is sent before this waits for more.
            Poll::Pending => match up.poll_flush(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            },
        }
    }
}
