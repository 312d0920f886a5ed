//! Hosts that proxies look up when they are called: ServiceEntries of `resolution: DYNAMIC_DNS`, and
//! `outboundTrafficPolicy.mode: ALLOW_ANY_DYNAMIC_DNS`.
//!
//! As in Istio, HTTP goes to the host of the request, TLS to the server name of the ClientHello. Istio has one DNS cache
//! for each host; here there is one for all, so that a listener needs one filter however many wildcards there are.

use evenkeel_model::{OutboundTrafficPolicy, Resolution, Service};

use crate::context::Context;
use crate::pb::config::cluster::Cluster;
use crate::pb::config::cluster::cluster::{ClusterDiscoveryType, CustomClusterType, DnsLookupFamily, LbPolicy};
use crate::pb::config::listener::Filter;
use crate::pb::core::UpstreamHttpProtocolOptions;
use crate::pb::dynamic_forward_proxy::{
    ClusterConfig, DnsCacheConfig, HttpFilterConfig, SniFilterConfig, cluster_config, http_filter_config,
    sni_filter_config,
};
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::proto::{any, network_filter};

/// Whether a service's host is looked up when it is called.
pub fn is_looked_up(service: &Service) -> bool {
    service.resolution == Resolution::DynamicDns
}

/// Whether the mesh has unknown hosts of HTTP requests looked up. Only sidecars do that.
pub fn looks_up_unknown(context: Context<'_>) -> bool {
    context.is_sidecar() && context.snapshot.mesh().outbound_traffic_policy == OutboundTrafficPolicy::AllowAnyDynamicDns
}

/// Returns how the called server is named and verified, where no rule sets it: with TLS, its certificate must have the host
/// of the request. Envoy demands this of such clusters.
pub fn naming() -> UpstreamHttpProtocolOptions {
    UpstreamHttpProtocolOptions { auto_sni: true, auto_san_validation: true, ..Default::default() }
}

/// Makes it a cluster of hosts that filters look up. `allows_insecure`: a rule says what names servers have.
pub fn make_cluster(allows_insecure: bool, cluster: &mut Cluster) {
    let config = ClusterConfig {
        allow_insecure_cluster_options: allows_insecure,
        cluster_implementation_specifier: Some(cluster_config::ClusterImplementationSpecifier::DnsCacheConfig(cache())),
        ..Default::default()
    };
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
        name: "envoy.clusters.dynamic_forward_proxy".to_owned(),
        typed_config: Some(any(&config)),
    }));
    cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    // A rule's balancer has no hosts to choose from, and its settings do not go with this policy.
    (cluster.lb_config, cluster.load_balancing_policy, cluster.common_lb_config) = (None, None, None);
}

/// The HTTP filter. It looks up the hosts of requests whose route leads to such a cluster, and no others.
pub fn http_filter() -> HttpFilter {
    let config = HttpFilterConfig {
        implementation_specifier: Some(http_filter_config::ImplementationSpecifier::DnsCacheConfig(cache())),
        ..Default::default()
    };
    HttpFilter {
        name: "envoy.filters.http.dynamic_forward_proxy".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&config))),
        ..Default::default()
    }
}

/// The network filter for TLS.
pub fn sni_filter(port: u16) -> Filter {
    let config = SniFilterConfig {
        dns_cache_config: Some(cache()),
        port_specifier: Some(sni_filter_config::PortSpecifier::PortValue(u32::from(port))),
        ..Default::default()
    };
    network_filter("envoy.filters.network.sni_dynamic_forward_proxy", any(&config))
}

fn cache() -> DnsCacheConfig {
    DnsCacheConfig {
        name: "dynamic_dns".to_owned(),
        dns_lookup_family: DnsLookupFamily::V4Only as i32,
        ..Default::default()
    }
}
