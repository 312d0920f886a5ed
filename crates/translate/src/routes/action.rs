//! Actions of HTTP routes.

use std::time::Duration;

use evenkeel_model::{
    Destination, DestinationState, DirectResponse, HttpAction, LoadBalancer, MeshConfig, Mirror, Redirect,
    RedirectPort, RetryPolicy, Rewrite, Service, TrafficPolicy, WeightedDestination,
};

use super::{filters, headers};
use crate::context::Context;
use crate::load_balancer;
use crate::names;
use crate::names::outbound_name;
use crate::pb::config::route::retry_policy::{
    RetryBackOff, RetryHostPredicate, RetryPriority, retry_host_predicate::ConfigType, retry_priority,
};
use crate::pb::config::route::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, RequestMirrorPolicy,
};
use crate::pb::config::route::weighted_cluster::{ClusterWeight, cluster_weight};
use crate::pb::config::route::{
    DirectResponseAction, RedirectAction, RetryPolicy as EnvoyRetryPolicy, RouteAction, WeightedCluster,
    redirect_action, route, route_action,
};
use crate::pb::core::{DataSource, data_source};
use crate::pb::matcher::RegexMatchAndSubstitute;
use crate::pb::previous_hosts::PreviousHostsPredicate;
use crate::pb::previous_priorities::PreviousPrioritiesConfig;
use crate::proto::{any, bool_value, duration, regex, u32_value};
use crate::traffic::InnerProtocol;

/// Default retry conditions, as in Istio: no request that a server may have processed is sent twice.
const DEFAULT_RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
/// The retry condition of a workload's own proxy, as in Istio: what has not reached the workload is sent again.
const INBOUND_RETRY_ON: &str = "reset-before-request";
/// Default number of retries, as in Istio.
const DEFAULT_RETRIES: u32 = 2;
/// The cluster of a destination that a route must not lead to: as in Istio, there is none of this name.
const REFUSED_CLUSTER: &str = "UnknownService";
/// Number of attempts to choose a host that was not tried yet.
const HOST_SELECTION_ATTEMPTS: i64 = 5;
/// Number of tries before another priority is used, as in Istio.
const TRIES_PER_PRIORITY: i32 = 2;

/// The context in which a route's action is generated.
#[derive(Debug, Clone, Copy)]
pub struct RouteContext<'a> {
    /// The proxy it is for.
    pub context: Context<'a>,
    /// The port the request is addressed to.
    pub port: u16,
    /// Whether the proxy ends the client's TLS.
    pub tls: bool,
}

impl<'a> Context<'a> {
    /// The context of routes for requests to this port.
    pub fn route_context(&self, port: u16) -> RouteContext<'a> {
        RouteContext { context: *self, port, tls: false }
    }
}

impl RouteContext<'_> {
    /// The traffic policy for a destination from its DestinationRule, if there is one.
    pub fn policy(&self, destination: &Destination) -> Option<TrafficPolicy> {
        let service = self.context.destination(&destination.host)?;
        let port = port_of(*self, destination, Some(service));
        self.context.policy(service, port, destination.subset.as_deref())
    }

    /// The load balancer for a destination from its DestinationRule, if there is one.
    pub fn load_balancer(&self, destination: &Destination) -> Option<LoadBalancer> {
        self.policy(destination)?.load_balancer
    }
}

impl<'a> RouteContext<'a> {
    /// The service that all destinations of an action belong to.
    pub fn only_service(&self, action: &HttpAction) -> Option<&'a Service> {
        let HttpAction::Route { destinations, .. } = action else { return None };
        let (first, rest) = destinations.split_first()?;
        let one = rest.iter().all(|other| other.destination.host == first.destination.host);
        self.context.destination(&first.destination.host).filter(|_| one).map(AsRef::as_ref)
    }
}

/// The port of a destination: the one it names, the service's only one, or the request's.
/// The port of a destination: its own, the only one of its service, or else that of the request.
pub fn port_of(route_context: RouteContext<'_>, destination: &Destination, service: Option<&Service>) -> u16 {
    let only_port = service.and_then(|s| match s.ports.as_slice() {
        [port] => Some(port.number),
        _ => None,
    });
    destination.port.or(only_port).unwrap_or(route_context.port)
}

