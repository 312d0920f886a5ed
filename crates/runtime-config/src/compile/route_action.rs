//! Route actions: forward, redirect, direct response; retries.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::route::v3 as route;

use super::address::data_source;
use super::hash_policy::hash_policies;
use super::headers::{edits, header_fields};
use super::inherited::{Inherited, cluster_name, filter_overrides};
use super::metadata::{criteria, lb_metadata};
use super::mirror::mirror_policies;
use super::retry::retry_policy;
use super::{Cx, matcher, rate_limit};
use crate::header_edits::HeaderEdits;
use crate::metadata::MetadataMatch;
use crate::rate_limit::RouteRateLimits;
use crate::route::{
    ForwardAction, GrpcTimeout, HostRewrite, Priority, RedirectAction, RedirectPath, RouteAction, WeightedCluster,
};
use crate::route_filters::FilterOverrides;

const DEFAULT_ROUTE_TIMEOUT: Duration = Duration::from_secs(15);

/// The action of a route.
pub(crate) fn route_action(cx: &mut Cx<'_>, route: &route::Route, inherited: &Inherited<'_>) -> Option<RouteAction> {
    match &route.action {
        Some(route::route::Action::Route(action)) => {
            cx.at("route", |cx| forward(cx, action, inherited)).map(|action| RouteAction::Forward(Box::new(action)))
        }
        Some(route::route::Action::Redirect(action)) => {
            let action = cx.at("redirect", |cx| redirect(cx, action))?;
            Some(RouteAction::Redirect(Box::new(action)))
        }
        Some(route::route::Action::DirectResponse(action)) => {
            cx.at("direct_response", |cx| direct_response(cx, action, inherited.max_direct_response_body_bytes))
        }
        _ => cx.fail("one of route, redirect, direct_response is required"),
    }
}

fn direct_response(cx: &mut Cx<'_>, action: &route::DirectResponseAction, max_bytes: u32) -> Option<RouteAction> {
    let status = match u16::try_from(action.status) {
        Ok(status @ 200..=599) => status,
        _ => return cx.fail_at("status", format!("{} does not lie between 200 and 599", action.status)),
    };
    let body = match &action.body {
        None => Vec::new(),
        Some(_) => data_source(cx, "body", action.body.as_ref())?,
    };
    if body.len() > max_bytes as usize {
        return cx
            .fail_at("body", format!("{} bytes exceed max_direct_response_body_size_bytes ({max_bytes})", body.len()));
    }
    Some(RouteAction::DirectResponse { status, body: body.into() })
}

fn redirect(cx: &mut Cx<'_>, action: &route::RedirectAction) -> Option<RedirectAction> {
    use route::redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier};
    let text = |text: &str| -> Option<Box<str>> { (!text.is_empty()).then(|| text.into()) };
    let scheme = match &action.scheme_rewrite_specifier {
        Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => Some("https".into()),
        Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => text(scheme),
        _ => None,
    };
    let port = match u16::try_from(action.port_redirect) {
        Ok(port) => Some(port).filter(|port| *port > 0),
        Err(_) => return cx.fail_at("port_redirect", format!("{} is beyond 65535", action.port_redirect)),
    };
    let path = match &action.path_rewrite_specifier {
        None => RedirectPath::Keep,
        Some(PathRewriteSpecifier::PathRedirect(path)) => text(path).map_or(RedirectPath::Keep, RedirectPath::Full),
        Some(PathRewriteSpecifier::PrefixRewrite(prefix)) => RedirectPath::Prefix(prefix.as_str().into()),
        Some(PathRewriteSpecifier::RegexRewrite(rewrite)) => {
            let (pattern, substitution) = matcher::substitution(cx, "regex_rewrite", rewrite)?;
            RedirectPath::Regex(pattern, substitution)
        }
        Some(PathRewriteSpecifier::PathRewrite(_)) => return cx.fail_at("path_rewrite", "not supported"),
    };
    let status = match RedirectResponseCode::try_from(action.response_code) {
        Ok(RedirectResponseCode::MovedPermanently) => 301,
        Ok(RedirectResponseCode::Found) => 302,
        Ok(RedirectResponseCode::SeeOther) => 303,
        Ok(RedirectResponseCode::TemporaryRedirect) => 307,
        Ok(RedirectResponseCode::PermanentRedirect) => 308,
        Err(_) => return cx.fail_at("response_code", format!("unknown value {}", action.response_code)),
    };
    let host = text(&action.host_redirect);
    Some(RedirectAction { scheme, host, port, path, status, strip_query: action.strip_query })
}

