//! Routes of gRPC clients: those of route sets, as far as gRPC supports them (gRFCs A28, A31, A33, A42, A44).

use std::sync::Arc;

use evenkeel_model::Service;
use evenkeel_model::service::ServicePort;

use super::clusters;
use crate::context::Context;
use crate::names;
use crate::output::Output;
use crate::pb::config::route::header_matcher::HeaderMatchSpecifier;
use crate::pb::config::route::route_action::hash_policy::PolicySpecifier;
use crate::pb::config::route::route_action::{ClusterSpecifier, HashPolicy, MaxStreamDuration};
use crate::pb::config::route::weighted_cluster::ClusterWeight;
use crate::pb::config::route::{
    HeaderMatcher, RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, WeightedCluster, route,
};
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::proto::u32_value;
use crate::routes::outbound::http_routes;
use crate::routes::{action, filters, matches};

/// The method of every gRPC call.
const METHOD: &str = "POST";
/// Statuses after which gRPC retries.
const RETRIABLE: [&str; 5] = ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];
/// Most conditions that also match without the header, for each of which gRPC gets two routes; further ones match only
/// with the header.
const MAX_OPTIONAL_HEADERS: usize = 4;

/// The name of the route configuration of a service's port.
pub fn name(service: &Service, port: u16) -> String {
    names::outbound_cluster(port, "", &service.host)
}

/// A route configuration for each port that a client may dial. It is for one port of one service, so it matches every
/// authority that the program sends.
pub fn of_service(context: Context<'_>, service: &Arc<Service>, out: &mut Output<'_>) {
    for callable in context.callable(service) {
        let port = callable.port.as_ref();
        let (origin, routes) = match http_routes(context, service, port.number) {
            Some((route_set, routes)) => (&route_set.origin, routes),
            None => (&service.origin, vec![default_route(context, service, port)]),
        };
        let host = VirtualHost {
            name: names::virtual_host(service.host.as_str(), port.number),
            domains: vec!["*".to_owned()],
            routes: routes.into_iter().flat_map(known_route).collect(),
            ..Default::default()
        };
        let name = name(service, port.number);
        let made = RouteConfiguration { name: name.clone(), virtual_hosts: vec![host], ..Default::default() };
        out.add(made, Some(origin.clone()));
    }
}

fn default_route(context: Context<'_>, service: &Service, port: &ServicePort) -> Route {
    let cluster = names::outbound_cluster(port.number, "", &service.host);
    let balancer = context.load_balancer(service, port.number, None);
    Route {
        r#match: Some(matches::everything()),
        action: Some(action::to_cluster(cluster, context.snapshot.mesh(), balancer.as_ref())),
        ..Default::default()
    }
}

/// The gRPC routes for a route: none if it can match no call, several if gRPC needs more than one to express it.
fn known_route(route: Route) -> Vec<Route> {
    let Route { name, r#match: Some(condition), action, mut typed_per_filter_config, .. } = route else {
        return Vec::new();
    };
    // gRPC injects faults itself (gRFC A33).
    typed_per_filter_config.retain(|filter, _| filter == filters::FAULT);
    let action = match action {
        Some(route::Action::Route(forward)) => route::Action::Route(known_action(forward)),
        Some(route::Action::DirectResponse(answer)) => {
            route::Action::DirectResponse(crate::pb::config::route::DirectResponseAction { body: None, ..answer })
        }
        Some(other) => other,
        None => return Vec::new(),
    };
    let of = |condition| Route {
        name: name.clone(),
        r#match: Some(condition),
        action: Some(action.clone()),
        typed_per_filter_config: typed_per_filter_config.clone(),
        ..Default::default()
    };
    known_match(condition).into_iter().map(of).collect()
}

fn known_match(condition: RouteMatch) -> Vec<RouteMatch> {
    // A call has no query, so conditions on the query never match.
    // A program does not check tokens, so there are no claims: conditions on one never hold, and those on none always do.
    let has_no_claims = condition.dynamic_metadata.iter().all(|claim| claim.invert);
    let is_possible = condition.query_parameters.is_empty() && has_no_claims && condition.headers.iter().all(may_hold);
    let Some(path) = condition.path_specifier.filter(|_| is_possible) else { return Vec::new() };
    let headers = condition.headers.into_iter().filter(|header| header.name != ":method");
    with_and_without(headers.collect())
        .into_iter()
        .map(|headers| RouteMatch {
            path_specifier: Some(path.clone()),
            case_sensitive: condition.case_sensitive,
            headers,
            ..Default::default()
        })
        .collect()
}

