//! Resources requested by name when they are first needed: virtual hosts of growing tables and, in a proxy that learns
//! its scope, also listeners and clusters.
//!
//! A resource is published when everything it names had a response: a virtual host joins its table when every cluster
//! its routes may pick exists, or is known not to. So whatever is found in a [`Config`](crate::Config) leads to the
//! same decisions as the complete configuration would.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::route::v3 as route_pb;
use evenkeel_xds::{Any, ResourceType};
use prost::Message as _;

use super::entry::name_on_demand;
use super::names::{Holder, Name, References};
use super::{Awaited, Builder, RouteEntry, Source, check, decode};
use crate::compile::Cx;
use crate::compile::listener::CompiledListener;
use crate::compile::route::{max_direct_response_body_bytes, own_virtual_host};
use crate::demand::{DEFAULT_HOLD, Demand, split_virtual_host};
use crate::growing::Answer;
use crate::listener::Terminal;
use crate::rejection::{Problem, Rejection};
use crate::route::VirtualHost;
use crate::{FastMap, Listener, PersistentSet};

/// State of the resources that are requested by name.
#[derive(Debug, Default)]
pub(super) struct OnDemand {
    /// Listeners and clusters are requested by name; otherwise their servers send all of them.
    by_name: bool,
    /// Listeners requested from the start.
    basis: Vec<Arc<str>>,
    demanded: BTreeSet<Demand>,
    /// Listeners and clusters that do not exist, by the server's response or because none came in time.
    absent: PersistentSet<Demand>,
    tables: FastMap<Arc<str>, FastMap<Arc<str>, OnDemandHost>>,
    /// Virtual hosts that may have something to publish, by table and host.
    pending: Vec<(Arc<str>, Arc<str>)>,
}

/// A virtual host received on its own, by the name it was received under.
#[derive(Debug, Default)]
struct OnDemandHost {
    /// The resource last received; `None`: it does not exist.
    resource: Option<Any>,
    newest: Option<Arc<VirtualHost>>,
    /// The published state in the table; `None`: nothing has been published yet.
    published: Option<Option<Arc<VirtualHost>>>,
    /// Whether its fetch timed out without a response.
    given_up: bool,
}

impl OnDemand {
    pub fn asks_by_name(&self) -> bool {
        self.by_name
    }

    /// Listeners and clusters that do not exist, for the configuration.
    pub fn absent(&self) -> &PersistentSet<Demand> {
        &self.absent
    }

    pub fn is_absent(&self, demand: &Demand) -> bool {
        self.absent.contains(demand)
    }
}

impl Builder {
    /// From now on listeners and clusters are requested by name: `basis` first, others as they are demanded or named.
    /// Call before any resource is set.
    pub fn ask_by_name(&mut self, basis: impl IntoIterator<Item = Arc<str>>) {
        self.on_demand.by_name = true;
        for name in basis {
            self.graph.names.add((ResourceType::Listener, name.clone(), Source::Ads), Holder::Basis, None);
            self.refresh(ResourceType::Listener, &name);
            self.on_demand.basis.push(name);
        }
    }

    /// Demands a resource. True if it was not demanded before.
    pub fn demand(&mut self, demand: Demand) -> bool {
        let new = self.on_demand.demanded.insert(demand.clone());
        if new {
            for (name, holder) in demanded_names(&demand) {
                self.graph.names.add(name.clone(), holder, Some(DEFAULT_HOLD));
                self.refresh(name.0, &name.1);
            }
        }
        new
    }

    /// The demands that were not withdrawn.
    pub fn demanded(&self) -> &BTreeSet<Demand> {
        &self.on_demand.demanded
    }