fn forward(cx: &mut Cx<'_>, action: &route::RouteAction, inherited: &Inherited<'_>) -> Option<ForwardAction> {
    use route::route_action::HostRewriteSpecifier;
    let clusters = clusters(cx, action, inherited);
    let regex_rewrite = match &action.regex_rewrite {
        None => None,
        Some(rewrite) => Some(matcher::substitution(cx, "regex_rewrite", rewrite)?),
    };
    let prefix_rewrite = (!action.prefix_rewrite.is_empty()).then(|| action.prefix_rewrite.as_str().into());
    if regex_rewrite.is_some() && prefix_rewrite.is_some() {
        return cx.fail_at("regex_rewrite", "cannot stand beside prefix_rewrite");
    }
    let host_rewrite = match &action.host_rewrite_specifier {
        None => HostRewrite::None,
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) if host.is_empty() => HostRewrite::None,
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => HostRewrite::Literal(host.as_str().into()),
        Some(HostRewriteSpecifier::AutoHostRewrite(auto)) => {
            if auto.value {
                HostRewrite::Auto
            } else {
                HostRewrite::None
            }
        }
        Some(_) => return cx.fail("this kind of host rewrite is not supported"),
    };
    let retry = retry_policy(cx, action.retry_policy.as_ref())?.map(Arc::new).or_else(|| inherited.retry.cloned());
    let priority = match core::RoutingPriority::try_from(action.priority) {
        Ok(core::RoutingPriority::Default) => Priority::Default,
        Ok(core::RoutingPriority::High) => Priority::High,
        Err(_) => return cx.fail_at("priority", format!("unknown value {}", action.priority)),
    };
    let max_stream = action.max_stream_duration.as_ref().and_then(|limits| limits.max_stream_duration.as_ref());
    let max_stream_duration = never_if_zero(cx.duration("max_stream_duration.max_stream_duration", max_stream));
    let grpc_timeout = grpc_timeout(cx, action);
    let upgrades = cx.each("upgrade_configs", &action.upgrade_configs, |cx, upgrade| {
        let kind = cx.non_empty("upgrade_type", &upgrade.upgrade_type)?.to_ascii_lowercase();
        if upgrade.connect_config.is_some() && kind != "connect" {
            return cx.fail_at("connect_config", "only upgrade_type CONNECT has one");
        }
        Some((kind.into(), upgrade.enabled.as_ref().is_none_or(|enabled| enabled.value)))
    });
    let connect_terminates = action.upgrade_configs.iter().any(|upgrade| upgrade.connect_config.is_some());
    let hash_policies = hash_policies(cx, &action.hash_policy);
    let mirrors = mirror_policies(cx, &action.request_mirror_policies, inherited)?;
    let rate_limits = rate_limits(cx, action, inherited);
    let clusters = clusters?;
    Some(ForwardAction {
        // The sum was checked against u32::MAX.
        total_weight: clusters.iter().map(|cluster| cluster.weight).fold(0, u32::saturating_add),
        clusters,
        cluster_not_found_status: not_found_status(cx, action.cluster_not_found_response_code)?,
        prefix_rewrite,
        regex_rewrite,
        host_rewrite,
        append_x_forwarded_host: action.append_x_forwarded_host,
        timeout: cx.limit("timeout", action.timeout.as_ref(), Some(DEFAULT_ROUTE_TIMEOUT)),
        idle_timeout: idle_timeout(cx, action),
        retry,
        priority,
        max_stream_duration,
        grpc_timeout,
        upgrades,
        connect_terminates,
        hash_policies: hash_policies?,
        mirrors,
        rate_limits,
    })
}

/// What describes its requests to filters that limit rates.
#[allow(deprecated)] // `include_vh_rate_limits` still works in Envoy.
fn rate_limits(
    cx: &mut Cx<'_>,
    action: &route::RouteAction,
    inherited: &Inherited<'_>,
) -> Option<Box<RouteRateLimits>> {
    let own = rate_limit::descriptions(cx, &action.rate_limits);
    let of_host = inherited.rate_limits.cloned().unwrap_or_default();
    let includes_host = action.include_vh_rate_limits.as_ref().is_some_and(|include| include.value);
    let limits = RouteRateLimits { own, of_host, includes_host };
    (!limits.own.is_empty() || !limits.of_host.is_empty()).then(|| Box::new(limits))
}

