//! `Cluster`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::mutual_addresses::MutualAddresses;
use evenkeel_tls::SecretStore;
use evenkeel_xds::istio::metadata_exchange as message;
use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::clusters::dns::v3::DnsCluster;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter as HttpFilterPb, http_filter,
};
use evenkeel_xds::pb::envoy::extensions::upstreams::http::v3 as upstreams;
use evenkeel_xds::pb::google::protobuf::Any;
use evenkeel_xds::typed_struct;
use prost::Name;

use super::address::{bind_config, port_number, tcp_keepalive};
use super::dns::{dns_cluster, dns_options};
use super::endpoint::{AddressKind, Assignment, assignment};
use super::headers::{self, KeyFormat};
use super::health_check::health_checks;
use super::http2::max_requests;
use super::load_balancer::balancing;
use super::metadata::{is_external, keeps_alpn, origin, service_of, string_fields, text_of};
use super::mirror::cluster_mirrors;
use super::outlier_detection::{self, outlier_detection};
use super::source::Reference;
use super::{Cx, http2, tls, type_name};
use crate::cluster::{
    CircuitBreakers, Cluster, Discovery, EndpointSet, OriginalDst, RetryBudget, Thresholds, Transport, TransportMatch,
    UpstreamHttp, UpstreamProtocol,
};
use crate::filters::dynamic_forward_proxy::compile::cluster_type;
use crate::filters::metadata_exchange::{MetadataExchange, metadata_exchange};
use crate::hcm::HttpFilter;
use crate::http_filters;
use crate::mirror::MirrorPolicy;
use crate::outlier_detection::OutlierDetection;

/// A cluster, and the resources it needs before it can become active.
#[derive(Debug)]
pub(crate) struct CompiledCluster {
    /// Without endpoints.
    pub cluster: Cluster,
    /// Endpoints configured in the cluster, or names to resolve.
    pub assignment: Arc<Assignment>,
    /// The EDS name it waits for.
    pub eds: Option<Reference>,
    /// Secrets it waits for.
    pub secrets: Vec<Reference>,
}

