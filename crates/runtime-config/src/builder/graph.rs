//! Propagates changes: resources that name one that arrived become dirty, and resources that no other names are dropped.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use evenkeel_tls::SdsSecret;
use evenkeel_xds::ResourceType;

use super::names::{Holder, Name, Names, References};
use super::{Awaited, Builder, Reference, RouteEntry, Source, secret_of};
use crate::FastMap;
use crate::address::ListenAddress;
use crate::cluster::Discovery;
use crate::compile::cluster::CompiledCluster;
use crate::demand::Demand;

/// State derived from the resources held, updated with each change of theirs.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub names: Names,
    pub dirty: Dirty,
    pub touched: Touched,
    /// Names no longer referred to: their resources are dropped at the start of the next build.
    pub unreferenced: BTreeSet<Name>,
    /// Clusters with a version that waits for a first response for something it names, as of the last build.
    pub unanswered: HashSet<Arc<str>>,
    /// Listeners with a version that binds a socket, by address.
    pub addresses: FastMap<ListenAddress, BTreeSet<Arc<str>>>,
    /// Clusters whose newest version has names to resolve.
    pub dns: BTreeSet<Arc<str>>,
    pub dns_changed: bool,
}

/// Names that the next build has to examine.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub clusters: BTreeSet<Arc<str>>,
    pub routes: BTreeSet<Arc<str>>,
    pub listeners: BTreeSet<Arc<str>>,
}

/// Names for which the next configuration may differ from the current one.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub clusters: BTreeSet<Arc<str>>,
    pub routes: BTreeSet<Arc<str>>,
    pub listeners: BTreeSet<Arc<str>>,
    pub absent: BTreeSet<Demand>,
}

/// The names in a listener, and the addresses it binds.
#[derive(Debug)]
pub(super) struct ListenerEdges {
    references: References,
    addresses: BTreeSet<ListenAddress>,
}

/// Arrival and removal of resources.
impl Builder {
    /// Called when a resource arrives, times out, or is removed: resources that name it are examined by the next build.
    pub(super) fn arrived(&mut self, kind: ResourceType, name: &Arc<str>) {
        self.refresh(kind, name);
        for holder in self.graph.names.holders(kind, name) {
            let dirty = &mut self.graph.dirty;
            match holder {
                Holder::Cluster(cluster) => _ = dirty.clusters.insert(cluster),
                Holder::Listener(listener) => _ = dirty.listeners.insert(listener),
                Holder::Table(table) => _ = dirty.routes.insert(table),
                // A demand for a virtual host of a table that does not exist counts as answered. Clusters are examined
                // with each build.
                Holder::VirtualHost(table, host) if kind == ResourceType::Route => {
                    let demand = Demand::VirtualHost { table, host };
                    self.refresh(ResourceType::VirtualHost, &demand.name());
                }
                Holder::VirtualHost(..) | Holder::Basis | Holder::Demand | Holder::Likely => {}
            }
        }
    }

    /// Updates whether this name is requested and awaited, from the resources that name it and those that are held.
    pub(super) fn refresh(&mut self, kind: ResourceType, name: &Arc<str>) {
        for source in self.graph.names.sources(kind, name) {
            let key = (kind, name.clone(), source);
            let (asked, answered) = (!self.is_static_cluster(kind, name), self.has(&key));
            self.graph.names.note(&key, asked, answered);
        }
        let all_come = matches!(kind, ResourceType::Cluster | ResourceType::Listener) && !self.asks_by_name();
        if kind != ResourceType::VirtualHost && !all_come && !self.graph.names.has(kind, name) {
            self.graph.unreferenced.insert((kind, name.clone(), Source::Ads));
        }
        if kind == ResourceType::Cluster {
            self.refresh_likely(name);
        }
    }

