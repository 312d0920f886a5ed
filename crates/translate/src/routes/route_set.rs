//! Converts a route set's HTTP routes to Envoy's.

use evenkeel_model::{GatewayRef, HttpMatch, HttpRoute, MatchOrder, RouteSet};

use super::action::{self, RouteContext};
use super::{filters, headers, matches};
use crate::origin;
use crate::pb::config::route::route_action::HostRewriteSpecifier;
use crate::pb::config::route::{Route, route};
use crate::proto::metadata;
use crate::{sessions, tracing};

/// The routes that can match for this proxy at `gateway` for requests to `port`, in order, up to the first that always
/// matches.
pub fn routes(route_context: RouteContext<'_>, route_set: &RouteSet, gateway: &GatewayRef) -> Vec<Route> {
    placed_routes(route_context, route_set, gateway).into_iter().map(|(_, route)| route).collect()
}

/// Those routes, with their places among the routes of the host if these are sorted.
pub fn placed_routes(
    route_context: RouteContext<'_>,
    route_set: &RouteSet,
    gateway: &GatewayRef,
) -> Vec<(MatchOrder, Route)> {
    let RouteContext { context, port, .. } = route_context;
    let mut all = Vec::new();
    for http in &route_set.http {
        let place = http.place(route_set.order);
        if http.matches.is_empty() {
            all.push((place, route(route_context, route_set, http, None)));
            break;
        }
        let applies = |m: &&HttpMatch| m.applies_to(gateway, &context) && m.port.is_none_or(|p| p == port);
        let held = http.matches.iter().filter(applies);
        for condition in held {
            all.push((place, route(route_context, route_set, http, Some(condition))));
            // As in Istio, nothing after it is reached, not even by a gateway, which puts it last.
            if all.last().is_some_and(|(_, route)| holds_always(route)) {
                break;
            }
        }
        if all.last().is_some_and(|(_, route)| holds_always(route)) {
            break;
        }
    }
    all
}

/// Whether a route matches every request.
pub fn holds_always(route: &Route) -> bool {
    route.r#match.as_ref().is_some_and(matches::is_everything)
}

fn route(
    route_context: RouteContext<'_>,
    route_set: &RouteSet,
    http: &HttpRoute,
    condition: Option<&HttpMatch>,
) -> Route {
    let mut action = action::action(route_context, &http.action);
    if let (route::Action::Route(forward), Some(authority)) = (&mut action, headers::authority(&http.headers.request)) {
        forward.host_rewrite_specifier.get_or_insert(HostRewriteSpecifier::HostRewriteLiteral(authority));
    }
    if let route::Action::Route(forward) = &mut action {
        forward.append_x_forwarded_host = route_context.context.options().forwards_host;
        action::set_missing_status(route_set.missing_destination_status(), forward);
    }
    let lone = action::lone_destination(&http.action).map(|d| &d.headers);
    let requests = || [Some(&http.headers.request), lone.map(|h| &h.request)].into_iter().flatten();
    let responses = || [Some(&http.headers.response), lone.map(|h| &h.response)].into_iter().flatten();
    let mut typed_per_filter_config = match &http.session {
        Some(session) => sessions::of_route(session, route_context.tls),
        None => route_context.only_service(&http.action).map(sessions::of_service).unwrap_or_default(),
    };
    typed_per_filter_config.extend(filters::of_route(http));
    let config = origin::config_path(route_set.kind, &route_set.namespace, &route_set.name);
    let rule = condition.map_or(&http.origin, |condition| &condition.origin);
    let config = origin::rule_path(config, rule, route_context.context.is_traced());
    let mut route = Route {
        name: name(http, condition),
        r#match: Some(condition.map_or_else(matches::everything, matches::route_match)),
        metadata: Some(metadata("istio", "config", &config)),
        request_headers_to_add: requests().flat_map(headers::to_add).collect(),
        request_headers_to_remove: requests().flat_map(headers::to_remove).collect(),
        response_headers_to_add: responses().flat_map(headers::to_add).collect(),
        response_headers_to_remove: responses().flat_map(headers::to_remove).collect(),
        action: Some(action),
        stat_prefix: condition.map_or("", |condition| &condition.stat_prefix).to_owned(),
        typed_per_filter_config,
        ..Default::default()
    };
    tracing::decorate(route_context.context, &mut route, &route_set.name, route_context.port);
    route
}

/// `ROUTE`, `ROUTE.MATCH`, or nothing, as Istio names routes in the access log.
fn name(http: &HttpRoute, condition: Option<&HttpMatch>) -> String {
    let parts = [Some(&http.name), condition.map(|c| &c.name)];
    let parts: Vec<&str> = parts.into_iter().flatten().map(|n| &**n).filter(|n| !n.is_empty()).collect();
    parts.join(".")
}
