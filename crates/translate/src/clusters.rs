//! Clusters: outbound ones per service, port and subset; inbound ones per port of the workload; and the catch-alls.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::Span;
use evenkeel_model::service::{ServicePort, TargetPort};
use evenkeel_model::workload::InboundPort;
use evenkeel_model::{
    ClientTls, ConnectionPool, DestinationRule, EndpointAddress, IngressEndpoint, Labels, LbPolicy as Balancing,
    OutlierDetection, OutsideTls, Protocol, ProxyProtocol, Resolution, RetryBudget as Budget, Service, Subset,
    TrafficPolicy,
};

use crate::context::{Context, PortProtocol};
use crate::endpoints;
use crate::failover::EndpointRanking;
use crate::http::preserving_case;
use crate::load_balancer;
use crate::metadata_exchange::{self, PEER_EXCHANGE};
use crate::metrics;
use crate::names::{
    self, ALLOW_ANY_DYNAMIC_DNS_CLUSTER, BLACK_HOLE_CLUSTER, INBOUND_PASSTHROUGH_CLUSTER, PASSTHROUGH_CLUSTER,
    TLS_MODE, TLS_MODE_ISTIO, outbound_name,
};
use crate::origin;
use crate::output::Output;
use crate::pb::common_matcher::{HttpHeadersMatch, MatchPredicate, match_predicate};
use crate::pb::config::cluster::circuit_breakers::{Thresholds, thresholds::RetryBudget};
use crate::pb::config::cluster::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, DnsLookupFamily, EdsClusterConfig, LbConfig, LbPolicy,
    OriginalDstLbConfig, TransportSocketMatch,
};
use crate::pb::config::cluster::{
    CircuitBreakers, Cluster, OutlierDetection as EnvoyOutlierDetection, UpstreamConnectionOptions,
};
use crate::pb::config::endpoint::ClusterLoadAssignment;
use crate::pb::config::route::{HeaderMatcher, header_matcher::HeaderMatchSpecifier};
use crate::pb::core::{
    Address, BindConfig, Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as CommonHttpOptions,
    KeepaliveSettings, ProxyProtocolConfig, TcpKeepalive, TransportSocket, UpstreamHttpProtocolOptions,
    proxy_protocol_config, transport_socket,
};
use crate::pb::envoy_type::Percent;
use crate::pb::google::protobuf::Struct;
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::pb::upstream_http::{self, http_protocol_options as http_options};
use crate::pb::upstream_proxy_protocol::ProxyProtocolUpstreamTransport;
use crate::proto::{self, ads, any, duration, metadata, one_field, socket_address, u32_value};
use crate::tls;
use crate::traffic::InnerProtocol;
use crate::{dynamic_dns, secrets, sessions, stat_names};

/// The source address of connections to the workload itself, which capture rules do not redirect.
const INBOUND_SOURCE: &str = "127.0.0.6";
/// Connection pools to original destinations are closed after this time without a request.
const PASSTHROUGH_IDLE: Duration = Duration::from_secs(300);
/// The spread of these lookups (Istio's `PILOT_DNS_JITTER_DURATION`).
const DNS_JITTER: Duration = Duration::from_millis(100);
/// Envoy's name of the HTTP protocol options.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster, and the position in the user's files that it comes from.
pub type Generated = (Cluster, Option<Span>);

/// The clusters every proxy has.
pub fn basics(context: Context<'_>, out: &mut Output<'_>) {
    let mut all = vec![black_hole(context)];
    if context.is_sidecar() {
        all.push(inbound_passthrough(context));
    }
    if dynamic_dns::looks_up_unknown(context) {
        all.push(looked_up(context));
    }
    for cluster in all {
        out.add(cluster, None);
    }
}

/// The cluster of a sidecar for calls to where the workload made them. It is generated again when a workload comes or
/// goes.
pub fn as_called(context: Context<'_>, out: &mut Output<'_>) {
    let cluster = passthrough(context);
    out.add(cluster, None);
}

/// The clusters that lead to the workload, one per port.
pub fn inbounds(context: Context<'_>, out: &mut Output<'_>) {
    for port in context.inbound_ports().iter().filter(|p| PortProtocol::of(p.protocol).is_some()) {
        let (cluster, origin) = inbound(context, port);
        out.add(cluster, origin);
    }
}

/// Whether a service's clusters contain its endpoints, which are then names that each proxy resolves.
pub fn contain_endpoints(service: &Service) -> bool {
    matches!(service.resolution, Resolution::Dns | Resolution::DnsRoundRobin)
}

/// The clusters of a service that do not contain its endpoints.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if !contain_endpoints(service) {
        each(context, service, out);
    }
}

/// The clusters of a service that contain its endpoints.
pub fn with_endpoints(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if contain_endpoints(service) {
        each(context, service, out);
    }
}