/// Maximum `max_response_headers_kb`; Envoy's.
const MAX_RESPONSE_HEADERS_KIB: u32 = 8192;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Compiles a cluster. `encoded`: its encoded form.
pub(crate) fn cluster(
    cx: &mut Cx<'_>,
    c: &cluster::Cluster,
    encoded: &[u8],
    secrets: &SecretStore,
) -> Option<CompiledCluster> {
    let name: Arc<str> = cx.non_empty("name", &c.name)?.into();
    let mut http = http(cx, c);
    let options = http.as_mut().map(|((options, _), _)| options);
    let dns_type = dns_cluster(cx, c);
    let (discovery, assignment, eds) = discovery(cx, c, dns_type.as_ref(), options)?;
    let balancing = balancing(cx, c, &discovery);
    let transport = tls::upstream(cx, c.transport_socket.as_ref(), secrets);
    let transport_matches = cx
        .each("transport_socket_matches", &c.transport_socket_matches, |cx, entry| transport_match(cx, entry, secrets));
    if let (Some(((http, _), _)), Some(Transport::Raw)) = (&http, &transport)
        && matches!(http.protocol, UpstreamProtocol::Auto(_))
        && transport_matches.is_empty()
    {
        cx.fail_at::<()>("transport_socket", "auto_config needs TLS: the protocol is agreed on by ALPN");
    }
    let mutual_addresses = mutual_addresses(cx, c, &discovery);
    let metadata_exchange = network_filters(cx, &c.filters);
    let circuit_breakers = circuit_breakers(cx, c.circuit_breakers.as_ref());
    let bind = match &c.upstream_bind_config {
        Some(bind) => cx.at("upstream_bind_config", |cx| bind_config(cx, bind)),
        None => Some(cx.env.bind.clone()),
    };
    let keepalive = c.upstream_connection_options.as_ref().and_then(|options| options.tcp_keepalive.as_ref());
    let connect_timeout = connect_timeout(cx, c);
    let health_checks = health_checks(cx, &c.health_checks, encoded);
    let outlier_detection = match &c.outlier_detection {
        Some(outliers) => {
            let error_statuses = http.as_ref().and_then(|_| error_statuses(cx, &c.typed_extension_protocol_options));
            Some(Arc::new(OutlierDetection { error_statuses, ..outlier_detection(cx, outliers)? }))
        }
        None => None,
    };
    let ignore_unchecked = c.common_lb_config.as_ref().is_some_and(|config| config.ignore_new_hosts_until_first_hc);
    let (balancing, ((http, mirrors), http_filters)) = (balancing?, http?);
    let divides = balancing.load_balancer.divides_among_zones() && !balancing.locality_weighted;
    let zone_aware = (divides && cx.env.local_cluster.is_some()).then_some(balancing.zone_aware);
    let is_local = cx.env.local_cluster.as_ref() == Some(&name);
    let cluster = Cluster {
        stat_name: if c.alt_stat_name.is_empty() { name.clone() } else { c.alt_stat_name.as_str().into() },
        name,
        discovery,
        load_balancer: balancing.load_balancer,
        endpoints: Arc::new(EndpointSet::default()),
        connect_timeout,
        transport: transport?,
        transport_matches,
        mutual_addresses: mutual_addresses?,
        service: service_of(c.metadata.as_ref()).map(Arc::new),
        external: is_external(c.metadata.as_ref()),
        keeps_alpn: keeps_alpn(c.metadata.as_ref()),
        metadata_exchange: metadata_exchange?,
        http,
        http_filters,
        mirrors,
        circuit_breakers: circuit_breakers?,
        health_checks,
        outlier_detection,
        ignore_unchecked_hosts: ignore_unchecked,
        ignore_health_on_removal: c.ignore_health_on_host_removal,
        bind: bind?,
        tcp_keepalive: keepalive.map(tcp_keepalive),
        panic: balancing.panic,
        locality_weighted: balancing.locality_weighted,
        zone_aware,
        is_local,
        utilization: balancing.utilization,
        own_locality: cx.env.locality.clone(),
        subsets: balancing.subsets,
        hash_policies: balancing.hash_policies,
        override_host_status: balancing.override_host_status,
        close_connections_on_host_set_change: c
            .common_lb_config
            .as_ref()
            .is_some_and(|common| common.close_connections_on_host_set_change),
        dns: dns_options(cx, c, dns_type.as_ref()),
        origin: origin(c.metadata.as_ref()),
    };
    let secrets = std::mem::take(&mut cx.references.secrets);
    Some(CompiledCluster { cluster, assignment: Arc::new(assignment), eds, secrets })
}

/// `filters`: network filters of the cluster's connections. Istio has one, which exchanges metadata.
fn network_filters(cx: &mut Cx<'_>, filters: &[cluster::Filter]) -> Option<Option<Arc<MetadataExchange>>> {
    if let Some((_, [_, ..])) = filters.split_first() {
        return cx.fail_at("filters", "at most one is supported");
    }
    let compiled = cx.each("filters", filters, |cx, filter| {
        let any = cx.required("typed_config", filter.typed_config.as_ref())?;
        cx.at("typed_config", |cx| {
            let opened = typed_struct::opened(any);
            let any = opened.as_ref().unwrap_or(any);
            if type_name(&any.type_url) != message::MetadataExchange::full_name() {
                return cx.fail(format!("{} is no supported filter of a cluster", type_name(&any.type_url)));
            }
            let config: message::MetadataExchange = cx.unpack(any)?;
            metadata_exchange(cx, &config).map(Arc::new)
        })
    });
    (compiled.len() == filters.len()).then(|| compiled.into_iter().next())
}

/// `filter_metadata["evenkeel.dev"].mutual_tls`: addresses, as [`MutualAddresses`] reads them.
fn mutual_addresses(cx: &mut Cx<'_>, c: &cluster::Cluster, discovery: &Discovery) -> Option<MutualAddresses> {
    let Some(text) = text_of(c.metadata.as_ref(), "evenkeel.dev", "mutual_tls") else {
        return Some(MutualAddresses::default());
    };
    if !matches!(discovery, Discovery::OriginalDst(_)) || c.transport_socket_matches.is_empty() {
        return cx.fail_at("metadata", "`mutual_tls` needs type ORIGINAL_DST and `transport_socket_matches`");
    }
    match MutualAddresses::read(text) {
        Ok(table) => Some(table),
        Err(error) => cx.fail_at("metadata", error.to_string()),
    }
}

