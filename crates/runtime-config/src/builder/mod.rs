//! Holds every resource received, and builds the next [`Config`].
//!
//! A rejected resource leaves its previous version in place. An accepted one *warms* first: a listener becomes active
//! when its route tables and secrets are available, a cluster when its endpoints and secrets are; until then the
//! previous version stays active. [`Builder::build`] shares everything that did not change with the previous
//! configuration.
//!
//! The cost of a change depends on the change, not on how much is held. Resources form a graph: each names what it
//! waits for ([`names`]). A resource that arrives marks those that name it as dirty ([`graph`]), and a build only
//! examines these ([`warm`]). The configuration's maps share all entries that did not change. Debug builds compare the
//! result with a full examination after each build.

#[cfg(debug_assertions)]
mod check;
mod contender;
mod endpoints;
mod entry;
mod extensions;
mod graph;
mod names;
mod on_demand;
mod removals;
mod warm;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_tls::config::{CertificateSource, TrustSource};
use evenkeel_tls::identity::Identity;
use evenkeel_tls::slot::Slot;
use evenkeel_tls::{SdsSecret, SecretStore, TrustBundle, TrustError};
use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster_pb;
use evenkeel_xds::pb::envoy::config::core::v3::Locality;
use evenkeel_xds::pb::envoy::config::endpoint::v3 as endpoint_pb;
use evenkeel_xds::pb::envoy::config::listener::v3 as listener_pb;
use evenkeel_xds::pb::envoy::config::route::v3 as route_pb;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3 as tls_pb;
use evenkeel_xds::{Any, ResourceType};
use prost::Name;

use crate::address::ListenAddress;
use crate::bind::BindConfig;
use crate::cluster::Discovery;
use crate::compile::cluster::cluster;
use crate::compile::endpoint::{AddressKind, Assignment, assignment, locality_name};
use crate::compile::listener::{CompiledListener, KnownChains, listener};
use crate::compile::route::{Inline, route_table};
use crate::compile::route_change::{changed_table, name_of_table};
use crate::compile::source::{Reference, Source};
use crate::compile::tls::{Roots, Secret, secret, secret_of};
use crate::compile::{Cx, Environment, TracingDefaults};
use crate::demand::Demand;
use crate::dns::{DnsOptions, DnsResolver, DnsTarget};
use crate::listener::Listener;
use crate::rejection::{Problem, Rejection};
use crate::route_table::RouteTable;
use crate::runtime::Runtime;
use crate::{Config, FastMap, support};

use contender::{Contender, Contenders};
use entry::{ClusterEntry, ListenerEntry, Version, Versions};
use graph::Graph;
pub use names::SubscriptionChange;
use on_demand::OnDemand;
use removals::Removals;

/// The resources received so far, and the configuration built from them. Lives on the control thread.
#[derive(Debug)]
pub struct Builder {
    environment: Environment,
    /// The source of certificates for all TLS contexts, shared with them.
    secrets: SecretStore,
    clusters: FastMap<Arc<str>, ClusterEntry>,
    listeners: FastMap<Arc<str>, ListenerEntry>,
    routes: FastMap<Arc<str>, RouteEntry>,
    /// By EDS name.
    endpoints: FastMap<Arc<str>, Arc<Assignment>>,
    /// Configurations of filters.
    extensions: FastMap<Arc<str>, Arc<Any>>,
    /// Holding the slot keeps the value while no context uses it.
    delivered: HashMap<SdsSecret, HeldSlot>,
    /// Routes, secrets and configurations of filters whose fetch timed out: resources that wait for them proceed without.
    given_up: HashSet<Awaited>,
    contenders: Contenders,
    on_demand: OnDemand,
    removals: Removals,
    graph: Graph,
    /// The configuration of the next build.
    next: Config,
    current: Arc<Config>,
}

