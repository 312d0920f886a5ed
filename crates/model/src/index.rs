//! Indexes that save a snapshot's queries from searching all objects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use imbl::OrdMap;

use crate::source::Place;
use crate::{DestinationRule, GatewayRef, List, Ordered, RouteSet, Service, Workload};

/// Objects by host (which may be a wildcard), those of one host in the order of precedence.
pub(crate) type ByHost<T> = OrdMap<Hostname, List<T>>;

/// A place in the list of route sets; one object may appear there in several parts.
pub(crate) type RouteSetRank = (Place, usize);

/// The indexes of one snapshot. They share all unchanged parts with the previous snapshot.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Index {
    pub(crate) route_sets: ByHost<RouteSet>,
    /// By the services that they lead to, in the order of precedence.
    pub(crate) routes_to: ByHost<RouteSet>,
    /// In the order of precedence.
    pub(crate) at_gateway: OrdMap<GatewayRef, Ordered<RouteSetRank, RouteSet>>,
    /// The namespaces that have rules for a host.
    pub(crate) rule_namespaces: OrdMap<Hostname, Arc<[Arc<str>]>>,
    /// By namespace.
    pub(crate) rules: OrdMap<Arc<str>, ByHost<DestinationRule>>,
    /// Workloads by address, sorted by namespace and Pod.
    pub(crate) workloads: OrdMap<IpAddr, List<Workload>>,
    /// Addresses that require mutual TLS: by network, the text of [`evenkeel_base::mutual_addresses`].
    pub(crate) mutual: OrdMap<IpAddr, Arc<str>>,
    /// The Services that are other names of a host, ordered by host.
    pub(crate) aliases: OrdMap<Hostname, List<Service>>,
}

impl Index {
    /// Sets the other names of all hosts; returns whether any has changed.
    pub(crate) fn set_aliases(&mut self, aliases: &BTreeMap<Hostname, List<Service>>) -> bool {
        let same = |old: &List<Service>, new: &List<Service>| {
            old.len() == new.len() && old.iter().zip(new.iter()).all(|(old, new)| Arc::ptr_eq(old, new))
        };
        let is_known = |(host, new)| self.aliases.get(host).is_some_and(|old| same(old, new));
        if self.aliases.len() == aliases.len() && aliases.iter().all(is_known) {
            return false;
        }
        self.aliases = aliases.iter().map(|(host, all)| (host.clone(), all.clone())).collect();
        true
    }

    /// Records whether a namespace has rules for a host.
    pub(crate) fn note_rules(&mut self, namespace: &Arc<str>, host: &Hostname, any: bool) {
        let before = self.rule_namespaces.get(host).map_or(&[][..], |all| all);
        if before.contains(namespace) == any {
            return;
        }
        let mut now: Vec<Arc<str>> = before.iter().filter(|other| *other != namespace).cloned().collect();
        if any {
            now.push(namespace.clone());
            now.sort_unstable();
        }
        if now.is_empty() {
            self.rule_namespaces.remove(host);
        } else {
            self.rule_namespaces.insert(host.clone(), now.into());
        }
    }
}

/// The objects with a host that covers `host`, the most specific first.
pub(crate) fn covering<'a, T>(index: &'a ByHost<T>, host: &Hostname) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
    under_hosts_covering(index, host).flatten()
}

/// The values of the hosts that cover `host`, the most specific first.
pub(crate) fn under_hosts_covering<'a, V: Clone>(
    index: &'a OrdMap<Hostname, V>,
    host: &Hostname,
) -> impl Iterator<Item = &'a V> + use<'a, V> {
    let exact = index.get(host.as_str()).into_iter();
    // Most meshes have few wildcards or none; they sort before all other names.
    let any_wildcard = index.get_min().is_some_and(|(first, _)| first.is_wildcard());
    let wider = any_wildcard.then(|| wildcards_over(host.as_str()));
    let wider: Vec<&V> = wider.into_iter().flatten().filter_map(|pattern| index.get(&*pattern)).collect();
    exact.chain(wider)
}

/// The wildcards other than `host` itself that cover it, the most specific first: of `a.b.c` these are `*.b.c`, `*.c`
/// and `*`.
pub(crate) fn wildcards_over(host: &str) -> impl Iterator<Item = String> + use<> {
    let rest = match host.strip_prefix('*') {
        Some(rest) => rest.strip_prefix('.').unwrap_or_default().to_owned(),
        None => host.to_owned(),
    };
    let is_all = host == "*";
    let dots: Vec<usize> = rest.match_indices('.').map(|(at, _)| at).collect();
    let suffixes = dots.into_iter().filter_map(move |at| rest.get(at..).map(|suffix| format!("*{suffix}")));
    suffixes.chain((!is_all).then(|| "*".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_those_that_cover() {
        let check = |host: &str, expected: &[&str]| {
            assert_eq!(wildcards_over(host).collect::<Vec<_>>(), expected, "{host}");
            let name = Hostname::parse(host).unwrap();
            for wildcard in expected {
                assert!(Hostname::parse(wildcard).unwrap().covers(&name), "{wildcard} over {host}");
            }
        };
        check("a.b.c", &["*.b.c", "*.c", "*"]);
        check("a", &["*"]);
        check("*.b.c", &["*.c", "*"]);
        check("*", &[]);
    }
}