/// A route to one cluster without timeout and with the default retries.
pub fn to_cluster(cluster: String, mesh: &MeshConfig, balancer: Option<&LoadBalancer>) -> route::Action {
    let mut forward = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster)),
        retry_policy: retry_policy(None, mesh),
        hash_policy: balancer.and_then(load_balancer::hash_policy).into_iter().collect(),
        ..Default::default()
    };
    set_timeout(&mut forward, Duration::ZERO);
    route::Action::Route(forward)
}

/// A route to one cluster without timeout and without retries.
pub fn pass_to(cluster: &str) -> route::Action {
    let mut forward =
        RouteAction { cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())), ..Default::default() };
    set_timeout(&mut forward, Duration::ZERO);
    route::Action::Route(forward)
}

/// A route to the workload, without timeout. `repeats`: requests that were reset before they reached the workload are sent again, as the
/// mesh says.
pub fn to_workload(cluster: &str, mesh: &MeshConfig, repeats: bool) -> route::Action {
    let no_limit = Some(duration(Duration::ZERO));
    route::Action::Route(RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        timeout: no_limit,
        // The client's own limit (`grpc-timeout`) ends the call. Istio also sets `max_stream_duration` to 0, which would make the proxy's own
        // setting have no effect.
        max_stream_duration: Some(route_action::MaxStreamDuration {
            grpc_timeout_header_max: no_limit,
            ..Default::default()
        }),
        retry_policy: repeats.then(|| inbound_retry_policy(mesh)).flatten(),
        ..Default::default()
    })
}

/// Sets the timeout; 0: none. A gRPC client may ask for less (`grpc-timeout`), as in Istio's `setTimeout`.
#[allow(deprecated)] // Istio uses this field for Envoy: `max_stream_duration` counts from the start of the request.
fn set_timeout(forward: &mut RouteAction, timeout: Duration) {
    forward.timeout = Some(duration(timeout));
    forward.max_grpc_timeout = Some(duration(timeout));
}

/// Sets the status of requests whose cluster does not exist.
pub fn set_missing_status(status: Option<u16>, forward: &mut RouteAction) {
    if status == Some(500) {
        forward.cluster_not_found_response_code = ClusterNotFoundResponseCode::InternalServerError as i32;
    }
}

/// An answer without body.
pub fn status(status: u32) -> route::Action {
    route::Action::DirectResponse(DirectResponseAction { status, ..Default::default() })
}

/// The action of a route set's route.
pub fn action(route_context: RouteContext<'_>, action: &HttpAction) -> route::Action {
    match action {
        HttpAction::Route { destinations, rewrite, timeout, retries, mirrors } => {
            let mut forward = forward(route_context, destinations);
            set_timeout(&mut forward, timeout.unwrap_or_default());
            let balancers = destinations.iter().filter_map(|d| route_context.load_balancer(&d.destination));
            forward.hash_policy = balancers.filter_map(|balancer| load_balancer::hash_policy(&balancer)).collect();
            forward.retry_policy = retry_policy(retries.as_ref(), route_context.context.snapshot.mesh());
            if let Some(rewrite) = rewrite {
                apply_rewrite(rewrite, &mut forward);
            }
            forward.request_mirror_policies =
                mirrors.iter().map(|mirror| mirror_policy(route_context, mirror)).collect();
            route::Action::Route(forward)
        }
        HttpAction::Redirect(redirect) => route::Action::Redirect(redirect_action(route_context, redirect)),
        HttpAction::DirectResponse(response) => route::Action::DirectResponse(direct_response(response)),
    }
}

