//! The dynamic forward proxy's filters and cluster.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::core::v3::CidrRange;
use evenkeel_xds::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3 as clusters;
use evenkeel_xds::pb::envoy::extensions::common::dynamic_forward_proxy::v3 as common;
use evenkeel_xds::pb::envoy::extensions::filters::http::dynamic_forward_proxy::v3 as http;
use evenkeel_xds::pb::envoy::extensions::filters::network::sni_dynamic_forward_proxy::v3 as network;

use crate::cluster::{Discovery, UpstreamHttp};
use crate::compile::address::cidr;
use crate::compile::dns::{failure_refresh, lookup_family, resolver_config};
use crate::compile::{Cx, type_name};
use crate::dns::DnsOptions;
use crate::filters::dynamic_forward_proxy::{
    AddressSet, DnsCache, ForwardProxyCluster, HostRewrite, HttpForwardProxy, SniForwardProxy,
};

const CLUSTER: &str = "envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig";
/// Envoy's defaults.
const DEFAULT_REFRESH: Duration = Duration::from_secs(60);
const DEFAULT_MIN_REFRESH: Duration = Duration::from_secs(5);
const DEFAULT_HOST_TTL: Duration = Duration::from_secs(300);
const DEFAULT_QUERY_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_MAX_HOSTS: u32 = 1024;
const DEFAULT_MAX_PENDING: u32 = 1024;

pub(crate) fn http_filter(cx: &mut Cx<'_>, config: &http::FilterConfig) -> Option<HttpForwardProxy> {
    use http::filter_config::ImplementationSpecifier;
    match &config.implementation_specifier {
        Some(ImplementationSpecifier::DnsCacheConfig(cache)) => {
            let cache = cx.at("dns_cache_config", |cx| dns_cache(cx, cache))?;
            Some(HttpForwardProxy { cache })
        }
        Some(ImplementationSpecifier::SubClusterConfig(_)) => cx.fail_at("sub_cluster_config", "is not supported"),
        None => cx.fail_at("dns_cache_config", "is required"),
    }
}

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &http::PerRouteConfig) -> Option<HostRewrite> {
    use http::per_route_config::HostRewriteSpecifier;
    match &config.host_rewrite_specifier {
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => Some(HostRewrite::Literal(host.as_str().into())),
        Some(HostRewriteSpecifier::HostRewriteHeader(name)) => {
            let name = cx.non_empty("host_rewrite_header", name)?;
            Some(HostRewrite::Header(name.to_ascii_lowercase().into()))
        }
        None => Some(HostRewrite::Literal("".into())),
    }
}

pub(crate) fn sni_filter(cx: &mut Cx<'_>, config: &network::FilterConfig) -> Option<SniForwardProxy> {
    let cache = cx.required("dns_cache_config", config.dns_cache_config.as_ref())?;
    let cache = cx.at("dns_cache_config", |cx| dns_cache(cx, cache))?;
    let port = match &config.port_specifier {
        // As in Envoy, which uses the port of TLS where none is given.
        None => 443,
        Some(network::filter_config::PortSpecifier::PortValue(port)) => match u16::try_from(*port) {
            Ok(port) if port > 0 => port,
            _ => return cx.fail_at("port_value", "must lie between 1 and 65535"),
        },
    };
    Some(SniForwardProxy { cache, port })
}

