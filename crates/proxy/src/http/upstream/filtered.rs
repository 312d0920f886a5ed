//! One try's exchange with a host behind the HTTP filters of its cluster (`HttpProtocolOptions.http_filters`). These see what is sent to
//! the host and what it responds, before a retry policy does; the connection manager's filters are called just as they are without them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::format::Record;
use evenkeel_filters::{
    Body, ConnectionInfo, Data, Decision, FilterStreams, Flow, HttpFilters, Reply, RequestContext, RequestFacts,
    RequestTrailersContext, ResponseContext, ResponseDecision, Services, StreamInfo, TrailersContext, Woken,
};
use evenkeel_http::{HeaderId, Headers, RequestHead, ResponseInfo};
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::turn;

use super::{Arrived, Upstream};
use crate::connection_record::record_of_connection;
use crate::http::failure::Failure;
use crate::http::framed::{Piece, Take};
use crate::http::pause::Held;
use crate::http::request::Request;

/// The exchange, and its position among the filters.
pub(in crate::http) struct Filtered {
    pub(super) inner: Upstream,
    chain: Chain,
    /// A filter holds back some of the response body until this is ready; true once it is, so that the filter is to be called again.
    held: Option<(Held, bool)>,
    /// The filters have seen the end of the response body.
    filtered_end: bool,
    /// Whether they have seen the response trailers.
    trailers_seen: bool,
    /// The context with which the filters were called.
    told: Option<FilterSurroundings>,
    /// The response head has arrived, and a filter holds it back.
    arrived: Option<(ResponseInfo, Held)>,
    /// Set when a filter refused the request's body: nothing more is sent.
    failed: Option<Failure>,
}

/// The context with which filters are called, besides the message.
struct FilterSurroundings {
    services: Rc<dyn Services>,
    client: Arc<ConnectionInfo>,
}

impl FilterSurroundings {
    fn facts<'r>(&'r self, head: &'r RequestHead) -> RequestFacts<'r> {
        RequestFacts { connection: &self.client, head, now: turn::now().into_std() }
    }
}

/// The filters, and their state for the try. They are told of its end when this is dropped, if not before.
struct Chain {
    filters: Rc<HttpFilters>,
    streams: FilterStreams,
    completed: bool,
}

impl Chain {
    fn complete(&mut self, end: &Record<'_>) {
        if !std::mem::replace(&mut self.completed, true) {
            self.filters.complete(&mut self.streams, end);
        }
    }
}

impl Drop for Chain {
    /// A try that was cancelled: nothing is known of it.
    fn drop(&mut self) {
        if self.completed || !self.streams.sees_end() {
            return;
        }
        let (now, nowhere) = (turn::now().into_std(), SocketAddr::from(([0, 0, 0, 0], 0)));
        let (stream, nobody) = (StreamInfo::new(now), ConnectionInfo::new(0, now, nowhere, nowhere));
        self.complete(&Record { cut_off: true, ..record_of_connection(&stream, &nobody) });
    }
}

impl Filtered {
    pub(super) fn new(inner: Upstream, filters: Rc<HttpFilters>) -> Self {
        let chain = Chain { filters, streams: FilterStreams::default(), completed: false };
        Self {
            inner,
            chain,
            held: None,
            filtered_end: false,
            trailers_seen: false,
            told: None,
            arrived: None,
            failed: None,
        }
    }

    /// Calls the remaining filters with the request head.
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

    /// Sets the services the filters may use, and the client that the request is from.
    pub(in crate::http) fn serve_with(&mut self, services: Rc<dyn Services>, client: Arc<ConnectionInfo>) {
        self.told = Some(FilterSurroundings { services, client });
    }

    /// The pause of the filter that is next is over.
    pub(in crate::http) fn wake(&mut self, woken: Woken) {
        self.chain.streams.wake(woken);
    }

    pub(super) fn send(&mut self, data: &[u8], last: bool) {
        if self.failed.is_some() {
            return;
        }
        if self.chain.streams.sees_request_data() {
            let mut data = Data { bytes: data.into(), ends: last, now: turn::now().into_std() };
            match self.chain.filters.request_data(&mut self.chain.streams, &mut data) {
                Ok(Flow::Continue) => self.inner.send(&data.bytes, last),
                Err(bad) => self.failed = Some(Failure::BadBody(bad)),
                // No cluster filter holds back a request.
                Ok(Flow::Pause(_)) => {
                    self.failed = Some(Failure::Filter(Box::new(Reply::new(500, "", "filter_pauses_in_cluster"))));
                }
            }
            return;
        }
        self.inner.send(data, last);
    }

    pub(super) fn finish(&mut self, request: &Request, trailers: &Headers) {
        // The host must not take the beginning of a body for all of it.
        if self.failed.is_some() {
            return;
        }
        let Some(told) = self.told.as_ref().filter(|_| !trailers.is_empty()) else {
            return self.inner.finish(request, trailers);
        };
        let mut trailers = trailers.clone();
        let (facts, info) = (told.facts(&request.head), &request.stream);
        let mut context = RequestTrailersContext { trailers: &mut trailers, facts, info, services: &*told.services };
        self.chain.filters.request_trailers(&mut self.chain.streams, &mut context);
        self.inner.finish(request, &trailers);
    }

