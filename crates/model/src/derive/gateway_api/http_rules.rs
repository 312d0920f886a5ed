//! Rules of HTTPRoutes and GRPCRoutes: filters, backends and what becomes of requests.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::gateway_api::{HttpBackendRef, HttpFilter, SectionName, SessionPersistence};
use evenkeel_base::{Span, Spanned};

use super::backends::Backends;
use super::http_filters::{self, Filters};
use super::rule_session::RuleSession;
use crate::{
    DestinationState, DirectResponse, HttpAction, HttpMatch, HttpRoute, RetryPolicy, RouteOrder, StringMatch,
    WeightedDestination,
};

/// The status of requests whose backends cannot be used.
const NO_BACKEND: u16 = 500;
/// What becomes of requests to a backend that cannot be used.
pub(super) const SHARE_REFUSED: &str = "its share of the requests gets 500";

/// A rule.
pub(super) struct Rule<'a> {
    /// Its number in the object.
    pub(super) number: usize,
    pub(super) name: Option<&'a SectionName>,
    pub(super) span: &'a Span,
    /// Any of them is enough; none: every request.
    pub(super) conditions: Vec<HttpMatch>,
    pub(super) filters: &'a [Spanned<HttpFilter>],
    pub(super) backends: &'a [Spanned<HttpBackendRef>],
    pub(super) timeout: Option<Duration>,
    pub(super) retries: Option<RetryPolicy>,
    pub(super) session: Option<&'a Spanned<SessionPersistence>>,
}

/// Routes in the order of precedence.
pub(super) fn in_order(mut routes: Vec<HttpRoute>) -> Vec<HttpRoute> {
    routes.sort_by_key(|route| route.place(RouteOrder::ByPrecedence));
    routes
}

impl Rule<'_> {
    /// A route for each condition.
    pub(super) fn routes(mut self, backends: &mut Backends<'_, '_>) -> Vec<HttpRoute> {
        let object = backends.object;
        // As Istio names them.
        let unnamed = || format!("{}.{}.{}", object.namespace, object.name, self.number).into();
        let name: Arc<str> = self.name.map_or_else(unnamed, |name| name.0.clone());
        let mut conditions = std::mem::take(&mut self.conditions);
        if conditions.is_empty() {
            let uri = Some(StringMatch::Prefix("/".into()));
            conditions.push(HttpMatch { uri, origin: self.span.clone(), ..HttpMatch::default() });
        }
        // The decoder has checked that a prefix is replaced only if there is one condition.
        let prefix = match conditions.first().and_then(|condition| condition.uri.as_ref()) {
            Some(StringMatch::Prefix(prefix)) => prefix.clone(),
            _ => "/".into(),
        };
        let filters = http_filters::of_rule(self.filters, &prefix, backends);
        let (headers, cors, span) = (filters.headers.clone(), filters.cors.clone(), self.span.clone());
        let session = self.session.map(|written| RuleSession { written, object, rule: self.name, number: self.number });
        if let Some(session) =
            session.filter(|_| self.backends.iter().filter(|backend| weight(backend) > 0).count() > 1)
        {
            session.note_shares(backends.found);
        }
        let action = self.action(filters, backends);
        let route = |condition| HttpRoute {
            name: name.clone(),
            session: session.map(|session| session.of_condition(&condition)),
            matches: vec![condition],
            action: action.clone(),
            headers: headers.clone(),
            fault: None,
            cors: cors.clone(),
            origin: span.clone(),
        };
        conditions.into_iter().map(route).collect()
    }

    fn action(self, filters: Filters, backends: &mut Backends<'_, '_>) -> HttpAction {
        let refused = HttpAction::DirectResponse(DirectResponse { status: NO_BACKEND, body: [].into() });
        let destinations: Vec<_> = self.backends.iter().filter_map(|backend| destination(backend, backends)).collect();
        match filters.redirect {
            _ if filters.is_refused => refused,
            Some(redirect) => HttpAction::Redirect(redirect),
            None if destinations.is_empty() => {
                if self.backends.is_empty() {
                    let help = "add `backendRefs: [{name: SERVICE, port: 80}]`".to_owned();
                    backends.warn("no-effect", self.span, "a rule has no backend".to_owned(), help);
                }
                refused
            }
            None => {
                let (timeout, retries) = (self.timeout, self.retries);
                let (rewrite, mirrors) = (filters.rewrite, filters.mirrors);
                HttpAction::Route { destinations, rewrite, timeout, retries, mirrors }
            }
        }
    }
}

/// The share of a backend.
fn weight(backend: &HttpBackendRef) -> u32 {
    backend.weight.as_ref().map_or(1, |weight| weight.value)
}

/// A backend; `None`: it gets no requests.
fn destination(backend: &Spanned<HttpBackendRef>, backends: &mut Backends<'_, '_>) -> Option<WeightedDestination> {
    let mut destination = backends.destination(backend.target());
    let headers = http_filters::of_backend(&backend.filters, backends);
    if headers.is_none() {
        destination.state = DestinationState::Refused;
    }
    let weight = weight(backend);
    (weight > 0).then(|| WeightedDestination { destination, weight, headers: headers.unwrap_or_default() })
}