    /// Endpoints are requested together with their cluster, since their name is nearly always the cluster's.
    fn refresh_likely(&mut self, cluster: &Arc<str>) {
        let names = &mut self.graph.names;
        let likely = names.asks(ResourceType::Cluster, cluster)
            && !self.clusters.contains_key(cluster)
            && !self.on_demand.is_absent(&Demand::Cluster(cluster.clone()));
        let key = (ResourceType::Endpoint, cluster.clone(), Source::Ads);
        if likely {
            names.add(key, Holder::Likely, None)
        } else {
            names.remove(&key, &Holder::Likely, None)
        }
        if self.graph.names.knows(ResourceType::Endpoint, cluster) {
            self.refresh(ResourceType::Endpoint, cluster);
        }
    }

    pub(super) fn is_static_cluster(&self, kind: ResourceType, name: &Arc<str>) -> bool {
        kind == ResourceType::Cluster && self.clusters.get(name).is_some_and(|entry| entry.is_static)
    }

    /// Whether there has been a first response.
    pub(super) fn has(&self, (kind, name, source): &Name) -> bool {
        match kind {
            ResourceType::Endpoint => self.endpoints.contains_key(name),
            ResourceType::Route => self.has_route(name),
            ResourceType::Secret => self.has_secret(&secret(name, source)),
            ResourceType::ExtensionConfig => self.has_extension(name),
            _ => Demand::of(*kind, name).is_some_and(|demand| self.is_answered(&demand)),
        }
    }

    pub(super) fn has_route(&self, name: &Arc<str>) -> bool {
        // If clusters are not requested by name, a table waits for nothing.
        let has_table = |entry: &RouteEntry| entry.table.is_some() || !self.asks_by_name();
        self.routes.get(name).is_some_and(has_table) || self.given_up.contains(&Awaited::Route(name.clone()))
    }

    pub(super) fn has_secret(&self, secret: &SdsSecret) -> bool {
        self.delivered.get(secret).is_some_and(super::HeldSlot::is_filled)
            || self.given_up.contains(&Awaited::Secret(secret.clone()))
    }

    pub(super) fn cluster_is_answered(&self, cluster: &CompiledCluster) -> bool {
        cluster.eds.as_ref().is_none_or(|eds| self.endpoints.contains_key(&eds.name))
            && cluster.secrets.iter().all(|secret| self.has_secret(&secret_of(secret)))
    }
}

