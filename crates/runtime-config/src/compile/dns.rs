//! Resolution of DNS names.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::bootstrap::v3 as bootstrap;
use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::clusters::common::dns::v3::DnsLookupFamily as NewLookupFamily;
use evenkeel_xds::pb::envoy::extensions::clusters::dns::v3::DnsCluster;
use evenkeel_xds::pb::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use evenkeel_xds::pb::google::protobuf;

use super::address::socket_address;
use super::{Cx, extension_type, type_name};
use crate::dns::{DnsFamily, DnsOptions, DnsResolver};

const DNS_CLUSTER: &str = "envoy.extensions.clusters.dns.v3.DnsCluster";
const CARES: &str = "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig";

/// `typed_dns_resolver_config` of a cluster or of the bootstrap.
pub(crate) fn resolver_config(
    cx: &mut Cx<'_>,
    extension: Option<&core::TypedExtensionConfig>,
) -> Option<Arc<DnsResolver>> {
    let extension = extension?;
    cx.at("typed_dns_resolver_config", |cx| {
        extension_type(cx, extension, CARES)?;
        let any = cx.required("typed_config", extension.typed_config.as_ref())?;
        cx.at("typed_config", |cx| {
            let config: CaresDnsResolverConfig = cx.unpack(any)?;
            Some(Arc::new(dns_resolver(cx, &config)))
        })
    })
}

fn dns_resolver(cx: &mut Cx<'_>, config: &CaresDnsResolverConfig) -> DnsResolver {
    let servers = servers(cx, "resolvers", &config.resolvers);
    DnsResolver { servers, tcp_only: tcp_only(config.dns_resolver_options.as_ref()) }
}

fn servers(cx: &mut Cx<'_>, field: &str, servers: &[core::Address]) -> Vec<SocketAddr> {
    cx.each(field, servers, |cx, server| match &server.address {
        Some(core::address::Address::SocketAddress(server)) => socket_address(cx, "socket_address", server),
        _ => cx.fail("must be a socket_address"),
    })
}

fn tcp_only(options: Option<&core::DnsResolverOptions>) -> bool {
    options.is_some_and(|options| options.use_tcp_for_dns_lookups)
}

/// `dns_resolution_config`, the form before `typed_dns_resolver_config`.
fn resolution_config(cx: &mut Cx<'_>, config: &core::DnsResolutionConfig) -> Arc<DnsResolver> {
    let servers = cx.at("dns_resolution_config", |cx| Some(servers(cx, "resolvers", &config.resolvers)));
    Arc::new(DnsResolver {
        servers: servers.unwrap_or_default(),
        tcp_only: tcp_only(config.dns_resolver_options.as_ref()),
    })
}

/// The resolver of a bootstrap, in any of its three forms; the newest counts.
#[allow(deprecated)] // The older forms.
pub(crate) fn default_resolver(cx: &mut Cx<'_>, bootstrap: &bootstrap::Bootstrap) -> Option<Arc<DnsResolver>> {
    if bootstrap.typed_dns_resolver_config.is_some() {
        return resolver_config(cx, bootstrap.typed_dns_resolver_config.as_ref());
    }
    match &bootstrap.dns_resolution_config {
        Some(config) => Some(resolution_config(cx, config)),
        None => {
            bootstrap.use_tcp_for_dns_lookups.then(|| Arc::new(DnsResolver { servers: Vec::new(), tcp_only: true }))
        }
    }
}