/// The cluster's own part (`cluster_type`).
pub(crate) fn cluster_type(
    cx: &mut Cx<'_>,
    kind: &cluster::cluster::CustomClusterType,
    http: &mut UpstreamHttp,
    has_http_options: bool,
) -> Option<Discovery> {
    use clusters::cluster_config::ClusterImplementationSpecifier;
    cx.at("cluster_type", |cx| {
        let any = cx.required("typed_config", kind.typed_config.as_ref())?;
        cx.at("typed_config", |cx| {
            if type_name(&any.type_url) != CLUSTER {
                return cx.fail(format!("{} is no cluster type that is supported", type_name(&any.type_url)));
            }
            let config: clusters::ClusterConfig = cx.unpack(any)?;
            if !has_http_options {
                // Envoy's defaults for this type: a server proves that it is the host that is called.
                (http.auto_sni, http.auto_san_validation) = (true, true);
            }
            if !(config.allow_insecure_cluster_options || http.auto_sni && http.auto_san_validation) {
                return cx.fail(
                    "the cluster's HTTP options must set auto_sni and auto_san_validation: without them any server \
                     with a valid certificate could answer for any host (allow_insecure_cluster_options permits that)",
                );
            }
            match &config.cluster_implementation_specifier {
                Some(ClusterImplementationSpecifier::DnsCacheConfig(cache)) => {
                    let cache = cx.at("dns_cache_config", |cx| dns_cache(cx, cache))?;
                    Some(Discovery::DynamicForwardProxy(ForwardProxyCluster { cache }))
                }
                Some(ClusterImplementationSpecifier::SubClustersConfig(_)) => {
                    cx.fail_at("sub_clusters_config", "is not supported")
                }
                None => cx.fail_at("dns_cache_config", "is required"),
            }
        })
    })
}

fn dns_cache(cx: &mut Cx<'_>, config: &common::DnsCacheConfig) -> Option<Arc<DnsCache>> {
    let name = cx.non_empty("name", &config.name)?.into();
    let family = lookup_family(cx, config.dns_lookup_family);
    let refresh = cx.duration("dns_refresh_rate", config.dns_refresh_rate.as_ref()).unwrap_or(DEFAULT_REFRESH);
    if refresh < Duration::from_millis(1) {
        cx.fail_at::<()>("dns_refresh_rate", "must be at least 1 ms");
    }
    let min_refresh = cx.duration("dns_min_refresh_rate", config.dns_min_refresh_rate.as_ref());
    if min_refresh.is_some_and(|rate| rate < Duration::from_secs(1)) {
        cx.fail_at::<()>("dns_min_refresh_rate", "must be at least 1 s");
    }
    let host_ttl = cx.duration("host_ttl", config.host_ttl.as_ref());
    if host_ttl.is_some_and(|ttl| ttl.is_zero()) {
        cx.fail_at::<()>("host_ttl", "must be longer than 0 s");
    }
    let max_hosts = config.max_hosts.as_ref().map_or(DEFAULT_MAX_HOSTS, |most| most.value);
    if max_hosts == 0 {
        cx.fail_at::<()>("max_hosts", "must be at least 1");
    }
    let breaker = config.dns_cache_circuit_breaker.as_ref().and_then(|breaker| breaker.max_pending_requests.as_ref());
    let query_timeout = cx.limit("dns_query_timeout", config.dns_query_timeout.as_ref(), Some(DEFAULT_QUERY_TIMEOUT));
    let refused = config.resolved_address_filter.as_ref();
    let options = DnsOptions {
        resolver: resolver_config(cx, config.typed_dns_resolver_config.as_ref())
            .unwrap_or_else(|| cx.env.resolver.clone()),
        family,
        refresh,
        respect_ttl: true,
        failure_refresh: config.dns_failure_refresh_rate.as_ref().and_then(|rate| failure_refresh(cx, rate)),
        jitter: Duration::ZERO,
    };
    let ranges = refused.map(|refused| {
        cx.at("resolved_address_filter", |cx| {
            cx.each("ranges", &refused.ranges, |cx, range| {
                let prefix_len = range.prefix_len;
                cidr(cx, &CidrRange { address_prefix: range.address_prefix.clone(), prefix_len })
            })
        })
    });
    Some(Arc::new(DnsCache {
        name,
        options,
        min_refresh: min_refresh.unwrap_or(DEFAULT_MIN_REFRESH),
        host_ttl: host_ttl.unwrap_or(DEFAULT_HOST_TTL),
        max_hosts: max_hosts as usize,
        max_pending: breaker.map_or(DEFAULT_MAX_PENDING, |most| most.value) as usize,
        query_timeout,
        asks_again_after_failure: config.disable_dns_refresh_on_failure,
        refused_addresses: AddressSet {
            ranges: ranges.unwrap_or_default(),
            inverted: refused.is_some_and(|refused| refused.invert_match),
        },
    }))
}
