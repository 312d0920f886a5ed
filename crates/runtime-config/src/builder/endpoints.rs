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

/// The most further addresses of a host that are tried.
const MAX_FURTHER_ADDRESSES: usize = 8;

/// Replaces names by their addresses. A LOGICAL_DNS cluster has one host, at the first address; the others are further ones
/// of it.
pub(super) fn resolve(names: &Assignment, resolved: &FastMap<Box<str>, Vec<IpAddr>>, first_only: bool) -> Assignment {
    let mut result = Assignment { policy: names.policy, ..Assignment::default() };
    for (endpoint, target) in names.endpoints.iter().zip(&names.targets) {
        let addresses = resolved.get(&*target.host).map(Vec::as_slice).unwrap_or_default();
        let limit = if first_only { 1 } else { addresses.len() };
        let socket = |address: &IpAddr| SocketAddr::new(canonical(*address), target.port);
        let further = if first_only { alternating(addresses.iter().map(socket).collect()) } else { Vec::new() };
        result.endpoints.extend(addresses.iter().take(limit).map(|address| Endpoint {
            address: EndpointAddress::Socket(socket(address)),
            further: further.clone(),
            ..endpoint.clone()
        }));
    }
    result
}

/// All addresses but the first, in the order in which they are tried: the families take turns (RFC 8305 section 4).
fn alternating(all: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some((first, rest)) = all.split_first() else { return Vec::new() };
    let (same, other): (Vec<SocketAddr>, Vec<_>) =
        rest.iter().copied().partition(|address| address.is_ipv4() == first.is_ipv4());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut found: Vec<SocketAddr> = Vec::with_capacity(rest.len().min(MAX_FURTHER_ADDRESSES));
    while found.len() < MAX_FURTHER_ADDRESSES {
        let pair = [other.next(), same.next()];
        if pair.iter().all(Option::is_none) {
            break;
        }
        found.extend(pair.into_iter().flatten());
    }
    found.truncate(MAX_FURTHER_ADDRESSES);
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_of_further_addresses_take_turns() {
        let check = |all: &str, expected: &str| {
            let read =
                |text: &str| text.split_whitespace().map(|a| format!("{a}:1").parse().unwrap()).collect::<Vec<_>>();
            assert_eq!(alternating(read(all)), read(expected), "{all}");
        };
        check("", "");
        check("10.0.0.1", "");
        check("10.0.0.1 10.0.0.2 [fd00::1]", "[fd00::1] 10.0.0.2");
        check("[fd00::1] [fd00::2] [fd00::3] 10.0.0.1", "10.0.0.1 [fd00::2] [fd00::3]");
        let many: Vec<String> = (1..20).map(|at| format!("10.0.0.{at}")).collect();
        check(&many.join(" "), &many[1..=MAX_FURTHER_ADDRESSES].join(" "));
    }
}
