//! HTTP connection managers and TCP proxies, the last filters of filter chains.

use std::time::Duration;

use evenkeel_model::{PathNormalization, TrafficPolicy};

use crate::access_log;
use crate::context::Context;
use crate::pb::config::listener::{Filter, filter::ConfigType};
use crate::pb::config::route::RouteConfiguration;
use crate::pb::core::Http2ProtocolOptions;
use crate::pb::google::protobuf::Any;
use crate::pb::hcm::http_connection_manager::{
    ForwardClientCertDetails, PathWithEscapedSlashesAction, RouteSpecifier, SetCurrentClientCertDetails, UpgradeConfig,
};
use crate::pb::hcm::{HttpConnectionManager, HttpFilter, Rds, http_filter};
use crate::pb::on_demand::OnDemand;
use crate::pb::router::Router;
use crate::pb::tcp_proxy::{TcpProxy, tcp_proxy};
use crate::proto::{ads, any, bool_value, duration};
use crate::view::ClientKind;
use crate::{load_balancer, sessions};

/// Time from a request's first byte to the end of its head. Istio sets none, and Envoy's default is no limit.
const REQUEST_HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// Value of the `server` header, as in Istio.
const SERVER_NAME: &str = "istio-envoy";

/// The traffic that a connection manager serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Requests from the workload.
    Outbound,
    /// Requests to the workload.
    Inbound,
    /// Requests from outside the mesh.
    Gateway,
}

/// A connection manager whose routes come over RDS.
pub fn manager_with_rds(
    context: Context<'_>,
    side: Direction,
    stat: &str,
    route: &str,
    rbac: Vec<HttpFilter>,
) -> Filter {
    let rds = Rds { config_source: Some(ads()), route_config_name: route.to_owned() };
    let learns = side == Direction::Outbound && context.client_kind() == ClientKind::EvenkeelLearned;
    let filters = learns.then(on_demand).into_iter().chain(rbac).collect();
    manager(context, side, stat, RouteSpecifier::Rds(rds), filters)
}

/// A connection manager with its routes inside.
pub fn manager_with_routes(
    context: Context<'_>,
    side: Direction,
    stat: &str,
    routes: RouteConfiguration,
    rbac: Vec<HttpFilter>,
) -> Filter {
    manager(context, side, stat, RouteSpecifier::RouteConfig(routes), rbac)
}

/// The on-demand filter: holds a request whose virtual host is not known yet and requests it.
fn on_demand() -> HttpFilter {
    HttpFilter {
        name: "envoy.filters.http.on_demand".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&OnDemand::default()))),
        ..Default::default()
    }
}

/// The router filter, which ends each list of HTTP filters.
pub fn router() -> HttpFilter {
    HttpFilter {
        name: "envoy.filters.http.router".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&Router::default()))),
        ..Default::default()
    }
}

fn manager(context: Context<'_>, side: Direction, stat: &str, routes: RouteSpecifier, rbac: Vec<HttpFilter>) -> Filter {
    // Sessions are handled by the proxy that chooses the endpoint.
    let session = (side != Direction::Inbound).then(sessions::filter);
    let (forward, details) = client_certificate(side);
    // As istiod's `buildHTTPConnectionManager` translates `pathNormalization`.
    let paths = context.snapshot.mesh().path_normalization;
    let escaped = match paths {
        PathNormalization::DecodeAndMergeSlashes => PathWithEscapedSlashesAction::UnescapeAndForward,
        // They are kept unchanged.
        _ => PathWithEscapedSlashesAction::ImplementationSpecificDefault,
    };
    let manager = HttpConnectionManager {
        stat_prefix: stat.to_owned(),
        route_specifier: Some(routes),
        http_filters: rbac.into_iter().chain(session).chain([router()]).collect(),
        server_name: SERVER_NAME.to_owned(),
        use_remote_address: Some(bool_value(side == Direction::Gateway)),
        forward_client_cert_details: forward as i32,
        set_current_client_cert_details: details,
        // WebSockets arrive by extended CONNECT over HTTP/2.
        http2_protocol_options: Some(Http2ProtocolOptions { allow_connect: true, ..Default::default() }),
        upgrade_configs: vec![UpgradeConfig { upgrade_type: "websocket".to_owned(), ..Default::default() }],
        // Long polls and streams take long; users limit them with the route's timeout.
        stream_idle_timeout: Some(duration(Duration::ZERO)),
        // Without it there is no limit for heads either, and no well-behaved client sends a head slowly.
        request_headers_timeout: Some(duration(REQUEST_HEADERS_TIMEOUT)),
        proxy_100_continue: true,
        normalize_path: Some(bool_value(paths != PathNormalization::None)),
        merge_slashes: matches!(paths, PathNormalization::MergeSlashes | PathNormalization::DecodeAndMergeSlashes),
        path_with_escaped_slashes_action: escaped as i32,
        access_log: access_log::of_requests(context),
        ..Default::default()
    };
    network_filter("envoy.filters.network.http_connection_manager", any(&manager))
}