    /// Withdraws a demand.
    pub fn withdraw(&mut self, demand: &Demand) {
        if !self.on_demand.demanded.remove(demand) {
            return;
        }
        match demand {
            Demand::VirtualHost { table, host } => {
                let before = self.host_references(table, host);
                if let Some(hosts) = self.on_demand.tables.get_mut(table) {
                    hosts.remove(host);
                }
                self.relink_host(table, host, &before);
                if let Some(growing) = self.routes.get_mut(table).and_then(RouteEntry::growing) {
                    growing.answers.remove(host.as_bytes());
                    self.graph.touched.routes.insert(table.clone());
                }
            }
            // The next build determines whether something else still names it.
            Demand::Listener(_) | Demand::Cluster(_) => {}
        }
        for (name, holder) in demanded_names(demand) {
            self.graph.names.remove(&name, &holder, Some(DEFAULT_HOLD));
            self.refresh(name.0, &name.1);
        }
        // If something else still names it, the server does not report again that it does not exist, so `absent` is kept.
        if !self.graph.names.asks(demand.kind(), &demand.name()) {
            self.set_absent(demand, false);
        }
    }

    /// Whether a configuration built now has a response to this demand. If the route table does not exist, neither do
    /// its hosts: demands for hosts of a removed table must not wait.
    pub fn is_answered(&self, demand: &Demand) -> bool {
        match demand {
            Demand::VirtualHost { table, host } => {
                self.on_demand_host(table, host).is_some_and(|own| own.published.is_some()) || self.lacks_table(table)
            }
            Demand::Listener(name) => {
                self.listeners.get(name).is_some_and(|entry| entry.serving.is_some())
                    || self.on_demand.absent.contains(demand)
            }
            Demand::Cluster(name) => {
                self.clusters.get(name).is_some_and(|entry| entry.serving().is_some())
                    || self.on_demand.absent.contains(demand)
            }
        }
    }

    /// Whether the resource exists; `false` also while there is no response.
    pub fn is_present(&self, demand: &Demand) -> bool {
        match demand {
            Demand::VirtualHost { table, host } => {
                self.on_demand_host(table, host).is_some_and(|own| own.newest.is_some())
            }
            Demand::Listener(name) => self.listeners.contains_key(name),
            Demand::Cluster(name) => self.clusters.contains_key(name),
        }
    }

    /// Whether the resource counts as absent only because no response came in time.
    pub fn is_given_up(&self, demand: &Demand) -> bool {
        match demand {
            Demand::VirtualHost { table, host } => self.on_demand_host(table, host).is_some_and(|own| own.given_up),
            _ => false,
        }
    }

    /// Called when the fetch timed out: resources that wait for it proceed as if it did not exist. A later response still counts.
    pub fn give_up(&mut self, demand: &Demand) {
        if self.is_answered(demand) {
            return;
        }
        match demand {
            Demand::VirtualHost { table, host } => {
                let waits_for = self.on_demand_host(table, host).and_then(|own| own.newest.clone());
                match waits_for {
                    // It was received, and waits for clusters: those do not arrive.
                    Some(known) => known.clusters().for_each(|cluster| self.give_up_cluster(cluster)),
                    None => {
                        let own = self.on_demand_host_mut(table, host);
                        own.given_up = true;
                        self.on_demand.pending.push((table.clone(), host.clone()));
                    }
                }
            }
            Demand::Listener(_) => self.set_absent(demand, true),
            Demand::Cluster(name) => self.give_up_cluster(name),
        }
    }

    fn give_up_cluster(&mut self, name: &Arc<str>) {
        let demand = Demand::Cluster(name.clone());
        if !self.is_answered(&demand) {
            self.set_absent(&demand, true);
        }
    }

    /// Sets whether a listener or cluster is known not to exist.
    pub(super) fn set_absent(&mut self, demand: &Demand, absent: bool) {
        let on_demand = &mut self.on_demand;
        if on_demand.absent.contains(demand) == absent {
            return;
        }
        if absent {
            on_demand.absent.insert(demand.clone())
        } else {
            on_demand.absent.remove(demand)
        };
        self.graph.touched.absent.insert(demand.clone());
        self.arrived(demand.kind(), &demand.name());
    }