#[derive(Debug)]
struct RouteEntry {
    /// The resource last received.
    resource: Any,
    /// The active table, with the virtual hosts that were received separately.
    table: Option<Arc<RouteTable>>,
    /// A table that waits for its clusters.
    warming: Option<Arc<RouteTable>>,
}

impl RouteEntry {
    /// The resource last received, with what it was compiled to.
    fn newest(&self) -> Option<(&Any, &RouteTable)> {
        let table = self.warming.as_ref().or(self.table.as_ref())?;
        Some((&self.resource, table))
    }
}

#[derive(Debug)]
enum HeldSlot {
    Certificate(Slot<Identity>),
    Trust(Slot<TrustBundle>),
}

impl HeldSlot {
    fn is_filled(&self) -> bool {
        match self {
            Self::Certificate(slot) => slot.missing().is_none(),
            Self::Trust(slot) => slot.missing().is_none(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Awaited {
    Route(Arc<str>),
    Secret(SdsSecret),
    Extension(Arc<str>),
}

/// Names that other resources refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest {
    /// CDS names, if clusters are requested by name.
    pub clusters: Vec<Reference>,
    /// LDS names, if listeners are requested by name.
    pub listeners: Vec<Reference>,
    /// VHDS names.
    pub virtual_hosts: Vec<Reference>,
    /// EDS names.
    pub endpoints: Vec<Reference>,
    /// RDS names.
    pub routes: Vec<Reference>,
    /// SDS names.
    pub secrets: Vec<Reference>,
    /// ECDS names.
    pub extensions: Vec<Reference>,
}

/// A DNS cluster, whose names the control thread resolves.
#[derive(Debug, Clone)]
pub struct DnsCluster {
    /// Cluster name.
    pub cluster: Arc<str>,
    /// Names to resolve.
    pub targets: Vec<DnsTarget>,
    /// How to resolve them.
    pub options: DnsOptions,
    /// Keeps the last host (`LOGICAL_DNS`), even when the name no longer has an address.
    pub keeps_last: bool,
}

/// A resource held, for `/config_dump`.
#[derive(Debug, Clone, Copy)]
pub struct Held<'b> {
    /// As received.
    pub resource: &'b Any,
    /// Whether it is active; otherwise it is still warming.
    pub active: bool,
    /// From the bootstrap.
    pub is_static: bool,
}

impl Builder {
    /// A builder without resources. `secrets` is shared with the code that watches certificates.
    pub fn new(environment: Environment, secrets: SecretStore) -> Self {
        Self {
            environment,
            secrets,
            clusters: FastMap::default(),
            listeners: FastMap::default(),
            routes: FastMap::default(),
            endpoints: FastMap::default(),
            extensions: FastMap::default(),
            delivered: HashMap::new(),
            given_up: HashSet::new(),
            contenders: Contenders::default(),
            on_demand: OnDemand::default(),
            removals: Removals::default(),
            graph: Graph::default(),
            next: Config::default(),
            current: Arc::new(Config::default()),
        }
    }

    /// Sets the bootstrap's `cluster_manager.upstream_bind_config`, for clusters set afterwards.
    pub fn set_default_bind(&mut self, bind: BindConfig) {
        self.environment.bind = bind;
    }

    /// Sets the bootstrap's `typed_dns_resolver_config`, for clusters set afterwards.
    pub fn set_default_resolver(&mut self, resolver: Arc<DnsResolver>) {
        self.environment.resolver = resolver;
    }

    /// Sets the bootstrap's values of runtime keys, for resources set afterwards.
    pub fn set_runtime(&mut self, runtime: Arc<Runtime>) {
        self.environment.runtime = runtime;
    }

    /// Sets the proxy's own locality (`node.locality`), which is listed first in a cluster, for clusters set afterwards.
    pub fn set_own_locality(&mut self, locality: Option<&Locality>) {
        self.environment.locality = locality.map(|locality| locality_name(Some(locality)));
    }

    /// Sets what connection managers that trace have from the bootstrap, for listeners set afterwards.
    pub fn set_tracing(&mut self, tracing: TracingDefaults) {
        self.environment.tracing = tracing;
    }

    /// Sets the cluster whose hosts are the proxies like this one (`cluster_manager.local_cluster_name`), for clusters set
    /// afterwards: they divide requests among zones.
    pub fn set_local_cluster(&mut self, name: Option<Arc<str>>) {
        self.environment.local_cluster = name;
    }

    /// The store of certificates that TLS contexts use.
    pub fn secrets(&self) -> &SecretStore {
        &self.secrets
    }

    /// Sets a listener received by LDS, new or changed.
    pub fn set_listener(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.listener(resource, false)
    }

    /// Sets a listener of the bootstrap; LDS cannot replace it.
    pub fn set_static_listener(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.listener(resource, true)
    }

    /// Sets a cluster received by CDS, new or changed.
    pub fn set_cluster(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.cluster(resource, false)
    }

    /// Sets a cluster of the bootstrap; CDS cannot replace it. It may speak HTTP/2, for the control thread's own streams.
    pub fn set_static_cluster(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.cluster(resource, true)
    }

    /// Sets a route table received by RDS.
    pub fn set_route(&mut self, resource: &Any) -> Result<(), Rejection> {
        let known = self.routes.get(&*name_of_table(resource)).and_then(RouteEntry::newest);
        if known.is_some_and(|(before, _)| before == resource) {
            return Ok(());
        }
        let mut cx = Cx::new(&self.environment);
        let changed = known.and_then(|known| changed_table(&mut cx, known, resource));
        let table = changed.map_or_else(|| self.whole_table(resource), Ok)?;
        self.set_table(resource, table);
        Ok(())
    }

    fn whole_table(&self, resource: &Any) -> Result<RouteTable, Rejection> {
        let message: route_pb::RouteConfiguration = decode("RouteConfiguration", resource)?;
        // With on-demand discovery, clusters are requested because routes name them, so unknown ones are fine.
        let known = |name: &str| self.asks_by_name() || self.clusters.contains_key(name);
        let mut cx = Cx::new(&self.environment);
        cx.known_clusters = Some(&known);
        check("RouteConfiguration", &message.name, resource, cx, |cx| route_table(cx, &message, Inline::No))
    }

    fn set_table(&mut self, resource: &Any, table: RouteTable) {
        let name = table.name.clone();
        self.given_up.remove(&Awaited::Route(name.clone()));
        let before = self.table_references(&name);
        let serving = self.routes.remove(&name).and_then(|entry| entry.table);
        let entry = RouteEntry { resource: resource.clone(), table: serving, warming: Some(Arc::new(table)) };
        self.routes.insert(name.clone(), entry);
        self.relink_table(&name, &before);
        self.graph.dirty.routes.insert(name.clone());
        self.arrived(ResourceType::Route, &name);
    }

    /// Sets endpoints received by EDS, under their `cluster_name`.
    pub fn set_endpoints(&mut self, resource: &Any) -> Result<(), Rejection> {
        let kind = "ClusterLoadAssignment";
        let message: endpoint_pb::ClusterLoadAssignment = decode(kind, resource)?;
        let cx = Cx::new(&self.environment);
        let assigned = check(kind, &message.cluster_name, resource, cx, |cx| {
            cx.non_empty("cluster_name", &message.cluster_name)?;
            assignment(cx, &message, AddressKind::Address)
        })?;
        let name: Arc<str> = message.cluster_name.into();
        self.removals.cancel(ResourceType::Endpoint, &name);
        self.endpoints.insert(name.clone(), Arc::new(assigned));
        self.arrived(ResourceType::Endpoint, &name);
        Ok(())
    }

    /// Sets the addresses that a name of a DNS cluster resolved to; empty if resolution failed and nothing is known.
    pub fn set_dns_endpoints(&mut self, cluster: &str, host: &str, addresses: &[IpAddr]) {
        if let Some(entry) = self.clusters.get_mut(cluster)
            && entry.set_resolved(host, addresses)
        {
            self.graph.dirty.clusters.insert(cluster.into());
        }
    }

    /// Sets a secret received from `source`; TLS contexts use it from their next handshake on.
    pub fn set_secret(&mut self, resource: &Any, source: &Source) -> Result<(), Rejection> {
        let message: tls_pb::Secret = decode("Secret", resource)?;
        let cx = Cx::new(&self.environment);
        let value = check("Secret", &message.name, resource, cx, |cx| secret(cx, &message))?;
        let name = SdsSecret { name: message.name.clone(), server: source.of_secrets() };
        let held = self.store_secret(&name, value).map_err(|(path, reason)| Rejection {
            kind: "Secret",
            name: message.name.clone(),
            problems: vec![Problem { path: path.into(), reason }],
        })?;
        // Contexts pick up a new value by themselves; resources that wait for the secret have to be examined.
        let awaited = !self.has_secret(&name);
        self.given_up.remove(&Awaited::Secret(name.clone()));
        self.delivered.insert(name, held);
        if awaited {
            self.arrived(ResourceType::Secret, &message.name.into());
        }
        Ok(())
    }

    /// The slot is obtained from the store before it is filled: the store forgets slots that nothing holds.
    fn store_secret(&self, name: &SdsSecret, value: Secret) -> Result<HeldSlot, (&'static str, String)> {
        match value {
            Secret::Certificate { chain, key } => {
                let slot = self.secrets.identity(&CertificateSource::Sds(name.clone()));
                let slot = slot.map_err(|error| ("tls_certificate", error.to_string()))?;
                let stored = self.secrets.set_identity(name, &chain, &key);
                stored.map_err(|error| ("tls_certificate", error.to_string()))?;
                Ok(HeldSlot::Certificate(slot))
            }
            Secret::Trust { roots, lists } => {
                let slot = self.secrets.trust(&TrustSource::Sds(name.clone()));
                let slot = slot.map_err(|error| ("validation_context.trusted_ca", error.to_string()))?;
                let (field, stored) = match &roots {
                    Roots::Any(roots) => {
                        ("validation_context.trusted_ca", self.secrets.set_trust(name, roots, lists.as_deref()))
                    }
                    Roots::Domains(domains) => {
                        let stored = self.secrets.set_domains(name, domains, lists.as_deref());
                        ("validation_context.custom_validator_config", stored)
                    }
                };
                stored.map_err(|error| match error {
                    TrustError::Revocation(error) => ("validation_context.crl", error.to_string()),
                    other => (field, other.to_string()),
                })?;
                Ok(HeldSlot::Trust(slot))
            }
        }
    }

    /// Removes a listener that LDS no longer lists. Static listeners stay.
    pub fn remove_listener(&mut self, name: &str) {
        self.contenders.remove(name);
        if self.listeners.get(name).is_none_or(|entry| !entry.is_static) {
            self.drop_listener(&name.into());
            self.note_absent(Demand::Listener(name.into()));
        }
    }

    /// Removes a cluster that CDS no longer lists. Static clusters stay.
    pub fn remove_cluster(&mut self, name: &str) {
        if self.clusters.get(name).is_none_or(|entry| !entry.is_static) {
            self.remove(ResourceType::Cluster, name.into());
        }
    }

    /// EDS no longer has this name: clusters that use it have no endpoints.
    pub fn remove_endpoints(&mut self, name: &str) {
        if self.endpoints.contains_key(name) {
            self.remove(ResourceType::Endpoint, name.into());
        }
    }

    /// The initial fetch timeout of an EDS name has passed: its clusters proceed without endpoints.
    pub fn give_up_endpoints(&mut self, reference: &Reference) {
        self.endpoints.entry(reference.name.clone()).or_default();
        self.arrived(ResourceType::Endpoint, &reference.name);
    }

    /// There is no route table of this name, or none came within its initial fetch timeout: its listeners become active and
    /// respond with 404. A name that nothing refers to any more is not given up: whoever refers to it later waits again.
    pub fn give_up_route(&mut self, reference: &Reference) {
        if self.graph.names.knows(ResourceType::Route, &reference.name) {
            self.given_up.insert(Awaited::Route(reference.name.clone()));
            self.arrived(ResourceType::Route, &reference.name);
        }
    }

    /// There is no secret of this name, or none came within its initial fetch timeout: resources that need it become active, and
    /// handshakes fail. A name that nothing refers to any more is not given up, as with routes.
    pub fn give_up_secret(&mut self, reference: &Reference) {
        if self.graph.names.knows(ResourceType::Secret, &reference.name) {
            self.given_up.insert(Awaited::Secret(secret_of(reference)));
            self.arrived(ResourceType::Secret, &reference.name);
        }
    }

    /// All names to subscribe to.
    pub fn interest(&self) -> Interest {
        self.graph.names.interest()
    }

    /// Names without a first response yet: warming waits for these.
    pub fn missing(&self) -> Interest {
        self.graph.names.missing()
    }

    /// Whether [`Self::missing`] changed since this was last called.
    pub fn take_missing_changed(&mut self) -> bool {
        self.graph.names.take_missing_changed()
    }

    /// Changes of [`Self::interest`] since this was last called.
    pub fn take_asked(&mut self) -> Vec<SubscriptionChange> {
        self.graph.names.take_asked()
    }

    /// Whether this is one of the names to subscribe to.
    pub fn asks_for(&self, kind: ResourceType, name: &str) -> bool {
        self.graph.names.asks(kind, &name.into())
    }

    /// Whether everything that each held cluster names has had a first response, as of the last build; until then the
    /// cluster is warming, and a route to it fails.
    pub fn clusters_are_answered(&self) -> bool {
        self.graph.unanswered.is_empty()
    }

    /// Clusters whose names have to be resolved, in their newest version.
    pub fn dns_clusters(&self) -> Vec<DnsCluster> {
        let clusters = self.graph.dns.iter().filter_map(|name| self.clusters.get(name)?.versions.newest());
        let clusters = clusters.map(|version| &version.compiled.cluster);
        clusters
            .filter_map(|cluster| match &cluster.discovery {
                Discovery::StrictDns(targets) | Discovery::LogicalDns(targets) => Some(DnsCluster {
                    cluster: cluster.name.clone(),
                    targets: targets.clone(),
                    options: cluster.dns.clone(),
                    keeps_last: matches!(cluster.discovery, Discovery::LogicalDns(_)),
                }),
                _ => None,
            })
            .collect()
    }

    /// Whether [`Self::dns_clusters`] may have changed since this was last called.
    pub fn take_dns_changed(&mut self) -> bool {
        std::mem::take(&mut self.graph.dns_changed)
    }

    /// Listeners held, active and warming.
    pub fn listeners(&self) -> impl Iterator<Item = Held<'_>> {
        self.listeners.values().flat_map(|entry| entry.versions.held(entry.is_static))
    }

    /// The newest version of a listener, if it is not active yet.
    pub fn warming_listener(&self, name: &str) -> Option<&Arc<Listener>> {
        let entry = self.listeners.get(name)?;
        let newest = &entry.versions.newest()?.compiled.listener;
        let serves = entry.serving.as_ref().is_some_and(|serving| Arc::ptr_eq(serving, newest));
        (!serves).then_some(newest)
    }

    /// Clusters held, active and warming.
    pub fn clusters(&self) -> impl Iterator<Item = Held<'_>> {
        self.clusters.values().flat_map(|entry| entry.versions.held(entry.is_static))
    }

