//! Clusters of gRPC clients: one per port and subset of a service.

use evenkeel_model::service::ServicePort;
use evenkeel_model::{
    ClientTls, Endpoint, EndpointAddress, HashKey, HashTable, Labels, LbPolicy as Policy, LoadBalancer, Resolution,
    Service, Subset, TrafficPolicy,
};

use super::endpoints;
use crate::clusters::contain_endpoints;
use crate::context::Context;
use crate::output::Output;
use crate::pb::config::cluster::circuit_breakers::Thresholds;
use crate::pb::config::cluster::cluster::{
    ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy, RingHashLbConfig,
};
use crate::pb::config::cluster::{CircuitBreakers, Cluster};
use crate::pb::config::route::route_action::hash_policy::{FilterState, PolicySpecifier};
use crate::pb::core::TransportSocket;
use crate::pb::google::protobuf::UInt64Value;
use crate::proto::{self, ads, u32_value};
use crate::{names, origin, tls};

/// The largest ring that gRPC accepts, in entries.
const MAX_RING_ENTRIES: u32 = 8 * 1024 * 1024;

/// An identity that no certificate has (RFC 2606 section 2).
const NOBODY: &str = "spiffe://revocation-lists-are-not-supported.invalid/";

/// The clusters of a service that do not contain its endpoints.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if !contain_endpoints(service) {
        clusters(context, service, out);
    }
}

/// The service's endpoints, or the clusters that contain them.
pub fn of_endpoints(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if contain_endpoints(service) {
        return clusters(context, service, out);
    }
    for_each(context, service, |port, subset, policy| {
        let name = name(service, port, subset);
        let assigned = endpoints::assigned(context, &name, service, port, labels(subset), policy);
        out.add(assigned, Some(service.origin.clone()));
    });
}

fn clusters(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    let rule = context.destination_rule(service).map(AsRef::as_ref);
    for_each(context, service, |port, subset, policy| {
        if let Some(cluster) = cluster(context, service, port, subset, policy) {
            let origin = origin::of_cluster(service, rule, subset);
            out.add(cluster, Some(origin));
        }
    });
}

/// Calls a function for each port of a service, whole and by subset, with its traffic policy.
fn for_each(
    context: Context<'_>,
    service: &Service,
    mut each: impl FnMut(&ServicePort, Option<&Subset>, &TrafficPolicy),
) {
    let rule = context.destination_rule(service).map(AsRef::as_ref);
    for (port, _) in context.ports(service) {
        let subsets = rule.into_iter().flat_map(|rule| rule.subsets.iter().map(Some));
        for subset in std::iter::once(None).chain(subsets) {
            let policy = context.settings(service, rule, subset.map(|subset| &*subset.name), port.number);
            each(&port, subset, &policy);
        }
    }
}

fn name(service: &Service, port: &ServicePort, subset: Option<&Subset>) -> String {
    names::outbound_cluster(port.number, subset.map_or("", |subset| &*subset.name), &service.host)
}

/// The labels of a subset's endpoints.
fn labels(subset: Option<&Subset>) -> &Labels {
    static NONE: Labels = Labels::new();
    subset.map_or(&NONE, |subset| &subset.labels)
}

/// One cluster; `None` if gRPC cannot express it: it resolves only one name per cluster.
fn cluster(
    context: Context<'_>,
    service: &Service,
    port: &ServicePort,
    subset: Option<&Subset>,
    policy: &TrafficPolicy,
) -> Option<Cluster> {
    let name = name(service, port, subset);
    let mut cluster = Cluster {
        circuit_breakers: Some(most_requests(policy)),
        transport_socket: transport_socket(context, service, policy),
        ..Default::default()
    };
    if let Some(size) = policy.load_balancer.as_ref().and_then(ring) {
        let minimum_ring_size = size.map(|size| UInt64Value { value: u64::from(size.min(MAX_RING_ENTRIES)) });
        cluster.lb_policy = LbPolicy::RingHash as i32;
        cluster.lb_config =
            Some(LbConfig::RingHashLbConfig(RingHashLbConfig { minimum_ring_size, ..Default::default() }));
    }
    let kind = match service.resolution {
        Resolution::Static | Resolution::Passthrough | Resolution::Alias => {
            cluster.eds_cluster_config = Some(EdsClusterConfig { eds_config: Some(ads()), service_name: name.clone() });
            DiscoveryType::Eds
        }
        // A client without a proxy cannot look up hosts by calls.
        Resolution::DynamicDns => return None,
        Resolution::Dns | Resolution::DnsRoundRobin => {
            let mut ready = context.snapshot.ready_endpoints(service, port.number, labels(subset));
            let only = ready.next().filter(|_| ready.next().is_none())?;
            cluster.load_assignment = Some(crate::endpoints::single(&name, socket(only)?));
            DiscoveryType::LogicalDns
        }
    };
    cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(kind as i32));
    Some(Cluster { name, ..cluster })
}

fn socket(endpoint: &Endpoint) -> Option<crate::pb::core::Address> {
    let host = match &endpoint.address {
        EndpointAddress::Name(name) => name.to_string(),
        EndpointAddress::Ip(ip) => ip.to_string(),
        EndpointAddress::Unix(_) => return None,
    };
    Some(proto::address(&host, u32::from(endpoint.port)))
}

/// Without a limit from the user, gRPC would allow only 1024 calls at once.
fn most_requests(policy: &TrafficPolicy) -> CircuitBreakers {
    let most = policy.connection_pool.as_ref().and_then(|pool| pool.max_requests);
    let thresholds = Thresholds { max_requests: Some(u32_value(most.unwrap_or(u32::MAX))), ..Default::default() };
    CircuitBreakers { thresholds: vec![thresholds], ..Default::default() }
}

/// Mutual TLS only if a DestinationRule asks for it, as in Istio. A program without xDS credentials would ignore it,
/// and one with them could not reach a PERMISSIVE sidecar, which recognizes mesh clients by an ALPN that gRPC cannot
/// offer.
fn transport_socket(context: Context<'_>, service: &Service, policy: &TrafficPolicy) -> Option<TransportSocket> {
    let Some(ClientTls::IstioMutual { subject_alt_names, revocation_lists, .. }) = &policy.tls else { return None };
    let identities: Vec<String> = match subject_alt_names.as_slice() {
        // gRPC takes no revocation lists from its configuration, so a program calls nobody rather than a revoked server.
        _ if revocation_lists.is_some() => vec![NOBODY.to_owned()],
        [] => context.snapshot.identities(service).into_iter().collect(),
        names => names.iter().map(ToString::to_string).collect(),
    };
    Some(tls::proxyless_client(context.snapshot.mesh(), &identities))
}

/// The ring size, if the balancer uses a hash that gRPC can compute. A Maglev table becomes a ring of the default size,
/// because gRPC has only rings. All other balancers become round robin.
fn ring(balancer: &LoadBalancer) -> Option<Option<u32>> {
    match &balancer.policy {
        Some(Policy::ConsistentHash(HashKey::Header(_) | HashKey::SourceIp, HashTable::Ring(size))) => Some(*size),
        Some(Policy::ConsistentHash(HashKey::Header(_) | HashKey::SourceIp, HashTable::Maglev(_))) => Some(None),
        _ => None,
    }
}

/// A hash that is the same for all calls of a channel (gRFC A42).
pub fn by_channel() -> PolicySpecifier {
    PolicySpecifier::FilterState(FilterState { key: "io.grpc.channel_id".to_owned() })
}