fn connect_timeout(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Duration {
    match cx.duration("connect_timeout", c.connect_timeout.as_ref()) {
        Some(Duration::ZERO) => {
            cx.fail_at::<()>("connect_timeout", "must be longer than 0 s");
            DEFAULT_CONNECT_TIMEOUT
        }
        timeout => timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
    }
}

fn discovery(
    cx: &mut Cx<'_>,
    c: &cluster::Cluster,
    dns: Option<&DnsCluster>,
    http: Option<&mut UpstreamHttp>,
) -> Option<(Discovery, Assignment, Option<Reference>)> {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    let kind = match (&c.cluster_discovery_type, dns) {
        (_, Some(dns)) if dns.all_addresses_in_single_endpoint => DiscoveryType::LogicalDns,
        (_, Some(_)) => DiscoveryType::StrictDns,
        (None, None) => DiscoveryType::Static,
        (Some(ClusterDiscoveryType::Type(kind)), None) => match DiscoveryType::try_from(*kind) {
            Ok(kind) => kind,
            Err(_) => return cx.fail_at("type", format!("unknown value {kind}")),
        },
        (Some(ClusterDiscoveryType::ClusterType(kind)), None) if type_of_name(kind).is_some() => {
            type_of_name(kind).unwrap_or(DiscoveryType::Static)
        }
        (Some(ClusterDiscoveryType::ClusterType(kind)), None) => {
            if c.load_assignment.is_some() {
                return cx.fail_at("load_assignment", "is for types STATIC, STRICT_DNS and LOGICAL_DNS only");
            }
            // Without HTTP options that compile, the cluster is rejected for those.
            let discovery = cluster_type(cx, kind, http?, !c.typed_extension_protocol_options.is_empty())?;
            return Some((discovery, Assignment::default(), None));
        }
    };
    if c.eds_cluster_config.is_some() && kind != DiscoveryType::Eds {
        return cx.fail_at("eds_cluster_config", "needs type EDS");
    }
    let original_dst = matches!(c.lb_config, Some(cluster::cluster::LbConfig::OriginalDstLbConfig(_)));
    if original_dst && kind != DiscoveryType::OriginalDst {
        return cx.fail_at("original_dst_lb_config", "needs type ORIGINAL_DST");
    }
    let forbidden = matches!(kind, DiscoveryType::Eds | DiscoveryType::OriginalDst);
    if forbidden && c.load_assignment.is_some() {
        return cx.fail_at("load_assignment", "is for types STATIC, STRICT_DNS and LOGICAL_DNS only");
    }
    match kind {
        DiscoveryType::Static => Some((Discovery::Static, load_assignment(cx, c, AddressKind::Address)?, None)),
        DiscoveryType::StrictDns => {
            let assignment = load_assignment(cx, c, AddressKind::Name)?;
            Some((Discovery::StrictDns(assignment.targets.clone()), assignment, None))
        }
        DiscoveryType::LogicalDns => {
            let assignment = load_assignment(cx, c, AddressKind::Name)?;
            if assignment.endpoints.len() != 1 {
                return cx.fail_at("load_assignment", "a LOGICAL_DNS cluster has exactly one endpoint");
            }
            Some((Discovery::LogicalDns(assignment.targets.clone()), assignment, None))
        }
        DiscoveryType::Eds => {
            let config = cx.required("eds_cluster_config", c.eds_cluster_config.as_ref())?;
            let name = if config.service_name.is_empty() { &c.name } else { &config.service_name };
            let eds = cx.at("eds_cluster_config", |cx| cx.reference(name, "eds_config", config.eds_config.as_ref()))?;
            Some((Discovery::Eds(eds.name.clone()), Assignment::default(), Some(eds)))
        }
        DiscoveryType::OriginalDst => Some((original_dst_config(cx, c)?, Assignment::default(), None)),
    }
}

/// The types that Envoy also knows by the name of an extension, without a configuration.
fn type_of_name(kind: &cluster::cluster::CustomClusterType) -> Option<cluster::cluster::DiscoveryType> {
    use cluster::cluster::DiscoveryType;
    match (&kind.typed_config, kind.name.as_str()) {
        (None, "envoy.cluster.static") => Some(DiscoveryType::Static),
        (None, "envoy.cluster.strict_dns") => Some(DiscoveryType::StrictDns),
        (None, "envoy.cluster.logical_dns") => Some(DiscoveryType::LogicalDns),
        (None, "envoy.cluster.eds") => Some(DiscoveryType::Eds),
        (None, "envoy.cluster.original_dst") => Some(DiscoveryType::OriginalDst),
        _ => None,
    }
}

fn load_assignment(cx: &mut Cx<'_>, c: &cluster::Cluster, kind: AddressKind) -> Option<Assignment> {
    match &c.load_assignment {
        None => Some(Assignment::default()),
        Some(assigned) => cx.at("load_assignment", |cx| assignment(cx, assigned, kind)),
    }
}

fn original_dst_config(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<Discovery> {
    let Some(cluster::cluster::LbConfig::OriginalDstLbConfig(config)) = &c.lb_config else {
        return Some(Discovery::OriginalDst(OriginalDst::default()));
    };
    let port_override = match &config.upstream_port_override {
        None => None,
        Some(port) => {
            Some(cx.at("original_dst_lb_config", |cx| port_number(cx, "upstream_port_override", port.value))?)
        }
    };
    Some(Discovery::OriginalDst(OriginalDst { port_override }))
}

fn transport_match(
    cx: &mut Cx<'_>,
    entry: &cluster::cluster::TransportSocketMatch,
    secrets: &SecretStore,
) -> Option<TransportMatch> {
    let name = cx.non_empty("name", &entry.name)?.into();
    let labels = entry.r#match.as_ref().map(string_fields).unwrap_or_default();
    if labels.len() != entry.r#match.as_ref().map_or(0, |fields| fields.fields.len()) {
        return cx.fail_at("match", "only string values can match");
    }
    let transport = tls::upstream(cx, entry.transport_socket.as_ref(), secrets)?;
    Some(TransportMatch { name, labels, transport })
}

/// The responses that count as errors of a host, if the HTTP options say.
fn error_statuses(cx: &mut Cx<'_>, options: &HashMap<String, Any>) -> Option<Arc<[u16]>> {
    cx.at("typed_extension_protocol_options", |cx| {
        let any = options.get(HTTP_PROTOCOL_OPTIONS)?;
        cx.element(format_args!("{HTTP_PROTOCOL_OPTIONS:?}"), |cx| {
            let options: upstreams::HttpProtocolOptions = cx.unpack(any)?;
            let matcher = options.outlier_detection.as_ref()?.error_matcher.as_ref()?;
            cx.at("outlier_detection.error_matcher", |cx| outlier_detection::error_statuses(cx, matcher))
        })
    })
}

const HTTP_PROTOCOL_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The protocol, mirror policies, and HTTP filters of the cluster.
type Http = ((UpstreamHttp, Option<Arc<[MirrorPolicy]>>), Arc<[HttpFilter]>);

fn http(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<Http> {
    let options = &c.typed_extension_protocol_options;
    if options.is_empty() {
        let http = match older_options(c) {
            Some(options) => http_options(cx, &options)?,
            None => UpstreamHttp::default(),
        };
        return Some(((http, None), Arc::default()));
    }
    cx.at("typed_extension_protocol_options", |cx| match options.get(HTTP_PROTOCOL_OPTIONS) {
        None => cx.fail(format!("only {HTTP_PROTOCOL_OPTIONS} is supported")),
        Some(any) => cx.element(format_args!("{HTTP_PROTOCOL_OPTIONS:?}"), |cx| {
            if type_name(&any.type_url) != HTTP_PROTOCOL_OPTIONS {
                return cx.fail(format!("must hold {HTTP_PROTOCOL_OPTIONS}"));
            }
            let options: upstreams::HttpProtocolOptions = cx.unpack(any)?;
            let mirrors = cluster_mirrors(cx, &options.request_mirror_policies);
            let filters = upstream_filters(cx, &options.http_filters);
            http_options(cx, &options).zip(mirrors).zip(filters)
        }),
    })
}

/// The options in the cluster's own fields, which are deprecated and still common in bootstrap files. Envoy reads them only if the cluster
/// has none in `typed_extension_protocol_options`.
#[allow(deprecated)]
fn older_options(c: &cluster::Cluster) -> Option<upstreams::HttpProtocolOptions> {
    use upstreams::http_protocol_options::explicit_http_config::ProtocolConfig;
    use upstreams::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions, UseDownstreamHttpConfig};
    let (http1, http2) = (c.http_protocol_options.clone(), c.http2_protocol_options.clone());
    let mut common = c.common_http_protocol_options;
    if c.max_requests_per_connection.is_some() {
        let common = common.get_or_insert_default();
        common.max_requests_per_connection = common.max_requests_per_connection.or(c.max_requests_per_connection);
    }
    let uses_downstream =
        c.protocol_selection == cluster::cluster::ClusterProtocolSelection::UseDownstreamProtocol as i32;
    let naming = c.upstream_http_protocol_options.clone();
    if http1.is_none() && http2.is_none() && common.is_none() && naming.is_none() && !uses_downstream {
        return None;
    }
    let protocol = if uses_downstream {
        UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
            http_protocol_options: http1,
            http2_protocol_options: http2,
            ..Default::default()
        })
    } else {
        UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(match http2 {
                Some(http2) => ProtocolConfig::Http2ProtocolOptions(http2),
                None => ProtocolConfig::HttpProtocolOptions(http1.unwrap_or_default()),
            }),
        })
    };
    Some(upstreams::HttpProtocolOptions {
        common_http_protocol_options: common,
        upstream_http_protocol_options: naming,
        upstream_protocol_options: Some(protocol),
        ..Default::default()
    })
}

