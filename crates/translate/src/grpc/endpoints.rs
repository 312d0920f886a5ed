//! The endpoints of a gRPC client's cluster. gRPC refuses a locality without a name and a repeated address, and sends
//! nothing to a locality without weight (gRFC A27).

use std::collections::{BTreeSet, HashMap, HashSet};

use evenkeel_model::labels::selects;
use evenkeel_model::service::ServicePort;
use evenkeel_model::{Endpoint, EndpointAddress, Labels, Service, TrafficPolicy};

use crate::context::Context;
use crate::endpoints::{add_weight, assignment};
use crate::failover::EndpointRanking;
use crate::load_balancer;
use crate::networks;
use crate::pb::config::endpoint::lb_endpoint::HostIdentifier;
use crate::pb::config::endpoint::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use crate::pb::core::address;
use crate::pb::core::socket_address::PortSpecifier;
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
    // Another network may have the same addresses.
    let distinct = ready.filter(|endpoint| match endpoint.address {
        EndpointAddress::Ip(address) => {
            taken.insert((address, endpoint.port, endpoint.network.clone(), endpoint.cluster.clone()))
        }
        EndpointAddress::Name(_) | EndpointAddress::Unix(_) => false,
    });
    let reached = networks::reached(context, distinct);
    let ranking = EndpointRanking::new(context, service, policy);
    let mut assigned = assignment(context, cluster, reached.iter().map(AsRef::as_ref), &ranking);
    join_repeated(&mut assigned);
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

/// Keeps each address once, in the nearest of its localities, with the shares that it has in localities of the same priority: a gateway
/// stands for the endpoints of several ones.
fn join_repeated(assigned: &mut ClusterLoadAssignment) {
    let mut order: Vec<usize> = (0..assigned.endpoints.len()).collect();
    order.sort_by_key(|at| assigned.endpoints[*at].priority);
    let mut places: HashMap<(String, u32), (usize, usize)> = HashMap::new();
    for at in order {
        let priority = assigned.endpoints[at].priority;
        for endpoint in std::mem::take(&mut assigned.endpoints[at].lb_endpoints) {
            let Some(address) = socket_address(&endpoint) else { continue };
            match places.get(&address) {
                None => {
                    let list = &mut assigned.endpoints[at].lb_endpoints;
                    places.insert(address, (at, list.len()));
                    list.push(endpoint);
                }
                Some(&(group, index)) if assigned.endpoints[group].priority == priority => {
                    let more = endpoint.load_balancing_weight.map_or(1, |weight| weight.value);
                    add_weight(&mut assigned.endpoints[group].lb_endpoints[index], more);
                }
                Some(_) => {}
            }
        }
    }
}

fn socket_address(endpoint: &LbEndpoint) -> Option<(String, u32)> {
    let Some(HostIdentifier::Endpoint(at)) = &endpoint.host_identifier else { return None };
    match at.address.as_ref()?.address.as_ref()? {
        address::Address::SocketAddress(socket) => match socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) => Some((socket.address.clone(), port)),
            _ => None,
        },
        _ => None,
    }
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
