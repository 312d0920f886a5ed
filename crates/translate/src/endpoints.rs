//! Endpoints of EDS clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_model::labels::selects;
use evenkeel_model::{Endpoint, EndpointAddress, Labels, Resolution, Service, TrafficPolicy, Workload};

use crate::context::Context;
use crate::failover::{EndpointRanking, Rank};
use crate::load_balancer;
use crate::metrics;
use crate::names::{TLS_MODE, TLS_MODE_ISTIO, outbound_name};
use crate::networks;
use crate::output::Output;
use crate::pb::config::endpoint::Endpoint as EnvoyEndpoint;
use crate::pb::config::endpoint::{
    ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use crate::pb::core::{Address, HealthStatus, Locality, Pipe, address};
use crate::proto::{self, metadata, u32_value};
use crate::sessions;

/// The endpoints of a service's EDS clusters.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if context.resolution(service) != Resolution::Static {
        return;
    }
    let rule = context.destination_rule(service);
    let whole = Labels::new();
    for (port, port_protocol) in context.ports(service) {
        let subsets = rule.into_iter().flat_map(|r| r.subsets.iter().map(|s| (&*s.name, &s.labels)));
        for (subset, labels) in std::iter::once(("", &whole)).chain(subsets) {
            let subset_name = Some(subset).filter(|s| !s.is_empty());
            let policy = context.settings(service, rule.map(AsRef::as_ref), subset_name, port.number);
            for inner in port_protocol.inners() {
                let name = outbound_name(&port, subset, service, *inner);
                let takes = |endpoint: &Endpoint| selects(labels, &endpoint.labels);
                of_cluster(context, (service, port.number), &name, &policy, takes, out);
            }
        }
    }
}

/// The endpoints of one EDS cluster of a service's port: those that it `takes`.
pub fn of_cluster(
    context: Context<'_>,
    (service, port): (&Service, u16),
    name: &str,
    policy: &TrafficPolicy,
    takes: impl Fn(&Endpoint) -> bool,
    out: &mut Output<'_>,
) {
    let keeps_sessions = sessions::are_kept(service);
    // As in Istio 1.31: proxies do not use them, but learn how much of a locality fails. With a panic threshold they would use them.
    let panics = policy.outlier_detection.as_ref().and_then(|outliers| outliers.min_health_percent);
    let tells_failing = panics.unwrap_or(0) == 0;
    let is_used = |e: &&Endpoint| {
        (e.ready || e.draining && keeps_sessions || e.failing && tells_failing)
            && context.may_reach(service, e)
            && context.is_offered(service, e)
    };
    let ready = context.snapshot.endpoints(service, port).iter().filter(is_used).filter(|e| takes(e));
    // EDS accepts only addresses; Envoy would refuse the whole assignment because of a name.
    let addressed = ready.filter(|e| !matches!(e.address, EndpointAddress::Name(_)));
    let reached = networks::reached(context, addressed);
    let ranking = EndpointRanking::new(context, service, policy);
    let mut assigned = assignment(context, name, reached.iter().map(AsRef::as_ref), &ranking);
    weigh(context, policy, &mut assigned);
    out.add(assigned, Some(service.origin.clone()));
}

/// Gives localities the shares that a policy gives them.
pub fn weigh(context: Context<'_>, policy: &TrafficPolicy, assigned: &mut ClusterLoadAssignment) {
    let balancer = policy.load_balancer.as_ref().filter(|balancer| balancer.zones().is_none());
    if let Some(setting) = balancer.and_then(|balancer| balancer.locality.as_ref()) {
        load_balancer::weigh_localities(setting, context.locality(), assigned);
    }
}

/// Name of the cluster whose hosts are the proxies like this one, which its bootstrap has.
pub const LOCAL_CLUSTER: &str = "local_cluster";

/// The proxies like this one, for its zone-aware balancing (Istio's self discovery): the endpoints of the services of its
/// workload that are in its region and have the same values of certain labels, each address once.
pub fn of_local_cluster(context: Context<'_>, out: &mut Output<'_>) {
    let Some(labels) = context.peer_labels() else { return };
    let workload = context.workload();
    let is_alike = |workload: &Workload, endpoint: &Endpoint| {
        let region = |locality: &'_ str| load_balancer::parts(locality)[0].to_owned();
        let same = |label: &Arc<str>| endpoint.labels.get(&**label) == workload.labels.get(&**label);
        endpoint.ready && region(&endpoint.locality) == region(&workload.locality) && labels.iter().all(same)
    };
    let mut by_address: BTreeMap<IpAddr, &Endpoint> = BTreeMap::new();
    let services = workload.into_iter().flat_map(|workload| workload.services.iter().map(move |one| (workload, one)));
    for (workload, service) in services.filter(|(_, service)| service.resolution == Resolution::Static) {
        for (port, _) in context.ports(service) {
            let endpoints = context.snapshot.endpoints(service, port.number).iter();
            for endpoint in endpoints.filter(|endpoint| is_alike(workload, endpoint)) {
                if let EndpointAddress::Ip(address) = endpoint.address {
                    by_address.entry(address).or_insert(endpoint);
                }
            }
        }
    }
    let assigned = assignment(context, LOCAL_CLUSTER, by_address.into_values(), &EndpointRanking::default());
    out.add(assigned, None);
}