    /// Sets a virtual host received by VHDS, new or changed, under the name it was requested by or its own: `TABLE/HOST`.
    pub fn set_virtual_host(&mut self, name: &str, resource: &Any) -> Result<(), Rejection> {
        let kind = "VirtualHost";
        let Some((table, host)) = split_virtual_host(name) else {
            let reason = format!("{name:?} is not of the form ROUTE_CONFIGURATION/HOST");
            let problems = vec![Problem { path: String::new(), reason }];
            return Err(Rejection { kind, name: name.into(), problems });
        };
        let (table, host): (Arc<str>, Arc<str>) = (table.into(), host.into());
        if self.on_demand_host(&table, &host).is_some_and(|own| own.resource.as_ref() == Some(resource)) {
            return Ok(());
        }
        let message: route_pb::VirtualHost = decode(kind, resource)?;
        let max_body = self.routes.get(&table).map_or(u32::MAX, RouteEntry::max_direct_response_body_bytes);
        let cx = Cx::new(&self.environment);
        let compiled = check(kind, name, resource, cx, |cx| own_virtual_host(cx, &message, max_body))?;
        let before = self.host_references(&table, &host);
        let own = self.on_demand_host_mut(&table, &host);
        own.resource = Some(resource.clone());
        own.newest = Some(Arc::new(compiled));
        own.given_up = false;
        self.relink_host(&table, &host, &before);
        self.on_demand.pending.push((table, host));
        Ok(())
    }

    /// Called when no virtual host of this name exists, or none any more.
    pub fn remove_virtual_host(&mut self, name: &str) {
        let Some((table, host)) = split_virtual_host(name) else { return };
        let (table, host): (Arc<str>, Arc<str>) = (table.into(), host.into());
        let before = self.host_references(&table, &host);
        let own = self.on_demand_host_mut(&table, &host);
        (own.resource, own.newest, own.given_up) = (None, None, false);
        self.relink_host(&table, &host, &before);
        self.on_demand.pending.push((table, host));
    }

    /// Called when the server reports that a listener or cluster of this name does not exist.
    pub(super) fn note_absent(&mut self, demand: Demand) {
        if self.on_demand.by_name || self.on_demand.demanded.contains(&demand) {
            self.set_absent(&demand, true);
        }
    }

    /// Demands that were used since this was last called.
    pub fn take_used(&self) -> Vec<Demand> {
        let mut used = Vec::new();
        for (table, entry) in &self.routes {
            let answers = entry.table.iter().filter_map(|table| table.growing.as_ref()).flat_map(|g| &g.answers);
            for (host, _) in answers.filter(|(_, answer)| answer.take_used()) {
                let host = String::from_utf8_lossy(host).into_owned().into();
                used.push(Demand::VirtualHost { table: table.clone(), host });
            }
        }
        let serving = self.listeners.values().filter_map(|entry| entry.serving.as_ref());
        for listener in serving.filter(|listener| listener.take_used()) {
            used.push(Demand::Listener(listener.name.clone()));
            used.extend(tcp_clusters_of(listener).map(|cluster| Demand::Cluster(cluster.clone())));
        }
        used
    }

    /// Clusters that TCP proxies forward to, each requested when it is first needed.
    pub fn tcp_clusters(&self) -> HashSet<Arc<str>> {
        let versions = self.listeners.values().flat_map(|entry| entry.versions.all());
        versions.flat_map(|version| tcp_clusters_of(&version.compiled.listener)).cloned().collect()
    }

    /// Virtual hosts received on their own, as received, by the names they were received under.
    pub fn virtual_hosts(&self) -> impl Iterator<Item = (String, &Any)> {
        self.on_demand.tables.iter().flat_map(|(table, hosts)| {
            let received = hosts.iter().filter_map(|(host, own)| Some((host, own.resource.as_ref()?)));
            received.map(move |(host, resource)| (format!("{table}/{host}"), resource))
        })
    }

    /// Whether the listeners requested from the start are active or do not exist; true if there are none.
    pub fn basis_is_answered(&self) -> bool {
        self.on_demand.basis.iter().all(|name| self.is_answered(&Demand::Listener(name.clone())))
    }

    /// Whether the route table does not exist, by the server's response or because none came in time.
    fn lacks_table(&self, table: &Arc<str>) -> bool {
        !self.routes.contains_key(table) && self.given_up.contains(&Awaited::Route(table.clone()))
    }

    fn on_demand_host(&self, table: &Arc<str>, host: &Arc<str>) -> Option<&OnDemandHost> {
        self.on_demand.tables.get(table)?.get(host)
    }

    fn on_demand_host_mut(&mut self, table: &Arc<str>, host: &Arc<str>) -> &mut OnDemandHost {
        self.on_demand.tables.entry(table.clone()).or_default().entry(host.clone()).or_default()
    }
}