/// Generates one cluster per port, subset and inner protocol.
fn each(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    let rule = context.destination_rule(service).map(AsRef::as_ref);
    for (port, port_protocol) in context.ports(service) {
        let subsets = rule.into_iter().flat_map(|r| r.subsets.iter().map(Some));
        for subset in std::iter::once(None).chain(subsets) {
            for inner in port_protocol.inners() {
                let (cluster, origin) = outbound(context, service, &port, rule, subset, *inner);
                out.add(cluster, origin);
            }
            if let Some(rule) = rule {
                want_credential(context, rule, rule.policy_for(subset.map(|s| &*s.name), port.number).tls, out);
            }
        }
    }
}

/// Requests the secrets that a rule's TLS uses.
fn want_credential(context: Context<'_>, rule: &DestinationRule, tls: Option<ClientTls>, out: &mut Output<'_>) {
    let Some(ClientTls::Outside(server)) = tls else { return };
    if !uses_secrets(context, Some(rule)) {
        return;
    }
    for name in server.credential.iter().filter(|_| server.is_mutual) {
        secrets::want(secrets::certificate_name(name), &rule.origin, out);
    }
    if let Some(name) = server.roots_secret() {
        secrets::want(secrets::roots_name(name), &rule.origin, out);
    }
}

/// One outbound cluster.
pub fn outbound(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    rule: Option<&DestinationRule>,
    subset: Option<&Subset>,
    inner: InnerProtocol,
) -> Generated {
    let subset_name = subset.map_or("", |s| &*s.name);
    let policy = context.settings(service, rule, subset.map(|s| &*s.name), port.number);
    let mut cluster = base(context, outbound_name(port, subset_name, service, inner));
    discovery(context, service, port, subset.map(|s| &s.labels), &policy, &mut cluster);
    apply_policy(context, &policy, &mut cluster);
    apply_keepalive(context, policy.connection_pool.as_ref(), &mut cluster);
    sessions::apply(service, &mut cluster);
    let pool = policy.connection_pool.as_ref();
    let common = common_http_options(pool);
    let speaks = match inner {
        InnerProtocol::Http => upstream_protocol(context, port.protocol, pool),
        InnerProtocol::Tcp => UpstreamProtocol::Http1,
    };
    let outliers = policy.outlier_detection.as_ref().filter(|_| inner == InnerProtocol::Http);
    if inner == InnerProtocol::Http || common != CommonHttpOptions::default() {
        let naming = naming(service, &policy).filter(|_| inner == InnerProtocol::Http);
        // Without options Envoy checks servers that are looked up by the called host, whatever the rule says.
        let is_left = inner == InnerProtocol::Http && dynamic_dns::is_looked_up(service) && naming.is_none();
        let speaks = if is_left && speaks == UpstreamProtocol::Http1 { UpstreamProtocol::WrittenHttp1 } else { speaks };
        set_http_options(context, common, speaks, pool, (outliers, naming), &mut cluster);
    }
    if dynamic_dns::is_looked_up(service) {
        // Without options Envoy checks servers by the called host.
        let has_options = !cluster.typed_extension_protocol_options.is_empty();
        let checked = inner == InnerProtocol::Http && naming(service, &policy) == Some(dynamic_dns::naming());
        dynamic_dns::make_cluster(has_options && !checked, &mut cluster);
    }
    let bytes = Bytes { inner, http2: speaks == UpstreamProtocol::Http2 };
    apply_tls(context, service, port, subset_name, rule, &policy, bytes, &mut cluster);
    if let Some(version) = policy.proxy_protocol {
        begin_with_proxy_header(version, &mut cluster);
    }
    set_origin(rule, &mut cluster);
    metrics::note_service(context, service, &mut cluster.metadata);
    cluster.alt_stat_name = stat_names::outbound(context, service, port, subset_name);
    close(service, &mut cluster);
    (cluster, Some(origin::of_cluster(service, rule, subset)))
}

/// The cluster for connections that a gateway passes on unread by their SNI. Their TLS is between client and workload.
pub fn passed_on(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    rule: Option<&DestinationRule>,
    subset: Option<&Subset>,
) -> Generated {
    let subset_name = subset.map_or("", |s| &*s.name);
    let policy = context.settings(service, rule, subset.map(|s| &*s.name), port.number);
    let mut cluster = base(context, names::sni_dnat_cluster(port.number, subset_name, &service.host));
    discovery(context, service, port, subset.map(|s| &s.labels), &policy, &mut cluster);
    apply_policy(context, &policy, &mut cluster);
    apply_keepalive(context, policy.connection_pool.as_ref(), &mut cluster);
    set_origin(rule, &mut cluster);
    metrics::note_service(context, service, &mut cluster.metadata);
    cluster.alt_stat_name = stat_names::outbound(context, service, port, subset_name);
    close(service, &mut cluster);
    (cluster, Some(origin::of_cluster(service, rule, subset)))
}

/// Takes a cluster its endpoints, if something judges calls of the service that is not supported: every call fails, by
/// whichever route it comes.
fn close(service: &Service, cluster: &mut Cluster) {
    if service.closed_by.is_empty() {
        return;
    }
    *cluster = Cluster {
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        eds_cluster_config: None,
        load_assignment: Some(ClusterLoadAssignment { cluster_name: cluster.name.clone(), ..Default::default() }),
        lb_policy: LbPolicy::RoundRobin as i32,
        lb_config: None,
        load_balancing_policy: None,
        ..std::mem::take(cluster)
    };
}

