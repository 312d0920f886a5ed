//! Moves bytes between the two sides of one request, in both directions at once, each only as fast as its reader.

use std::io;
use std::task::{Context, Poll, ready};

use evenkeel_filters::{Data, FilterStreams, Flow, HttpFilters, Woken};
use evenkeel_http::Framing;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::Cluster;
use evenkeel_upstream::conn::HeldBytes;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::announced_length::AnnouncedLength;
use super::downstream::Downstream;
use super::failure::Failure;
use super::framed::Piece;
use super::pause::Held;
use super::timers::Timers;
use super::upload::{Unfit, Upload};
use super::upstream::{Arrived, MAX_INTERIM, Upstream};

/// One try: the request going up, the response coming down.
pub(super) struct Transfer<'e, 'l> {
    pub(super) active: &'e mut ActiveStream<'l>,
    pub(super) up: &'e mut Upstream,
    pub(super) upload: &'e mut Upload,
    pub(super) timers: &'e mut Timers,
    interim: u32,
    /// A filter holds back some of the response body until this is ready.
    held: Option<Held>,
    /// The filters have seen the end of the response body.
    filtered_end: bool,
    /// The filters have seen the response's trailers.
    seen_trailers: bool,
    /// How many bytes of the response body filters may still send.
    left: AnnouncedLength,
    /// The response body, if it was collected, until it is sent.
    collected: Option<HeldBytes>,
    /// The cluster that uses a load report in the response's trailers, until they arrive.
    reports_to: Option<&'e Cluster>,
}

impl<'e, 'l> Transfer<'e, 'l> {
    pub(super) fn new(
        active: &'e mut ActiveStream<'l>,
        up: &'e mut Upstream,
        upload: &'e mut Upload,
        timers: &'e mut Timers,
    ) -> Self {
        let (left, collected) = (AnnouncedLength::default(), None);
        let (filtered_end, seen_trailers) = (false, false);
        let (interim, held, reports_to) = (0, None, None);
        Self { active, up, upload, timers, interim, held, filtered_end, seen_trailers, left, collected, reports_to }
    }

    /// The cluster heeds a load report in the response's trailers.
    pub(super) fn reporting_to(&mut self, cluster: &'e Cluster) {
        self.reports_to = Some(cluster).filter(|_| !self.active.request.load_reported);
    }

    /// Filters may change the response body, which the head frames like this. `collected`: the whole body, if it was collected.
    pub(super) fn filtered(&mut self, framing: Framing, collected: Option<HeldBytes>) {
        self.left = AnnouncedLength::of(framing);
        self.collected = collected;
    }

