//! One try's exchange with a host through the HTTP filters of its cluster (`HttpProtocolOptions.http_filters`). They see what the host gets
//! and what it answers, before a retry policy does; the filters of the connection manager see neither more nor less than without them.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::{
    Data, Decision, FilterFacts, FilterStreams, Flow, HttpFilters, RequestContext, ResponseContext, TrailersContext,
    Woken,
};
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_upstream::turn;

use super::{Arrived, Upstream};
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};
use crate::http::pause::Held;
use crate::http::request::Request;
use crate::response_flags::ResponseFlags;

/// The exchange, and where it stands among the filters.
pub(in crate::http) struct Filtered {
    pub(super) inner: Upstream,
    chain: Chain,
    /// A filter keeps some of the answer's body back, until then; true: it is to be asked again.
    held: Option<(Held, bool)>,
    /// The filters have seen the end of the answer's body.
    filtered_end: bool,
    /// They have seen its trailers.
    trailers_seen: bool,
}

/// The filters, and what they keep of the try. They are told of its end when this is dropped, or before.
struct Chain {
    filters: Rc<HttpFilters>,
    streams: FilterStreams,
    completed: bool,
}

impl Chain {
    fn complete(&mut self, facts: &mut FilterFacts) {
        if !std::mem::replace(&mut self.completed, true) {
            self.filters.complete(&mut self.streams, facts);
        }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.complete(&mut FilterFacts::default());
    }
}

impl Filtered {
    pub(super) fn new(inner: Upstream, filters: Rc<HttpFilters>) -> Self {
        let chain = Chain { filters, streams: FilterStreams::default(), completed: false };
        Self { inner, chain, held: None, filtered_end: false, trailers_seen: false }
    }

    /// Asks the filters that are left about the request's head.
    pub(in crate::http) fn ask<'r>(
        &'r mut self,
        route: &RouteFilters<'_>,
        context: &mut RequestContext<'r>,
    ) -> Decision {
        if !self.chain.streams.is_begun() {
            self.chain.filters.begin(&mut self.chain.streams, route);
        }
        self.chain.filters.request_head(&mut self.chain.streams, context)
    }

    /// The pause of the filter that stands next is over.
    pub(in crate::http) fn wake(&mut self, woken: Woken) {
        self.chain.streams.wake(woken);
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        if self.chain.streams.sees_request_data() {
            self.chain.filters.request_data(&mut self.chain.streams, data);
        }
        self.inner.send(data, last);
    }

    pub(super) fn finish(&mut self, trailers: &Headers) {
        if trailers.is_empty() {
            return self.inner.finish(trailers);
        }
        let mut trailers = trailers.clone();
        self.chain.filters.request_trailers(&mut self.chain.streams, &mut trailers);
        self.inner.finish(&trailers);
    }

    pub(super) fn poll_head(&mut self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Arrived, Failure>> {
        let arrived = ready!(self.inner.poll_head(request, cx))?;
        if let Arrived::Final(info) = arrived
            && self.chain.streams.sees_response_head()
        {
            // What the host has said of its hop ends here; an upgrade is still to be seen.
            if request.response.status != 101 {
                let headers = &mut request.response.headers;
                request.head_chunked = headers.contains(HeaderId::TransferEncoding);
                headers.remove_hop_by_hop();
            }
            let host = request.host.as_ref().map(|host| &*host.label);
            let mut context = ResponseContext {
                head: &mut request.response,
                host,
                local: false,
                ends: info.framing.is_empty(),
                since_request: None,
            };
            self.chain.filters.response_head(&mut self.chain.streams, &mut context);
        }
        Poll::Ready(Ok(arrived))
    }

    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        if !self.chain.streams.sees_response_data() {
            let piece = self.inner.piece(trailers, take, cx)?;
            return Ok(self.end(piece, trailers));
        }
        if self.poll_held(cx).is_pending() {
            return Ok(Piece::Nothing);
        }
        if self.held.take().is_some() {
            let mut data = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
            let flow = self.chain.filters.resume_response(&mut self.chain.streams, &mut data);
            self.held = let_go(&data, flow, take);
            return Ok(Piece::Data);
        }
        let (filters, streams) = (&self.chain.filters, &mut self.chain.streams);
        let (held, filtered_end) = (&mut self.held, &mut self.filtered_end);
        let mut through = |bytes: &[u8], last: bool| {
            *filtered_end |= last;
            let mut data = Data { bytes: bytes.into(), ends: last, now: turn::now().into_std() };
            let flow = filters.response_data(streams, &mut data);
            *held = let_go(&data, flow, take);
        };
        let piece = self.inner.piece(trailers, &mut through, cx)?;
        if matches!(piece, Piece::End) && !self.filtered_end && trailers.is_empty() {
            self.filtered_end = true;
            let mut data = Data { bytes: b"".into(), ends: true, now: turn::now().into_std() };
            let flow = self.chain.filters.response_data(&mut self.chain.streams, &mut data);
            self.held = let_go(&data, flow, take);
            return Ok(Piece::Data);
        }
        Ok(self.end(piece, trailers))
    }

    /// Shows the filters the end of the answer.
    fn end(&mut self, piece: Piece, trailers: &mut Headers) -> Piece {
        if matches!(piece, Piece::End)
            && !std::mem::replace(&mut self.trailers_seen, true)
            && self.chain.streams.sees_response_trailers()
        {
            let mut context = TrailersContext { trailers, since_request: None };
            self.chain.filters.response_trailers(&mut self.chain.streams, &mut context);
        }
        piece
    }

    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self.held {
            Some(_) => self.poll_held(cx).map(Ok),
            None => self.inner.poll_receive(cx),
        }
    }

    /// Ready when nothing is kept back, or what is kept back is to be asked for again.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((held, due @ false)) = &mut self.held {
            ready!(held.poll(cx));
            *due = true;
        }
        Poll::Ready(())
    }

    /// Tells the filters that the try is over.
    pub(super) fn complete(&mut self, facts: &mut FilterFacts) {
        self.chain.complete(facts);
    }
}

fn let_go(data: &Data<'_>, flow: Flow, take: &mut Take<'_>) -> Option<(Held, bool)> {
    if !data.bytes.is_empty() {
        take(&data.bytes, data.ends);
    }
    match flow {
        Flow::Continue => None,
        Flow::Pause(pause) => Some((Held::new(pause), false)),
    }
}

/// Takes the response flags that filters want to be set.
pub(in crate::http) fn take_flags(request: &mut Request) {
    for flag in request.facts.flags.drain(..) {
        request.flags |= ResponseFlags::from_short_name(flag).unwrap_or_default();
    }
}