/// Handling of `x-forwarded-client-cert`: sidecars tell the workload who called, gateways start the chain, and the
/// workload's own requests do not carry it.
fn client_certificate(side: Direction) -> (ForwardClientCertDetails, Option<SetCurrentClientCertDetails>) {
    let details = SetCurrentClientCertDetails {
        subject: Some(bool_value(true)),
        cert: side == Direction::Gateway,
        dns: true,
        uri: true,
        ..Default::default()
    };
    match side {
        Direction::Outbound => (ForwardClientCertDetails::Sanitize, None),
        Direction::Inbound => (ForwardClientCertDetails::AppendForward, Some(details)),
        Direction::Gateway => (ForwardClientCertDetails::SanitizeSet, Some(details)),
    }
}

/// A TCP proxy to one cluster.
pub fn tcp(context: Context<'_>, cluster: &str) -> Filter {
    tcp_by(context, cluster, None)
}

/// A TCP proxy to one cluster, with the settings of a DestinationRule.
pub fn tcp_by(context: Context<'_>, cluster: &str, policy: Option<&TrafficPolicy>) -> Filter {
    tcp_to(context, cluster, tcp_proxy::ClusterSpecifier::Cluster(cluster.to_owned()), policy)
}

/// A TCP proxy that distributes connections by weight; `stat` is its statistics prefix.
pub fn tcp_weighted(
    context: Context<'_>,
    stat: &str,
    shares: &[(String, u32)],
    policy: Option<&TrafficPolicy>,
) -> Filter {
    let clusters = shares.iter().map(|(name, weight)| tcp_proxy::weighted_cluster::ClusterWeight {
        name: name.clone(),
        weight: *weight,
        ..Default::default()
    });
    let weighted = tcp_proxy::WeightedCluster { clusters: clusters.collect() };
    tcp_to(context, stat, tcp_proxy::ClusterSpecifier::WeightedClusters(weighted), policy)
}

fn tcp_to(
    context: Context<'_>,
    stat: &str,
    target: tcp_proxy::ClusterSpecifier,
    policy: Option<&TrafficPolicy>,
) -> Filter {
    let balancer = policy.and_then(|policy| policy.load_balancer.as_ref());
    let pool = policy.and_then(|policy| policy.connection_pool.as_ref());
    // Clusters of services are requested when a connection needs them; the catch-all clusters are always present.
    let learns = context.client_kind() == ClientKind::EvenkeelLearned && stat.starts_with("outbound|");
    let proxy = TcpProxy {
        on_demand: learns.then(|| tcp_proxy::OnDemand { odcds_config: Some(ads()), ..Default::default() }),
        stat_prefix: stat.to_owned(),
        cluster_specifier: Some(target),
        access_log: access_log::of_requests(context),
        hash_policy: balancer.and_then(load_balancer::tcp_hash_policy).into_iter().collect(),
        idle_timeout: pool.and_then(|pool| pool.tcp_idle_timeout).map(duration),
        ..Default::default()
    };
    network_filter("envoy.filters.network.tcp_proxy", any(&proxy))
}

/// A network filter.
pub fn network_filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}