fn set_origin(rule: Option<&DestinationRule>, cluster: &mut Cluster) {
    if let Some(rule) = rule {
        let path = origin::config_path(rule.kind, &rule.namespace, &rule.name);
        cluster.metadata = Some(metadata("istio", "config", &path));
    }
}

fn discovery(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    labels: Option<&Labels>,
    policy: &TrafficPolicy,
    cluster: &mut Cluster,
) {
    let races = service.races_addresses && has_one_name(context, service, port);
    let kind = match context.resolution(service) {
        Resolution::Static | Resolution::Alias => DiscoveryType::Eds,
        // A host of its own at each address could not race.
        Resolution::Dns if races => DiscoveryType::LogicalDns,
        Resolution::Dns => DiscoveryType::StrictDns,
        Resolution::DnsRoundRobin => DiscoveryType::LogicalDns,
        Resolution::Passthrough => DiscoveryType::OriginalDst,
        // Its type is set last: it depends on the HTTP options.
        Resolution::DynamicDns => return,
    };
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(kind as i32));
    match kind {
        DiscoveryType::Eds => {
            cluster.eds_cluster_config =
                Some(EdsClusterConfig { eds_config: Some(ads()), service_name: cluster.name.clone() });
        }
        DiscoveryType::OriginalDst => {
            set_cluster_provided(cluster);
            cluster.lb_config = other_port(service, port).map(LbConfig::OriginalDstLbConfig);
        }
        _ => {
            look_up_as_istio(context, races, cluster);
            let none = Labels::new();
            let labels = labels.unwrap_or(&none);
            let endpoints = context.snapshot.ready_endpoints(service, port.number, labels);
            let named = endpoints.filter(|e| !matches!(e.address, EndpointAddress::Unix(_)));
            let ranking = EndpointRanking::new(context, service, policy);
            let mut assigned = endpoints::assignment(context, &cluster.name, named, &ranking);
            endpoints::weigh(context, policy, &mut assigned);
            cluster.load_assignment = Some(assigned);
        }
    }
}

/// Whether the endpoints of a port are the addresses of one name: a LOGICAL_DNS cluster has no others.
fn has_one_name(context: Context<'_>, service: &Service, port: &ServicePort) -> bool {
    context.snapshot.endpoints(service, port.number).len() == 1
}

/// The `targetPort` of a ServiceEntry, to which connections to the original destination go. Pods of a headless Service are
/// called on their own ports.
fn other_port(service: &Service, port: &ServicePort) -> Option<OriginalDstLbConfig> {
    match port.target {
        TargetPort::Number(number) if !service.is_kubernetes() && number != port.number => Some(OriginalDstLbConfig {
            upstream_port_override: Some(u32_value(u32::from(number))),
            ..Default::default()
        }),
        _ => None,
    }
}

/// How names are looked up: the mesh's `dnsRefreshRate`, and Istio's jitter; a server's TTL takes precedence.
#[expect(deprecated, reason = "Istio sends these fields; their successors are extensions of each kind of cluster")]
fn look_up_as_istio(context: Context<'_>, races: bool, cluster: &mut Cluster) {
    let family = if races { DnsLookupFamily::All } else { DnsLookupFamily::V4Only };
    cluster.dns_lookup_family = family as i32;
    cluster.dns_refresh_rate = Some(duration(context.snapshot.mesh().dns_refresh_rate));
    cluster.dns_jitter = Some(duration(DNS_JITTER));
    cluster.respect_dns_ttl = true;
}

fn set_cluster_provided(cluster: &mut Cluster) {
    cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    cluster.common_lb_config = None;
}

fn apply_policy(context: Context<'_>, policy: &TrafficPolicy, cluster: &mut Cluster) {
    let mut balancer = policy.load_balancer.clone().unwrap_or_default();
    // Nor may a rule make a gateway call itself, see `Context::resolution`.
    balancer.policy = balancer.policy.filter(|policy| context.is_sidecar() || *policy != Balancing::Passthrough);
    load_balancer::apply(&balancer, context.discovers_itself(), cluster);
    if let Some(outliers) = &policy.outlier_detection {
        apply_outlier_detection(outliers, cluster);
    }
    if policy.connection_pool.is_some() || policy.retry_budget.is_some() {
        let pool = policy.connection_pool.clone().unwrap_or_default();
        apply_pool(&pool, policy.retry_budget.as_ref(), cluster);
    }
}

fn apply_pool(pool: &ConnectionPool, budget: Option<&Budget>, cluster: &mut Cluster) {
    if let Some(timeout) = pool.connect_timeout {
        cluster.connect_timeout = Some(duration(timeout));
    }
    let limit = |value: Option<u32>| Some(u32_value(value.unwrap_or(u32::MAX)));
    cluster.circuit_breakers = Some(CircuitBreakers {
        thresholds: vec![Thresholds {
            max_connections: limit(pool.max_connections),
            max_pending_requests: limit(pool.max_pending_requests),
            max_requests: limit(pool.max_requests),
            max_retries: limit(pool.max_retries.filter(|most| *most > 0)),
            retry_budget: budget.map(|budget| RetryBudget {
                budget_percent: Some(Percent { value: budget.percent }),
                min_retry_concurrency: Some(u32_value(budget.min_concurrency)),
                budget_interval: budget.interval.map(duration),
            }),
            ..Default::default()
        }],
        ..Default::default()
    });
}

