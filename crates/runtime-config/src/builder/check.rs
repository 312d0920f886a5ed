//! After each build of few resources, debug builds examine everything and compare the result with the incremental one,
//! so that a dependency that was not recorded shows up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_xds::ResourceType;

use super::names::{Holder, Name, References};
use super::{Builder, Interest, RouteEntry, Source};
use crate::cluster::Discovery;
use crate::demand::Demand;

/// Maximum number of resources: with more, the comparison would dominate.
const MOST_RESOURCES: usize = 200;

impl Builder {
    pub(super) fn check(&mut self) {
        let held = self.clusters.len() + self.endpoints.len() + self.routes.len() + self.listeners.len();
        if held > MOST_RESOURCES {
            return;
        }
        self.check_names();
        self.check_indices();
        let built = Arc::clone(&self.current);
        self.graph.dirty.clusters.extend(self.clusters.keys().cloned());
        self.graph.dirty.routes.extend(self.routes.keys().cloned());
        self.graph.dirty.listeners.extend(self.listeners.keys().cloned());
        self.warm();
        self.publish();
        assert!(Arc::ptr_eq(&built, &self.current), "not followed: {:?}", self.current.changes);
    }

    fn check_names(&self) {
        let mut named: BTreeMap<Name, BTreeSet<Holder>> = BTreeMap::new();
        let mut timeouts = References::new();
        let mut add = |holder: Holder, references: References| {
            for (name, timeout) in references {
                named.entry(name.clone()).or_default().insert(holder.clone());
                let least = timeouts.entry(name).or_insert(timeout);
                *least = least.iter().chain(&timeout).min().copied();
            }
        };
        self.clusters.iter().for_each(|(name, entry)| add(Holder::Cluster(name.clone()), entry.references()));
        let by_name = self.asks_by_name();
        let listeners = self.listeners.iter();
        listeners.for_each(|(name, entry)| add(Holder::Listener(name.clone()), entry.references(by_name)));
        if by_name {
            let tables = self.routes.iter();
            tables.for_each(|(name, entry)| add(Holder::Table(name.clone()), RouteEntry::references(entry)));
        }
        self.for_each_own_host(&mut add);
        let clusters: BTreeSet<Arc<str>> =
            named.keys().filter(|name| name.0 == ResourceType::Cluster).map(|name| name.1.clone()).collect();
        for cluster in clusters {
            let demand = Demand::Cluster(cluster.clone());
            if !self.clusters.contains_key(&cluster) && !self.on_demand.is_absent(&demand) {
                let key = (ResourceType::Endpoint, cluster, Source::Ads);
                timeouts.entry(key.clone()).or_insert(None);
                named.entry(key).or_default().insert(Holder::Likely);
            }
        }
        assert_eq!(self.graph.names.edges(), named, "who names what");
        timeouts.retain(|(kind, name, _), _| !self.is_static_cluster(*kind, name));
        assert_eq!(self.interest(), Interest::of_references(&timeouts), "what is asked for");
        let is_likely = |name: &Name| named.get(name).is_some_and(|holders| holders.iter().eq([&Holder::Likely]));
        timeouts.retain(|name, _| !self.has(name) && !is_likely(name));
        assert_eq!(self.missing(), Interest::of_references(&timeouts), "what is missing");
    }

    fn check_indices(&self) {
        let answered = |name: &Arc<str>| {
            let versions = self.clusters.get(name).into_iter().flat_map(|entry| entry.versions.all());
            versions.into_iter().all(|version| self.cluster_is_answered(&version.compiled))
        };
        let unanswered: BTreeSet<&Arc<str>> = self.clusters.keys().filter(|name| !answered(name)).collect();
        assert_eq!(self.graph.unanswered.iter().collect::<BTreeSet<_>>(), unanswered, "clusters without an answer");
        let is_dns = |name: &&Arc<str>| {
            let newest = self.clusters.get(*name).and_then(|entry| entry.versions.newest());
            newest.is_some_and(|version| {
                matches!(version.compiled.cluster.discovery, Discovery::StrictDns(_) | Discovery::LogicalDns(_))
            })
        };
        let dns: BTreeSet<Arc<str>> = self.clusters.keys().filter(is_dns).cloned().collect();
        assert_eq!(self.graph.dns, dns, "clusters with names to resolve");
        let mut addresses: BTreeMap<_, BTreeSet<Arc<str>>> = BTreeMap::new();
        for (name, entry) in &self.listeners {
            entry.addresses().for_each(|address| _ = addresses.entry(address).or_default().insert(name.clone()));
        }
        let indexed: BTreeMap<_, _> =
            self.graph.addresses.iter().map(|(a, names)| (a.clone(), names.clone())).collect();
        assert_eq!(indexed, addresses, "listeners by address");
    }
}
