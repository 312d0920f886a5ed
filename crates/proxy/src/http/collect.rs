//! Collects the body of a request, or its beginning, before the request goes upstream, for a filter that needs it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use evenkeel_http::Framing;
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::failure::Failure;
use super::framed::Piece;
use super::timers::Timers;

/// The part of a body that a filter requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CollectExtent {
    /// The whole body; one beyond the limit is an error.
    All,
    /// The beginning of the body.
    Start,
}

impl ActiveStream<'_> {
    /// Collects the body, whose length is known from then on. If a filter asks for it again, it is too long for that filter.
    pub(super) async fn collect(&mut self, max_bytes: usize, route: Option<&Route>) -> Result<(), Failure> {
        let announced = match self.request.info.framing {
            Framing::Length(bytes) => bytes,
            _ => 0,
        };
        let is_whole = self.request.body.is_some() && !self.request.body_begins;
        let collected = if is_whole || announced > max_bytes as u64 {
            Err(Failure::BodyTooLarge)
        } else {
            self.receive(max_bytes, CollectExtent::All, route).await
        };
        let (body, _) = collected?;
        let request = &mut *self.request;
        request.body_begins = false;
        request.note(TimePoint::DownstreamRxEnd);
        request.info.framing = Framing::Length(body.len() as u64);
        request.body = Some(body);
        Ok(())
    }

    /// Collects the beginning of the body: `bytes` at least, unless it is shorter. Its length is known only if that was all.
    pub(super) async fn collect_start(&mut self, bytes: usize, route: Option<&Route>) -> Result<(), Failure> {
        let (body, complete) = self.receive(bytes, CollectExtent::Start, route).await?;
        let request = &mut *self.request;
        request.body_begins = !complete;
        if complete {
            request.note(TimePoint::DownstreamRxEnd);
            request.info.framing = Framing::Length(body.len() as u64);
        }
        request.body = Some(body);
        Ok(())
    }

    /// Receives the body behind what was received before. Also returns whether it is complete.
    async fn receive(
        &mut self,
        bytes: usize,
        wanted: CollectExtent,
        route: Option<&Route>,
    ) -> Result<(HeldBytes, bool), Failure> {
        // The upstream cannot send 100: it gets the request only when enough of the body is there.
        self.send_continue();
        let mut timers = self.waiting_timers(route);
        let mut body = self.request.body.take().unwrap_or_default();
        let complete = poll_fn(|cx| self.poll_collect(&mut body, (bytes, wanted), &mut timers, cx)).await?;
        Ok((body, complete))
    }

    /// Ready when as much as is wanted is there; true: nothing follows.
    fn poll_collect(
        &mut self,
        body: &mut HeldBytes,
        (bytes, wanted): (usize, CollectExtent),
        timers: &mut Timers,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Failure>> {
        if !self.down.is_flushed() && matches!(self.down.poll_flush(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(Err(Failure::ClientGone));
        }
        let request = &mut *self.request;
        loop {
            let mut ends = false;
            let mut take = |data: &[u8], last: bool| {
                request.stream.bytes_received += data.len() as u64;
                ends |= last;
                body.extend(data);
            };
            match self.down.piece(&mut request.trailers, &mut take, cx)? {
                Piece::End => return Poll::Ready(Ok(true)),
                Piece::Data if wanted == CollectExtent::All && body.len() > bytes => {
                    return Poll::Ready(Err(Failure::BodyTooLarge));
                }
                // What ends here is complete with the next piece, which is there already.
                Piece::Data if wanted == CollectExtent::Start && body.len() > bytes && !ends => {
                    return Poll::Ready(Ok(false));
                }
                Piece::Data => timers.move_on(),
                // As much as is wanted; whether more follows is not known yet.
                Piece::Nothing if wanted == CollectExtent::Start && body.len() >= bytes => {
                    return Poll::Ready(Ok(false));
                }
                Piece::Nothing => match self.down.poll_receive(cx) {
                    Poll::Ready(received) => received?,
                    Poll::Pending => break,
                },
            }
        }
        let now = turn::now();
        ready!(self.deadline.poll(timers.next(now), cx));
        Poll::Ready(Err(timers.passed(now, false)))
    }

    /// Sends 100 if the client waits for it.
    pub(super) fn send_continue(&mut self) {
        if std::mem::take(&mut self.request.info.expect_continue) {
            self.request.response.clear();
            self.request.response.status = 100;
            self.down.send_interim(&self.request.response);
        }
    }
}