/// Whether a call can match a header condition. gRPC does not treat the method as a header, but there is only one
/// method.
fn may_hold(header: &HeaderMatcher) -> bool {
    let Some(HeaderMatchSpecifier::StringMatch(value)) = &header.header_match_specifier else { return true };
    match &value.match_pattern {
        _ if header.name != ":method" => true,
        Some(MatchPattern::Exact(text)) => text == METHOD,
        Some(MatchPattern::Prefix(text)) => METHOD.starts_with(text.as_str()),
        Some(MatchPattern::Suffix(text)) => METHOD.ends_with(text.as_str()),
        _ => true,
    }
}

/// In gRPC an absent header matches only a condition on its absence, so a condition that also matches without the
/// header needs two routes.
fn with_and_without(headers: Vec<HeaderMatcher>) -> Vec<Vec<HeaderMatcher>> {
    let mut all = vec![Vec::with_capacity(headers.len())];
    let mut optional = 0;
    for header in headers {
        let HeaderMatcher { name, header_match_specifier, invert_match, treat_missing_header_as_empty } = header;
        let present = HeaderMatcher { name: name.clone(), header_match_specifier, invert_match, ..Default::default() };
        let absent = HeaderMatcher {
            name,
            header_match_specifier: Some(HeaderMatchSpecifier::PresentMatch(true)),
            invert_match: true,
            ..Default::default()
        };
        optional += usize::from(treat_missing_header_as_empty);
        let doubled = treat_missing_header_as_empty && optional <= MAX_OPTIONAL_HEADERS;
        let ways = if doubled { vec![absent, present] } else { vec![present] };
        let with = |so_far: &Vec<HeaderMatcher>, way: &HeaderMatcher| {
            so_far.iter().chain([way]).cloned().collect::<Vec<HeaderMatcher>>()
        };
        all = all.iter().flat_map(|so_far| ways.iter().map(move |way| with(so_far, way))).collect();
    }
    all
}

fn known_action(forward: RouteAction) -> RouteAction {
    let limit = forward.timeout.filter(|limit| limit.seconds > 0 || limit.nanos > 0);
    RouteAction {
        cluster_specifier: forward.cluster_specifier.and_then(known_clusters),
        max_stream_duration: limit
            .map(|limit| MaxStreamDuration { max_stream_duration: Some(limit), ..Default::default() }),
        retry_policy: forward.retry_policy.and_then(known_retries),
        hash_policy: forward.hash_policy.iter().filter_map(known_hash).collect(),
        ..Default::default()
    }
}

/// If a cluster is named twice gRPC uses only the last weight, and it refuses weights that are all zero.
fn known_clusters(clusters: ClusterSpecifier) -> Option<ClusterSpecifier> {
    let ClusterSpecifier::WeightedClusters(WeightedCluster { clusters, .. }) = clusters else { return Some(clusters) };
    let mut known: Vec<ClusterWeight> = Vec::with_capacity(clusters.len());
    for ClusterWeight { name, weight, .. } in clusters {
        let weight = weight.map_or(0, |weight| weight.value);
        match known.iter_mut().find(|other| other.name == name).and_then(|other| other.weight.as_mut()) {
            Some(other) => other.value = other.value.saturating_add(weight),
            None => known.push(ClusterWeight { name, weight: Some(u32_value(weight)), ..Default::default() }),
        }
    }
    let has_weight = known.iter().any(|share| share.weight.as_ref().is_some_and(|weight| weight.value > 0));
    has_weight.then(|| ClusterSpecifier::WeightedClusters(WeightedCluster { clusters: known, ..Default::default() }))
}

fn known_retries(policy: RetryPolicy) -> Option<RetryPolicy> {
    let known = policy.retry_on.split(',').filter(|condition| RETRIABLE.contains(condition));
    let retry_on = known.collect::<Vec<_>>().join(",");
    let is_some = !retry_on.is_empty() && policy.num_retries.as_ref().is_some_and(|most| most.value > 0);
    is_some.then(|| RetryPolicy {
        retry_on,
        num_retries: policy.num_retries,
        retry_back_off: policy.retry_back_off,
        ..Default::default()
    })
}

/// A header hash is kept; a hash of the client's address becomes one of the channel, which is the same for all of its
/// calls.
fn known_hash(policy: &HashPolicy) -> Option<HashPolicy> {
    let specifier = match policy.policy_specifier.as_ref()? {
        header @ PolicySpecifier::Header(_) => header.clone(),
        PolicySpecifier::ConnectionProperties(_) => clusters::by_channel(),
        _ => return None,
    };
    Some(HashPolicy { policy_specifier: Some(specifier), ..Default::default() })
}
