//! What an HTTP filter sees of a request and its response, and what it may return.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::substitution_format::Format;
use evenkeel_runtime_config::view::ConnectionView;

use super::head::HeadView;
use super::pause::{Pause, Woken};
use super::services::Services;
use crate::format::{HeadLookup, NoHead, Record, ResponseView, Trailers, header_value};
use crate::info::{ConnectionInfo, ResponseFlags, StreamInfo};

/// A request as filters see it.
pub struct RequestContext<'r> {
    /// The downstream connection, with what network filters have learnt so far.
    pub connection: &'r ConnectionView,
    /// What else is known of it, for format strings.
    pub client: &'r ConnectionInfo,
    /// The client's address, by `x-forwarded-for` as far as the connection manager trusts it.
    pub remote: IpAddr,
    /// The request's head. Changes are seen by the next filters, the router and the upstream.
    pub head: &'r mut RequestHead,
    /// The request's body, as far as it is known.
    pub body: Body<'r>,
    /// The request's route, as far as it is known.
    pub route: RouteContext<'r>,
    /// What is known of the request, and what filters leave for others.
    pub info: &'r mut StreamInfo,
    /// What the worker offers.
    pub services: &'r dyn Services,
    /// The current time.
    pub now: Instant,
    /// How the filter's pause ended, if it asked for one.
    pub woken: Option<Woken>,
    /// The filter's name in the configuration.
    pub(super) filter: &'r str,
}

/// The route of a request, as filters see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteContext<'r> {
    /// The route that matched, if any.
    pub route: Option<&'r Route>,
    /// The cluster to forward to, if the route forwards.
    pub cluster: Option<&'r Arc<str>>,
    /// The filters' per-route configuration, on all levels.
    pub filters: RouteFilters<'r>,
}

impl<'r> RequestContext<'r> {
    /// A context that is passed to one filter after the other.
    pub fn new(
        (connection, client, remote): (&'r ConnectionView, &'r ConnectionInfo, IpAddr),
        (head, body): (&'r mut RequestHead, Body<'r>),
        route: RouteContext<'r>,
        info: &'r mut StreamInfo,
        (services, now): (&'r dyn Services, Instant),
    ) -> Self {
        Self { connection, client, remote, head, body, route, info, services, now, woken: None, filter: "" }
    }

    /// The filter's name in the configuration.
    pub fn filter(&self) -> &'r str {
        self.filter
    }

    /// The request as matchers see it.
    pub fn view(&self) -> HeadView<'_> {
        HeadView::new(self.head, &self.info.metadata)
    }

    /// The value of a header to add to this request.
    pub(crate) fn value_of(&self, format: &Format) -> Vec<u8> {
        self.value_for(self.head, format)
    }

    /// Before values are formatted: as in Envoy, they may name the cluster that the route leads to.
    pub(crate) fn note_cluster(&mut self) {
        if self.info.cluster_name.is_none()
            && let Some(cluster) =
                self.route.cluster.filter(|cluster| self.services.clusters().scope(cluster).is_some())
        {
            self.info.cluster_name = Some(Arc::clone(cluster));
        }
    }

    /// The value of a header to add to a request on behalf of this one.
    pub(crate) fn value_for(&self, head: &RequestHead, format: &Format) -> Vec<u8> {
        let facts = RequestFacts { connection: self.client, head, now: self.now };
        facts.record(self.info, self.services, |record| header_value(format, record))
    }

    /// The filter's per-route configuration on the most specific level that has one.
    pub fn per_route<T: 'static>(&self) -> Option<&'r T> {
        if self.route.filters.is_empty() {
            return None;
        }
        self.route.filters.most_specific(self.filter)
    }
}

/// The body of a request or response, for filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'r> {
    /// There is none, or the message is a tunnel without an end.
    Empty,
    /// It is still arriving, and passes in pieces unless a filter wants it collected.
    Coming,
    /// Its beginning, because a filter had that collected; the rest is still to come.
    Start(&'r [u8]),
    /// All of it, because a filter had it collected.
    Whole(&'r [u8]),
}

/// What to do with a request.
#[derive(Debug)]
pub enum Decision {
    /// Continue with the next filter or the router.
    Continue,
    /// Continue, but choose the route again, since the filter changed what it depends on.
    Reroute,
    /// Send this local reply.
    Reply(Reply),
    /// Call the filter again later. Until then nothing of the body is read.
    Pause(Pause),
    /// Call the filter again with the whole body; a longer one is answered with 413.
    Collect {
        /// Longest body, in bytes.
        max_bytes: usize,
    },
    /// Call the filter again with the beginning of the body, or with all of it if it is shorter. It goes on as it came.
    CollectStart {
        /// How many bytes, at least, if there are as many. What arrived with the last of them is there as well.
        bytes: usize,
    },
}

/// What to do with a response.
#[derive(Debug)]
pub enum ResponseDecision {
    /// Continue with the next filter or the client.
    Continue,
    /// Send this local reply instead; no filter sees it.
    Reply(Reply),
    /// Call the filter again later. Until then nothing of the body is read.
    Pause(Pause),
    /// Call the filter again with the whole body; a longer one is replaced by a 500 response.
    Collect {
        /// Longest body, in bytes.
        max_bytes: usize,
    },
    /// Call the filter again with the first bytes of the body; the rest of it is dropped.
    CollectStart {
        /// How many, at most.
        bytes: usize,
    },
}

/// A local reply made by a filter. It passes through the response filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header fields, with lower-case names.
    pub headers: Vec<(Cow<'static, str>, Vec<u8>)>,
    /// Body, `text/plain` unless the headers say otherwise.
    pub body: Cow<'static, [u8]>,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: Cow<'static, str>,
    /// Response flags to set.
    pub flags: ResponseFlags,
    /// The status for gRPC clients, if not the one that corresponds to the HTTP status.
    pub grpc_status: Option<u32>,
    /// Send it unchanged: neither translated for gRPC clients nor edited by the route.
    pub verbatim: bool,
}

impl Reply {
    /// A reply with a body.
    pub fn new(status: u16, body: &'static str, details: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.as_bytes().into(),
            details: details.into(),
            flags: ResponseFlags::NONE,
            grpc_status: None,
            verbatim: false,
        }
    }

    /// The reply when a filter's state does not match the filter, which cannot happen: the request must not pass.
    pub(super) fn broken() -> Self {
        Self::new(500, "", "filter_state_mismatch")
    }
}