fn http_options(cx: &mut Cx<'_>, options: &upstreams::HttpProtocolOptions) -> Option<UpstreamHttp> {
    use upstreams::http_protocol_options::UpstreamProtocolOptions;
    use upstreams::http_protocol_options::explicit_http_config::ProtocolConfig;
    let mut http1_options = Http1::default();
    let protocol = match &options.upstream_protocol_options {
        Some(UpstreamProtocolOptions::ExplicitHttpConfig(config)) => {
            cx.at("explicit_http_config", |cx| match &config.protocol_config {
                Some(ProtocolConfig::HttpProtocolOptions(http1)) => {
                    http1_options = plain_http1(cx, Some(http1));
                    Some(UpstreamProtocol::Http1)
                }
                Some(ProtocolConfig::Http2ProtocolOptions(http2)) => {
                    let http2 = http2::options(cx, "http2_protocol_options", Some(http2));
                    Some(UpstreamProtocol::Http2(Box::new(http2)))
                }
                _ => cx.fail("one of http_protocol_options, http2_protocol_options is required"),
            })?
        }
        Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(config)) => {
            cx.at("use_downstream_protocol_config", |cx| {
                http1_options = plain_http1(cx, config.http_protocol_options.as_ref());
                let http2 = http2::options(cx, "http2_protocol_options", config.http2_protocol_options.as_ref());
                UpstreamProtocol::Downstream(Box::new(http2))
            })
        }
        Some(UpstreamProtocolOptions::AutoConfig(config)) => cx.at("auto_config", |cx| {
            http1_options = plain_http1(cx, config.http_protocol_options.as_ref());
            let http2 = http2::options(cx, "http2_protocol_options", config.http2_protocol_options.as_ref());
            UpstreamProtocol::Auto(Box::new(http2))
        }),
        None => {
            return cx.fail("one of explicit_http_config, use_downstream_protocol_config, auto_config is required");
        }
    };
    let naming = options.upstream_http_protocol_options.clone().unwrap_or_default();
    if naming.auto_san_validation && !naming.auto_sni {
        return cx.fail_at("upstream_http_protocol_options.auto_san_validation", "is supported with auto_sni only");
    }
    let common = options.common_http_protocol_options.unwrap_or_default();
    cx.at("common_http_protocol_options", |cx| {
        if common.max_stream_duration.is_some() {
            cx.fail_at::<()>("max_stream_duration", "is supported in connection managers only");
        }
        if common.headers_with_underscores_action != 0 {
            cx.fail_at::<()>("headers_with_underscores_action", "is supported in connection managers only");
        }
        let default = UpstreamHttp::default();
        Some(UpstreamHttp {
            idle_timeout: cx.limit("idle_timeout", common.idle_timeout.as_ref(), default.idle_timeout),
            max_requests_per_connection: max_requests(&common),
            max_connection_duration: cx.limit("max_connection_duration", common.max_connection_duration.as_ref(), None),
            protocol,
            enable_trailers: http1_options.enable_trailers,
            preserve_header_case: http1_options.preserve_case,
            max_response_headers_bytes: max_response_headers(cx, &common),
            max_headers_count: match common.max_headers_count.as_ref().map(|count| count.value as usize) {
                Some(0) => cx.fail_at("max_headers_count", "must be at least 1")?,
                count => count.unwrap_or(default.max_headers_count),
            },
            auto_sni: naming.auto_sni,
            auto_san_validation: naming.auto_san_validation,
        })
    })
}

