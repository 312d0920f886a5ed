//! HTTP connection managers and TCP proxies, the last filters of filter chains.

use std::time::Duration;

use evenkeel_model::TrafficPolicy;

use crate::access_log;
use crate::ambiguous::PathReading;
use crate::context::Context;
use crate::filter_slots::{FilterSlots, Slot};
use crate::finish::connection_manager;
use crate::pb::config::listener::Filter;
use crate::pb::config::route::RouteConfiguration;
use crate::pb::core::http1_protocol_options::HeaderKeyFormat;
use crate::pb::core::http1_protocol_options::header_key_format::HeaderFormat;
use crate::pb::core::{Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions, TypedExtensionConfig};
use crate::pb::hcm::http_connection_manager::{
    ForwardClientCertDetails, RouteSpecifier, ServerHeaderTransformation, SetCurrentClientCertDetails, UpgradeConfig,
};
use crate::pb::hcm::{HttpConnectionManager, HttpFilter, Rds, http_filter};
use crate::pb::on_demand::OnDemand;
use crate::pb::preserve_case::PreserveCaseFormatterConfig;
use crate::pb::router::Router;
use crate::pb::tcp_proxy::{TcpProxy, tcp_proxy, tcp_proxy::TunnelingConfig};
use crate::proto::{ads, any, bool_value, duration, network_filter, u32_value};
use crate::proxy_options::{Connections, ServerName};
use crate::traffic::Direction;
use crate::view::ClientKind;
use crate::{dynamic_dns, ext_authz, jwt, load_balancer, metrics, rbac, routes, sessions, tracing};

/// Time from a request's first byte to the end of its head. Istio sets none, and Envoy's default is no limit.
const REQUEST_HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// Value of the `server` header, as in Istio.
const SERVER_NAME: &str = "istio-envoy";

/// The kind of calls of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// HTTP of any kind.
    Any,
    /// gRPC-Web calls among them become gRPC.
    GrpcWeb,
}

impl Calls {
    /// Returns the kind of calls of a port that was declared for gRPC-Web, or not.
    pub fn of_grpc_web(declared: bool) -> Self {
        if declared { Self::GrpcWeb } else { Self::Any }
    }
}

/// When the addresses of the hosts that requests go to are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLookup {
    /// Before they are called.
    Ahead,
    /// When they are called, at least those of some hosts.
    AtCall,
}

impl HostLookup {
    /// Returns the kind of look-up of hosts of which some are looked up when they are called, or none.
    pub fn of(at_call: bool) -> Self {
        if at_call { Self::AtCall } else { Self::Ahead }
    }
}

/// A connection manager whose routes come over RDS.
pub fn manager_with_rds(context: Context<'_>, side: Direction, stat: &str, route: &str, calls: Calls) -> Filter {
    let rds = Rds { config_source: Some(ads()), route_config_name: route.to_owned() };
    manager(context, side, stat, RouteSpecifier::Rds(rds), filters(context, side, calls, HostLookup::Ahead))
}

/// A connection manager for requests from the workload. Those to unknown hosts are looked up if the mesh says so, whatever `lookup`.
pub fn outbound_manager(context: Context<'_>, stat: &str, route: &str, calls: Calls, lookup: HostLookup) -> Filter {
    let lookup = if dynamic_dns::looks_up_unknown(context) { HostLookup::AtCall } else { lookup };
    let rds = Rds { config_source: Some(ads()), route_config_name: route.to_owned() };
    let filters = filters(context, Direction::Outbound, calls, lookup);
    manager(context, Direction::Outbound, stat, RouteSpecifier::Rds(rds), filters)
}

/// A connection manager for requests to ports without a listener, whose hosts are looked up (`ALLOW_ANY_DYNAMIC_DNS`).
pub fn unknown_hosts_manager(context: Context<'_>, stat: &str) -> Filter {
    let routes = RouteConfiguration {
        name: stat.to_owned(),
        virtual_hosts: vec![routes::outbound::unknown_host(context, stat)],
        ..Default::default()
    };
    let mut slots = FilterSlots::default();
    slots.add(Slot::First, metrics::peer_metadata(context, Direction::Outbound));
    slots.add(Slot::First, metrics::grpc_stats(context));
    // The routes are complete, so there is nothing to ask for.
    slots.add(Slot::First, rbac::outbound_http_filter(context));
    slots.add(Slot::Statistics, metrics::http_filter(context, Direction::Outbound));
    add_routing(context, Direction::Outbound, Calls::Any, HostLookup::AtCall, &mut slots);
    manager(context, Direction::Outbound, stat, RouteSpecifier::RouteConfig(routes), slots.into_filters())
}

/// A connection manager with its routes inside.
pub fn manager_with_routes(
    context: Context<'_>,
    side: Direction,
    stat: &str,
    routes: RouteConfiguration,
    calls: Calls,
) -> Filter {
    let filters = filters(context, side, calls, HostLookup::Ahead);
    manager(context, side, stat, RouteSpecifier::RouteConfig(routes), filters)
}

