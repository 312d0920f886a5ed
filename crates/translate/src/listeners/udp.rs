//! Listeners of gateways for datagrams: one for each port of UDP of the Gateways that select the gateway.
//!
//! Each has one cluster, in which every backend of the route is a locality with the backend's weight: the UDP proxy leads to one cluster.
//! A host that stays keeps its sessions when weights or other hosts change.

use std::collections::BTreeSet;

use evenkeel_model::{
    Destination, DestinationState, EndpointAddress, Gateway, L4Route, Server, ServerProtocol, WeightedDestination,
};

use super::gateway::{bound, reference};
use super::listener;
use crate::context::Context;
use crate::output::Output;
use crate::pb::config::cluster::cluster::common_lb_config::{LocalityConfigSpecifier, LocalityWeightedLbConfig};
use crate::pb::config::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
use crate::pb::config::endpoint::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use crate::pb::config::listener::{Listener, ListenerFilter, UdpListenerConfig, listener_filter};
use crate::pb::core::{Locality, TrafficDirection, UdpSocketConfig};
use crate::pb::google::protobuf::UInt64Value;
use crate::pb::udp_proxy::{UdpProxyConfig, udp_proxy_config::RouteSpecifier};
use crate::proto::{self, ads, any, u32_value};
use crate::rbac::{self, Bytes};
use crate::{access_log, clusters, endpoints, ext_authz, names};

const UDP_PROXY: &str = "envoy.filters.udp_listener.udp_proxy";
/// The longest datagram that is carried, in bytes: any.
const MAX_DATAGRAM_BYTES: u64 = 65_535;
/// Where the share of a backend goes that cannot be used: no datagram can be sent to port 0.
const NOWHERE: &str = "127.0.0.1";

/// A server for datagrams, and the route that it follows.
struct UdpServer<'a> {
    gateway: &'a Gateway,
    server: &'a Server,
    /// The port that the gateway listens on.
    port: u16,
    route: Option<&'a L4Route>,
}

/// The listeners for datagrams, with their clusters and endpoints.
pub fn listeners(context: Context<'_>, out: &mut Output<'_>) {
    let mut served = BTreeSet::new();
    for gateway in context.snapshot.gateways_for(&context) {
        for server in gateway.servers.iter().filter(|server| server.protocol == ServerProtocol::Udp) {
            let port = context.listening_port(server.port);
            if served.insert((port, server.bind.clone())) {
                let reference = reference(gateway);
                // The oldest route comes first.
                let route = bound(context, &reference, server).find_map(|set| set.udp.first());
                add(context, &UdpServer { gateway, server, port, route }, out);
            }
        }
    }
}

fn add(context: Context<'_>, of: &UdpServer<'_>, out: &mut Output<'_>) {
    let cluster = names::udp_cluster(of.server.port, &of.gateway.name, &of.gateway.namespace);
    // Policies judge connections and requests: datagrams would pass them.
    let is_guarded = !rbac::network_filters(context, Bytes::Declared).is_empty()
        || !ext_authz::network_filters(context, Bytes::Declared).is_empty();
    let route = of.route.filter(|_| !is_guarded);
    out.add(udp_listener(context, of, route.map(|_| cluster.as_str())), Some(of.server.origin.clone()));
    if let Some(route) = route {
        add_cluster(context, cluster, route, out);
    }
}

fn udp_listener(context: Context<'_>, of: &UdpServer<'_>, cluster: Option<&str>) -> Listener {
    let address = of.server.bind.as_deref().unwrap_or("0.0.0.0");
    let mut bound = listener(names::udp_listener(address, of.port), address, of.port, TrafficDirection::Outbound);
    bound.address = Some(proto::udp_address(address, u32::from(of.port)));
    let sizes =
        UdpSocketConfig { max_rx_datagram_size: Some(UInt64Value { value: MAX_DATAGRAM_BYTES }), ..Default::default() };
    bound.udp_listener_config = Some(UdpListenerConfig { downstream_socket_config: Some(sizes), ..Default::default() });
    #[allow(deprecated, reason = "the only other way is a matcher")]
    let route_specifier = match cluster {
        Some(cluster) => RouteSpecifier::Cluster(cluster.to_owned()),
        // Without a route, datagrams are dropped and counted.
        None => RouteSpecifier::Matcher(Default::default()),
    };
    let proxy = UdpProxyConfig {
        stat_prefix: names::udp_listener(address, of.port),
        upstream_socket_config: Some(sizes),
        access_log: access_log::of_connections(context),
        route_specifier: Some(route_specifier),
        ..Default::default()
    };
    bound.listener_filters = vec![ListenerFilter {
        name: UDP_PROXY.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(any(&proxy))),
        ..Default::default()
    }];
    bound
}

fn add_cluster(context: Context<'_>, name: String, route: &L4Route, out: &mut Output<'_>) {
    let mut cluster = clusters::base(context, name.clone());
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32));
    cluster.eds_cluster_config = Some(EdsClusterConfig { eds_config: Some(ads()), service_name: name.clone() });
    if let Some(common) = &mut cluster.common_lb_config {
        let by_weight = LocalityWeightedLbConfig::default();
        common.locality_config_specifier = Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(by_weight));
    }
    out.add(cluster, Some(route.origin.clone()));
    let groups = route.destinations.iter().enumerate().map(|(at, to)| group(context, at, to));
    let assigned = ClusterLoadAssignment { cluster_name: name, endpoints: groups.collect(), ..Default::default() };
    out.add(assigned, Some(route.origin.clone()));
}

/// The endpoints of a backend, with its share. The share of one without endpoints is dropped.
fn group(context: Context<'_>, at: usize, to: &WeightedDestination) -> LocalityLbEndpoints {
    let mut lb_endpoints = endpoints_of(context, &to.destination);
    if lb_endpoints.is_empty() {
        let nowhere = proto::address(NOWHERE, 0);
        lb_endpoints.push(LbEndpoint { host_identifier: Some(endpoints::at(nowhere)), ..Default::default() });
    }
    LocalityLbEndpoints {
        // Two backends may be the same service.
        locality: Some(Locality {
            region: to.destination.host.to_string(),
            zone: at.to_string(),
            ..Default::default()
        }),
        load_balancing_weight: Some(u32_value(to.weight)),
        lb_endpoints,
        ..Default::default()
    }
}

fn endpoints_of(context: Context<'_>, to: &Destination) -> Vec<LbEndpoint> {
    let (DestinationState::Known, Some(port)) = (to.state, to.port) else { return Vec::new() };
    let Some(service) = context.destination(&to.host) else { return Vec::new() };
    // Whoever judges the calls of a closed service judges no datagrams.
    if !service.closed_by.is_empty() {
        return Vec::new();
    }
    let all = context.snapshot.udp_endpoints(service, port).iter();
    let ready = all.filter(|endpoint| endpoint.ready && matches!(endpoint.address, EndpointAddress::Ip(_)));
    // Gateways between networks carry TLS only.
    let ready = ready.filter(|endpoint| context.is_offered(service, endpoint) && context.is_near(endpoint));
    ready
        .map(|endpoint| {
            let mut of_backend = endpoints::lb_endpoint(context, endpoint);
            // Datagrams carry no mutual TLS.
            of_backend.metadata = None;
            of_backend
        })
        .collect()
}