/// The resolver of a cluster, in any of its three forms; the newest counts. As in Envoy, the older ones count only where
/// they name servers.
#[allow(deprecated)] // The older forms.
fn cluster_resolver(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<Arc<DnsResolver>> {
    if c.typed_dns_resolver_config.is_some() {
        return resolver_config(cx, c.typed_dns_resolver_config.as_ref());
    }
    match &c.dns_resolution_config {
        Some(config) if !config.resolvers.is_empty() => Some(resolution_config(cx, config)),
        _ if c.dns_resolvers.is_empty() => None,
        _ => {
            let servers = servers(cx, "dns_resolvers", &c.dns_resolvers);
            Some(Arc::new(DnsResolver { servers, tcp_only: c.use_tcp_for_dns_lookups }))
        }
    }
}

/// `dns_lookup_family`.
pub(crate) fn lookup_family(cx: &mut Cx<'_>, family: i32) -> DnsFamily {
    use cluster::cluster::DnsLookupFamily;
    match DnsLookupFamily::try_from(family) {
        Ok(DnsLookupFamily::Auto) => DnsFamily::Auto,
        Ok(DnsLookupFamily::V4Only) => DnsFamily::V4Only,
        Ok(DnsLookupFamily::V6Only) => DnsFamily::V6Only,
        Ok(DnsLookupFamily::V4Preferred) => DnsFamily::V4Preferred,
        Ok(DnsLookupFamily::All) => DnsFamily::All,
        Err(_) => {
            cx.fail_at::<()>("dns_lookup_family", format!("unknown value {family}"));
            DnsFamily::Auto
        }
    }
}

#[allow(deprecated)] // Istio sends them instead of their successor, the DnsCluster extension.
pub(crate) fn dns_options(cx: &mut Cx<'_>, c: &cluster::Cluster, dns_type: Option<&DnsCluster>) -> DnsOptions {
    if let Some(config) = dns_type {
        return dns_cluster_options(cx, config);
    }
    let family = lookup_family(cx, c.dns_lookup_family);
    let resolver = cluster_resolver(cx, c);
    let default = DnsOptions::default();
    let refresh = refresh_rate(cx, c.dns_refresh_rate.as_ref());
    DnsOptions {
        resolver: resolver.unwrap_or_else(|| cx.env.resolver.clone()),
        family,
        refresh: refresh.unwrap_or(default.refresh),
        respect_ttl: c.respect_dns_ttl,
        failure_refresh: c.dns_failure_refresh_rate.as_ref().and_then(|rate| failure_refresh(cx, rate)),
        jitter: cx.duration("dns_jitter", c.dns_jitter.as_ref()).unwrap_or_default(),
    }
}

/// The configuration of a cluster whose type is the extension for DNS, the successor of STRICT_DNS and LOGICAL_DNS.
pub(crate) fn dns_cluster(cx: &mut Cx<'_>, c: &cluster::Cluster) -> Option<DnsCluster> {
    use cluster::cluster::ClusterDiscoveryType;
    let Some(ClusterDiscoveryType::ClusterType(kind)) = &c.cluster_discovery_type else { return None };
    let any = kind.typed_config.as_ref().filter(|any| type_name(&any.type_url) == DNS_CLUSTER)?;
    cx.at("cluster_type.typed_config", |cx| cx.unpack(any))
}

/// The options of such a cluster, which has its own fields.
fn dns_cluster_options(cx: &mut Cx<'_>, config: &DnsCluster) -> DnsOptions {
    let family = match NewLookupFamily::try_from(config.dns_lookup_family) {
        Ok(NewLookupFamily::Unspecified | NewLookupFamily::Auto) => DnsFamily::Auto,
        Ok(NewLookupFamily::V4Only) => DnsFamily::V4Only,
        Ok(NewLookupFamily::V6Only) => DnsFamily::V6Only,
        Ok(NewLookupFamily::V4Preferred) => DnsFamily::V4Preferred,
        Ok(NewLookupFamily::All) => DnsFamily::All,
        Err(_) => {
            cx.fail_at::<()>("dns_lookup_family", format!("unknown value {}", config.dns_lookup_family));
            DnsFamily::Auto
        }
    };
    let resolver = resolver_config(cx, config.typed_dns_resolver_config.as_ref());
    let refresh = refresh_rate(cx, config.dns_refresh_rate.as_ref());
    let rate = config.dns_failure_refresh_rate.as_ref().map(|rate| cluster::cluster::RefreshRate {
        base_interval: rate.base_interval,
        max_interval: rate.max_interval,
    });
    DnsOptions {
        resolver: resolver.unwrap_or_else(|| cx.env.resolver.clone()),
        family,
        refresh: refresh.unwrap_or(DnsOptions::default().refresh),
        respect_ttl: config.respect_dns_ttl,
        failure_refresh: rate.and_then(|rate| failure_refresh(cx, &rate)),
        jitter: cx.duration("dns_jitter", config.dns_jitter.as_ref()).unwrap_or_default(),
    }
}

fn refresh_rate(cx: &mut Cx<'_>, rate: Option<&protobuf::Duration>) -> Option<Duration> {
    let refresh = cx.duration("dns_refresh_rate", rate);
    if refresh.is_some_and(|refresh| refresh < Duration::from_millis(1)) {
        cx.fail_at::<()>("dns_refresh_rate", "must be longer than 1 ms");
    }
    refresh
}

pub(crate) fn failure_refresh(cx: &mut Cx<'_>, rate: &cluster::cluster::RefreshRate) -> Option<(Duration, Duration)> {
    cx.at("dns_failure_refresh_rate", |cx| {
        cx.required("base_interval", rate.base_interval.as_ref())?;
        let base = cx.duration("base_interval", rate.base_interval.as_ref())?;
        let longest = cx.duration("max_interval", rate.max_interval.as_ref()).unwrap_or(base.saturating_mul(10));
        if base < Duration::from_millis(1) || longest < base {
            return cx.fail("must satisfy 1 ms <= base_interval <= max_interval");
        }
        Some((base, longest))
    })
}