/// The HTTP filters.
fn filters(context: Context<'_>, side: Direction, calls: Calls, lookup: HostLookup) -> Vec<HttpFilter> {
    let mut slots = FilterSlots::default();
    slots.add(Slot::First, metrics::peer_metadata(context, side));
    slots.add(Slot::First, metrics::grpc_stats(context));
    match side {
        Direction::Outbound => {
            slots.add(Slot::First, rbac::outbound_http_filter(context));
            if context.client_kind() == ClientKind::EvenkeelLearned {
                slots.add(Slot::First, [on_demand()]);
            }
        }
        Direction::Inbound | Direction::Gateway => {
            slots.add(Slot::First, ext_authz::http_filters(context));
            slots.add(Slot::Authentication, jwt::filter(context, side));
            slots.add(Slot::Authorization, rbac::http_filters(context));
        }
    }
    slots.add(Slot::Statistics, metrics::http_filter(context, side));
    add_routing(context, side, calls, lookup, &mut slots);
    slots.into_filters()
}

/// Adds what routes configure, what chooses the endpoint, and the router.
fn add_routing(context: Context<'_>, side: Direction, calls: Calls, lookup: HostLookup, slots: &mut FilterSlots) {
    if calls == Calls::GrpcWeb {
        slots.add(Slot::Routing, [routes::filters::grpc_web()]);
    }
    slots.add(Slot::Routing, routes::filters::all());
    // Sessions are handled by the proxy that chooses the endpoint.
    if side != Direction::Inbound {
        slots.add(Slot::Routing, [sessions::filter()]);
    }
    if lookup == HostLookup::AtCall {
        slots.add(Slot::Routing, [dynamic_dns::http_filter()]);
    }
    slots.add(Slot::Router, [router_of(context)]);
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

fn manager(
    context: Context<'_>,
    side: Direction,
    stat: &str,
    routes: RouteSpecifier,
    http_filters: Vec<HttpFilter>,
) -> Filter {
    let (forward, details) = client_certificate(context, side);
    let options = context.options();
    let limits = options.connections.at(side == Direction::Gateway);
    let paths = PathReading::of(context);
    let (server_name, transformation) = match &options.server {
        ServerName::Default => (SERVER_NAME, ServerHeaderTransformation::Overwrite),
        ServerName::Named(name) => (&**name, ServerHeaderTransformation::Overwrite),
        ServerName::PassThrough => (SERVER_NAME, ServerHeaderTransformation::PassThrough),
    };
    let manager = HttpConnectionManager {
        stat_prefix: stat.to_owned(),
        route_specifier: Some(routes),
        http_filters,
        server_name: server_name.to_owned(),
        server_header_transformation: transformation as i32,
        use_remote_address: Some(bool_value(side == Direction::Gateway)),
        xff_num_trusted_hops: if side == Direction::Gateway { options.trusted_proxies } else { 0 },
        forward_client_cert_details: forward as i32,
        set_current_client_cert_details: details,
        append_x_forwarded_port: options.forwards_port,
        http_protocol_options: options.preserves_case.then(preserving_case),
        generate_request_id: options.no_request_id.then(|| bool_value(false)),
        // WebSockets arrive by extended CONNECT over HTTP/2.
        http2_protocol_options: Some(Http2ProtocolOptions {
            allow_connect: true,
            max_concurrent_streams: limits.max_streams.map(u32_value),
            initial_stream_window_size: limits.stream_window.map(u32_value),
            initial_connection_window_size: limits.connection_window.map(u32_value),
            ..Default::default()
        }),
        common_http_protocol_options: common_options(&limits),
        upgrade_configs: vec![UpgradeConfig { upgrade_type: "websocket".to_owned(), ..Default::default() }],
        // Long polls and streams take long; users limit them with the route's timeout.
        stream_idle_timeout: Some(duration(limits.stream_idle.unwrap_or(Duration::ZERO))),
        request_timeout: limits.request.map(duration),
        // Without it there is no limit for heads either, and no well-behaved client sends a head slowly.
        request_headers_timeout: Some(duration(limits.request_headers.unwrap_or(REQUEST_HEADERS_TIMEOUT))),
        drain_timeout: limits.drain.map(duration),
        proxy_100_continue: true,
        normalize_path: Some(bool_value(paths.normalizes)),
        merge_slashes: paths.merges,
        path_with_escaped_slashes_action: paths.escaped_slashes as i32,
        access_log: access_log::of_requests(context),
        tracing: tracing::of_requests(context),
        ..Default::default()
    };
    connection_manager(context.patches(), manager)
}

/// Options of HTTP/1 by which the names of headers are passed on as they are spelled.
pub fn preserving_case() -> Http1ProtocolOptions {
    let formatter = TypedExtensionConfig {
        name: "preserve_case".to_owned(),
        typed_config: Some(any(&PreserveCaseFormatterConfig::default())),
    };
    let format = HeaderKeyFormat { header_format: Some(HeaderFormat::StatefulFormatter(formatter)) };
    Http1ProtocolOptions { header_key_format: Some(format), ..Default::default() }
}

/// The limits that all versions of HTTP have in common, if there are any.
fn common_options(limits: &Connections) -> Option<HttpProtocolOptions> {
    let options = HttpProtocolOptions {
        idle_timeout: limits.idle.map(duration),
        max_connection_duration: limits.max_duration.map(duration),
        max_stream_duration: limits.max_stream_duration.map(duration),
        headers_with_underscores_action: limits.underscores.unwrap_or_default() as i32,
        ..Default::default()
    };
    (options != HttpProtocolOptions::default()).then_some(options)
}

/// The router, which adds Envoy's headers unless `envoyDebugHeaders` says otherwise.
fn router_of(context: Context<'_>) -> HttpFilter {
    if !context.options().no_debug_headers {
        return router();
    }
    let config = Router { suppress_envoy_headers: true, ..Router::default() };
    HttpFilter { config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))), ..router() }
}