/// Applies probes of idle connections: the rule's, and the mesh's for unset fields. istiod leaves out settings of zero.
fn apply_keepalive(context: Context<'_>, pool: Option<&ConnectionPool>, cluster: &mut Cluster) {
    let own = pool.and_then(|pool| pool.tcp_keepalive.clone());
    let of_mesh = context.snapshot.mesh().tcp_keepalive.as_ref();
    let probes = match (own, of_mesh) {
        (Some(own), Some(of_mesh)) => own.or(of_mesh),
        (Some(own), None) => own,
        (None, Some(of_mesh)) => of_mesh.clone(),
        (None, None) => return,
    };
    let seconds =
        |time: Option<Duration>| time.map(|time| u32_value(u32::try_from(time.as_secs()).unwrap_or(u32::MAX)));
    cluster.upstream_connection_options = Some(UpstreamConnectionOptions {
        tcp_keepalive: Some(TcpKeepalive {
            keepalive_probes: probes.probes.map(u32_value),
            keepalive_time: seconds(probes.time),
            keepalive_interval: seconds(probes.interval),
        }),
        ..Default::default()
    });
}

fn common_http_options(pool: Option<&ConnectionPool>) -> CommonHttpOptions {
    let Some(pool) = pool else { return CommonHttpOptions::default() };
    CommonHttpOptions {
        max_requests_per_connection: pool.max_requests_per_connection.filter(|most| *most > 0).map(u32_value),
        idle_timeout: pool.idle_timeout.map(duration),
        max_connection_duration: pool.max_connection_duration.map(duration),
        ..Default::default()
    }
}

/// The HTTP version used towards endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UpstreamProtocol {
    Http1,
    /// The same, written down although it is the default.
    WrittenHttp1,
    Http2,
    /// That of the request.
    AsReceived,
}

/// What a cluster's connections carry.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    inner: InnerProtocol,
    /// Whether it is only HTTP/2.
    http2: bool,
}

/// Servers are spoken to as the port says, whatever the client speaks: a port named `http` is HTTP/1.1. Where nothing names the protocol,
/// sidecars keep the client's version; a gateway speaks HTTP/1.1, because a browser's HTTP/2 says nothing about what the server accepts
/// (Istio's `setUpstreamProtocol`).
fn upstream_protocol(context: Context<'_>, declared: Protocol, pool: Option<&ConnectionPool>) -> UpstreamProtocol {
    match declared {
        _ if pool.is_some_and(|pool| pool.use_client_protocol) => UpstreamProtocol::AsReceived,
        Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb => UpstreamProtocol::Http2,
        // Only declared HTTP is upgraded: a detected protocol may be any (istiod's `shouldH2Upgrade`).
        Protocol::Http if pool.and_then(|pool| pool.h2_upgrade).unwrap_or(context.snapshot.mesh().h2_upgrade) => {
            UpstreamProtocol::Http2
        }
        Protocol::Auto if context.is_sidecar() => UpstreamProtocol::AsReceived,
        _ => UpstreamProtocol::Http1,
    }
}

/// As in Istio: success rates are not used, a given threshold is always enforced, and there is no panic mode by
/// default.
fn apply_outlier_detection(outliers: &OutlierDetection, cluster: &mut Cluster) {
    let always = |threshold: Option<u32>| threshold.map(|count| u32_value(if count > 0 { 100 } else { 0 }));
    let split = outliers.split_local_origin;
    let share = outliers.failure_percentage.filter(|percent| *percent > 0);
    let local = outliers.consecutive_local_origin.filter(|count| split && *count > 0);
    cluster.outlier_detection = Some(EnvoyOutlierDetection {
        enforcing_success_rate: Some(u32_value(0)),
        consecutive_5xx: outliers.consecutive_5xx.map(u32_value),
        enforcing_consecutive_5xx: always(outliers.consecutive_5xx),
        consecutive_gateway_failure: outliers.consecutive_gateway.map(u32_value),
        enforcing_consecutive_gateway_failure: always(outliers.consecutive_gateway),
        failure_percentage_threshold: share.map(u32_value),
        enforcing_failure_percentage: always(share),
        consecutive_local_origin_failure: local.map(u32_value),
        enforcing_consecutive_local_origin_failure: always(local),
        split_external_local_origin_errors: split,
        enforcing_local_origin_success_rate: split.then(|| u32_value(0)),
        interval: outliers.interval.map(duration),
        base_ejection_time: outliers.base_ejection_time.map(duration),
        max_ejection_percent: outliers.max_ejection_percent.filter(|percent| *percent > 0).map(u32_value),
        ..Default::default()
    });
    let panic = Percent { value: f64::from(outliers.min_health_percent.unwrap_or_default()) };
    if let Some(common) = &mut cluster.common_lb_config {
        common.healthy_panic_threshold = Some(panic);
    }
}