/// The single destination, whose header operations belong to the route.
pub fn lone_destination(action: &HttpAction) -> Option<&WeightedDestination> {
    match action {
        HttpAction::Route { destinations, .. } => match destinations.as_slice() {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    }
}

/// The cluster of a destination. If the destination does not exist, the name it would have, so that requests are
/// answered with 503 and flag `NC` until it does.
pub fn cluster_of(route_context: RouteContext<'_>, destination: &Destination, inner: InnerProtocol) -> String {
    if destination.state == DestinationState::Refused {
        return REFUSED_CLUSTER.to_owned();
    }
    let subset = destination.subset.as_deref().unwrap_or_default();
    let service = route_context.context.destination(&destination.host);
    let number = port_of(route_context, destination, service.map(AsRef::as_ref));
    match service.and_then(|s| route_context.context.port(s, number).map(|port| (s, port))) {
        Some((service, port)) => outbound_name(&port, subset, service, inner),
        None => names::outbound_cluster(number, subset, &destination.host),
    }
}

fn forward(route_context: RouteContext<'_>, destinations: &[WeightedDestination]) -> RouteAction {
    if let [only] = destinations {
        let rewrite = headers::authority(&only.headers.request).map(HostRewriteSpecifier::HostRewriteLiteral);
        let cluster = cluster_of(route_context, &only.destination, InnerProtocol::Http);
        return RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(cluster)),
            host_rewrite_specifier: rewrite,
            ..Default::default()
        };
    }
    let share = |d: &WeightedDestination| ClusterWeight {
        name: cluster_of(route_context, &d.destination, InnerProtocol::Http),
        weight: Some(u32_value(d.weight)),
        request_headers_to_add: headers::to_add(&d.headers.request),
        request_headers_to_remove: headers::to_remove(&d.headers.request),
        response_headers_to_add: headers::to_add(&d.headers.response),
        response_headers_to_remove: headers::to_remove(&d.headers.response),
        host_rewrite_specifier: headers::authority(&d.headers.request)
            .map(cluster_weight::HostRewriteSpecifier::HostRewriteLiteral),
        ..Default::default()
    };
    let clusters = destinations.iter().filter(|d| d.weight > 0).map(share).collect();
    let weighted = WeightedCluster { clusters, ..Default::default() };
    RouteAction { cluster_specifier: Some(ClusterSpecifier::WeightedClusters(weighted)), ..Default::default() }
}

fn mirror_policy(route_context: RouteContext<'_>, mirror: &Mirror) -> RequestMirrorPolicy {
    RequestMirrorPolicy {
        cluster: cluster_of(route_context, &mirror.destination, InnerProtocol::Http),
        runtime_fraction: Some(filters::share(mirror.share)),
        trace_sampled: Some(bool_value(false)),
        // Istio's `DISABLE_SHADOW_HOST_SUFFIX`, on by default: a copy names the host that the original names.
        disable_shadow_host_suffix_append: true,
        ..Default::default()
    }
}

fn apply_rewrite(rewrite: &Rewrite, forward: &mut RouteAction) {
    if let Some(uri) = &rewrite.uri {
        forward.prefix_rewrite = uri.to_string();
    }
    if let Some((pattern, substitution)) = &rewrite.uri_regex {
        forward.regex_rewrite =
            Some(RegexMatchAndSubstitute { pattern: Some(regex(pattern)), substitution: substitution.to_string() });
    }
    if let Some(authority) = &rewrite.authority {
        forward.host_rewrite_specifier = Some(HostRewriteSpecifier::HostRewriteLiteral(authority.to_string()));
    }
}

/// The policy of a workload's own proxy (Istio's `BuildDefaultHTTPInboundRoute`): the workload may close an idle connection just when that is
/// used again.
fn inbound_retry_policy(mesh: &MeshConfig) -> Option<EnvoyRetryPolicy> {
    match &mesh.default_inbound_http_retry {
        Some(own) => policy_of(Some(own)),
        None => Some(EnvoyRetryPolicy {
            retry_on: INBOUND_RETRY_ON.to_owned(),
            num_retries: Some(u32_value(DEFAULT_RETRIES)),
            ..Default::default()
        }),
    }
}

fn retry_policy(own: Option<&RetryPolicy>, mesh: &MeshConfig) -> Option<EnvoyRetryPolicy> {
    // As in Istio, a route's own policy replaces the mesh's default as a whole.
    policy_of(own.or(mesh.default_http_retry.as_ref()))
}

