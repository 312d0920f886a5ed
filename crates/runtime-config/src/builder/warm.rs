//! Builds the next configuration: examines dirty resources, and publishes what changed.

use std::sync::Arc;

use evenkeel_xds::ResourceType;

use super::Builder;
use crate::{Changes, Config, PersistentMap};

impl Builder {
    /// The next configuration. The same `Arc` as before if nothing changed.
    pub fn build(&mut self) -> Arc<Config> {
        self.forget_unreferenced();
        self.warm();
        if self.remove_postponed() {
            self.warm();
        }
        if self.admit_contenders() {
            self.warm();
        }
        self.publish();
        #[cfg(debug_assertions)]
        self.check();
        self.current.clone()
    }

    /// Activates resources whose dependencies have arrived.
    pub(super) fn warm(&mut self) {
        for name in std::mem::take(&mut self.graph.dirty.clusters) {
            self.warm_cluster(&name);
        }
        for name in std::mem::take(&mut self.graph.dirty.routes) {
            self.warm_table(&name);
        }
        self.grow();
        for name in std::mem::take(&mut self.graph.dirty.listeners) {
            self.warm_listener(&name);
        }
    }

    fn warm_cluster(&mut self, name: &Arc<str>) {
        // Only a version that replaces another changes what is named.
        let warming = self.clusters.get(name).is_some_and(|entry| entry.versions.is_warming());
        let before = warming.then(|| self.cluster_references(name));
        let Some(mut entry) = self.clusters.remove(name) else { return };
        let served = entry.serving().is_some();
        entry.advance(|version| self.cluster_is_answered(&version.compiled), &self.endpoints);
        let serves = entry.serving().is_some();
        let answered = entry.versions.all().all(|version| self.cluster_is_answered(&version.compiled));
        self.clusters.insert(name.clone(), entry);
        if answered {
            self.graph.unanswered.remove(name)
        } else {
            self.graph.unanswered.insert(name.clone())
        };
        if let Some(before) = before {
            self.relink_cluster(name, &before);
        }
        self.graph.touched.clusters.insert(name.clone());
        if serves != served {
            self.arrived(ResourceType::Cluster, name);
        }
    }

    fn warm_listener(&mut self, name: &Arc<str>) {
        let before = self.listener_edges(name);
        let Some(mut entry) = self.listeners.remove(name) else { return };
        let served = entry.serving.is_some();
        entry.advance(|version| {
            let references = &version.compiled.references;
            references.routes.iter().all(|route| self.has_route(&route.name))
                && self.has_clusters_of(&version.compiled)
                && references.secrets.iter().all(|secret| self.has_secret(&super::secret_of(secret)))
                && references.extensions.iter().all(|used| !used.awaited || self.has_extension(&used.reference.name))
        });
        let serves = entry.serving.is_some();
        self.listeners.insert(name.clone(), entry);
        self.relink_listener(name, &before);
        self.graph.touched.listeners.insert(name.clone());
        if serves != served {
            self.refresh(ResourceType::Listener, name);
        }
    }

    /// Accepts listeners that were rejected for an address that is free by now; true if there were any.
    fn admit_contenders(&mut self) -> bool {
        let mut admitted = false;
        for contender in self.contenders.take() {
            if contender.addresses.iter().any(|address| self.holder_of(address, &contender.name).is_some()) {
                self.contenders.add(contender);
            } else if self.listener(&contender.resource, false).is_ok() {
                self.contenders.note_admitted(contender.name);
                admitted = true;
            }
        }
        admitted
    }

    /// Publishes touched resources in the configuration. Those that turn out to be unchanged are not reported as changes.
    pub(super) fn publish(&mut self) {
        let touched = std::mem::take(&mut self.graph.touched);
        let (next, current) = (&mut self.next, &self.current);
        for name in &touched.clusters {
            put(&mut next.clusters, name, self.clusters.get(name).and_then(|entry| entry.serving()));
        }
        for name in &touched.routes {
            put(&mut next.routes, name, self.routes.get(name).and_then(|entry| entry.table.clone()));
        }
        for name in &touched.listeners {
            put(&mut next.listeners, name, self.listeners.get(name).and_then(|entry| entry.serving.clone()));
        }
        next.absent = self.on_demand.absent().clone();
        next.by_name = self.on_demand.asks_by_name();
        next.changes = Changes {
            listeners: changed(touched.listeners, &current.listeners, &next.listeners),
            routes: changed(touched.routes, &current.routes, &next.routes),
            clusters: changed(touched.clusters, &current.clusters, &next.clusters),
        };
        let is_other = |demand| current.absent.contains(demand) != next.absent.contains(demand);
        let others = touched.absent.iter().any(is_other) || next.by_name != current.by_name;
        if others || !next.changes.is_empty() {
            next.generation = current.generation + 1;
            self.current = Arc::new(next.clone());
        }
    }
}

fn put<T>(map: &mut PersistentMap<Arc<str>, Arc<T>>, name: &Arc<str>, value: Option<Arc<T>>) {
    match value {
        Some(value) => _ = map.insert(name.clone(), value),
        None if map.contains_key(name) => _ = map.remove(name),
        None => {}
    }
}

/// The names whose values differ from before.
fn changed<T>(
    names: impl IntoIterator<Item = Arc<str>>,
    before: &PersistentMap<Arc<str>, Arc<T>>,
    now: &PersistentMap<Arc<str>, Arc<T>>,
) -> Vec<Arc<str>> {
    let is_same = |name: &Arc<str>| match (before.get(name), now.get(name)) {
        (Some(before), Some(now)) => Arc::ptr_eq(before, now),
        (before, now) => before.is_none() && now.is_none(),
    };
    names.into_iter().filter(|name| !is_same(name)).collect()
}