const UPSTREAM_CODEC: &str = "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec";

/// Compiles the filters before the codec, which must be the last one.
fn upstream_filters(cx: &mut Cx<'_>, filters: &[HttpFilterPb]) -> Option<Arc<[HttpFilter]>> {
    let Some((last, before)) = filters.split_last() else { return Some(Arc::default()) };
    let compiled = cx.each("http_filters", before, |cx, filter| {
        cx.non_empty("name", &filter.name)?;
        let Some(http_filter::ConfigType::TypedConfig(any)) = &filter.config_type else {
            return cx.fail_at("typed_config", "is required");
        };
        cx.at("typed_config", |cx| {
            if type_name(&any.type_url) == UPSTREAM_CODEC {
                return cx.fail("the codec must be the last filter");
            }
            let config = http_filters::http_filter(cx, any, filter.is_optional)?;
            if config.as_ref().is_some_and(|config| !config.needs().may_stand_upstream()) {
                return cx.fail("is no filter for clusters");
            }
            let (name, disabled) = (filter.name.as_str().into(), filter.disabled);
            Some(config.map(|config| HttpFilter { name, disabled, config, skip: None }))
        })
    });
    let is_codec = match &last.config_type {
        Some(http_filter::ConfigType::TypedConfig(any)) => type_name(&any.type_url) == UPSTREAM_CODEC,
        _ => false,
    };
    if !is_codec || last.disabled {
        return cx.fail_at("http_filters", "the last one must be envoy.filters.http.upstream_codec");
    }
    if filters.len() > http_filters::MAX_HTTP_FILTERS {
        return cx.fail_at("http_filters", format!("there may be {} at most", http_filters::MAX_HTTP_FILTERS));
    }
    Some(compiled.into_iter().flatten().collect())
}

