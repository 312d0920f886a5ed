//! What an HTTP filter sees of a request and its answer, and what it may say.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::view::ConnectionView;

use super::cluster_scope::ClusterScope;
use super::head::HeadView;
use crate::callouts::Callouts;
use crate::info::{ResponseFlags, StreamInfo};
use crate::rbac::Verdict;

/// What a filter may ask of the worker it runs on.
pub trait Services {
    /// What filters keep and count per cluster, under the cluster's name; `None`: there is no such cluster.
    fn cluster(&self, name: &str) -> Option<Rc<ClusterScope>>;
    /// The next random number.
    fn random(&self) -> u64;
    /// Makes calls to other clusters. A call ends when it is dropped: a filter keeps it in its state, or in what it waits for.
    fn callouts(&self) -> &dyn Callouts;
}

/// A request as filters see it.
pub struct RequestContext<'r> {
    /// The connection it came on.
    pub connection: &'r ConnectionView,
    /// The client, as `x-forwarded-for` and the connection manager's trust in it say.
    pub remote: IpAddr,
    /// Its head. What it is changed to is what the next filter, the router and the upstream see.
    pub head: &'r mut RequestHead,
    /// Its body, as far as it is known.
    pub body: Body<'r>,
    /// Where it goes, as far as that is known.
    pub route: RouteContext<'r>,
    /// What is known of it, and what filters leave for others.
    pub info: &'r mut StreamInfo,
    /// What the worker does for filters.
    pub services: &'r dyn Services,
    /// The time.
    pub now: Instant,
    /// The filter asked for a pause, and this is how it ended.
    pub woken: Option<Woken>,
    /// The filter's name in the configuration.
    pub(super) filter: &'r str,
}

/// The route of a request, as filters see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteContext<'r> {
    /// The route that serves it, when one matched.
    pub route: Option<&'r Route>,
    /// The cluster it goes to, when its route forwards.
    pub cluster: Option<&'r Arc<str>>,
    /// What the route and what is around it say to filters.
    pub filters: RouteFilters<'r>,
}

impl<'r> RequestContext<'r> {
    /// A context that the filters are given one after the other.
    pub fn new(
        (connection, remote): (&'r ConnectionView, IpAddr),
        (head, body): (&'r mut RequestHead, Body<'r>),
        route: RouteContext<'r>,
        info: &'r mut StreamInfo,
        (services, now): (&'r dyn Services, Instant),
    ) -> Self {
        Self { connection, remote, head, body, route, info, services, now, woken: None, filter: "" }
    }

    /// The filter's name in the configuration.
    pub fn filter(&self) -> &'r str {
        self.filter
    }

    /// The request as matchers see it.
    pub fn view(&self) -> HeadView<'_> {
        HeadView::new(self.head, &self.info.metadata)
    }

    /// What the route says to this filter: the most specific level that says something.
    pub(crate) fn per_route<T: 'static>(&self) -> Option<&'r T> {
        if self.route.filters.is_empty() {
            return None;
        }
        self.route.filters.most_specific(self.filter)
    }
}

/// The body of a request, or of an answer, for filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'r> {
    /// There is none, or it is a tunnel's and has no end.
    Empty,
    /// It is on its way, and goes by in pieces unless a filter wants it collected.
    Coming,
    /// All of it, because a filter wanted that.
    Whole(&'r [u8]),
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Decision {
    /// The next filter, or the router, takes it.
    Continue,
    /// As above, and the route is chosen again: the filter has changed what it is chosen by.
    Reroute,
    /// It is answered here.
    Reply(Reply),
    /// The filter is to be asked again later. Meanwhile nothing of the body is read.
    Pause(Pause),
    /// The filter is to be asked again with the whole body; a longer one is answered with 413.
    Collect {
        /// Longest body, in bytes.
        max_bytes: usize,
    },
}

/// What becomes of an answer.
#[derive(Debug)]
pub enum ResponseDecision {
    /// The next filter, or the client, gets it.
    Continue,
    /// Another answer takes its place, and no filter sees that one.
    Reply(Reply),
    /// The filter is to be asked again later. Meanwhile nothing of the body is read.
    Pause(Pause),
    /// The filter is to be asked again with the whole body; a longer one is replaced by 500.
    Collect {
        /// Longest body, in bytes.
        max_bytes: usize,
    },
}

/// What a decision about a request does not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Rules were evaluated.
    Verdict(Verdict),
    /// What becomes of the request or its answer.
    Note(String),
    /// The same, and it depends on more than the call and the configuration.
    ByState(String),
}

