//! The difference between two snapshots, as the keys of the answers that may differ.
//!
//! Unchanged parts are the same allocation in both, so only pointers are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::ProxyPlace;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::spiffe::SpiffeId;
use imbl::ordmap::DiffItem;

use crate::service::{EndpointsByPort, TransportPort, all_take_mtls};
use crate::workload::Pod;
use crate::{DestinationRule, Key, List, RouteSet, Service, Snapshot, Workload};

/// The difference between two snapshots.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Whether the mesh settings changed; then every answer may differ.
    pub mesh: bool,
    /// Pods whose workload was added, removed or changed.
    pub pods: BTreeSet<Pod>,
    /// Addresses that such a workload has or had.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether any Sidecar or ProxyConfig was added, removed or changed.
    pub sidecars: bool,
    /// Hosts of services that were added, removed or changed.
    pub services: BTreeSet<Hostname>,
    /// Hosts (including wildcards) that an added, removed or changed route set has or had.
    pub routed: BTreeSet<Hostname>,
    /// Hosts (including wildcards) of DestinationRules that were added, removed or changed.
    rules: BTreeSet<Hostname>,
    /// Keys that match only themselves.
    exact: BTreeSet<Key>,
}

impl Changes {
    /// Compares two snapshots.
    pub fn between(old: &Snapshot, new: &Snapshot) -> Self {
        let mesh = old.mesh != new.mesh || old.network_gateways != new.network_gateways;
        let mut all = Self { mesh, ..Self::default() };
        for (old, new) in old.services.differing(&new.services) {
            differing(&old, &new).into_iter().for_each(|service| all.add_service(service));
        }
        all.add_endpoints(old, new);
        if !old.index.mutual.ptr_eq(&new.index.mutual) && old.index.mutual != new.index.mutual {
            all.exact.insert(Key::MutualAddresses);
        }
        for item in old.index.aliases.diff(&new.index.aliases) {
            let (DiffItem::Add(host, _) | DiffItem::Remove(host, _) | DiffItem::Update { new: (host, _), .. }) = item;
            all.exact.insert(Key::Aliases(host.clone()));
        }
        for (old, new) in old.destination_rules.differing(&new.destination_rules) {
            differing(&old, &new).into_iter().for_each(|rule| all.add_rule(rule));
        }
        for route_set in old.route_sets.differing(&new.route_sets) {
            all.add_route_set(route_set);
        }
        for workload in old.workloads.differing(&new.workloads) {
            all.add_workload(workload);
        }
        all.sidecars = !differing(&old.sidecars, &new.sidecars).is_empty()
            || !differing(&old.proxy_rules, &new.proxy_rules).is_empty();
        for credential in old.credentials.differing(&new.credentials) {
            all.exact.insert(Key::Credential(credential.namespace.clone(), credential.name.clone()));
        }
        let gateways = differing(&old.gateways, &new.gateways);
        if !gateways.is_empty() {
            all.exact.insert(Key::Gateways);
        }
        if gateways.iter().any(|gateway| gateway.passes_by_service()) {
            all.exact.insert(Key::PassingGateways);
        }
        for policy in differing(&old.peer_authentications, &new.peer_authentications) {
            all.exact.insert(Key::PeerAuthentications(policy.namespace.clone()));
        }
        for policy in differing(&old.authorization_policies, &new.authorization_policies) {
            all.exact.insert(Key::AuthorizationPolicies(policy.namespace.clone()));
            if policy.is_for(ProxyPlace::Outbound) {
                all.exact.insert(Key::OutboundPolicies);
            }
        }
        if !differing(&old.telemetries, &new.telemetries).is_empty() {
            all.exact.insert(Key::Telemetries);
        }
        for one in differing(&old.request_authentications, &new.request_authentications) {
            all.exact.insert(Key::RequestAuthentications(one.namespace.clone()));
        }
        all
    }

    fn add_service(&mut self, service: &Service) {
        self.services.insert(service.host.clone());
        self.exact.insert(Key::Service(service.host.clone()));
        self.exact.extend(wildcards_over(&service.host).map(Key::ServicesUnder));
    }

    fn add_workload(&mut self, workload: &Workload) {
        self.pods.insert((workload.namespace.clone(), workload.pod.clone()));
        self.addresses.extend(&workload.addresses);
    }

    fn add_endpoints(&mut self, old: &Snapshot, new: &Snapshot) {
        // The comparison skips parts that the two maps share.
        for item in old.endpoints.diff(&new.endpoints) {
            let (place, old, new) = match item {
                DiffItem::Add(place, new) => (place, None, Some(&**new)),
                DiffItem::Remove(place, old) => (place, Some(&**old), None),
                DiffItem::Update { old: (_, old), new: (place, new) } => (place, Some(&**old), Some(&**new)),
            };
            let (namespace, host) = place;
            self.exact.insert(Key::Endpoints(namespace.clone(), host.clone()));
            if peers(old) != peers(new) {
                self.exact.insert(Key::Peers(namespace.clone(), host.clone()));
            }
        }
    }

    fn add_rule(&mut self, rule: &DestinationRule) {
        self.exact.insert(Key::DestinationRules(rule.host.clone()));
        self.rules.insert(rule.host.clone());
    }

