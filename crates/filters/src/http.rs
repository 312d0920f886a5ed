//! The HTTP filters of one connection manager, in order.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::rbac::RbacPerRoute;
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::view::{ConnectionView, RequestView};
use evenkeel_stats::{Registry, ScopeName};

use crate::rbac;

/// One worker's filters of one connection manager, before the router.
#[derive(Debug)]
pub struct HttpFilters {
    filters: Vec<HttpFilter>,
}

/// One filter, with what this worker counts for it.
#[derive(Debug)]
pub enum HttpFilter {
    /// `envoy.filters.http.rbac`.
    Rbac(rbac::HttpFilter),
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
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The next filter, or the router, takes it.
    Continue,
    /// It is answered here.
    LocalReply(LocalReply),
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
        let filters = filters
            .iter()
            .map(|filter| match filter {
                hcm::HttpFilter::Rbac(config) => {
                    HttpFilter::Rbac(rbac::HttpFilter::new(Arc::clone(config), registry, outer))
                }
            })
            .collect();
        Self { filters }
    }

    /// There is nothing to ask.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// The request phase: runs the filters in order until one answers.
    ///
    /// It is `async` for the filters that will ask another service; those of today never wait, so the future is ready at
    /// its first poll and owns nothing that dropping it could lose.
    pub async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>) -> Decision {
        for filter in &self.filters {
            let decision = match filter {
                HttpFilter::Rbac(filter) => filter.on_request(context),
            };
            if let Decision::LocalReply(_) = decision {
                return decision;
            }
        }
        Decision::Continue
    }
}

impl<R> RequestContext<'_, R> {
    /// RBAC of the route or its virtual host.
    pub(crate) fn route_rbac(&self) -> Option<&RbacPerRoute> {
        self.route.and_then(|route| route.rbac.as_deref())
    }
}
