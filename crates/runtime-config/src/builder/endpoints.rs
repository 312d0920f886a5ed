//! Endpoints of a cluster: names are replaced by addresses, transports are matched, unchanged ones are shared with the
//! previous configuration.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::FastMap;
use crate::address::EndpointAddress;
use crate::cluster::{Cluster, Endpoint, EndpointSet};
use crate::compile::cluster::fit_transport;
use crate::compile::endpoint::{Assignment, Policy};
use crate::filter_chain_match::canonical;

/// Replaces names by their addresses. A LOGICAL_DNS cluster has one host, at the first address.
pub(super) fn resolve(names: &Assignment, resolved: &FastMap<Box<str>, Vec<IpAddr>>, first_only: bool) -> Assignment {
    let mut result = Assignment { policy: names.policy, ..Assignment::default() };
    for (endpoint, target) in names.endpoints.iter().zip(&names.targets) {
        let addresses = resolved.get(&*target.host).map(Vec::as_slice).unwrap_or_default();
        let limit = if first_only { 1 } else { addresses.len() };
        result.endpoints.extend(addresses.iter().take(limit).map(|address| Endpoint {
            address: EndpointAddress::Socket(SocketAddr::new(canonical(*address), target.port)),
            ..endpoint.clone()
        }));
    }
    result
}

/// The endpoint set of a cluster. Endpoints equal to previous ones are the same `Arc`s; so is the set if all are.
pub(super) fn fit(cluster: &Cluster, assigned: &Assignment, before: Option<&Arc<EndpointSet>>) -> Arc<EndpointSet> {
    let mut known: FastMap<&EndpointAddress, &Arc<Endpoint>> = FastMap::default();
    for endpoint in before.iter().flat_map(|set| &set.hosts) {
        known.insert(&endpoint.address, endpoint);
    }
    let hosts: Vec<Arc<Endpoint>> = assigned
        .endpoints
        .iter()
        .map(|endpoint| {
            let fitted = Endpoint { transport_index: fit_transport(cluster, endpoint), ..endpoint.clone() };
            match known.get(&fitted.address) {
                Some(old) if ***old == fitted => (*old).clone(),
                _ => Arc::new(fitted),
            }
        })
        .collect();
    let Policy { overprovisioning_percent, weighted_priority_health, drop_overload_ppm } = assigned.policy;
    let same_policy = |set: &EndpointSet| {
        set.overprovisioning_percent == overprovisioning_percent
            && set.weighted_priority_health == weighted_priority_health
            && set.drop_overload_ppm == drop_overload_ppm
    };
    match before {
        Some(set) if same_policy(set) && same_hosts(&set.hosts, &hosts) => set.clone(),
        _ => Arc::new(EndpointSet { hosts, overprovisioning_percent, weighted_priority_health, drop_overload_ppm }),
    }
}

fn same_hosts(a: &[Arc<Endpoint>], b: &[Arc<Endpoint>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