    /// Route tables held.
    pub fn routes(&self) -> impl Iterator<Item = Held<'_>> {
        self.routes.values().map(|entry| Held { resource: &entry.resource, active: true, is_static: false })
    }

    /// Listeners accepted by [`Builder::build`] since the last call that had been rejected because another listener
    /// held their address.
    pub fn take_admitted(&mut self) -> Vec<Arc<str>> {
        self.contenders.take_admitted()
    }

    fn listener(&mut self, resource: &Any, is_static: bool) -> Result<(), Rejection> {
        let mut message: listener_pb::Listener = decode("Listener", resource)?;
        if is_static && message.name.is_empty() {
            message.name = address_name(&message);
        }
        let entry = self.listeners.get(message.name.as_str());
        refuse_static("Listener", &message.name, is_static, entry.is_some_and(|entry| entry.is_static))?;
        self.contenders.remove(&message.name);
        if entry.is_some_and(|entry| entry.versions.is_newest(resource)) {
            return Ok(());
        }
        let compiled = self.compiled_listener(resource, &message.name)?;
        if let Err(rejection) = self.refuse_duplicate_address(&compiled.listener) {
            if !is_static {
                self.contenders.add(Contender::new(&compiled.listener, resource));
            }
            return Err(rejection);
        }
        let name = compiled.listener.name.clone();
        self.listeners.entry(name.clone()).or_default().is_static = is_static;
        self.set_listener_version(name.clone(), Version { resource: resource.clone(), compiled: Arc::new(compiled) });
        // Resources that need it wait for it from now on.
        self.set_absent(&Demand::Listener(name), false);
        Ok(())
    }

    /// Compiles a listener of this name, with the configurations of filters that are held.
    fn compiled_listener(&self, resource: &Any, name: &str) -> Result<CompiledListener, Rejection> {
        let mut message: listener_pb::Listener = decode("Listener", resource)?;
        // One of the bootstrap may be without a name.
        message.name = name.to_owned();
        let entry = self.listeners.get(name);
        let chains = entry.map(|entry| known_chains(&entry.versions, &message)).unwrap_or_default();
        let known = |name: &str| self.asks_by_name() || self.clusters.contains_key(name);
        let mut cx = Cx::new(&self.environment);
        cx.known_clusters = Some(&known);
        cx.extensions = Some(&self.extensions);
        check("Listener", name, resource, cx, |cx| listener(cx, &message, &self.secrets, &chains))
    }

    /// Sets the newest version of a listener, which becomes active when what it waits for has arrived.
    fn set_listener_version(&mut self, name: Arc<str>, version: Version<CompiledListener>) {
        let before = self.listener_edges(&name);
        self.listeners.entry(name.clone()).or_default().versions.set(version);
        self.relink_listener(&name, &before);
        self.graph.dirty.listeners.insert(name.clone());
        self.refresh(ResourceType::Listener, &name);
    }

    /// Two listeners cannot share a socket. A version that is still active counts, as in Envoy; port 0 names no specific port.
    fn refuse_duplicate_address(&self, new: &Listener) -> Result<(), Rejection> {
        if !new.bind_to_port {
            return Ok(());
        }
        let fixed = new.addresses().filter(|address| address.port() != Some(0));
        let held = |address| Some((address, self.holder_of(address, &new.name)?));
        let Some((address, holder)) = fixed.filter_map(held).next() else { return Ok(()) };
        let reason = format!("{address} is a duplicate address: listener {:?} has it", holder.name);
        let problem = Problem { path: "address".to_owned(), reason };
        Err(Rejection { kind: "Listener", name: new.name.to_string(), problems: vec![problem] })
    }

    /// The listener that has a socket at `address`, other than the one with this name.
    fn holder_of(&self, address: &ListenAddress, name: &str) -> Option<&Arc<Listener>> {
        let others = self.graph.addresses.get(address)?.iter().filter(|other| ***other != *name);
        let mut versions = others.filter_map(|other| self.listeners.get(other)).flat_map(|entry| entry.versions.all());
        let holds = |held: &&Arc<Listener>| held.bind_to_port && held.addresses().any(|held| held == address);
        versions.find_map(|version| Some(&version.compiled.listener).filter(holds))
    }

    fn cluster(&mut self, resource: &Any, is_static: bool) -> Result<(), Rejection> {
        let message: cluster_pb::Cluster = decode("Cluster", resource)?;
        self.removals.cancel(ResourceType::Cluster, &message.name);
        let entry = self.clusters.get(message.name.as_str());
        refuse_static("Cluster", &message.name, is_static, entry.is_some_and(|entry| entry.is_static))?;
        if entry.is_some_and(|entry| entry.versions.is_newest(resource)) {
            return Ok(());
        }
        let cx = Cx::new(&self.environment);
        let compiled =
            check("Cluster", &message.name, resource, cx, |cx| cluster(cx, &message, &resource.value, &self.secrets))?;
        let name = compiled.cluster.name.clone();
        let before = self.cluster_references(&name);
        let entry = self.clusters.entry(name.clone()).or_default();
        entry.is_static = is_static;
        entry.versions.set(Version { resource: resource.clone(), compiled: Arc::new(compiled) });
        self.relink_cluster(&name, &before);
        self.graph.dirty.clusters.insert(name.clone());
        self.refresh(ResourceType::Cluster, &name);
        // Resources that need it wait for it from now on.
        self.set_absent(&Demand::Cluster(name), false);
        Ok(())
    }
}