/// `max_stream_duration.grpc_timeout_header_max`, or the deprecated `max_grpc_timeout`, each with its offset. 0 means no limit.
#[allow(deprecated)]
fn grpc_timeout(cx: &mut Cx<'_>, action: &route::RouteAction) -> Option<GrpcTimeout> {
    let limits = action.max_stream_duration.unwrap_or_default();
    let (as_route_timeout, most, offset, names) = match limits.grpc_timeout_header_max {
        Some(most) => {
            let names =
                ["max_stream_duration.grpc_timeout_header_max", "max_stream_duration.grpc_timeout_header_offset"];
            (false, most, limits.grpc_timeout_header_offset, names)
        }
        None => {
            (true, action.max_grpc_timeout?, action.grpc_timeout_offset, ["max_grpc_timeout", "grpc_timeout_offset"])
        }
    };
    let [most_name, offset_name] = names;
    let most = cx.limit(most_name, Some(&most), None);
    let offset = cx.limit(offset_name, offset.as_ref(), None).unwrap_or_default();
    Some(GrpcTimeout { as_route_timeout, most, offset })
}

/// `None`: the connection manager's applies. Zero disables it, expressed as the longest duration.
fn idle_timeout(cx: &mut Cx<'_>, action: &route::RouteAction) -> Option<Duration> {
    never_if_zero(cx.duration("idle_timeout", action.idle_timeout.as_ref()))
}

fn never_if_zero(limit: Option<Duration>) -> Option<Duration> {
    limit.map(|limit| if limit.is_zero() { Duration::MAX } else { limit })
}

fn not_found_status(cx: &mut Cx<'_>, code: i32) -> Option<u16> {
    use route::route_action::ClusterNotFoundResponseCode as Code;
    match Code::try_from(code) {
        Ok(Code::ServiceUnavailable) => Some(503),
        Ok(Code::NotFound) => Some(404),
        Ok(Code::InternalServerError) => Some(500),
        Err(_) => cx.fail_at("cluster_not_found_response_code", format!("unknown value {code}")),
    }
}

fn clusters(cx: &mut Cx<'_>, action: &route::RouteAction, inherited: &Inherited<'_>) -> Option<Vec<WeightedCluster>> {
    use route::route_action::ClusterSpecifier;
    match &action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => {
            let cluster = cluster_name(cx, "cluster", name, inherited)?;
            let headers = HeaderEdits::default();
            let metadata_match = criteria(&lb_metadata(action.metadata_match.as_ref()), None);
            let filters = FilterOverrides::default();
            Some(vec![WeightedCluster { cluster, weight: 1, headers, host_rewrite: None, metadata_match, filters }])
        }
        Some(ClusterSpecifier::WeightedClusters(weighted)) => cx.at("weighted_clusters", |cx| {
            let of_route = lb_metadata(action.metadata_match.as_ref());
            let clusters =
                cx.each("clusters", &weighted.clusters, |cx, entry| weighted_cluster(cx, entry, &of_route, inherited));
            let total: u64 = clusters.iter().map(|entry| u64::from(entry.weight)).sum();
            if clusters.len() == weighted.clusters.len() && !(1..=u64::from(u32::MAX)).contains(&total) {
                return cx.fail_at("clusters", format!("weights add up to {total}; must be 1 to 4294967295"));
            }
            Some(clusters)
        }),
        _ => cx.fail("one of cluster, weighted_clusters is required"),
    }
}

fn weighted_cluster(
    cx: &mut Cx<'_>,
    entry: &route::weighted_cluster::ClusterWeight,
    of_route: &MetadataMatch,
    inherited: &Inherited<'_>,
) -> Option<WeightedCluster> {
    use route::weighted_cluster::cluster_weight::HostRewriteSpecifier;
    let cluster = cluster_name(cx, "name", &entry.name, inherited)?;
    let host_rewrite = match &entry.host_rewrite_specifier {
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) if !host.is_empty() => Some(host.as_str().into()),
        _ => None,
    };
    let weight = entry.weight.as_ref().map_or(0, |weight| weight.value);
    let metadata_match = criteria(of_route, entry.metadata_match.as_ref());
    let filters = filter_overrides(cx, &entry.typed_per_filter_config, &FilterOverrides::default())?;
    let headers = edits(cx, &header_fields!(entry));
    Some(WeightedCluster { cluster, weight, headers, host_rewrite, metadata_match, filters })
}