/// Handling of `x-forwarded-client-cert`: sidecars tell the workload who called, gateways start the chain, and the
/// workload's own requests do not carry it. The proxy's own settings override it.
fn client_certificate(
    context: Context<'_>,
    side: Direction,
) -> (ForwardClientCertDetails, Option<SetCurrentClientCertDetails>) {
    let options = context.options();
    let forward = match side {
        Direction::Outbound => return (ForwardClientCertDetails::Sanitize, None),
        Direction::Inbound => options.forward_at_sidecar.unwrap_or(ForwardClientCertDetails::AppendForward),
        Direction::Gateway => options.forward_at_gateway.unwrap_or(ForwardClientCertDetails::SanitizeSet),
    };
    let details = SetCurrentClientCertDetails {
        subject: Some(bool_value(true)),
        cert: side == Direction::Gateway,
        dns: true,
        uri: true,
        ..Default::default()
    };
    let details = match (side, options.certificate) {
        (Direction::Inbound, Some(parts)) => parts.over(details),
        _ => details,
    };
    // The other modes pass on existing headers, or none.
    let adds = matches!(forward, ForwardClientCertDetails::AppendForward | ForwardClientCertDetails::SanitizeSet);
    (forward, adds.then_some(details))
}

/// A TCP proxy to one cluster.
pub fn tcp(context: Context<'_>, cluster: &str) -> Filter {
    tcp_by(context, cluster, "", None)
}

/// A TCP proxy to one cluster, with the settings of a DestinationRule; `stat` is its statistics prefix if it is not the
/// cluster's name.
pub fn tcp_by(context: Context<'_>, cluster: &str, stat: &str, policy: Option<&TrafficPolicy>) -> Filter {
    let target = tcp_proxy::ClusterSpecifier::Cluster(cluster.to_owned());
    let stat = if stat.is_empty() { cluster } else { stat };
    tcp_to(context, (cluster, stat), target, policy)
}

/// A TCP proxy that distributes connections by weight. The first cluster gives the statistics their prefix.
pub fn tcp_weighted(
    context: Context<'_>,
    first: &str,
    shares: &[(String, u32)],
    policy: Option<&TrafficPolicy>,
) -> Filter {
    let clusters = shares.iter().map(|(name, weight)| tcp_proxy::weighted_cluster::ClusterWeight {
        name: name.clone(),
        weight: *weight,
        ..Default::default()
    });
    let weighted = tcp_proxy::WeightedCluster { clusters: clusters.collect() };
    tcp_to(context, (first, first), tcp_proxy::ClusterSpecifier::WeightedClusters(weighted), policy)
}

fn tcp_to(
    context: Context<'_>,
    (cluster, stat): (&str, &str),
    target: tcp_proxy::ClusterSpecifier,
    policy: Option<&TrafficPolicy>,
) -> Filter {
    let balancer = policy.and_then(|policy| policy.load_balancer.as_ref());
    // As in Istio, connections that several clusters share have no tunnel.
    let is_one = matches!(target, tcp_proxy::ClusterSpecifier::Cluster(_));
    let tunnel = policy.and_then(|policy| policy.tunnel.as_ref()).filter(|_| is_one);
    let pool = policy.and_then(|policy| policy.connection_pool.as_ref());
    // Clusters of services are requested when a connection needs them; the catch-all clusters are always present.
    let learns = context.client_kind() == ClientKind::EvenkeelLearned && cluster.starts_with("outbound|");
    let proxy = TcpProxy {
        on_demand: learns.then(|| tcp_proxy::OnDemand { odcds_config: Some(ads()), ..Default::default() }),
        stat_prefix: stat.to_owned(),
        cluster_specifier: Some(target),
        access_log: access_log::of_connections(context),
        hash_policy: balancer.and_then(load_balancer::tcp_hash_policy).into_iter().collect(),
        idle_timeout: pool.and_then(|pool| pool.tcp_idle_timeout).map(duration),
        max_downstream_connection_duration: pool.and_then(|pool| pool.max_connection_duration).map(duration),
        tunneling_config: tunnel.map(|tunnel| TunnelingConfig {
            hostname: tunnel.target.to_string(),
            use_post: tunnel.by_post,
            ..Default::default()
        }),
        ..Default::default()
    };
    network_filter("envoy.filters.network.tcp_proxy", any(&proxy))
}