    pub(super) fn poll_head(&mut self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Arrived, Failure>> {
        if let Some(failure) = self.failed.take() {
            return Poll::Ready(Err(failure));
        }
        if let Some((info, mut held)) = self.arrived.take() {
            let Poll::Ready(woken) = held.poll(cx) else {
                self.arrived = Some((info, held));
                return Poll::Pending;
            };
            self.chain.streams.wake(woken);
            return self.poll_filtered_head(info, request, cx);
        }
        let arrived = ready!(self.inner.poll_head(request, cx))?;
        let Arrived::Final(info) = arrived else { return Poll::Ready(Ok(arrived)) };
        if !self.chain.streams.sees_response_head() {
            return Poll::Ready(Ok(arrived));
        }
        request.note(TimePoint::UpstreamRxBegin);
        request.stream.details = "via_upstream".into();
        // The host's hop-by-hop headers end here; those of a 101 are still needed for the upgrade.
        if request.response.status != 101 {
            let headers = &mut request.response.headers;
            request.head_chunked = headers.contains(HeaderId::TransferEncoding);
            headers.remove_hop_by_hop();
        }
        self.poll_filtered_head(info, request, cx)
    }

    fn poll_filtered_head(
        &mut self,
        info: ResponseInfo,
        request: &mut Request,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arrived, Failure>> {
        let Some(told) = &self.told else { return Poll::Ready(Ok(Arrived::Final(info))) };
        let ends = info.framing.is_empty();
        let host = request.host.as_ref().map(|host| &*host.label);
        let mut context = ResponseContext {
            head: &mut request.response,
            host,
            local: false,
            ends,
            since_request: None,
            body: if ends { Body::Empty } else { Body::Coming },
            facts: told.facts(&request.head),
            info: &mut request.stream,
            services: &*told.services,
            woken: None,
        };
        let decision = self.chain.filters.response_head(&mut self.chain.streams, &mut context);
        Poll::Ready(match decision {
            ResponseDecision::Continue => Ok(Arrived::Final(info)),
            ResponseDecision::Reply(reply) => Err(Failure::Filter(Box::new(reply))),
            ResponseDecision::Pause(pause) => {
                self.arrived = Some((info, Held::new(pause)));
                return self.poll_head(request, cx);
            }
            // No cluster filter collects responses.
            ResponseDecision::Collect { .. } | ResponseDecision::CollectStart { .. } => {
                Err(Failure::Filter(Box::new(Reply::new(500, "", "filter_collects_in_cluster"))))
            }
        })
    }

    pub(super) fn piece(
        &mut self,
        trailers: &mut Headers,
        take: &mut Take<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Piece, Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if !self.chain.streams.sees_response_data() {
            return self.inner.piece(trailers, take, cx);
        }
        if self.poll_held(cx).is_pending() {
            return Ok(Piece::Nothing);
        }
        if self.held.take().is_some() {
            let mut data = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
            let flow = self.chain.filters.resume_response(&mut self.chain.streams, &mut data);
            self.held = release(&data, flow, take);
            return Ok(Piece::Data);
        }
        let (filters, streams) = (&self.chain.filters, &mut self.chain.streams);
        let (held, filtered_end) = (&mut self.held, &mut self.filtered_end);
        let mut through = |bytes: &[u8], last: bool| {
            *filtered_end |= last;
            let mut data = Data { bytes: bytes.into(), ends: last, now: turn::now().into_std() };
            let flow = filters.response_data(streams, &mut data);
            *held = release(&data, flow, take);
        };
        let piece = self.inner.piece(trailers, &mut through, cx)?;
        if matches!(piece, Piece::End) && !self.filtered_end && trailers.is_empty() {
            self.filtered_end = true;
            let mut data = Data { bytes: b"".into(), ends: true, now: turn::now().into_std() };
            let flow = self.chain.filters.response_data(&mut self.chain.streams, &mut data);
            self.held = release(&data, flow, take);
            return Ok(Piece::Data);
        }
        Ok(piece)
    }

    /// Shows the filters the end of the response.
    pub(super) fn end(&mut self, request: &mut Request) {
        let Some(told) = &self.told else { return };
        if std::mem::replace(&mut self.trailers_seen, true) || !self.chain.streams.sees_response_trailers() {
            return;
        }
        let mut context = TrailersContext {
            trailers: &mut request.response_trailers,
            response: &request.response,
            facts: told.facts(&request.head),
            info: &mut request.stream,
            services: &*told.services,
            since_request: None,
            body: Vec::new(),
        };
        // No filter that a cluster may have adds to a body.
        let _ = self.chain.filters.response_trailers(&mut self.chain.streams, &mut context);
    }

    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self.held {
            Some(_) => self.poll_held(cx).map(Ok),
            None => self.inner.poll_receive(cx),
        }
    }

    /// Ready when no filter holds anything back, or when the one that does is to be called again.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((held, due @ false)) = &mut self.held {
            ready!(held.poll(cx));
            *due = true;
        }
        Poll::Ready(())
    }

    /// Tells the filters that the try is over.
    pub(super) fn complete(&mut self, request: &Request) {
        if let Some(FilterSurroundings { client, .. }) = self.told.as_ref().filter(|_| self.chain.streams.sees_end()) {
            request.record(client, false, |end| self.chain.complete(end));
        }
    }
}

fn release(data: &Data<'_>, flow: Flow, take: &mut Take<'_>) -> Option<(Held, bool)> {
    if !data.bytes.is_empty() {
        take(&data.bytes, data.ends);
    }
    match flow {
        Flow::Continue => None,
        Flow::Pause(pause) => Some((Held::new(pause), false)),
    }
}
