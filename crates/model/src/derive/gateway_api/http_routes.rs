//! HTTPRoutes as route sets: one for each place where the route applies.

use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{
    HttpBackendRef, HttpPathMatch, HttpRetry, HttpRouteMatch, HttpRouteRule, HttpRouteSpec, HttpTimeouts,
    PathMatchType, ValueMatchType,
};
use evenkeel_base::{Diagnostics, Spanned};

use super::super::shared;
use super::super::tracking::Cx;
use super::backends::Backends;
use super::http_filters::{self, Filters};
use super::parents::{Attached, RouteParents};
use crate::{
    DestinationState, DirectResponse, GatewayRef, HeaderMatch, Headers, HttpAction, HttpMatch, HttpRoute, RetryPolicy,
    RouteOrder, RouteSet, StringMatch, WeightedDestination,
};

/// The status of requests whose backends cannot be used.
const NO_BACKEND: u16 = 500;
/// Retries of a rule with `retry` without `attempts`, as in Istio.
const DEFAULT_ATTEMPTS: u32 = 2;
/// The conditions of `retry` besides its codes, as in Istio.
const RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled";

/// The route sets of an HTTPRoute, with the findings about it.
pub(in super::super) fn http_parts(
    cx: &Cx<'_>,
    object: &Object,
    spec: &HttpRouteSpec,
    found: &mut Diagnostics,
) -> Vec<RouteSet> {
    let parents = RouteParents { cx, object, parents: &spec.parent_refs, hostnames: &spec.hostnames };
    let attached = parents.attached(found);
    let effect = "its share of the requests gets 500";
    let mut backends = Backends { cx, object, found, effect };
    let routes = routes(spec, &mut backends);
    attached.into_iter().map(|place| route_set(object, place, &routes)).collect()
}