    fn add_route_set(&mut self, route_set: &RouteSet) {
        for host in &route_set.hosts {
            self.exact.insert(Key::RouteSets(host.value.clone()));
            self.routed.insert(host.value.clone());
        }
        self.exact.extend(route_set.destinations().map(|to| Key::RouteSetsTo(to.host.clone())));
        self.exact.extend(route_set.gateways.iter().cloned().map(Key::RouteSetsAt));
    }

    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        !self.mesh && self.pods.is_empty() && !self.sidecars && self.exact.is_empty()
    }

    /// Whether the answer for this key may have changed.
    pub fn touch(&self, key: &Key) -> bool {
        let covered = |hosts: &BTreeSet<Hostname>, host: &Hostname| wildcards(hosts).any(|wide| wide.covers(host));
        self.exact.contains(key)
            || match key {
                Key::Mesh => self.mesh,
                Key::DestinationRules(host) => covered(&self.rules, host),
                Key::RouteSets(host) => covered(&self.routed, host),
                _ => false,
            }
    }

    /// The keys that stand for themselves.
    pub fn exact(&self) -> impl Iterator<Item = &Key> {
        self.exact.iter()
    }

    /// Whether there is a wildcard among the hosts of changed rules and routes, so that keys which are not among
    /// [`exact`](Self::exact) may be touched.
    pub fn reach_wide(&self) -> bool {
        wildcards(&self.rules).chain(wildcards(&self.routed)).next().is_some()
    }
}

/// The answer for [`Key::Peers`]: identities, and the ports whose endpoints all accept mutual TLS.
fn peers(by_port: Option<&EndpointsByPort>) -> (BTreeSet<&SpiffeId>, BTreeSet<u16>) {
    let (mut identities, mut mutual) = (BTreeSet::new(), BTreeSet::new());
    for (port, endpoints) in by_port.into_iter().flat_map(EndpointsByPort::iter) {
        identities.extend(endpoints.iter().filter_map(|endpoint| endpoint.identity.as_ref()));
        if let TransportPort::Tcp(port) = port {
            mutual.extend(all_take_mtls(endpoints).then_some(*port));
        }
    }
    (identities, mutual)
}

/// The wildcards that cover a host, itself included if it is one: of `a.b.c` these are `*.b.c`, `*.c` and `*`.
fn wildcards_over(host: &Hostname) -> impl Iterator<Item = Hostname> {
    let dots = host.as_str().match_indices('.').filter_map(|(at, _)| host.as_str().get(at..));
    let suffixes = dots.map(|suffix| format!("*{suffix}")).chain(["*".to_owned()]);
    suffixes.filter_map(|wildcard| Hostname::parse(&wildcard).ok())
}

/// `*` sorts before all other first characters of hosts.
fn wildcards(hosts: &BTreeSet<Hostname>) -> impl Iterator<Item = &Hostname> {
    hosts.iter().take_while(|host| host.is_wildcard())
}

/// The values that are in only one of two lists, or in another order, since order is precedence.
fn differing<'a, T>(old: &'a List<T>, new: &'a List<T>) -> Vec<&'a T> {
    if old.same(new) {
        return Vec::new();
    }
    let (old, new): (&[Arc<T>], &[Arc<T>]) = (old, new);
    let same = |(a, b): &(&Arc<T>, &Arc<T>)| Arc::ptr_eq(a, b);
    let start = old.iter().zip(new).take_while(same).count();
    let (old, new) = (old.get(start..).unwrap_or_default(), new.get(start..).unwrap_or_default());
    let end = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let old = old.get(..old.len() - end).unwrap_or_default();
    let new = new.get(..new.len() - end).unwrap_or_default();

    let places: BTreeMap<*const T, usize> = new.iter().map(Arc::as_ptr).zip(0..).collect();
    let mut kept: BTreeSet<*const T> = BTreeSet::new();
    let mut last = None;
    for item in old {
        // If values have swapped places, those that moved back count as changed.
        let place = places.get(&Arc::as_ptr(item)).copied();
        if place.is_some() && place > last {
            last = place;
            kept.insert(Arc::as_ptr(item));
        }
    }
    let both = old.iter().chain(new).map(AsRef::as_ref);
    both.filter(|item| !kept.contains(&std::ptr::from_ref(*item))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_differ_in_what_is_not_in_both_or_moved() {
        let items: Vec<Arc<u32>> = (0..6).map(Arc::new).collect();
        let list = |places: &[usize]| places.iter().map(|at| items[*at].clone()).collect::<List<_>>();
        let check = |old: &[usize], new: &[usize], expected: &[u32]| {
            let (old, new) = (list(old), list(new));
            let found: BTreeSet<u32> = differing(&old, &new).into_iter().copied().collect();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{old:?} {new:?}");
        };
        check(&[], &[], &[]);
        check(&[0, 1, 2], &[0, 1, 2], &[]);
        check(&[0, 1, 2], &[0, 2], &[1]);
        check(&[0, 2], &[0, 1, 2], &[1]);
        check(&[0, 1, 2], &[0, 3, 2], &[1, 3]);
        check(&[0, 1], &[1, 0], &[1]);
        check(&[0, 1, 2, 3], &[0, 2, 1, 3], &[2]);
        check(&[0, 1, 2, 3, 4], &[5, 4, 2], &[0, 1, 3, 4, 5]);
    }
}
