//! The HTTP filters of one connection manager, in order. To add one: a folder here, and one line in [`filters!`] below.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::ResponseHead;
use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::rbac::RbacPerRoute;
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::view::{ConnectionView, RequestView};
use evenkeel_stats::{Registry, ScopeName};

use crate::grpc_stats::Call;
use crate::stateful_session::Session;
use crate::{buffer, grpc_stats, rbac, stateful_session};

/// A filter's part in a request's life; what it does not care for it leaves out.
pub(crate) trait Filter: Sized {
    /// Its compiled configuration.
    type Config;

    /// One worker's filter. `outer` names the connection manager's statistics (`http.PREFIX.`).
    fn new(config: Arc<Self::Config>, registry: &Registry, outer: &ScopeName) -> Self;

    /// The request has a route, or has none, and goes on if the filter lets it. A filter that asks another service waits
    /// here; dropping the future must lose nothing but the answer. A filter that looks at the body answers with
    /// [`Decision::Collect`] while it is [`Body::Coming`], and is asked again when all of it is there.
    fn on_request<R: RequestView>(
        &self,
        _context: &RequestContext<'_, R>,
        _kept: &mut Kept,
    ) -> impl Future<Output = Decision> {
        std::future::ready(Decision::Continue)
    }

    /// The upstream answered; the head may be changed before it goes down. Not called for the proxy's own answers.
    fn on_response(&self, _answer: &mut Answer<'_>, _kept: &Kept) {}
}

/// The registry: the filters there are, each under its name in [`hcm::HttpFilter`].
macro_rules! filters {
    ($($(#[$doc:meta])* $name:ident => $filter:ty,)*) => {
        /// One filter, with what this worker counts for it.
        #[derive(Debug)]
        pub enum HttpFilter {
            $($(#[$doc])* $name($filter),)*
        }

        impl HttpFilter {
            fn new(config: &hcm::HttpFilter, registry: &Registry, outer: &ScopeName) -> Self {
                match config {
                    $(hcm::HttpFilter::$name(config) => {
                        Self::$name(<$filter as Filter>::new(Arc::clone(config), registry, outer))
                    })*
                }
            }

            async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>, kept: &mut Kept) -> Decision {
                match self {
                    $(Self::$name(filter) => Filter::on_request(filter, context, kept).await,)*
                }
            }

            fn on_response(&self, answer: &mut Answer<'_>, kept: &Kept) {
                match self {
                    $(Self::$name(filter) => Filter::on_response(filter, answer, kept),)*
                }
            }
        }
    };
}

filters! {
    /// `envoy.filters.http.buffer`.
    Buffer => buffer::HttpFilter,
    /// `envoy.filters.http.grpc_stats`.
    GrpcStats => grpc_stats::HttpFilter,
    /// `envoy.filters.http.rbac`.
    Rbac => rbac::HttpFilter,
    /// `envoy.filters.http.stateful_session`.
    StatefulSession => stateful_session::HttpFilter,
}

/// One worker's filters of one connection manager, before the router.
#[derive(Debug)]
pub struct HttpFilters {
    filters: Vec<HttpFilter>,
}

/// What filters may know of a request.
#[derive(Debug)]
pub struct RequestContext<'r, R> {
    /// The connection it came on.
    pub connection: &'r ConnectionView,
    /// The client, as `x-forwarded-for` and the connection manager's trust in it say.
    pub remote: IpAddr,
    /// Its head.
    pub request: &'r R,
    /// The route that serves it, when one matched.
    pub route: Option<&'r Route>,
    /// Its body, as far as it is known.
    pub body: Body<'r>,
}

/// A request's body, for filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'r> {
    /// It has none, or is a tunnel's and has no end.
    Empty,
    /// It is on its way, and goes by unseen unless a filter wants it collected.
    Coming,
    /// All of it, because a filter wanted that.
    Whole(&'r [u8]),
}

/// The filter that is to be asked next: where to go on when a body was collected.
#[derive(Debug, Default)]
pub struct Position(usize);

/// What filters leave for what comes after them: the choice of a host, what goes by, and their own response phase.
#[derive(Debug, Default)]
pub struct Kept {
    /// The session the request belongs to.
    pub session: Option<Rc<Session>>,
    /// The call of gRPC it is, which is shown what goes by; bodies of other requests are looked at by nobody.
    pub call: Option<Call>,
}

/// An upstream's answer.
#[derive(Debug)]
pub struct Answer<'r> {
    /// Who answered, as in logs.
    pub host: &'r str,
    /// Its head.
    pub head: &'r mut ResponseHead,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The next filter, or the router, takes it.
    Continue,
    /// It is answered here.
    LocalReply(LocalReply),
    /// The filter is to be asked again with the whole body; a longer one is answered with 413.
    Collect {
        /// Longest body, in bytes.
        max_bytes: usize,
    },
}

/// An answer made by a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReply {
    /// HTTP status.
    pub status: u16,
    /// Body, `text/plain`.
    pub body: &'static str,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: String,
    /// Short response flag (`UAEX`), where the filter has one.
    pub flag: Option<&'static str>,
}

impl HttpFilters {
    /// Makes a worker's filters. `outer` names the connection manager's statistics (`http.PREFIX.`).
    pub fn new(filters: &[hcm::HttpFilter], registry: &Registry, outer: &ScopeName) -> Self {
        Self { filters: filters.iter().map(|filter| HttpFilter::new(filter, registry, outer)).collect() }
    }

    /// There is nothing to ask.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// The request phase: runs the filters in order, from `position` on, until one answers or wants the body.
    ///
    /// The filters of today never wait, so the future is ready at its first poll and owns nothing that dropping it could lose.
    pub async fn on_request<R: RequestView>(
        &self,
        position: &mut Position,
        context: &RequestContext<'_, R>,
        kept: &mut Kept,
    ) -> Decision {
        while let Some(filter) = self.filters.get(position.0) {
            match filter.on_request(context, kept).await {
                Decision::Continue => position.0 += 1,
                decision => return decision,
            }
        }
        Decision::Continue
    }

    /// The response phase: the filters in reverse order, so that the first to see the request is the last to see its answer.
    pub fn on_response(&self, answer: &mut Answer<'_>, kept: &Kept) {
        self.filters.iter().rev().for_each(|filter| filter.on_response(answer, kept));
    }
}

impl<R> RequestContext<'_, R> {
    /// RBAC of the route or its virtual host.
    pub(crate) fn route_rbac(&self) -> Option<&RbacPerRoute> {
        self.route.and_then(|route| route.filters.rbac.as_deref())
    }
}
