//! Collects the body of a request before the request goes upstream, for a filter that needs all of it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use evenkeel_http::Framing;
use evenkeel_runtime_config::access_log::TimePoint;
use evenkeel_runtime_config::route::Route;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::failure::Failure;
use super::framed::Piece;
use super::timers::Timers;

impl ActiveStream<'_> {
    /// Collects the body, whose length is known from then on. If a filter asks for it again, it is too long for that filter.
    pub(super) async fn collect(&mut self, max_bytes: usize, route: Option<&Route>) -> Result<(), Failure> {
        let announced = match self.request.info.framing {
            Framing::Length(bytes) => bytes,
            _ => 0,
        };
        let collected = match self.request.body.is_some() || announced > max_bytes as u64 {
            true => Err(Failure::BodyTooLarge),
            false => self.receive_all(max_bytes, route).await,
        };
        let body = collected?;
        let request = &mut *self.request;
        request.note(TimePoint::DownstreamRxEnd);
        request.info.framing = Framing::Length(body.len() as u64);
        request.body = Some(body);
        Ok(())
    }

    async fn receive_all(&mut self, max_bytes: usize, route: Option<&Route>) -> Result<HeldBytes, Failure> {
        // The upstream cannot send 100: it gets the request only when the body is complete.
        self.send_continue();
        let mut timers = self.waiting_timers(route);
        let mut body = HeldBytes::default();
        poll_fn(|cx| self.poll_collect(&mut body, max_bytes, &mut timers, cx)).await?;
        Ok(body)
    }

    fn poll_collect(
        &mut self,
        body: &mut HeldBytes,
        max_bytes: usize,
        timers: &mut Timers,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        if !self.down.is_flushed() && matches!(self.down.poll_flush(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(Err(Failure::ClientGone));
        }
        let request = &mut *self.request;
        loop {
            let mut take = |data: &[u8], _| {
                request.stream.bytes_received += data.len() as u64;
                body.extend(data);
            };
            match self.down.piece(&mut request.trailers, &mut take, cx)? {
                Piece::End => return Poll::Ready(Ok(())),
                Piece::Data if body.len() > max_bytes => return Poll::Ready(Err(Failure::BodyTooLarge)),
                Piece::Data => timers.move_on(),
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