fn policy_of(own: Option<&RetryPolicy>) -> Option<EnvoyRetryPolicy> {
    let retries = own.map_or(DEFAULT_RETRIES, |policy| policy.attempts);
    if retries == 0 {
        return None;
    }
    let written = own.and_then(|policy| policy.retry_on.as_deref()).unwrap_or(DEFAULT_RETRY_ON);
    let (codes, mut conditions): (Vec<&str>, Vec<&str>) =
        written.split(',').map(str::trim).filter(|c| !c.is_empty()).partition(|c| c.parse::<u32>().is_ok());
    if !codes.is_empty() && !conditions.contains(&"retriable-status-codes") {
        conditions.push("retriable-status-codes");
    }
    let avoid_previous = own.is_none_or(|policy| policy.avoid_previous_hosts);
    let other_hosts = RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(&PreviousHostsPredicate {}))),
    };
    let other_localities = own.is_some_and(|policy| policy.avoid_previous_localities).then(|| RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".to_owned(),
        config_type: Some(retry_priority::ConfigType::TypedConfig(any(&PreviousPrioritiesConfig {
            update_frequency: TRIES_PER_PRIORITY,
        }))),
    });
    Some(EnvoyRetryPolicy {
        retry_priority: other_localities,
        retry_on: conditions.join(","),
        num_retries: Some(u32_value(retries)),
        per_try_timeout: own.and_then(|policy| policy.per_try_timeout).map(duration),
        retry_host_predicate: if avoid_previous { vec![other_hosts] } else { Vec::new() },
        host_selection_retry_max_attempts: if avoid_previous { HOST_SELECTION_ATTEMPTS } else { 0 },
        retry_back_off: own
            .and_then(|policy| policy.back_off)
            .map(|base| RetryBackOff { base_interval: Some(duration(base)), max_interval: None }),
        retriable_status_codes: codes.iter().filter_map(|code| code.parse().ok()).collect(),
        ..Default::default()
    })
}

fn redirect_action(route_context: RouteContext<'_>, redirect: &Redirect) -> RedirectAction {
    use redirect_action::{PathRewriteSpecifier, SchemeRewriteSpecifier};
    let prefix = redirect.prefix.as_deref().map(|prefix| PathRewriteSpecifier::PrefixRewrite(prefix.to_owned()));
    let path = redirect.uri.as_deref().map(|uri| PathRewriteSpecifier::PathRedirect(uri.to_owned())).or(prefix);
    let found = redirect.uri_regex.as_ref().map(|(pattern, substitution)| {
        let pattern = Some(regex(pattern));
        PathRewriteSpecifier::RegexRewrite(RegexMatchAndSubstitute { pattern, substitution: substitution.to_string() })
    });
    // As in Istio's `ApplyRedirect`: the protocol's default port is not written, and Envoy replaces the other
    // protocol's default in the request's authority.
    let port = match redirect.port {
        Some(RedirectPort::Number(number)) => number,
        Some(RedirectPort::Request) => route_context.port,
        Some(RedirectPort::ProtocolDefault) | None => 0,
    };
    let scheme = redirect.scheme.as_deref().unwrap_or(if route_context.tls { "https" } else { "http" });
    let is_default = matches!((scheme, port), ("http", 80) | ("https", 443));
    let port = if is_default { 0 } else { u32::from(port) };
    RedirectAction {
        host_redirect: redirect.authority.as_deref().unwrap_or_default().to_owned(),
        port_redirect: port,
        response_code: redirect_code(redirect.code) as i32,
        scheme_rewrite_specifier: redirect
            .scheme
            .as_deref()
            .map(|scheme| SchemeRewriteSpecifier::SchemeRedirect(scheme.to_owned())),
        path_rewrite_specifier: path.or(found),
        ..Default::default()
    }
}

fn redirect_code(code: u16) -> redirect_action::RedirectResponseCode {
    use redirect_action::RedirectResponseCode;
    match code {
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => RedirectResponseCode::MovedPermanently,
    }
}

fn direct_response(response: &DirectResponse) -> DirectResponseAction {
    let specifier = match std::str::from_utf8(&response.body) {
        Ok(text) => data_source::Specifier::InlineString(text.to_owned()),
        Err(_) => data_source::Specifier::InlineBytes(response.body.to_vec()),
    };
    let body = (!response.body.is_empty()).then(|| DataSource { specifier: Some(specifier), ..Default::default() });
    DirectResponseAction { status: u32::from(response.status), body, ..Default::default() }
}