/// Envoy accepts 1 to 8,192 KiB.
fn max_response_headers(cx: &mut Cx<'_>, common: &core::HttpProtocolOptions) -> Option<usize> {
    let kib = common.max_response_headers_kb.as_ref()?.value;
    match kib {
        1..=MAX_RESPONSE_HEADERS_KIB => Some(kib as usize * 1024),
        _ => cx.fail_at("max_response_headers_kb", format!("must be from 1 to {MAX_RESPONSE_HEADERS_KIB}")),
    }
}

/// The options of HTTP/1.1 that apply towards endpoints; the others concern requests received.
#[derive(Default)]
struct Http1 {
    enable_trailers: bool,
    preserve_case: bool,
}

fn plain_http1(cx: &mut Cx<'_>, options: Option<&core::Http1ProtocolOptions>) -> Http1 {
    let Some(options) = options else { return Http1::default() };
    let core::Http1ProtocolOptions { enable_trailers, header_key_format, .. } = options.clone();
    let header_case = cx.at("http_protocol_options", |cx| headers::key_format(cx, header_key_format.as_ref()));
    let supported = core::Http1ProtocolOptions { enable_trailers, header_key_format, ..Default::default() };
    if *options != supported || header_case == KeyFormat::Proper {
        let problem = "only enable_trailers and header_key_format with preserve_case are supported towards endpoints";
        cx.fail_at::<()>("http_protocol_options", problem);
    }
    Http1 { enable_trailers, preserve_case: header_case == KeyFormat::Preserved }
}

