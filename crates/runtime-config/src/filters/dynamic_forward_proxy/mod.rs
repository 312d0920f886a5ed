//! The dynamic forward proxy, compiled: a request's or ClientHello's host name is resolved when it arrives, and the
//! cluster connects to the address found.
//!
//! The filters (`envoy.filters.http.dynamic_forward_proxy`, `envoy.filters.network.sni_dynamic_forward_proxy`) resolve the
//! name and leave a [`DynamicHost`]; a cluster of type `envoy.clusters.dynamic_forward_proxy` connects to it.

pub(crate) mod compile;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::dns::DnsOptions;
use crate::filter_needs::FilterNeeds;
use crate::support::message::{MessageSupport, NO_UPSTREAM_MATCHER, Role::Extension, Role::Part, extension, part};

/// `DnsCacheConfig`. Filters with equal settings share one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsCache {
    /// Name, in statistics (`dns_cache.NAME.`).
    pub name: Arc<str>,
    /// Resolver, address families, and how often a name is resolved again after a failure. `refresh` is the rate for
    /// names without an address (60 s when unset).
    pub options: DnsOptions,
    /// A name with addresses is resolved again after its TTL, but not before this time (5 s).
    pub min_refresh: Duration,
    /// A name that was not used for so long is forgotten (5 min).
    pub host_ttl: Duration,
    /// Maximum number of names (1024).
    pub max_hosts: usize,
    /// Maximum number of requests and connections that wait for an answer (1024).
    pub max_pending: usize,
    /// Time limit of an answer (5 s); `None`: as long as the resolver tries.
    pub query_timeout: Option<Duration>,
    /// Names that did not resolve are looked up by the next request, instead of being resolved again at a rate.
    pub asks_again_after_failure: bool,
    /// Addresses that are not used, whatever DNS says.
    pub refused_addresses: AddressSet,
}

/// `AddressMatcher`: ranges of addresses, or all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressSet {
    /// The ranges.
    pub ranges: Vec<IpNet>,
    /// All addresses that are in none of the ranges.
    pub inverted: bool,
}

impl AddressSet {
    /// Whether the address is in the set. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.ranges.iter().any(|range| range.contains(&address)) != self.inverted
    }
}

/// `envoy.filters.http.dynamic_forward_proxy`.
#[derive(Debug)]
pub struct HttpForwardProxy {
    /// The cache of names.
    pub cache: Arc<DnsCache>,
}

impl FilterNeeds for HttpForwardProxy {}

/// `PerRouteConfig`: the host to resolve and to send instead of the request's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRewrite {
    /// This one; empty: none.
    Literal(Box<str>),
    /// The first value of this header, if it has one.
    Header(Box<str>),
}

/// `envoy.filters.network.sni_dynamic_forward_proxy`.
#[derive(Debug)]
pub struct SniForwardProxy {
    /// The cache of names.
    pub cache: Arc<DnsCache>,
    /// Port of the upstream.
    pub port: u16,
}

impl FilterNeeds for SniForwardProxy {}

/// A cluster of type `envoy.clusters.dynamic_forward_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardProxyCluster {
    /// The cache that its filters use.
    pub cache: Arc<DnsCache>,
}

/// The resolved host of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicHost {
    /// The name, in lower case, or the address that was called.
    pub name: Arc<str>,
    /// The port.
    pub port: u16,
    /// Its addresses, the preferred one first.
    pub addresses: Arc<[IpAddr]>,
}

impl DynamicHost {
    /// The address to connect to; `None` if the name has none.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().map(|ip| SocketAddr::new(*ip, self.port))
    }

    /// Whether this is one of its addresses.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        address.port() == self.port && self.addresses.contains(&address.ip())
    }
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.http.dynamic_forward_proxy.v3.FilterConfig",
        role: Extension,
        full: &["dns_cache_config"],
        values: &[],
        no_effect: &[(NO_UPSTREAM_MATCHER, &["save_upstream_address"]),
            ("no filter sets such a state", &["allow_dynamic_host_from_filter_state"])],
    },
    extension("envoy.extensions.filters.http.dynamic_forward_proxy.v3.PerRouteConfig",
        &["host_rewrite_literal", "host_rewrite_header"]),
    MessageSupport {
        name: "envoy.extensions.common.dynamic_forward_proxy.v3.DnsCacheConfig",
        role: Part,
        full: &["name", "dns_lookup_family", "dns_refresh_rate", "dns_min_refresh_rate", "host_ttl", "max_hosts",
            "disable_dns_refresh_on_failure", "dns_failure_refresh_rate", "dns_cache_circuit_breaker",
            "dns_query_timeout", "resolved_address_filter"],
        values: &[("typed_dns_resolver_config", "the c-ares resolver")],
        no_effect: &[],
    },
    part("envoy.extensions.common.dynamic_forward_proxy.v3.DnsCacheCircuitBreakers", &["max_pending_requests"]),
    part("envoy.type.matcher.v3.AddressMatcher", &["ranges", "invert_match"]),
    part("xds.core.v3.CidrRange", &["address_prefix", "prefix_len"]),
];

/// The supported fields of the network filter.
#[rustfmt::skip]
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[
    MessageSupport {
        name: "envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig",
        role: Extension,
        full: &["dns_cache_config", "port_value"],
        values: &[],
        no_effect: &[(NO_UPSTREAM_MATCHER, &["save_upstream_address"])],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_matched_in_either_form_of_an_address() {
        let ranges = vec!["127.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let set = AddressSet { ranges, inverted: false };
        for (address, expected) in
            [("127.0.0.1", true), ("::ffff:127.0.0.1", true), ("fd00::1", true), ("10.0.0.1", false), ("::1", false)]
        {
            let address = address.parse().unwrap();
            assert_eq!(set.contains(address), expected, "{address}");
            assert_eq!(AddressSet { inverted: true, ..set.clone() }.contains(address), !expected, "{address}");
        }
        assert!(!AddressSet::default().contains([1, 2, 3, 4].into()));
    }
}
