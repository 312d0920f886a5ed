//! Resolution of DNS names.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;

use super::address::socket_address;
use super::{Cx, extension_type};
use crate::dns::{DnsFamily, DnsOptions, DnsResolver};

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
    let servers = cx.each("resolvers", &config.resolvers, |cx, server| match &server.address {
        Some(core::address::Address::SocketAddress(server)) => socket_address(cx, "socket_address", server),
        _ => cx.fail("must be a socket_address"),
    });
    let tcp_only = config.dns_resolver_options.as_ref().is_some_and(|options| options.use_tcp_for_dns_lookups);
    DnsResolver { servers, tcp_only }
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

#[allow(deprecated)] // Their successor, the DnsCluster extension, is not what Istio sends.
pub(crate) fn dns_options(cx: &mut Cx<'_>, c: &cluster::Cluster) -> DnsOptions {
    let family = lookup_family(cx, c.dns_lookup_family);
    let resolver = resolver_config(cx, c.typed_dns_resolver_config.as_ref());
    let default = DnsOptions::default();
    let refresh = cx.duration("dns_refresh_rate", c.dns_refresh_rate.as_ref());
    if refresh.is_some_and(|refresh| refresh < Duration::from_millis(1)) {
        cx.fail_at::<()>("dns_refresh_rate", "must be longer than 1 ms");
    }
    DnsOptions {
        resolver: resolver.unwrap_or_else(|| cx.env.resolver.clone()),
        family,
        refresh: refresh.unwrap_or(default.refresh),
        respect_ttl: c.respect_dns_ttl,
        failure_refresh: c.dns_failure_refresh_rate.as_ref().and_then(|rate| failure_refresh(cx, rate)),
        jitter: cx.duration("dns_jitter", c.dns_jitter.as_ref()).unwrap_or_default(),
    }
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