/// Names of which the certificate of a server outside the mesh must have one: those of the rule, else those of the
/// ServiceEntry, else the SNI. With none of these, each call's host is checked, see [`naming`].
fn outside_names(of_service: &[Arc<str>], server: &OutsideTls) -> Vec<Arc<str>> {
    let lists = [&server.subject_alt_names[..], of_service];
    match lists.into_iter().find(|names| !names.is_empty()) {
        Some(names) => names.to_vec(),
        None => server.sni.iter().cloned().collect(),
    }
}

/// Whether this proxy originates TLS with the Secrets that a rule names (Istio's `credentialName`): gateways do, and sidecars
/// that the rule selects.
fn uses_secrets(context: Context<'_>, rule: Option<&DestinationRule>) -> bool {
    !context.is_sidecar() || rule.is_some_and(|rule| rule.workload_selector.is_some())
}

/// Returns how the called server is named and verified: without an SNI of the rule, the host of a call is sent as SNI, and
/// without configured names its certificate must have that host (istiod's `setAutoSniAndAutoSanValidation`).
fn naming(service: &Service, policy: &TrafficPolicy) -> Option<UpstreamHttpProtocolOptions> {
    let Some(ClientTls::Outside(server)) = &policy.tls else {
        // It has no effect without TLS, and the mesh's TLS has its own names.
        let is_plain = !matches!(policy.tls, Some(ClientTls::IstioMutual { .. }));
        return (is_plain && dynamic_dns::is_looked_up(service)).then(dynamic_dns::naming);
    };
    outside_naming(server, !outside_names(&service.subject_alt_names, server).is_empty())
}

/// Returns the same for a server outside the mesh. `has_names`: its certificate must have one of some names.
fn outside_naming(server: &OutsideTls, has_names: bool) -> Option<UpstreamHttpProtocolOptions> {
    let checked = server.insecure_skip_verify || has_names;
    server.sni.is_none().then(|| UpstreamHttpProtocolOptions {
        auto_sni: true,
        auto_san_validation: !checked,
        ..Default::default()
    })
}

/// TLS towards the endpoints: as the DestinationRule says, otherwise mutual TLS of the mesh if the endpoint's proxy
/// accepts it.
#[expect(clippy::too_many_arguments, reason = "all of it decides")]
fn apply_tls(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    subset: &str,
    rule: Option<&DestinationRule>,
    policy: &TrafficPolicy,
    bytes: Bytes,
    cluster: &mut Cluster,
) {
    // A wildcard is no server name, so none is sent; the receiving sidecar needs none.
    let default_sni =
        if service.host.is_wildcard() { String::new() } else { names::mesh_sni(port.number, subset, &service.host) };
    let mesh = context.snapshot.mesh();
    match &policy.tls {
        Some(ClientTls::Disable) => {}
        Some(ClientTls::IstioMutual { sni, subject_alt_names, revocation_lists }) => {
            let sans = match subject_alt_names.as_slice() {
                [] => context.snapshot.identities(service).into_iter().collect(),
                names => names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            };
            let sni = sni.as_deref().unwrap_or(&default_sni);
            let lists = revocation_lists.as_deref();
            let alpn = offered(context, bytes);
            cluster.transport_socket = Some(tls::mesh_client_of_rule(context.tls(), sni, &sans, lists, alpn));
            cluster.filters = metadata_exchange::of_cluster(context);
        }
        Some(ClientTls::Outside(server)) => {
            let names = outside_names(&service.subject_alt_names, server);
            let secrets = uses_secrets(context, rule);
            cluster.transport_socket = Some(tls::outside_client(
                context.tls(),
                server,
                &names,
                secrets,
                context.backend_certificate().filter(|_| server.of_backend.is_some()),
            ));
        }
        None if !mesh.enable_auto_mtls || service.external => {}
        None => auto_mtls(context, service, port, &default_sni, bytes, cluster),
    }
}

/// Every connection begins with the client's address (PROXY protocol), before any TLS.
fn begin_with_proxy_header(version: ProxyProtocol, cluster: &mut Cluster) {
    let version = match version {
        ProxyProtocol::V1 => proxy_protocol_config::Version::V1,
        ProxyProtocol::V2 => proxy_protocol_config::Version::V2,
    };
    let wrap = |inner: Option<TransportSocket>| {
        let config = ProxyProtocolUpstreamTransport {
            config: Some(ProxyProtocolConfig { version: version as i32, ..Default::default() }),
            transport_socket: Some(inner.unwrap_or_else(tls::raw_buffer)),
            ..Default::default()
        };
        Some(TransportSocket {
            name: "envoy.transport_sockets.upstream_proxy_protocol".to_owned(),
            config_type: Some(transport_socket::ConfigType::TypedConfig(any(&config))),
        })
    };
    cluster.transport_socket = wrap(cluster.transport_socket.take());
    for entry in &mut cluster.transport_socket_matches {
        entry.transport_socket = wrap(entry.transport_socket.take());
    }
}