/// One assignment, its endpoints grouped by locality, the nearest with priority 0.
pub fn assignment<'a>(
    context: Context<'_>,
    cluster_name: &str,
    endpoints: impl Iterator<Item = &'a Endpoint>,
    ranking: &EndpointRanking,
) -> ClusterLoadAssignment {
    let mut by_locality: BTreeMap<(&str, Rank), Vec<LbEndpoint>> = BTreeMap::new();
    let mut gateways: BTreeMap<(&str, Rank, &EndpointAddress, u16), usize> = BTreeMap::new();
    for endpoint in endpoints {
        let (name, rank) = (&*endpoint.locality, ranking.rank(endpoint));
        let list = by_locality.entry((name, rank)).or_default();
        // Several endpoints behind one gateway are one, with their shares.
        let is_gateway = endpoint.workload_name.is_empty() && !context.is_near(endpoint);
        let place = (name, rank, &endpoint.address, endpoint.port);
        let at = if is_gateway { *gateways.entry(place).or_insert(list.len()) } else { list.len() };
        match list.get_mut(at) {
            Some(known) => add_weight(known, endpoint.weight),
            None => list.push(lb_endpoint(context, endpoint)),
        }
    }
    // Envoy accepts priorities only without gaps.
    let ranks: BTreeSet<Rank> = by_locality.keys().map(|(_, rank)| *rank).collect();
    let priority = |rank: Rank| u32::try_from(ranks.range(..rank).count()).unwrap_or(u32::MAX);
    let groups = by_locality.into_iter().map(|((name, rank), lb_endpoints)| LocalityLbEndpoints {
        locality: locality(name),
        lb_endpoints,
        priority: priority(rank),
        ..Default::default()
    });
    ClusterLoadAssignment { cluster_name: cluster_name.to_owned(), endpoints: groups.collect(), ..Default::default() }
}

/// Gives an endpoint a further share.
pub fn add_weight(known: &mut LbEndpoint, more: u32) {
    let own = known.load_balancing_weight.as_ref().map_or(1, |weight| weight.value);
    known.load_balancing_weight = Some(u32_value(own.saturating_add(more.max(1))));
}

/// An endpoint of an assignment.
pub fn lb_endpoint(context: Context<'_>, endpoint: &Endpoint) -> LbEndpoint {
    let address = match &endpoint.address {
        EndpointAddress::Ip(ip) => proto::address(&ip.to_string(), u32::from(endpoint.port)),
        EndpointAddress::Name(name) => proto::address(name.as_str(), u32::from(endpoint.port)),
        EndpointAddress::Unix(path) => pipe(path),
    };
    let mut facts = endpoint.mtls.then(|| metadata("envoy.transport_socket_match", TLS_MODE, TLS_MODE_ISTIO));
    metrics::note_workload(context, endpoint, &mut facts);
    LbEndpoint {
        host_identifier: Some(at(address)),
        load_balancing_weight: Some(u32_value(endpoint.weight.max(1))),
        metadata: facts,
        health_status: match endpoint {
            Endpoint { ready: true, .. } => HealthStatus::Unknown as i32,
            Endpoint { failing: true, .. } => HealthStatus::Unhealthy as i32,
            Endpoint { draining: true, .. } => HealthStatus::Draining as i32,
            _ => HealthStatus::Unknown as i32,
        },
    }
}

/// A Unix socket.
pub fn pipe(path: &str) -> Address {
    let pipe = Pipe { path: path.to_owned(), ..Default::default() };
    Address { address: Some(address::Address::Pipe(pipe)) }
}

/// An assignment with one endpoint.
pub fn single(cluster_name: &str, address: Address) -> ClusterLoadAssignment {
    let endpoint = LbEndpoint { host_identifier: Some(at(address)), ..Default::default() };
    let group = LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..Default::default() };
    ClusterLoadAssignment { cluster_name: cluster_name.to_owned(), endpoints: vec![group], ..Default::default() }
}

pub(crate) fn at(address: Address) -> HostIdentifier {
    HostIdentifier::Endpoint(EnvoyEndpoint { address: Some(address), ..Default::default() })
}

fn locality(name: &str) -> Option<Locality> {
    let mut parts = name.splitn(3, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let locality = Locality { region: next(), zone: next(), sub_zone: next() };
    (!name.is_empty()).then_some(locality)
}
