//! The versions held of one listener or cluster: the active one and the warming one.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_xds::{Any, ResourceType};

use super::endpoints::{fit, resolve};
use super::names::References;
use super::{Held, Reference, Source};
use crate::address::ListenAddress;
use crate::cluster::Discovery;
use crate::compile::cluster::CompiledCluster;
use crate::compile::endpoint::Assignment;
use crate::compile::listener::CompiledListener;
use crate::demand::DEFAULT_HOLD;
use crate::listener::Listener;
use crate::{Cluster, FastMap};

/// A resource as received and compiled.
#[derive(Debug)]
pub(super) struct Version<T> {
    pub resource: Any,
    pub compiled: Arc<T>,
}

/// The active version and the warming one.
#[derive(Debug)]
pub(super) struct Versions<T> {
    active: Option<Version<T>>,
    warming: Option<Version<T>>,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Self { active: None, warming: None }
    }
}

impl<T> Versions<T> {
    /// Sets a new version, which replaces one that is still warming.
    pub fn set(&mut self, version: Version<T>) {
        self.warming = Some(version);
    }

    pub fn all(&self) -> impl Iterator<Item = &Version<T>> {
        self.active.iter().chain(&self.warming)
    }

    /// Whether there is a version that is not active yet.
    pub fn is_warming(&self) -> bool {
        self.warming.is_some()
    }

    pub fn newest(&self) -> Option<&Version<T>> {
        self.warming.as_ref().or(self.active.as_ref())
    }

    pub fn is_newest(&self, resource: &Any) -> bool {
        self.newest().is_some_and(|version| version.resource == *resource)
    }