/// The ALPN protocols that a mesh client offers.
fn offered(context: Context<'_>, bytes: Bytes) -> &'static [&'static str] {
    let exchanges = metadata_exchange::exchanges(context);
    match bytes.inner {
        InnerProtocol::Tcp if exchanges => &[PEER_EXCHANGE, "istio"],
        InnerProtocol::Tcp => &["istio"],
        InnerProtocol::Http if bytes.http2 => &["istio-h2", "istio", "h2"],
        // Evenkeel's proxy selects those of requests, or those of connections whose protocol it does not recognize.
        InnerProtocol::Http if exchanges => &["istio-http/1.1", PEER_EXCHANGE, "istio"],
        InnerProtocol::Http => &["istio-http/1.1", "istio"],
    }
}

fn auto_mtls(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    sni: &str,
    bytes: Bytes,
    cluster: &mut Cluster,
) {
    let identities: Vec<String> = context.snapshot.identities(service).into_iter().collect();
    let mutual = tls::mesh_client(context.tls(), sni, &identities, offered(context, bytes));
    cluster.filters = metadata_exchange::of_cluster(context);
    let by_endpoint = matches!(cluster.cluster_discovery_type, Some(ClusterDiscoveryType::Type(t)) if t != DiscoveryType::OriginalDst as i32);
    if by_endpoint {
        cluster.transport_socket_matches = vec![
            TransportSocketMatch {
                name: "tlsMode-istio".to_owned(),
                r#match: Some(one_field(TLS_MODE, TLS_MODE_ISTIO)),
                transport_socket: Some(mutual),
            },
            TransportSocketMatch {
                name: "tlsMode-disabled".to_owned(),
                r#match: Some(Struct::default()),
                transport_socket: Some(tls::raw_buffer()),
            },
        ];
        return;
    }
    // An original destination has no metadata to match, so mutual TLS is used only if all known endpoints accept it.
    if context.snapshot.all_take_mtls(service, port.number) {
        cluster.transport_socket = Some(mutual);
    }
}

/// `inbound|PORT||`: to the workload at the address that the client called, unless its Sidecar names another.
pub fn inbound(context: Context<'_>, port: &InboundPort) -> Generated {
    let sidecar = context.sidecar();
    let listener = sidecar.and_then(|sidecar| sidecar.ingress_of(port.port));
    let name = names::inbound_cluster(port.port);
    let endpoint = listener.map_or(&IngressEndpoint::AsCalled, |listener| &listener.endpoint);
    let mut cluster = match (endpoint, context.address()) {
        (IngressEndpoint::Loopback(address, number), _) => to_endpoint(context, name, socket(*address, *number)),
        (IngressEndpoint::Unix(path), _) => to_endpoint(context, name, endpoints::pipe(path)),
        (IngressEndpoint::Own(number), Some(own)) => to_own_address(context, name, own, *number),
        (IngressEndpoint::AsCalled, _) if context.snapshot.mesh().inbound_to_localhost => {
            to_endpoint(context, name, socket(Ipv4Addr::LOCALHOST.into(), port.port))
        }
        (IngressEndpoint::Own(_), None) | (IngressEndpoint::AsCalled, _) => to_workload(context, name),
    };
    // As in Istio's `buildInboundCluster`: the limits that clients have hold on the receiving side, too, unless the
    // Sidecar has some; then those of the mesh.
    let service = port.service.as_ref();
    let rule = service.and_then(|(service, _)| context.destination_rule_for_receivers(service));
    let of_rule = || service.zip(rule).and_then(|((_, port), rule)| rule.policy_for(None, *port).connection_pool);
    let own = sidecar.and_then(|sidecar| sidecar.pool_of(port.port)).cloned().or_else(of_rule);
    let pool = match (own, &context.snapshot.mesh().connection_pool) {
        (Some(own), Some(of_mesh)) => Some(own.or(of_mesh)),
        (own, of_mesh) => own.or_else(|| of_mesh.clone()),
    };
    let pool = pool.as_ref();
    if let Some(pool) = pool {
        apply_pool(pool, None, &mut cluster);
    }
    apply_keepalive(context, pool, &mut cluster);
    let (common, is_http) = (common_http_options(pool), PortProtocol::of(port.protocol) != Some(PortProtocol::Tcp));
    if is_http || common != CommonHttpOptions::default() {
        let speaks = if is_http { upstream_protocol(context, port.protocol, pool) } else { UpstreamProtocol::Http1 };
        set_http_options(context, common, speaks, pool, (None, None), &mut cluster);
    }
    if let Some((service, _)) = service {
        metrics::note_service(context, service, &mut cluster.metadata);
    }
    cluster.alt_stat_name = stat_names::inbound(context, port);
    let of_service = || port.service.as_ref().map(|(service, _)| service.origin.clone());
    (cluster, sidecar.filter(|_| listener.is_some()).map(|sidecar| sidecar.origin.clone()).or_else(of_service))
}

/// A cluster with a single address.
fn to_endpoint(context: Context<'_>, name: String, address: Address) -> Cluster {
    let mut cluster = base(context, name);
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32));
    cluster.load_assignment = Some(endpoints::single(&cluster.name, address));
    cluster
}