/// The filter chains held for a listener, to be reused by its next version.
fn known_chains(versions: &Versions<CompiledListener>, next: &listener_pb::Listener) -> KnownChains {
    let mut known = KnownChains::default();
    for version in versions.all() {
        // It was decoded before, so it decodes again; keeping it decoded would cost several times the memory.
        if let Ok(message) = evenkeel_xds::unpack(&version.resource) {
            known.add(message, &version.compiled, next);
        }
    }
    known
}

/// A name for a bootstrap listener without one; Envoy generates one, too.
fn address_name(listener: &listener_pb::Listener) -> String {
    use evenkeel_xds::pb::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
    match listener.address.as_ref().and_then(|address| address.address.as_ref()) {
        Some(Address::SocketAddress(socket)) => match &socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) => format!("{}_{port}", socket.address),
            _ => socket.address.clone(),
        },
        Some(Address::Pipe(pipe)) => pipe.path.clone(),
        _ => String::new(),
    }
}

fn refuse_static(kind: &'static str, name: &str, is_static: bool, held_static: bool) -> Result<(), Rejection> {
    if held_static && !is_static {
        let reason = "the bootstrap has one of this name, which cannot be replaced".to_owned();
        return Err(Rejection { kind, name: name.into(), problems: vec![Problem { path: String::new(), reason }] });
    }
    Ok(())
}

fn decode<M: Name + Default>(kind: &'static str, resource: &Any) -> Result<M, Rejection> {
    evenkeel_xds::unpack(resource).map_err(|error| {
        let reason = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        Rejection { kind, name: String::new(), problems: vec![Problem { path: String::new(), reason }] }
    })
}

/// Checks the table of supported fields first, then the values.
fn check<'e, T>(
    kind: &'static str,
    name: &str,
    resource: &Any,
    mut cx: Cx<'e>,
    compile: impl FnOnce(&mut Cx<'e>) -> Option<T>,
) -> Result<T, Rejection> {
    let rejection = |problems| Rejection { kind, name: name.into(), problems };
    let unsupported = support::check_with(resource, &cx.env.custom_filters);
    if !unsupported.is_empty() {
        return Err(rejection(unsupported));
    }
    match compile(&mut cx) {
        Some(value) if cx.problems.is_empty() => Ok(value),
        _ => Err(rejection(cx.problems)),
    }
}