/// Interest and warming.
impl Builder {
    /// The references of virtual hosts received on their own, of demands, and of listeners requested from the start.
    #[cfg(debug_assertions)]
    pub(super) fn for_each_own_host(&self, add: &mut impl FnMut(Holder, References)) {
        for (table, host) in self.on_demand.tables.iter().flat_map(|(t, hosts)| hosts.keys().map(move |h| (t, h))) {
            add(Holder::VirtualHost(table.clone(), host.clone()), self.host_references(table, host));
        }
        for (name, holder) in self.on_demand.demanded.iter().flat_map(demanded_names) {
            add(holder, References::from([(name, Some(DEFAULT_HOLD))]));
        }
        for name in &self.on_demand.basis {
            let key = (ResourceType::Listener, name.clone(), Source::Ads);
            add(Holder::Basis, References::from([(key, None)]));
        }
    }

    fn host_references(&self, table: &Arc<str>, host: &Arc<str>) -> References {
        let mut references = References::new();
        if let Some(own) = self.on_demand_host(table, host).filter(|_| self.on_demand.by_name) {
            let published = own.published.iter().flatten();
            let clusters = own.newest.iter().chain(published).flat_map(|host| host.clusters());
            name_on_demand(&mut references, ResourceType::Cluster, clusters);
        }
        references
    }

    fn relink_host(&mut self, table: &Arc<str>, host: &Arc<str>, before: &References) {
        let after = self.host_references(table, host);
        self.relink(&Holder::VirtualHost(table.clone(), host.clone()), before, &after);
        let demand = Demand::VirtualHost { table: table.clone(), host: host.clone() };
        self.refresh(ResourceType::VirtualHost, &demand.name());
    }