/// A cluster to the workload's own address, with a source address that capture rules do not redirect.
fn to_own_address(context: Context<'_>, name: String, own: IpAddr, port: u16) -> Cluster {
    let mut cluster = to_endpoint(context, name, socket(own, port));
    cluster.upstream_bind_config = own.is_ipv4().then(inbound_source);
    cluster
}

fn socket(address: IpAddr, port: u16) -> Address {
    proto::address(&address.to_string(), u32::from(port))
}

fn inbound_source() -> BindConfig {
    BindConfig { source_address: Some(socket_address(INBOUND_SOURCE, 0)), ..Default::default() }
}

fn inbound_passthrough(context: Context<'_>) -> Cluster {
    let mut cluster = to_workload(context, INBOUND_PASSTHROUGH_CLUSTER.to_owned());
    set_http_options(
        context,
        CommonHttpOptions::default(),
        UpstreamProtocol::AsReceived,
        None,
        (None, None),
        &mut cluster,
    );
    cluster
}

fn to_workload(context: Context<'_>, name: String) -> Cluster {
    let mut cluster = original_dst(context, name);
    cluster.upstream_bind_config = Some(inbound_source());
    cluster
}

fn passthrough(context: Context<'_>) -> Cluster {
    let mut cluster = original_dst(context, PASSTHROUGH_CLUSTER.to_owned());
    let pool = context.snapshot.mesh().connection_pool.as_ref();
    if let Some(pool) = pool {
        apply_pool(pool, None, &mut cluster);
    }
    apply_keepalive(context, pool, &mut cluster);
    let common = common_http_options(pool);
    let idle_timeout = common.idle_timeout.or(Some(duration(PASSTHROUGH_IDLE)));
    let common = CommonHttpOptions { idle_timeout, ..common };
    set_http_options(context, common, UpstreamProtocol::AsReceived, None, (None, None), &mut cluster);
    if context.client_kind().is_evenkeel() && context.snapshot.mesh().enable_auto_mtls {
        call_pods_securely(context, &mut cluster);
    }
    cluster
}

/// Calls of a workload by its address use mutual TLS if its proxy requires it. Original destinations have no endpoint
/// metadata that could say so; Evenkeel's proxy has a table of addresses instead. All others are called as the client called them; so does Envoy, as with Istio.
fn call_pods_securely(context: Context<'_>, cluster: &mut Cluster) {
    let networks = context.snapshot.mutual_addresses().map(|(network, runs)| format!("{network} {runs}"));
    let addresses = networks.collect::<Vec<_>>().join("\n");
    if addresses.is_empty() {
        return;
    }
    let bytes = Bytes { inner: InnerProtocol::Http, http2: false };
    cluster.transport_socket_matches = vec![TransportSocketMatch {
        name: "tlsMode-istio".to_owned(),
        r#match: Some(one_field(TLS_MODE, TLS_MODE_ISTIO)),
        // The address names no service, so any identity of the mesh may answer, and there is no SNI.
        transport_socket: Some(tls::mesh_client(context.tls(), "", &[], offered(context, bytes))),
    }];
    cluster.filters = metadata_exchange::of_cluster(context);
    cluster.metadata = Some(metadata("evenkeel.dev", "mutual_tls", &addresses));
}

/// TLS to hosts that are looked up, and what requests say about the server (`outboundTrafficPolicy.tls`).
fn unknown_hosts_tls(context: Context<'_>) -> (Option<TransportSocket>, Option<UpstreamHttpProtocolOptions>) {
    match &context.snapshot.mesh().unknown_hosts_tls {
        Some(ClientTls::Outside(server)) => {
            let names = outside_names(&[], server);
            (
                Some(tls::outside_client(context.tls(), server, &names, false, None)),
                outside_naming(server, !names.is_empty()),
            )
        }
        Some(ClientTls::IstioMutual { sni, subject_alt_names, revocation_lists }) => {
            let identities: Vec<String> = subject_alt_names.iter().map(ToString::to_string).collect();
            let bytes = Bytes { inner: InnerProtocol::Http, http2: false };
            let sni = sni.as_deref().unwrap_or_default();
            let lists = revocation_lists.as_deref();
            (Some(tls::mesh_client_of_rule(context.tls(), sni, &identities, lists, offered(context, bytes))), None)
        }
        None | Some(ClientTls::Disable) => (None, Some(dynamic_dns::naming())),
    }
}