/// References between resources.
impl Builder {
    /// Updates the references of `holder`.
    pub(super) fn relink(&mut self, holder: &Holder, before: &References, after: &References) {
        let names = &mut self.graph.names;
        let mut changed = Vec::new();
        for (name, timeout) in before {
            match after.get(name) {
                None => {
                    names.remove(name, holder, *timeout);
                    changed.push(name);
                }
                Some(now) if now != timeout => names.retime(name, *timeout, *now),
                Some(_) => {}
            }
        }
        for (name, timeout) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
            names.add(name.clone(), holder.clone(), *timeout);
            changed.push(name);
        }
        for (kind, name, _) in changed {
            self.refresh(*kind, name);
        }
    }

    pub(super) fn cluster_references(&self, name: &Arc<str>) -> References {
        self.clusters.get(name).map(|entry| entry.references()).unwrap_or_default()
    }

    pub(super) fn relink_cluster(&mut self, name: &Arc<str>, before: &References) {
        let after = self.cluster_references(name);
        self.relink(&Holder::Cluster(name.clone()), before, &after);
        let newest = self.clusters.get(name).and_then(|entry| entry.versions.newest());
        let discovery = newest.map(|version| &version.compiled.cluster.discovery);
        let is_dns = matches!(discovery, Some(Discovery::StrictDns(_) | Discovery::LogicalDns(_)));
        let graph = &mut self.graph;
        let was_dns = if is_dns { !graph.dns.insert(name.clone()) } else { graph.dns.remove(name) };
        graph.dns_changed |= was_dns || is_dns;
    }

    pub(super) fn drop_cluster(&mut self, name: &Arc<str>) {
        let before = self.cluster_references(name);
        if self.clusters.remove(name).is_some() {
            self.relink_cluster(name, &before);
            self.graph.touched.clusters.insert(name.clone());
            self.graph.unanswered.remove(name);
        }
        self.refresh(ResourceType::Cluster, name);
    }

    pub(super) fn table_references(&self, name: &Arc<str>) -> References {
        let by_name = self.asks_by_name();
        self.routes.get(name).filter(|_| by_name).map(RouteEntry::references).unwrap_or_default()
    }

    pub(super) fn relink_table(&mut self, name: &Arc<str>, before: &References) {
        let after = self.table_references(name);
        self.relink(&Holder::Table(name.clone()), before, &after);
        self.graph.touched.routes.insert(name.clone());
    }

    pub(super) fn listener_edges(&self, name: &Arc<str>) -> ListenerEdges {
        let entry = self.listeners.get(name);
        let by_name = self.asks_by_name();
        ListenerEdges {
            references: entry.map(|entry| entry.references(by_name)).unwrap_or_default(),
            addresses: entry.into_iter().flat_map(|entry| entry.addresses()).collect(),
        }
    }

    pub(super) fn relink_listener(&mut self, name: &Arc<str>, before: &ListenerEdges) {
        let after = self.listener_edges(name);
        self.relink(&Holder::Listener(name.clone()), &before.references, &after.references);
        let addresses = &mut self.graph.addresses;
        for gone in before.addresses.difference(&after.addresses) {
            if let Some(names) = addresses.get_mut(gone) {
                names.remove(name);
                if names.is_empty() {
                    addresses.remove(gone);
                }
            }
        }
        for new in after.addresses.difference(&before.addresses) {
            addresses.entry(new.clone()).or_default().insert(name.clone());
        }
    }

    pub(super) fn drop_listener(&mut self, name: &Arc<str>) {
        let before = self.listener_edges(name);
        if self.listeners.remove(name).is_some() {
            self.relink_listener(name, &before);
            self.graph.touched.listeners.insert(name.clone());
        }
        self.refresh(ResourceType::Listener, name);
    }

    /// Drops resources that nothing refers to any more; their subscriptions end with them.
    pub(super) fn forget_unreferenced(&mut self) {
        for (kind, name, _) in std::mem::take(&mut self.graph.unreferenced) {
            let asks = self.graph.names.asks(kind, &name);
            match kind {
                ResourceType::Secret => self.forget_secrets(&name),
                _ if asks => {}
                ResourceType::Endpoint => _ = self.endpoints.remove(&name),
                ResourceType::Route => self.forget_table(&name),
                ResourceType::ExtensionConfig => self.forget_extension(&name),
                ResourceType::Cluster | ResourceType::Listener => self.forget_unnamed(kind, &name),
                ResourceType::VirtualHost | ResourceType::NameTable | ResourceType::ProxyConfig => {}
            }
        }
    }

    fn forget_table(&mut self, name: &Arc<str>) {
        self.given_up.remove(&Awaited::Route(name.clone()));
        let before = self.table_references(name);
        if self.routes.remove(name).is_some() {
            self.relink_table(name, &before);
        }
    }

    /// Secrets are identified by name and server.
    fn forget_secrets(&mut self, name: &Arc<str>) {
        let sources = self.graph.names.sources(ResourceType::Secret, name);
        let named: Vec<SdsSecret> = sources.iter().map(|source| secret(name, source)).collect();
        let keeps = |secret: &SdsSecret| *secret.name != **name || named.contains(secret);
        self.delivered.retain(|secret, _| keeps(secret));
        self.given_up.retain(|awaited| match awaited {
            Awaited::Route(_) | Awaited::Extension(_) => true,
            Awaited::Secret(secret) => keeps(secret),
        });
    }
}

fn secret(name: &Arc<str>, source: &Source) -> SdsSecret {
    secret_of(&Reference { name: name.clone(), source: source.clone(), initial_fetch_timeout: None })
}