    /// Sends the request and waits for the response head, which may come before the request is sent; the rest of it follows later.
    pub(super) fn poll_head(
        &mut self,
        hcm: &HttpConnectionManager,
        cx: &mut Context<'_>,
    ) -> Poll<Result<evenkeel_http::ResponseInfo, Failure>> {
        loop {
            if let Poll::Ready(failure) = self.poll_upload(cx) {
                return Poll::Ready(Err(failure));
            }
            if !self.active.down.is_flushed() && matches!(self.active.down.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            let request = &mut *self.active.request;
            match self.up.poll_head(request, cx) {
                Poll::Ready(Ok(Arrived::Final(info))) => {
                    self.timers.moved = true;
                    request.note(TimePoint::UpstreamRxBegin);
                    return Poll::Ready(Ok(info));
                }
                Poll::Ready(Ok(Arrived::Interim)) => {
                    self.timers.moved = true;
                    self.interim += 1;
                    if self.interim > MAX_INTERIM {
                        return Poll::Ready(Err(Failure::UpstreamProtocol));
                    }
                    self.pass_interim(hcm);
                }
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Pending => return self.poll_nothing(cx),
            }
        }
    }

    /// Sends the response body, and what is left of the request. Ready when the response is complete and sent; for a tunnel, when both
    /// directions are.
    pub(super) fn poll_body(&mut self, tunnel: bool, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if let Poll::Ready(failure) = self.poll_upload(cx) {
            return Poll::Ready(Err(failure));
        }
        match self.poll_download(cx) {
            Poll::Ready(Ok(())) if !tunnel || self.upload.finished || self.upload.refused => Poll::Ready(Ok(())),
            Poll::Ready(Err(failure)) => Poll::Ready(Err(failure)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                if self.timers.flush_limit.is_some() {
                    self.timers.watch_backlog(turn::now(), self.active.down.backlog());
                }
                self.poll_nothing(cx)
            }
        }
    }

    fn poll_download(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            match self.active.down.poll_room(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(self.active.down.why_gone(cx))),
                Poll::Pending => {
                    self.active.request.note_blocked();
                    return Poll::Pending;
                }
            }
            if let Some(held) = &mut self.held {
                // Released bytes do not wait for bytes that the filter holds back.
                if let Poll::Ready(Err(_)) = self.active.down.poll_flush(cx) {
                    return Poll::Ready(Err(self.active.down.why_gone(cx)));
                }
                let pieces_may_come = held.reads_on && !self.filtered_end;
                match held.poll(cx) {
                    Poll::Ready(_) => {
                        self.resume()?;
                        continue;
                    }
                    Poll::Pending if pieces_may_come => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
            let conn = self.active.conn;
            let request = &mut *self.active.request;
            let down = &mut self.active.down;
            let filtered = request.filters.sees_response_data();
            // Trailers of filters follow, or a body that they have held back.
            let may_be_last = !request.filters.sees_response_trailers();
            let (held, filtered_end, left) = (&mut self.held, &mut self.filtered_end, &mut self.left);
            let mut fits = true;
            let mut take = |data: &[u8], last: bool| {
                if filtered {
                    *filtered_end |= last;
                    let mut data = Data { bytes: data.into(), ends: last, now: turn::now().into_std() };
                    let flow = conn.manager.filters.response_data(&mut request.filters, &mut data);
                    request.stream.bytes_sent += data.bytes.len() as u64;
                    fits = left.take(data.bytes.len());
                    *held = if fits { release(down, &data, data.ends && may_be_last, flow) } else { None };
                } else {
                    request.stream.bytes_sent += data.len() as u64;
                    down.send(data, last && may_be_last);
                }
            };
            let piece = match self.collected.take() {
                Some(body) if !body.is_empty() => {
                    take(&body, request.response_trailers.is_empty());
                    Piece::Data
                }
                _ => self.up.piece(&mut request.response_trailers, &mut take, cx)?,
            };
            if matches!(piece, Piece::End) {
                self.up.filter_response_end(self.active.request);
            }
            if matches!(piece, Piece::End)
                && !self.active.request.response_trailers.is_empty()
                && let Some(cluster) = self.reports_to.take()
            {
                cluster.heed_load_report(self.up.host(), &self.active.request.response_trailers);
            }
            match piece {
                _ if !fits => return Poll::Ready(Err(Failure::FilteredLength)),
                Piece::Data => {
                    self.timers.moved = true;
                    self.active.request.note_first(TimePoint::UpstreamRxBodyBegin);
                }
                Piece::End if filtered && !self.filtered_end => {
                    self.filtered_end = true;
                    let end = Data { bytes: b"".into(), ends: true, now: turn::now().into_std() };
                    self.filter_data(end, HttpFilters::response_data)?;
                }
                Piece::End if !self.seen_trailers && self.active.request.filters.sees_response_trailers() => {
                    self.seen_trailers = true;
                    self.filter_trailers()?;
                }
                Piece::End if !self.left.is_over() => return Poll::Ready(Err(Failure::FilteredLength)),
                Piece::End => {
                    if !std::mem::replace(&mut self.active.response_ended, true) {
                        self.active.request.note(TimePoint::UpstreamRxEnd);
                        self.active.down.finish(&self.active.request.response_trailers);
                        self.active.request.note(TimePoint::DownstreamTxEnd);
                    }
                    return self.active.down.poll_flush_end(cx).map_err(|_| self.active.down.why_gone(cx));
                }
                // Everything received so far is sent before this waits for more.
                Piece::Nothing => {
                    ready!(self.active.down.poll_flush(cx)).map_err(|_| self.active.down.why_gone(cx))?;
                    ready!(self.up.poll_receive(cx))?;
                }
            }
        }
    }

    /// The filter that holds back some of the response body may release it.
    fn resume(&mut self) -> Result<(), Failure> {
        let more = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
        self.timers.moved = true;
        self.filter_data(more, HttpFilters::resume_response)
    }

    /// Shows the filters the end of the response, and sends what they add to its body.
    fn filter_trailers(&mut self) -> Result<(), Failure> {
        let (added, flow) = self.active.filter_response_end();
        if !self.left.take(added.len()) {
            return Err(Failure::FilteredLength);
        }
        self.active.request.stream.bytes_sent += added.len() as u64;
        let data = Data { bytes: added.into(), ends: true, now: turn::now().into_std() };
        let last = self.active.request.response_trailers.is_empty();
        self.held = release(&mut self.active.down, &data, last, flow);
        Ok(())
    }

    fn filter_data(
        &mut self,
        mut data: Data<'_>,
        pass: impl FnOnce(&HttpFilters, &mut FilterStreams, &mut Data<'_>) -> Flow,
    ) -> Result<(), Failure> {
        let request = &mut *self.active.request;
        let flow = pass(&self.active.conn.manager.filters, &mut request.filters, &mut data);
        if !self.left.take(data.bytes.len()) {
            return Err(Failure::FilteredLength);
        }
        request.stream.bytes_sent += data.bytes.len() as u64;
        let last = data.ends && request.response_trailers.is_empty() && !request.filters.sees_response_trailers();
        self.held = release(&mut self.active.down, &data, last, flow);
        Ok(())
    }

    /// Sends the request while a filter holds back the whole response. Ready when the filter is to be called again.
    pub(super) fn poll_held(&mut self, held: &mut Held, cx: &mut Context<'_>) -> Poll<Result<Woken, Failure>> {
        if let Poll::Ready(failure) = self.poll_upload(cx) {
            return Poll::Ready(Err(failure));
        }
        match held.poll(cx) {
            Poll::Ready(woken) => Poll::Ready(Ok(woken)),
            Poll::Pending => self.poll_nothing(cx),
        }
    }

    /// Sends the request and collects the response body; false if it is longer than `max_bytes`.
    pub(super) fn poll_collect(
        &mut self,
        body: &mut HeldBytes,
        max_bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Failure>> {
        self.poll_pieces(cx, |data| {
            body.extend(data);
            body.len() <= max_bytes
        })
    }

    /// As [`Transfer::poll_collect`], but drops what is beyond the first `bytes`.
    pub(super) fn poll_start(
        &mut self,
        start: &mut HeldBytes,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Failure>> {
        self.poll_pieces(cx, |data| {
            let room = bytes.saturating_sub(start.len());
            start.extend(data.get(..room).unwrap_or(data));
            true
        })
    }

    /// Sends the request, and gives the response body to `keep`; false once that does not want any more.
    fn poll_pieces(
        &mut self,
        cx: &mut Context<'_>,
        mut keep: impl FnMut(&[u8]) -> bool,
    ) -> Poll<Result<bool, Failure>> {
        loop {
            if let Poll::Ready(failure) = self.poll_upload(cx) {
                return Poll::Ready(Err(failure));
            }
            let trailers = &mut self.active.request.response_trailers;
            let mut wanted = true;
            match self.up.piece(trailers, &mut |data, _| wanted &= keep(data), cx)? {
                Piece::End => {
                    self.up.filter_response_end(self.active.request);
                    return Poll::Ready(Ok(true));
                }
                Piece::Data if !wanted => return Poll::Ready(Ok(false)),
                Piece::Data => self.timers.moved = true,
                Piece::Nothing => match self.up.poll_receive(cx) {
                    Poll::Ready(received) => received?,
                    Poll::Pending => return self.poll_nothing(cx),
                },
            }
        }
    }

    /// Sends the request. Ready only when it failed.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        while !(self.upload.refused || self.upload.finished) {
            if let Some(mirrors) = &mut self.upload.mirrors {
                ready!(mirrors.poll_turn(cx));
            }
            match ready!(self.poll_upload_step(cx)) {
                Ok(()) => self.timers.moved = true,
                Err(Stop::Refused) => self.upload.refused = true,
                Err(Stop::Failed(failure)) => return Poll::Ready(failure),
            }
        }
        Poll::Pending
    }

    /// Sends one piece or the end of the request, or waits until there is one.
    fn poll_upload_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.upload.replayed < self.upload.replay.as_ref().map_or(0, |known| known.len()) {
            ready!(self.poll_room(cx))?;
            let known = self.upload.replay.as_deref().unwrap_or_default();
            let again = known.get(self.upload.replayed..).unwrap_or_default();
            let part = again.get(..BLOCK_BYTES).unwrap_or(again);
            self.up.send(part, false);
            self.upload.replayed += part.len();
            return Poll::Ready(Ok(()));
        }
        if self.upload.ended {
            ready!(self.up.poll_flush_end(cx)).map_err(|_| Stop::Refused)?;
            self.upload.finished = true;
            return Poll::Ready(Ok(()));
        }
        if self.upload.paused {
            ready!(self.poll_flushed(cx))?;
            return self.active.down.poll_gone(cx).map(|failure| Err(Stop::Failed(failure)));
        }
        if self.upload.held.is_some() {
            let released = self.poll_held_upload(cx);
            if released.is_ready() || !self.upload.reads_on() {
                return released;
            }
        }
        ready!(self.poll_room(cx))?;
        let conn = self.active.conn;
        let request = &mut *self.active.request;
        let (up, upload) = (&mut *self.up, &mut *self.upload);
        let filtered = request.filters.sees_request_data();
        let mut fits = Ok(());
        let mut take = |data: &[u8], last: bool| {
            request.stream.bytes_received += data.len() as u64;
            if !filtered {
                return upload.pass(up, data, last);
            }
            upload.filtered_end |= last;
            let mut data = Data { bytes: data.into(), ends: last, now: turn::now().into_std() };
            let flow = conn.manager.filters.request_data(&mut request.filters, &mut data).map_err(Unfit::Body);
            fits = flow.and_then(|flow| upload.pass_filtered(up, &data, flow));
        };
        let piece = self.active.down.piece(&mut request.trailers, &mut take, cx).map_err(Stop::Failed)?;
        fits?;
        match piece {
            Piece::Data => {}
            Piece::End if filtered && !self.upload.filtered_end => {
                self.upload.filtered_end = true;
                let mut end = Data { bytes: b"".into(), ends: true, now: turn::now().into_std() };
                let flow = conn.manager.filters.request_data(&mut request.filters, &mut end).map_err(Unfit::Body)?;
                // Its end follows as such.
                end.ends = false;
                self.upload.pass_filtered(self.up, &end, flow)?;
            }
            Piece::End if !self.upload.left.is_over() => {
                return Poll::Ready(Err(Stop::Failed(Failure::FilteredLength)));
            }
            Piece::End => {
                // Before the filters, which may write how long that took.
                self.active.request.note_first(TimePoint::DownstreamRxEnd);
                self.active.filter_request_end();
                let request = &mut *self.active.request;
                self.up.finish(request, &request.trailers);
                self.upload.ended = true;
                if let Some(mirrors) = &mut self.upload.mirrors {
                    mirrors.finish(&request.trailers);
                }
                request.note(TimePoint::UpstreamTxEnd);
                self.timers.complete(turn::now());
            }
            Piece::Nothing => {
                ready!(self.poll_flushed(cx))?;
                ready!(self.active.down.poll_receive(cx)).map_err(Stop::Failed)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// A filter holds back some of the body until it is to be called again. What it has released does not wait.
    fn poll_held_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if let Poll::Ready(Err(_)) = self.up.poll_flush(cx) {
            return Poll::Ready(Err(Stop::Refused));
        }
        if self.upload.held.as_mut().is_some_and(|held| held.poll(cx).is_pending()) {
            return self.active.down.poll_gone(cx).map(|failure| Err(Stop::Failed(failure)));
        }
        self.upload.held = None;
        let request = &mut *self.active.request;
        let mut more = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
        let filters = &self.active.conn.manager.filters;
        let flow = filters.resume_request(&mut request.filters, &mut more).map_err(Unfit::Body)?;
        more.ends &= request.trailers.is_empty();
        self.upload.pass_filtered(self.up, &more, flow)?;
        Poll::Ready(Ok(()))
    }

    /// Ready when the upstream accepts more of the request.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let room = self.up.poll_room(cx);
        self.or_gone(room, cx)
    }

    /// Ready when the upstream has taken all that was handed over.
    fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let flushed = self.up.poll_flush(cx);
        self.or_gone(flushed, cx)
    }

    /// While the upstream takes nothing, watches for a client that leaves; what it sends meanwhile waits.
    fn or_gone(&mut self, taken: Poll<io::Result<()>>, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match taken {
            Poll::Ready(taken) => Poll::Ready(taken.map_err(|_| Stop::Refused)),
            Poll::Pending => self.active.down.poll_gone(cx).map(|failure| Err(Stop::Failed(failure))),
        }
    }

    /// Waits while nothing moves: for a deadline, and for a client that leaves after its request was sent or refused. Ready
    /// only with a failure.
    fn poll_nothing<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Failure>> {
        if (self.upload.ended || self.upload.refused)
            && let Poll::Ready(failure) = self.active.down.poll_gone(cx)
        {
            return Poll::Ready(Err(failure));
        }
        let now = turn::now();
        ready!(self.active.deadline.poll(self.timers.next(now), cx));
        Poll::Ready(Err(self.timers.passed(now, self.upload.ended)))
    }

    /// Passes on an interim response. 100 was answered already, unless the proxy leaves that to the upstream (`proxy_100_continue`).
    fn pass_interim(&mut self, hcm: &HttpConnectionManager) {
        let request = &mut *self.active.request;
        let wanted = request.response.status != 100 || hcm.proxy_100_continue;
        if wanted && !request.is_http_10() {
            request.response.headers.remove_hop_by_hop();
            self.active.down.send_interim(&request.response);
        }
    }
}

/// Sends what the filters released; if they hold some back, returns what they wait for.
fn release(down: &mut Downstream<'_>, data: &Data<'_>, last: bool, flow: Flow) -> Option<Held> {
    if !data.bytes.is_empty() {
        down.send(&data.bytes, last);
    }
    match flow {
        Flow::Continue => None,
        Flow::Pause(pause) => Some(Held::new(pause)),
    }
}

/// Why no more of a request is sent.
enum Stop {
    /// The upstream accepts no more.
    Refused,
    Failed(Failure),
}

impl From<Unfit> for Stop {
    fn from(unfit: Unfit) -> Self {
        Self::Failed(match unfit {
            Unfit::Body(bad) => Failure::BadBody(bad),
            Unfit::Length => Failure::FilteredLength,
        })
    }
}