/// The cluster for HTTP to unknown hosts that are looked up.
fn looked_up(context: Context<'_>) -> Cluster {
    let mut cluster = base(context, ALLOW_ANY_DYNAMIC_DNS_CLUSTER.to_owned());
    let pool = context.snapshot.mesh().connection_pool.clone();
    if let Some(pool) = &pool {
        apply_pool(pool, None, &mut cluster);
    }
    apply_keepalive(context, pool.as_ref(), &mut cluster);
    let (socket, naming) = unknown_hosts_tls(context);
    // Envoy requires an explicit setting if servers are not checked by the called host.
    let allows_insecure = naming != Some(dynamic_dns::naming());
    let common = common_http_options(pool.as_ref());
    set_http_options(context, common, UpstreamProtocol::AsReceived, pool.as_ref(), (None, naming), &mut cluster);
    dynamic_dns::make_cluster(allows_insecure, &mut cluster);
    cluster.transport_socket = socket;
    cluster
}

fn black_hole(context: Context<'_>) -> Cluster {
    Cluster {
        name: BLACK_HOLE_CLUSTER.to_owned(),
        connect_timeout: Some(duration(context.snapshot.mesh().connect_timeout)),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        ..Default::default()
    }
}

fn original_dst(context: Context<'_>, name: String) -> Cluster {
    let mut cluster = base(context, name);
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst as i32));
    set_cluster_provided(&mut cluster);
    cluster
}

/// Common settings of all clusters except the black hole: no limits unless the user sets some, and no panic mode, so
/// that a service without ready endpoints answers 503 instead of using endpoints that are not ready.
pub(crate) fn base(context: Context<'_>, name: String) -> Cluster {
    let unlimited = Some(u32_value(u32::MAX));
    Cluster {
        name,
        connect_timeout: Some(duration(context.snapshot.mesh().connect_timeout)),
        common_lb_config: Some(CommonLbConfig {
            healthy_panic_threshold: Some(Percent { value: 0.0 }),
            ..Default::default()
        }),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![Thresholds {
                max_connections: unlimited,
                max_pending_requests: unlimited,
                max_requests: unlimited,
                max_retries: unlimited,
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn set_http_options(
    context: Context<'_>,
    common: CommonHttpOptions,
    speaks: UpstreamProtocol,
    pool: Option<&ConnectionPool>,
    (outliers, naming): (Option<&OutlierDetection>, Option<UpstreamHttpProtocolOptions>),
    cluster: &mut Cluster,
) {
    use http_options::UpstreamProtocolOptions;
    use http_options::explicit_http_config::ProtocolConfig;
    // WebSockets use extended CONNECT over HTTP/2.
    let http2 = Http2ProtocolOptions {
        allow_connect: true,
        max_concurrent_streams: pool
            .and_then(|pool| pool.max_concurrent_streams)
            .filter(|most| *most > 0)
            .map(u32_value),
        connection_keepalive: pool.and_then(|pool| pool.http2_keepalive).map(|pings| KeepaliveSettings {
            interval: Some(duration(pings.interval)),
            timeout: Some(duration(pings.timeout)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let http1 = if context.options().preserves_case { preserving_case() } else { Http1ProtocolOptions::default() };
    let errors = outliers.and_then(|outliers| error_matcher(&outliers.error_codes));
    let explicit = |config| {
        let config = http_options::ExplicitHttpConfig { protocol_config: Some(config) };
        UpstreamProtocolOptions::ExplicitHttpConfig(config)
    };
    let protocol = match speaks {
        // HTTP/1.1 is the default if there are no other options.
        UpstreamProtocol::Http1
            if common == CommonHttpOptions::default()
                && errors.is_none()
                && naming.is_none()
                && http1 == Http1ProtocolOptions::default() =>
        {
            return;
        }
        UpstreamProtocol::Http1 | UpstreamProtocol::WrittenHttp1 => {
            explicit(ProtocolConfig::HttpProtocolOptions(http1))
        }
        UpstreamProtocol::Http2 => explicit(ProtocolConfig::Http2ProtocolOptions(http2)),
        UpstreamProtocol::AsReceived => {
            UpstreamProtocolOptions::UseDownstreamProtocolConfig(http_options::UseDownstreamHttpConfig {
                http_protocol_options: Some(http1),
                http2_protocol_options: Some(http2),
                ..Default::default()
            })
        }
    };
    let options = upstream_http::HttpProtocolOptions {
        common_http_protocol_options: (common != CommonHttpOptions::default()).then_some(common),
        upstream_protocol_options: Some(protocol),
        outlier_detection: errors.map(|matcher| http_options::OutlierDetection { error_matcher: Some(matcher) }),
        upstream_http_protocol_options: naming,
        ..Default::default()
    };
    cluster.typed_extension_protocol_options = [(HTTP_OPTIONS.to_owned(), any(&options))].into();
}

/// The responses that count as errors of an endpoint; `None`: those of 5xx.
fn error_matcher(codes: &[u16]) -> Option<MatchPredicate> {
    let all: Vec<String> = codes.iter().map(ToString::to_string).collect();
    let status = HeaderMatcher {
        name: ":status".to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(proto::string_matcher(
            MatchPattern::SafeRegex(proto::regex(&all.join("|"))),
        ))),
        ..Default::default()
    };
    let rule = match_predicate::Rule::HttpResponseHeadersMatch(HttpHeadersMatch { headers: vec![status] });
    (!codes.is_empty()).then_some(MatchPredicate { rule: Some(rule) })
}