/// What a filter waits for. A filter that is waited for no longer, because the client has left, is not told.
pub struct Pause {
    /// Ready when the filter can go on; `None`: it waits for the time only.
    pub wait: Option<Wait>,
    /// The longest wait.
    pub limit: Duration,
}

/// What a filter waits for; what it brings is left where the filter's state finds it.
pub type Wait = Pin<Box<dyn Future<Output = ()>>>;

/// How a pause ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// What was waited for is there.
    Ready,
    /// The time is over.
    TimedOut,
}

impl Pause {
    /// Waits this long.
    pub fn for_time(limit: Duration) -> Self {
        Self { wait: None, limit }
    }

    /// Waits until this is ready, no longer than the limit.
    pub fn until(wait: impl Future<Output = ()> + 'static, limit: Duration) -> Self {
        Self { wait: Some(Box::pin(wait)), limit }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// An answer made by a filter. It passes through the response filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Fields of its head, names in lower case.
    pub headers: Vec<(Cow<'static, str>, Vec<u8>)>,
    /// Body, `text/plain` unless the fields say otherwise.
    pub body: Cow<'static, [u8]>,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: Cow<'static, str>,
    /// Response flags the filter sets.
    pub flags: ResponseFlags,
    /// The status for clients of gRPC, where it is not the one that stands for the HTTP status.
    pub grpc_status: Option<u32>,
    /// It is sent as it is: neither translated for clients of gRPC nor edited by the route.
    pub verbatim: bool,
}

impl Reply {
    /// An answer with a body.
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

    /// What is answered where a filter cannot have been asked: nothing passes then.
    pub(super) fn broken() -> Self {
        Self::new(500, "", "filter_state_mismatch")
    }
}

/// The head of an answer as filters see it.
pub struct ResponseContext<'r> {
    /// The head.
    pub head: &'r mut ResponseHead,
    /// The host the request was sent to, as in logs; `None`: it was sent to none.
    pub host: Option<&'r str>,
    /// The proxy's own answer.
    pub local: bool,
    /// Nothing follows the head.
    pub ends: bool,
    /// Since the upstream had all of the request, if it had; `None` for the proxy's own answers.
    pub since_request: Option<Duration>,
    /// Its body, as far as it is known.
    pub body: Body<'r>,
    /// What filters leave for others.
    pub info: &'r mut StreamInfo,
    /// What the worker does for filters.
    pub services: &'r dyn Services,
    /// The filter asked for a pause, and this is how it ended.
    pub woken: Option<Woken>,
}

/// The end of an answer as filters see it.
pub struct TrailersContext<'r> {
    /// Its trailers; most answers have none.
    pub trailers: &'r mut Headers,
    /// Since the upstream had all of the request, if it had.
    pub since_request: Option<Duration>,
}

/// A piece of a body on its way through the filters.
#[derive(Debug)]
pub struct Data<'d> {
    /// What goes on. A filter that makes a body longer or shorter takes `content-length` off the head before, or sets it to what it will
    /// be; otherwise the message is cut off.
    pub bytes: Cow<'d, [u8]>,
    /// Nothing follows but perhaps trailers.
    pub ends: bool,
    /// The time.
    pub now: Instant,
}

/// What becomes of an answer's body.
#[derive(Debug)]
pub enum Flow {
    /// It goes on.
    Continue,
    /// The filter has kept some of it back, and is to be asked again.
    Pause(Pause),
}
