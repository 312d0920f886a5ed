//! Removed clusters and endpoints that are still in use: each is dropped once the resources that use it have been replaced.
//!
//! A server removes a cluster once its client has accepted that nothing names it any more. A virtual host, table or
//! listener that was accepted may still wait for another cluster, though, and the version before it serves until then.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_xds::ResourceType;

use super::names::Holder;
use super::{Builder, RouteEntry};
use crate::compile::endpoint::Assignment;
use crate::demand::Demand;

/// The removals that are postponed.
#[derive(Debug, Default)]
pub(super) struct Removals(BTreeSet<(ResourceType, Arc<str>)>);

impl Removals {
    /// The resource exists again.
    pub fn cancel(&mut self, kind: ResourceType, name: &str) {
        if !self.0.is_empty() {
            self.0.remove(&(kind, name.into()));
        }
    }
}

impl Builder {
    /// Removes a cluster or endpoints, at once or when no active resource uses them any more.
    pub(super) fn remove(&mut self, kind: ResourceType, name: Arc<str>) {
        if self.is_used_until_replaced(kind, &name) {
            _ = self.removals.0.insert((kind, name))
        } else {
            self.remove_now(kind, &name)
        }
    }

    /// Removes postponed resources that are not used any more; returns true if there were any.
    pub(super) fn remove_postponed(&mut self) -> bool {
        let mut removed = false;
        for (kind, name) in std::mem::take(&mut self.removals.0) {
            if self.is_used_until_replaced(kind, &name) {
                self.removals.0.insert((kind, name));
            } else {
                self.remove_now(kind, &name);
                removed = true;
            }
        }
        removed
    }

    fn remove_now(&mut self, kind: ResourceType, name: &Arc<str>) {
        match kind {
            ResourceType::Cluster => {
                self.drop_cluster(name);
                self.note_absent(Demand::Cluster(name.clone()));
            }
            _ => {
                if let Some(assigned) = self.endpoints.get_mut(name) {
                    *assigned = Arc::new(Assignment::default());
                    self.arrived(kind, name);
                }
            }
        }
    }

    fn is_used_until_replaced(&self, kind: ResourceType, name: &Arc<str>) -> bool {
        // Otherwise what arrives waits for no cluster.
        if !self.asks_by_name() {
            return false;
        }
        match kind {
            ResourceType::Cluster => self.cluster_is_used_until_replaced(name),
            _ => self.graph.names.holders(kind, name).into_iter().any(|holder| match holder {
                Holder::Cluster(cluster) => self.cluster_is_used_until_replaced(&cluster),
                _ => false,
            }),
        }
    }

    /// Whether a virtual host, table or listener that serves, and whose next version waits, uses the cluster.
    fn cluster_is_used_until_replaced(&self, cluster: &Arc<str>) -> bool {
        let replaced = |entry: &&RouteEntry| entry.warming.is_some();
        let tables = self.routes.values().filter(replaced).filter_map(|entry| entry.table.as_ref());
        self.hosts_until_replaced().any(|host| host.clusters().any(|name| name == cluster))
            || tables.flat_map(|table| table.clusters()).any(|name| name == cluster)
            || self
                .listeners
                .values()
                .filter(|entry| entry.versions.is_warming())
                .filter_map(|entry| entry.serving.as_ref())
                .any(|listener| listener.clusters().any(|name| name == cluster))
    }
}
