//! The endpoints of a gRPC client's cluster. gRPC refuses a locality without a name and a repeated address, and sends
//! nothing to a locality without weight (gRFC A27).

use std::collections::{BTreeSet, HashSet};

use evenkeel_model::labels::selects;
use evenkeel_model::service::ServicePort;
use evenkeel_model::{Endpoint, EndpointAddress, Labels, Service, TrafficPolicy};

use crate::context::Context;
use crate::endpoints::assignment;
use crate::failover::EndpointRanking;
use crate::load_balancer;
use crate::networks;
use crate::pb::config::endpoint::{ClusterLoadAssignment, LocalityLbEndpoints};
use crate::proto::u32_value;

/// The endpoints with these labels that are ready.
pub fn assigned(
    context: Context<'_>,
    cluster: &str,
    service: &Service,
    port: &ServicePort,
    labels: &Labels,
    policy: &TrafficPolicy,
) -> ClusterLoadAssignment {
    let mut taken = HashSet::new();
    let endpoints = context.snapshot.endpoints(service, port.number).iter();
    let is_used = |endpoint: &&Endpoint| {
        endpoint.ready && context.may_reach(service, endpoint) && context.is_offered(service, endpoint)
    };
    let ready = endpoints.filter(is_used).filter(|endpoint| selects(labels, &endpoint.labels));
    let reached = networks::reached(context, ready);
    let ready = reached.iter().map(AsRef::as_ref);
    let distinct = ready.filter(|endpoint| match endpoint.address {
        EndpointAddress::Ip(address) => taken.insert((address, endpoint.port)),
        EndpointAddress::Name(_) | EndpointAddress::Unix(_) => false,
    });
    let mut assigned = assignment(context, cluster, distinct, &EndpointRanking::new(context, service, policy));
    if let Some(setting) = policy.load_balancer.as_ref().and_then(|balancer| balancer.locality.as_ref()) {
        load_balancer::weigh_localities(setting, context.locality(), &mut assigned);
    }
    assigned.endpoints.retain(|group| !group.lb_endpoints.is_empty());
    // The sum must fit as well.
    let most = u32::MAX / u32::try_from(assigned.endpoints.len().max(1)).unwrap_or(u32::MAX);
    let priorities: BTreeSet<u32> = assigned.endpoints.iter().map(|group| group.priority).collect();
    for group in &mut assigned.endpoints {
        group.priority = u32::try_from(priorities.range(..group.priority).count()).unwrap_or(u32::MAX);
        name_and_weigh(group, most);
    }
    assigned
}

fn name_and_weigh(group: &mut LocalityLbEndpoints, most: u32) {
    group.locality.get_or_insert_default();
    for endpoint in &mut group.lb_endpoints {
        endpoint.metadata = None;
    }
    let weights = group.lb_endpoints.iter().filter_map(|endpoint| endpoint.load_balancing_weight.as_ref());
    let sum = weights.fold(0_u32, |sum, weight| sum.saturating_add(weight.value));
    let weight = group.load_balancing_weight.take().map_or(sum, |weight| weight.value);
    group.load_balancing_weight = Some(u32_value(weight.clamp(1, most)));
}