    pub fn held(&self, is_static: bool) -> impl Iterator<Item = Held<'_>> {
        let active = self.active.iter().map(|version| (version, true));
        let warming = self.warming.iter().map(|version| (version, false));
        active.chain(warming).map(move |(version, active)| Held { resource: &version.resource, active, is_static })
    }

    /// Activates the warming version when it is ready.
    fn advance(&mut self, ready: impl Fn(&Version<T>) -> bool) {
        if self.warming.as_ref().is_some_and(ready) {
            self.active = self.warming.take();
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ListenerEntry {
    pub is_static: bool,
    pub versions: Versions<CompiledListener>,
    pub serving: Option<Arc<Listener>>,
}

impl ListenerEntry {
    /// Returns the names in its versions. `by_name`: including clusters and listeners, which are requested by name.
    pub fn references(&self, by_name: bool) -> References {
        let mut references = References::new();
        for version in self.versions.all() {
            let CompiledListener { listener, references: named, .. } = &*version.compiled;
            name_all(&mut references, ResourceType::Route, &named.routes);
            name_all(&mut references, ResourceType::Secret, &named.secrets);
            let extensions = named.extensions.iter().map(|used| &used.reference);
            name_all(&mut references, ResourceType::ExtensionConfig, extensions);
            if by_name {
                name_on_demand(&mut references, ResourceType::Listener, &listener.companions);
                name_on_demand(&mut references, ResourceType::Cluster, listener.clusters());
            }
        }
        references
    }

    /// The addresses where its versions have sockets.
    pub fn addresses(&self) -> impl Iterator<Item = ListenAddress> {
        let listeners = self.versions.all().map(|version| &version.compiled.listener);
        listeners.filter(|listener| listener.bind_to_port).flat_map(|listener| listener.addresses().cloned())
    }

    pub fn advance(&mut self, ready: impl Fn(&Version<CompiledListener>) -> bool) {
        self.versions.advance(ready);
        self.serving = self.versions.active.as_ref().map(|version| version.compiled.listener.clone());
    }
}

#[derive(Debug, Default)]
pub(super) struct ClusterEntry {
    pub is_static: bool,
    pub versions: Versions<CompiledCluster>,
    /// Resolved addresses, by host name.
    resolved: FastMap<Box<str>, Vec<IpAddr>>,
    /// The assignment with names replaced by `resolved`; `None`: to be computed.
    resolved_assignment: Option<(Arc<CompiledCluster>, Arc<Assignment>)>,
    built: Option<Built>,
}

/// A cluster with its endpoints, and its inputs.
#[derive(Debug)]
struct Built {
    from: Arc<CompiledCluster>,
    assignment: Arc<Assignment>,
    cluster: Arc<Cluster>,
}

impl ClusterEntry {
    /// Returns the names in its versions.
    pub fn references(&self) -> References {
        let mut references = References::new();
        for version in self.versions.all() {
            name_all(&mut references, ResourceType::Endpoint, &version.compiled.eds);
            name_all(&mut references, ResourceType::Secret, &version.compiled.secrets);
        }
        references
    }

    pub fn serving(&self) -> Option<Arc<Cluster>> {
        self.built.as_ref().map(|built| built.cluster.clone())
    }

    /// Sets the addresses of a name; true if they changed.
    pub fn set_resolved(&mut self, host: &str, addresses: &[IpAddr]) -> bool {
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        let is_news = self.resolved.get(host) != Some(&addresses);
        if is_news {
            self.resolved.insert(host.into(), addresses);
            self.resolved_assignment = None;
        }
        is_news
    }

    /// Activates the warming version when it is ready, and gives the active one its current endpoints.
    pub fn advance(
        &mut self,
        ready: impl Fn(&Version<CompiledCluster>) -> bool,
        endpoints: &FastMap<Arc<str>, Arc<Assignment>>,
    ) {
        let resolved = &self.resolved;
        self.versions.advance(|version| ready(version) && is_resolved(&version.compiled, resolved));
        let versions = &self.versions;
        self.resolved.retain(|host, _| versions.all().any(|version| version.compiled.names(host)));
        let Some(active) = self.versions.active.as_ref().map(|version| version.compiled.clone()) else { return };
        let assignment = self.assignment(&active, endpoints);
        let unchanged =
            |built: &Built| Arc::ptr_eq(&built.from, &active) && Arc::ptr_eq(&built.assignment, &assignment);
        if self.built.as_ref().is_some_and(unchanged) {
            return;
        }
        let before = self.built.as_ref().map(|built| &built.cluster.endpoints);
        let mut cluster = active.cluster.clone();
        cluster.endpoints = fit(&cluster, &assignment, before);
        let cluster = match self.built.take() {
            // Endpoints received again unchanged have no effect.
            Some(built)
                if Arc::ptr_eq(&built.from, &active) && Arc::ptr_eq(&built.cluster.endpoints, &cluster.endpoints) =>
            {
                built.cluster
            }
            _ => Arc::new(cluster),
        };
        self.built = Some(Built { from: active, assignment, cluster });
    }

    fn assignment(
        &mut self,
        active: &Arc<CompiledCluster>,
        endpoints: &FastMap<Arc<str>, Arc<Assignment>>,
    ) -> Arc<Assignment> {
        match &active.cluster.discovery {
            Discovery::Eds(name) => endpoints.get(name).cloned().unwrap_or_default(),
            Discovery::Static | Discovery::OriginalDst(_) | Discovery::DynamicForwardProxy(_) => {
                active.assignment.clone()
            }
            Discovery::StrictDns(_) | Discovery::LogicalDns(_) => {
                if let Some((of, assignment)) = &self.resolved_assignment
                    && Arc::ptr_eq(of, active)
                {
                    return assignment.clone();
                }
                let first_only = matches!(active.cluster.discovery, Discovery::LogicalDns(_));
                let assignment = Arc::new(resolve(&active.assignment, &self.resolved, first_only));
                self.resolved_assignment = Some((active.clone(), assignment.clone()));
                assignment
            }
        }
    }
}

impl CompiledCluster {
    fn names(&self, host: &str) -> bool {
        self.assignment.targets.iter().any(|target| *target.host == *host)
    }
}

/// Whether every name was resolved, even to no address.
fn is_resolved(compiled: &CompiledCluster, resolved: &FastMap<Box<str>, Vec<IpAddr>>) -> bool {
    compiled.assignment.targets.iter().all(|target| resolved.contains_key(&*target.host))
}

/// Adds references that have a source.
fn name_all<'r>(references: &mut References, kind: ResourceType, named: impl IntoIterator<Item = &'r Reference>) {
    for Reference { name, source, initial_fetch_timeout } in named {
        references.entry((kind, name.clone(), source.clone())).or_insert(*initial_fetch_timeout);
    }
}

/// Adds references that are requested on demand.
pub(super) fn name_on_demand<'n>(
    references: &mut References,
    kind: ResourceType,
    names: impl IntoIterator<Item = &'n Arc<str>>,
) {
    references.extend(names.into_iter().map(|name| ((kind, name.clone(), Source::Ads), Some(DEFAULT_HOLD))));
}