/// What is known of a request behind its head besides its [`StreamInfo`], for format strings.
#[derive(Clone, Copy)]
pub struct RequestFacts<'r> {
    /// The client's connection.
    pub connection: &'r ConnectionInfo,
    /// The request's head, as the upstream got it.
    pub head: &'r RequestHead,
    /// The current time.
    pub now: Instant,
}

impl RequestFacts<'_> {
    fn record<T>(&self, info: &StreamInfo, services: &dyn Services, f: impl FnOnce(&Record<'_>) -> T) -> T {
        let start = services.clock().wall_clock(info.times.start(), self.now);
        let head = HeadView::new(self.head, &info.metadata);
        f(&Record { request: &head, ..Record::headless(info, self.connection, (start, self.now)) })
    }

    /// As [`RequestFacts::record`], with a response, whose status counts from here on although it is not sent yet.
    fn record_with<T>(
        &self,
        (info, services): (&StreamInfo, &dyn Services),
        (response, trailers): (&ResponseHead, &dyn HeadLookup),
        f: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        let status = if info.status == 0 { response.status } else { info.status };
        let response = ResponseView(response);
        self.record(info, services, |record| f(&Record { response: &response, trailers, status, ..*record }))
    }
}

/// The end of a request as filters see it.
pub struct RequestTrailersContext<'r> {
    /// The trailers.
    pub trailers: &'r mut Headers,
    /// The request.
    pub facts: RequestFacts<'r>,
    /// What is known of it.
    pub info: &'r StreamInfo,
    /// What the worker offers.
    pub services: &'r dyn Services,
}

impl RequestTrailersContext<'_> {
    /// The value of a trailer to add.
    pub(crate) fn value_of(&self, format: &Format) -> Vec<u8> {
        self.facts.record(self.info, self.services, |record| header_value(format, record))
    }
}

/// A response's head as filters see it.
pub struct ResponseContext<'r> {
    /// The head.
    pub head: &'r mut ResponseHead,
    /// The upstream host, as in logs; `None` if the request was sent to none.
    pub host: Option<&'r str>,
    /// Whether this is a local reply.
    pub local: bool,
    /// Whether nothing follows the head.
    pub ends: bool,
    /// Time since the request was sent to the upstream completely, if it was; `None` for local replies.
    pub since_request: Option<Duration>,
    /// The response's body, as far as it is known.
    pub body: Body<'r>,
    /// The request.
    pub facts: RequestFacts<'r>,
    /// What filters leave for others.
    pub info: &'r mut StreamInfo,
    /// What the worker offers.
    pub services: &'r dyn Services,
    /// How the filter's pause ended, if it asked for one.
    pub woken: Option<Woken>,
}

impl ResponseContext<'_> {
    /// The value of a header to add to this response.
    pub(crate) fn value_of(&self, format: &Format) -> Vec<u8> {
        let known = (&*self.info, self.services);
        self.facts.record_with(known, (&*self.head, &NoHead), |record| header_value(format, record))
    }
}

/// The end of a response as filters see it.
pub struct TrailersContext<'r> {
    /// The trailers; most responses have none.
    pub trailers: &'r mut Headers,
    /// The response's head.
    pub response: &'r ResponseHead,
    /// The request.
    pub facts: RequestFacts<'r>,
    /// What is known of it.
    pub info: &'r mut StreamInfo,
    /// What the worker offers.
    pub services: &'r dyn Services,
    /// Time since the request was sent to the upstream completely, if it was.
    pub since_request: Option<Duration>,
    /// More of the body, which comes before the trailers. A filter that adds some must have removed `content-length` from
    /// the head, or counted it there.
    pub body: Vec<u8>,
}

impl TrailersContext<'_> {
    /// The value of a trailer to add.
    pub(crate) fn value_of(&self, format: &Format) -> Vec<u8> {
        let response = (self.response, &Trailers(self.trailers) as &dyn HeadLookup);
        self.facts.record_with((self.info, self.services), response, |record| header_value(format, record))
    }
}

/// Why a request with this body ends: with this reply, or a reset if the response has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadBody {
    /// The reply's status.
    pub status: u16,
    /// The reply's body.
    pub body: &'static str,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: &'static str,
}

/// A piece of a body passing through the filters.
#[derive(Debug)]
pub struct Data<'d> {
    /// The bytes to pass on. A filter that changes a body's length must have removed `content-length` from the head, or
    /// set it to the new length; otherwise the message is cut off.
    pub bytes: Cow<'d, [u8]>,
    /// Nothing follows, except perhaps trailers.
    pub ends: bool,
    /// The current time.
    pub now: Instant,
}

/// What to do with a body.
#[derive(Debug)]
pub enum Flow {
    /// Pass it on.
    Continue,
    /// The filter has held some of it back; call it again later.
    Pause(Pause),
}