    /// Whether all these clusters had a response; always true if they are not requested by name.
    pub(super) fn has_clusters<'c>(&self, mut names: impl Iterator<Item = &'c Arc<str>>) -> bool {
        !self.on_demand.by_name || names.all(|name| self.is_answered(&Demand::Cluster(name.clone())))
    }

    /// Whether the clusters that a listener names directly had a response.
    pub(super) fn has_clusters_of(&self, compiled: &CompiledListener) -> bool {
        !self.on_demand.by_name || self.has_clusters(compiled.listener.clusters())
    }

    /// Activates a route table if its clusters had a response.
    pub(super) fn warm_table(&mut self, name: &Arc<str>) {
        let warming = self.routes.get(name).and_then(|entry| entry.warming.as_ref());
        if !warming.is_some_and(|table| self.has_clusters(table.clusters())) {
            return;
        }
        let before = self.table_references(name);
        if let Some(entry) = self.routes.get_mut(name) {
            entry.table = entry.warming.take();
        }
        self.relink_table(name, &before);
        // A new table starts with the virtual hosts of the previous one.
        let hosts = self.on_demand.tables.get(name).into_iter().flatten();
        let published: Vec<_> = hosts.filter_map(|(host, own)| Some((host.clone(), own.published.clone()?))).collect();
        for (host, published) in published {
            self.put(name, &host, published);
        }
        self.arrived(ResourceType::Route, name);
    }

    /// Publishes virtual hosts whose clusters had a response.
    pub(super) fn grow(&mut self) {
        for (table, host) in std::mem::take(&mut self.on_demand.pending) {
            let Some(own) = self.on_demand_host(&table, &host) else { continue };
            let newest = own.newest.clone();
            let has_table = self.routes.get(&table).is_some_and(|entry| entry.table.is_some());
            let ready = newest.as_ref().is_none_or(|newest| self.has_clusters(newest.clusters()));
            if !ready || !has_table {
                self.on_demand.pending.push((table, host));
                continue;
            }
            self.put(&table, &host, newest.clone());
            let before = self.host_references(&table, &host);
            match newest {
                None if !self.is_demanded(&table, &host) => {
                    self.on_demand.tables.get_mut(&table).and_then(|hosts| hosts.remove(&host));
                }
                newest => self.on_demand_host_mut(&table, &host).published = Some(newest),
            }
            self.relink_host(&table, &host, &before);
        }
    }

    /// The virtual hosts that serve, and whose next versions wait for clusters.
    pub(super) fn hosts_until_replaced(&self) -> impl Iterator<Item = &Arc<VirtualHost>> {
        let pending = self.on_demand.pending.iter().filter_map(|(table, host)| self.on_demand_host(table, host));
        pending.filter_map(|own| own.published.as_ref()?.as_ref())
    }

    fn is_demanded(&self, table: &Arc<str>, host: &Arc<str>) -> bool {
        self.on_demand.demanded.contains(&Demand::VirtualHost { table: table.clone(), host: host.clone() })
    }

    /// Puts the virtual host for a name into its table.
    fn put(&mut self, table: &Arc<str>, name: &Arc<str>, host: Option<Arc<VirtualHost>>) {
        let asked_for = self.is_demanded(table, name);
        let before = self.on_demand_host(table, name).and_then(|own| own.published.clone().flatten());
        let Some(growing) = self.routes.get_mut(table).and_then(RouteEntry::growing) else { return };
        self.graph.touched.routes.insert(table.clone());
        if asked_for {
            growing.answers.insert(name.as_bytes().into(), Arc::new(Answer::new(host)));
            return;
        }
        for before in before.iter() {
            for domain in &before.domains {
                growing.domains.remove(domain, |held| Arc::ptr_eq(held, before));
            }
        }
        for host in host.iter() {
            for domain in &host.domains {
                // A domain that moves from one virtual host to another briefly belongs to both: the newer one counts.
                _ = growing.domains.insert(domain, host.clone());
            }
        }
    }

    /// Drops a resource that nothing requests by name any more.
    pub(super) fn forget_unnamed(&mut self, kind: ResourceType, name: &Arc<str>) {
        if !self.on_demand.by_name {
            return;
        }
        self.removals.cancel(kind, name);
        let is_static = match kind {
            ResourceType::Cluster => self.clusters.get(name).is_some_and(|entry| entry.is_static),
            _ => self.listeners.get(name).is_some_and(|entry| entry.is_static),
        };
        match (kind, is_static) {
            (ResourceType::Cluster, false) => self.drop_cluster(name),
            (ResourceType::Listener, false) => self.drop_listener(name),
            _ => {}
        }
        if let Some(demand) = Demand::of(kind, name) {
            self.set_absent(&demand, false);
        }
    }

    /// Whether listeners and clusters are requested by name.
    pub(super) fn asks_by_name(&self) -> bool {
        self.on_demand.by_name
    }
}

impl RouteEntry {
    /// Returns the names in its versions.
    pub(super) fn references(&self) -> References {
        let mut references = References::new();
        let tables = self.table.iter().chain(&self.warming);
        name_on_demand(&mut references, ResourceType::Cluster, tables.flat_map(|table| table.clusters()));
        references
    }

    fn growing(&mut self) -> Option<&mut crate::growing::Growing> {
        let table = self.table.as_mut()?;
        table.growing.as_ref()?;
        Arc::make_mut(table).growing.as_mut()
    }

    fn max_direct_response_body_bytes(&self) -> u32 {
        let message = route_pb::RouteConfiguration::decode(&*self.resource.value).unwrap_or_default();
        max_direct_response_body_bytes(&message)
    }
}

/// The names requested for a demand: its own, and for a virtual host also its route table, which may be needed before
/// any listener names it.
fn demanded_names(demand: &Demand) -> Vec<(Name, Holder)> {
    let mut names = vec![((demand.kind(), demand.name(), Source::Ads), Holder::Demand)];
    if let Demand::VirtualHost { table, host } = demand {
        let holder = Holder::VirtualHost(table.clone(), host.clone());
        names.push(((ResourceType::Route, table.clone(), Source::Ads), holder));
    }
    names
}

/// Clusters that a listener's TCP proxies forward to.
fn tcp_clusters_of(listener: &Listener) -> impl Iterator<Item = &Arc<str>> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let proxies = chains.filter_map(|chain| match &chain.terminal {
        Terminal::Tcp(proxy) => Some(proxy),
        Terminal::Http(_) => None,
    });
    proxies.flat_map(|proxy| proxy.clusters.iter().map(|entry| &entry.cluster))
}