fn circuit_breakers(cx: &mut Cx<'_>, breakers: Option<&cluster::CircuitBreakers>) -> Option<CircuitBreakers> {
    let mut result = CircuitBreakers::default();
    let Some(breakers) = breakers else { return Some(result) };
    cx.at("circuit_breakers", |cx| {
        let mut seen = Vec::new();
        cx.each("thresholds", &breakers.thresholds, |cx, entry| {
            let priority = core::RoutingPriority::try_from(entry.priority);
            let Ok(priority) = priority else { return cx.fail_at("priority", "unknown value") };
            // As in Envoy, the first entry of a priority counts.
            if !seen.contains(&priority) {
                seen.push(priority);
                *match priority {
                    core::RoutingPriority::Default => &mut result.default,
                    core::RoutingPriority::High => &mut result.high,
                } = thresholds(cx, entry)?;
            }
            Some(())
        });
        cx.each("per_host_thresholds", &breakers.per_host_thresholds, |cx, entry| {
            if entry.priority != core::RoutingPriority::Default as i32 {
                return cx.fail_at("priority", "only DEFAULT is supported here");
            }
            let only_connections = cluster::circuit_breakers::Thresholds {
                max_connections: entry.max_connections,
                ..cluster::circuit_breakers::Thresholds::default()
            };
            if *entry != only_connections {
                return cx.fail("only max_connections is supported here");
            }
            result.max_connections_per_host = entry.max_connections.as_ref().map(|most| most.value);
            Some(())
        });
    });
    Some(result)
}

fn thresholds(cx: &mut Cx<'_>, entry: &cluster::circuit_breakers::Thresholds) -> Option<Thresholds> {
    type Value = Option<evenkeel_xds::pb::google::protobuf::UInt32Value>;
    let default = Thresholds::default();
    let limit = |value: &Value, default: u32| value.as_ref().map_or(default, |value| value.value);
    let retry_budget = match &entry.retry_budget {
        None => None,
        Some(budget) => {
            let percent = budget.budget_percent.as_ref().map_or(20.0, |percent| percent.value);
            if !(0.0..=100.0).contains(&percent) {
                return cx.fail_at("retry_budget.budget_percent.value", "must lie between 0 and 100");
            }
            let interval = cx.duration("retry_budget.budget_interval", budget.budget_interval.as_ref());
            let interval = interval.filter(|interval| !interval.is_zero());
            Some(RetryBudget { percent, min_concurrency: limit(&budget.min_retry_concurrency, 3), interval })
        }
    };
    Some(Thresholds {
        max_connections: limit(&entry.max_connections, default.max_connections),
        max_pending_requests: limit(&entry.max_pending_requests, default.max_pending_requests),
        max_requests: limit(&entry.max_requests, default.max_requests),
        max_retries: limit(&entry.max_retries, default.max_retries),
        retry_budget,
        max_connection_pools: limit(&entry.max_connection_pools, default.max_connection_pools),
        track_remaining: entry.track_remaining,
    })
}

/// Matches an endpoint's transport once, when compiled.
pub(crate) fn fit_transport(cluster: &Cluster, endpoint: &crate::cluster::Endpoint) -> Option<usize> {
    let has = |label: &(Box<str>, Box<str>)| endpoint.transport_labels.binary_search(label).is_ok();
    cluster.transport_matches.iter().position(|entry| entry.labels.iter().all(has))
}