/// What of these route sets concerns the mesh, in one: its hosts are those that the object claims there.
pub(in super::super) fn http_in_mesh(object: &Object, parts: &[RouteSet]) -> RouteSet {
    let in_mesh: Vec<&RouteSet> = parts.iter().filter(|part| part.applies_at(&GatewayRef::Mesh)).collect();
    let first = in_mesh.first();
    RouteSet {
        kind: object.kind(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        hosts: in_mesh.iter().flat_map(|part| part.hosts.clone()).collect(),
        gateways: first.map(|_| GatewayRef::Mesh).into_iter().collect(),
        export_to: first.map(|part| part.export_to.clone()).unwrap_or_default(),
        http: first.map(|part| part.http.clone()).unwrap_or_default(),
        order: RouteOrder::ByPrecedence,
        tls: Vec::new(),
        tcp: Vec::new(),
        origin: object.origin.clone(),
    }
}

fn route_set(object: &Object, place: Attached, routes: &[HttpRoute]) -> RouteSet {
    let Attached { hosts, at, port, export_to } = place;
    let at_port = |mut route: HttpRoute| {
        route.matches.iter_mut().for_each(|condition| condition.port = port);
        route
    };
    RouteSet {
        kind: object.kind(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        hosts,
        gateways: vec![at],
        export_to,
        http: routes.iter().cloned().map(at_port).collect(),
        order: RouteOrder::ByPrecedence,
        tls: Vec::new(),
        tcp: Vec::new(),
        origin: object.origin.clone(),
    }
}

/// A route for each condition of each rule, in the order of precedence.
fn routes(spec: &HttpRouteSpec, backends: &mut Backends<'_, '_>) -> Vec<HttpRoute> {
    let mut all = Vec::new();
    let object = backends.object;
    for (number, rule) in spec.rules.iter().flatten().enumerate() {
        // As Istio names them.
        let unnamed = || format!("{}.{}.{number}", object.namespace, object.name).into();
        let name = rule.name.as_ref().map_or_else(unnamed, |name| name.0.clone());
        let conditions: Vec<HttpMatch> = match rule.matches.as_slice() {
            [] => vec![HttpMatch {
                uri: Some(StringMatch::Prefix("/".into())),
                origin: rule.span.clone(),
                ..HttpMatch::default()
            }],
            written => written.iter().map(condition).collect(),
        };
        // The decoder has checked that a prefix is replaced only if there is one condition.
        let prefix = match conditions.first().and_then(|condition| condition.uri.as_ref()) {
            Some(StringMatch::Prefix(prefix)) => prefix.clone(),
            _ => "/".into(),
        };
        let filters = http_filters::of_rule(&rule.filters, &prefix, backends);
        let (headers, cors) = (filters.headers.clone(), filters.cors.clone());
        let action = action(rule, filters, backends);
        all.extend(conditions.into_iter().map(|condition| HttpRoute {
            name: name.clone(),
            matches: vec![condition],
            action: action.clone(),
            headers: headers.clone(),
            fault: None,
            cors: cors.clone(),
            origin: rule.span.clone(),
        }));
    }
    all.sort_by_key(|route| route.place(RouteOrder::ByPrecedence));
    all
}

fn action(rule: &Spanned<HttpRouteRule>, filters: Filters, backends: &mut Backends<'_, '_>) -> HttpAction {
    let refused = HttpAction::DirectResponse(DirectResponse { status: NO_BACKEND, body: [].into() });
    let destinations: Vec<_> = rule.backend_refs.iter().filter_map(|backend| destination(backend, backends)).collect();
    match filters.redirect {
        _ if filters.is_refused => refused,
        Some(redirect) => HttpAction::Redirect(redirect),
        None if destinations.is_empty() => {
            if rule.backend_refs.is_empty() {
                let help = "add `backendRefs: [{name: SERVICE, port: 80}]`".to_owned();
                backends.warn("no-effect", &rule.span, "a rule has no backend".to_owned(), help);
            }
            refused
        }
        None => {
            let (timeout, retries) = timeouts(rule.timeouts.as_ref(), rule.retry.as_ref());
            let (rewrite, mirrors) = (filters.rewrite, filters.mirrors);
            HttpAction::Route { destinations, rewrite, timeout, retries, mirrors }
        }
    }
}

/// A backend; `None`: it gets no requests.
fn destination(backend: &Spanned<HttpBackendRef>, backends: &mut Backends<'_, '_>) -> Option<WeightedDestination> {
    let mut destination = backends.destination(backend.target());
    let headers = http_filters::of_backend(&backend.filters, backends);
    if headers.is_none() {
        destination.state = DestinationState::Refused;
    }
    let weight = backend.weight.as_ref().map_or(1, |weight| weight.value);
    let headers: Headers = headers.unwrap_or_default();
    (weight > 0).then_some(WeightedDestination { destination, weight, headers })
}

/// Timeouts and retries, as Istio's conversion: the timeout of a try is one of the whole without retries.
fn timeouts(written: Option<&HttpTimeouts>, retry: Option<&HttpRetry>) -> (Option<Duration>, Option<RetryPolicy>) {
    let some = |duration: Duration| (!duration.is_zero()).then_some(duration);
    let request = written.and_then(|of| of.request.as_ref()).and_then(|request| some(request.value.0));
    let each = written.and_then(|of| of.backend_request.as_ref()).and_then(|each| some(each.value.0));
    let retries = retry.map(|retry| {
        let codes = retry.codes.iter().map(|code| code.value.to_string());
        let conditions: Vec<String> = std::iter::once(RETRY_ON.to_owned()).chain(codes).collect();
        RetryPolicy {
            attempts: retry.attempts.unwrap_or(DEFAULT_ATTEMPTS),
            per_try_timeout: each,
            retry_on: Some(shared(&conditions.join(","))),
            avoid_previous_hosts: true,
            avoid_previous_localities: false,
            back_off: retry.backoff.and_then(|backoff| some(backoff.0)),
        }
    });
    let timeout = if retries.is_some() { request } else { each.or(request) };
    (timeout, retries)
}

fn condition(written: &Spanned<HttpRouteMatch>) -> HttpMatch {
    let headers = written
        .headers
        .iter()
        .map(|header| HeaderMatch { name: header.name.0.clone(), value: value(header.kind, &header.value) });
    let parameters = written
        .query_params
        .iter()
        .map(|parameter| HeaderMatch { name: shared(&parameter.name), value: value(parameter.kind, &parameter.value) });
    HttpMatch {
        uri: Some(written.path.as_ref().map_or_else(|| StringMatch::Prefix("/".into()), path)),
        by_parts: true,
        method: written.method.map(|method| StringMatch::Exact(shared(method.as_str()))),
        headers: first_of_each(headers),
        query_params: first_of_each(parameters),
        origin: written.span.clone(),
        ..HttpMatch::default()
    }
}

/// Of entries with one name the first counts.
fn first_of_each(all: impl Iterator<Item = HeaderMatch>) -> Vec<HeaderMatch> {
    let mut distinct: Vec<HeaderMatch> = Vec::new();
    for one in all {
        if !distinct.iter().any(|other| other.name == one.name) {
            distinct.push(one);
        }
    }
    distinct
}

fn path(written: &HttpPathMatch) -> StringMatch {
    let value = written.value();
    match written.kind() {
        PathMatchType::Exact => StringMatch::Exact(shared(value)),
        PathMatchType::RegularExpression => StringMatch::Regex(shared(value)),
        PathMatchType::PathPrefix => match value.trim_end_matches('/') {
            "" => StringMatch::Prefix("/".into()),
            prefix => StringMatch::Prefix(shared(prefix)),
        },
    }
}

fn value(kind: Option<ValueMatchType>, text: &str) -> StringMatch {
    match kind {
        Some(ValueMatchType::RegularExpression) => StringMatch::Regex(shared(text)),
        Some(ValueMatchType::Exact) | None => StringMatch::Exact(shared(text)),
    }
}
