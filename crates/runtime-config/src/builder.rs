//! Holds every resource received, and puts together the next [`Config`].
//!
//! A resource that is refused leaves the one before it in place. One that is accepted *warms* first: a listener serves
//! when its route tables and secrets are there, a cluster when its endpoints and secrets are; until then the version
//! before it goes on serving. [`Builder::build`] shares with the configuration before it all that did not change.

mod contender;
mod endpoints;
mod entry;
mod on_demand;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evenkeel_tls::config::{CertificateSource, TrustSource};
use evenkeel_tls::identity::Identity;
use evenkeel_tls::secrets::Slot;
use evenkeel_tls::{SdsSecret, SdsServer, SecretStore, TrustBundle};
use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster_pb;
use evenkeel_xds::pb::envoy::config::core::v3::Locality;
use evenkeel_xds::pb::envoy::config::endpoint::v3 as endpoint_pb;
use evenkeel_xds::pb::envoy::config::listener::v3 as listener_pb;
use evenkeel_xds::pb::envoy::config::route::v3 as route_pb;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3 as tls_pb;
use evenkeel_xds::{Any, ResourceType};
use prost::Name;

use crate::cluster::{BindConfig, Discovery, DnsOptions, DnsResolver, DnsTarget};
use crate::compile::cluster::{CompiledCluster, cluster};
use crate::compile::endpoint::{AddressKind, Assignment, assignment, locality_name};
use crate::compile::listener::{CompiledListener, KnownChains, listener};
use crate::compile::route::{Inline, route_table};
use crate::compile::source::{Reference, Source};
use crate::compile::tls::{Secret, secret, secret_of};
use crate::compile::{Cx, Environment};
use crate::demand::Demand;
use crate::listener::Listener;
use crate::rejection::{Problem, Rejection};
use crate::route::RouteTable;
use crate::{Config, FastMap, support};

use contender::{Contender, Contenders};
use entry::{ClusterEntry, ListenerEntry, Version, Versions};
use on_demand::OnDemand;

/// What was received so far, and what is built from it. Lives on the control thread.
#[derive(Debug)]
pub struct Builder {
    environment: Environment,
    /// Where TLS contexts take their certificates from; shared with all of them.
    secrets: SecretStore,
    clusters: FastMap<Arc<str>, ClusterEntry>,
    listeners: FastMap<Arc<str>, ListenerEntry>,
    routes: FastMap<Arc<str>, RouteEntry>,
    /// By EDS name.
    endpoints: FastMap<Arc<str>, Arc<Assignment>>,
    /// Holding the slot keeps the value when no context uses it for a moment.
    delivered: HashMap<SdsSecret, HeldSlot>,
    /// Routes and secrets that did not come in time: whoever awaits them goes on without.
    given_up: HashSet<Awaited>,
    contenders: Contenders,
    on_demand: OnDemand,
    current: Arc<Config>,
}

#[derive(Debug)]
struct RouteEntry {
    /// As received last.
    resource: Any,
    /// Serves, with the virtual hosts that came on their own.
    table: Option<Arc<RouteTable>>,
    /// Waits for its clusters.
    warming: Option<Arc<RouteTable>>,
}

#[derive(Debug)]
enum HeldSlot {
    Certificate(Slot<Identity>),
    Trust(Slot<TrustBundle>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Awaited {
    Route(Arc<str>),
    Secret(SdsSecret),
}

/// Names other resources refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest {
    /// CDS names, when clusters are asked for by name.
    pub clusters: Vec<Reference>,
    /// LDS names, when listeners are asked for by name.
    pub listeners: Vec<Reference>,
    /// VHDS names.
    pub virtual_hosts: Vec<Reference>,
    /// EDS names.
    pub endpoints: Vec<Reference>,
    /// RDS names.
    pub routes: Vec<Reference>,
    /// SDS names.
    pub secrets: Vec<Reference>,
}

/// A cluster whose names the control thread resolves.
#[derive(Debug, Clone)]
pub struct DnsCluster {
    /// Cluster name.
    pub cluster: Arc<str>,
    /// Names to resolve.
    pub targets: Vec<DnsTarget>,
    /// How.
    pub options: DnsOptions,
    /// It has a host as long as there ever was one (`LOGICAL_DNS`), even when the name has no address any more.
    pub keeps_last: bool,
}

/// A resource held, for `/config_dump`.
#[derive(Debug, Clone, Copy)]
pub struct Held<'b> {
    /// As received.
    pub resource: &'b Any,
    /// It serves; otherwise it still warms.
    pub active: bool,
    /// From the bootstrap.
    pub is_static: bool,
}

impl Builder {
    /// A builder without resources. `secrets` is shared with whoever watches certificates.
    pub fn new(environment: Environment, secrets: SecretStore) -> Self {
        Self {
            environment,
            secrets,
            clusters: FastMap::default(),
            listeners: FastMap::default(),
            routes: FastMap::default(),
            endpoints: FastMap::default(),
            delivered: HashMap::new(),
            given_up: HashSet::new(),
            contenders: Contenders::default(),
            on_demand: OnDemand::default(),
            current: Arc::new(Config::default()),
        }
    }

    /// `cluster_manager.upstream_bind_config` of the bootstrap: holds for clusters set from now on.
    pub fn set_default_bind(&mut self, bind: BindConfig) {
        self.environment.bind = bind;
    }

    /// `typed_dns_resolver_config` of the bootstrap: holds for clusters set from now on.
    pub fn set_default_resolver(&mut self, resolver: Arc<DnsResolver>) {
        self.environment.resolver = resolver;
    }

    /// The proxy's own locality (`node.locality`), which comes first among a cluster's: holds for clusters set from now on.
    pub fn set_own_locality(&mut self, locality: Option<&Locality>) {
        self.environment.locality = locality.map(|locality| locality_name(Some(locality)));
    }

    /// The certificates that contexts use.
    pub fn secrets(&self) -> &SecretStore {
        &self.secrets
    }

    /// A listener of LDS, new or changed.
    pub fn set_listener(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.listener(resource, false)
    }

    /// A listener of the bootstrap; LDS cannot replace it.
    pub fn set_static_listener(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.listener(resource, true)
    }

    /// A cluster of CDS, new or changed.
    pub fn set_cluster(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.cluster(resource, false)
    }

    /// A cluster of the bootstrap; CDS cannot replace it. It may speak HTTP/2, for the control thread's own streams.
    pub fn set_static_cluster(&mut self, resource: &Any) -> Result<(), Rejection> {
        self.cluster(resource, true)
    }

    /// A route table of RDS.
    pub fn set_route(&mut self, resource: &Any) -> Result<(), Rejection> {
        let message: route_pb::RouteConfiguration = decode("RouteConfiguration", resource)?;
        if self.routes.get(message.name.as_str()).is_some_and(|entry| entry.resource == *resource) {
            return Ok(());
        }
        // What is asked for by name is asked for because it is named.
        let known = |name: &str| self.asks_by_name() || self.clusters.contains_key(name);
        let mut cx = Cx::new(&self.environment);
        cx.known_clusters = Some(&known);
        let table =
            check("RouteConfiguration", &message.name, resource, cx, |cx| route_table(cx, &message, Inline::No))?;
        self.given_up.remove(&Awaited::Route(table.name.clone()));
        let serving = self.routes.remove(&table.name).and_then(|entry| entry.table);
        let name = table.name.clone();
        let entry = RouteEntry { resource: resource.clone(), table: serving, warming: Some(Arc::new(table)) };
        self.routes.insert(name, entry);
        Ok(())
    }

    /// Endpoints of EDS, under their `cluster_name`.
    pub fn set_endpoints(&mut self, resource: &Any) -> Result<(), Rejection> {
        let kind = "ClusterLoadAssignment";
        let message: endpoint_pb::ClusterLoadAssignment = decode(kind, resource)?;
        let cx = Cx::new(&self.environment);
        let assigned = check(kind, &message.cluster_name, resource, cx, |cx| {
            cx.non_empty("cluster_name", &message.cluster_name)?;
            assignment(cx, &message, AddressKind::Address)
        })?;
        self.endpoints.insert(message.cluster_name.into(), Arc::new(assigned));
        Ok(())
    }

    /// The addresses a name of a DNS cluster resolved to; none when the resolution failed and nothing is known.
    pub fn set_dns_endpoints(&mut self, cluster: &str, host: &str, addresses: &[IpAddr]) {
        if let Some(entry) = self.clusters.get_mut(cluster) {
            entry.set_resolved(host, addresses);
        }
    }

    /// A secret that `source` delivered; contexts that use it take it for their next handshake.
    pub fn set_secret(&mut self, resource: &Any, source: &Source) -> Result<(), Rejection> {
        let message: tls_pb::Secret = decode("Secret", resource)?;
        let cx = Cx::new(&self.environment);
        let value = check("Secret", &message.name, resource, cx, |cx| secret(cx, &message))?;
        let server = match source {
            Source::Ads => SdsServer::Ads,
            Source::Grpc { cluster, .. } => SdsServer::Cluster(cluster.to_string()),
        };
        let name = SdsSecret { name: message.name.clone(), server };
        let held = self.store_secret(&name, value).map_err(|(path, reason)| Rejection {
            kind: "Secret",
            name: message.name,
            problems: vec![Problem { path: path.into(), reason }],
        })?;
        self.given_up.remove(&Awaited::Secret(name.clone()));
        self.delivered.insert(name, held);
        Ok(())
    }

    /// The slot is taken out of the store before it is filled: the store forgets slots nobody holds.
    fn store_secret(&self, name: &SdsSecret, value: Secret) -> Result<HeldSlot, (&'static str, String)> {
        match value {
            Secret::Certificate { chain, key } => {
                let slot = self.secrets.identity(&CertificateSource::Sds(name.clone()));
                let slot = slot.map_err(|error| ("tls_certificate", error.to_string()))?;
                let stored = self.secrets.set_identity(name, &chain, &key);
                stored.map_err(|error| ("tls_certificate", error.to_string()))?;
                Ok(HeldSlot::Certificate(slot))
            }
            Secret::Trust(roots) => {
                let slot = self.secrets.trust(&TrustSource::Sds(name.clone()));
                let slot = slot.map_err(|error| ("validation_context.trusted_ca", error.to_string()))?;
                let stored = self.secrets.set_trust(name, &roots);
                stored.map_err(|error| ("validation_context.trusted_ca", error.to_string()))?;
                Ok(HeldSlot::Trust(slot))
            }
        }
    }

    /// LDS no longer lists this listener. Static listeners stay.
    pub fn remove_listener(&mut self, name: &str) {
        self.contenders.remove(name);
        if self.listeners.get(name).is_none_or(|entry| !entry.is_static) {
            self.listeners.remove(name);
            self.note_absent(Demand::Listener(name.into()));
        }
    }

    /// CDS no longer lists this cluster. Static clusters stay.
    pub fn remove_cluster(&mut self, name: &str) {
        if self.clusters.get(name).is_none_or(|entry| !entry.is_static) {
            self.clusters.remove(name);
            self.note_absent(Demand::Cluster(name.into()));
        }
    }

    /// EDS has nothing under this name any more: clusters that use it have no endpoints.
    pub fn remove_endpoints(&mut self, name: &str) {
        if let Some(assigned) = self.endpoints.get_mut(name) {
            *assigned = Arc::new(Assignment::default());
        }
    }

    /// The initial fetch timeout of an EDS name has passed: its clusters go on without endpoints.
    pub fn give_up_endpoints(&mut self, reference: &Reference) {
        self.endpoints.entry(reference.name.clone()).or_default();
    }

    /// The initial fetch timeout of an RDS name has passed: its listeners go on and answer 404.
    pub fn give_up_route(&mut self, reference: &Reference) {
        self.given_up.insert(Awaited::Route(reference.name.clone()));
    }

    /// The initial fetch timeout of an SDS name has passed: whoever needs it goes on and fails handshakes.
    pub fn give_up_secret(&mut self, reference: &Reference) {
        self.given_up.insert(Awaited::Secret(secret_of(reference)));
    }

    /// Every name to subscribe to.
    pub fn interest(&self) -> Interest {
        let mut interest = self.interest_where(|_| true, |_| true, |_| true);
        interest.clusters = self.wanted_clusters();
        interest.listeners = self.wanted_listeners();
        interest.virtual_hosts = self.wanted_virtual_hosts();
        let likely = self.likely_endpoints(&interest.clusters);
        interest.endpoints = distinct(interest.endpoints.iter().chain(&likely), |_| true);
        interest
    }

    /// Names whose first answer has not come yet: warming waits for these.
    pub fn missing(&self) -> Interest {
        let mut missing = self.interest_where(
            |eds| !self.endpoints.contains_key(&eds.name),
            |rds| !self.has_route(rds),
            |sds| !self.has_secret(sds),
        );
        let unanswered = |kind, mut references: Vec<Reference>| {
            references.retain(|r| Demand::of(kind, &r.name).is_some_and(|demand| !self.is_answered(&demand)));
            references
        };
        missing.clusters = unanswered(ResourceType::Cluster, self.wanted_clusters());
        missing.listeners = unanswered(ResourceType::Listener, self.wanted_listeners());
        missing.virtual_hosts = unanswered(ResourceType::VirtualHost, self.wanted_virtual_hosts());
        missing
    }

    /// Whether each cluster held has had the first answer to what it names; until then it warms, and a route to it fails.
    pub fn clusters_are_answered(&self) -> bool {
        let mut versions = self.clusters.values().flat_map(|entry| entry.versions.all());
        versions.all(|version| self.cluster_is_answered(&version.compiled))
    }

    fn cluster_is_answered(&self, cluster: &CompiledCluster) -> bool {
        cluster.eds.as_ref().is_none_or(|eds| self.endpoints.contains_key(&eds.name))
            && cluster.secrets.iter().all(|secret| self.has_secret(secret))
    }

    fn interest_where(
        &self,
        endpoints: impl Fn(&Reference) -> bool,
        routes: impl Fn(&Reference) -> bool,
        secrets: impl Fn(&Reference) -> bool,
    ) -> Interest {
        let clusters = || self.clusters.values().flat_map(|entry| entry.versions.all());
        let listeners = || self.listeners.values().flat_map(|entry| entry.versions.all());
        let cluster_secrets = clusters().flat_map(|version| &version.compiled.secrets);
        let listener_secrets = listeners().flat_map(|version| &version.compiled.references.secrets);
        let tables: Vec<Reference> = self.wanted_tables().collect();
        let named = listeners().flat_map(|version| &version.compiled.references.routes);
        Interest {
            clusters: Vec::new(),
            listeners: Vec::new(),
            virtual_hosts: Vec::new(),
            endpoints: distinct(clusters().filter_map(|version| version.compiled.eds.as_ref()), endpoints),
            routes: distinct(named.chain(&tables), routes),
            secrets: distinct(cluster_secrets.chain(listener_secrets), secrets),
        }
    }

    /// Clusters whose names have to be resolved, in their newest version.
    pub fn dns_clusters(&self) -> Vec<DnsCluster> {
        let newest = self.clusters.values().filter_map(|entry| entry.versions.newest());
        let clusters = newest.map(|version| &version.compiled.cluster);
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

    /// Listeners held, serving and warming.
    pub fn listeners(&self) -> impl Iterator<Item = Held<'_>> {
        self.listeners.values().flat_map(|entry| entry.versions.held(entry.is_static))
    }

    /// The newest version of a listener, if that does not serve yet.
    pub fn warming_listener(&self, name: &str) -> Option<&Arc<Listener>> {
        let entry = self.listeners.get(name)?;
        let newest = &entry.versions.newest()?.compiled.listener;
        let serves = entry.serving.as_ref().is_some_and(|serving| Arc::ptr_eq(serving, newest));
        (!serves).then_some(newest)
    }

    /// Clusters held, serving and warming.
    pub fn clusters(&self) -> impl Iterator<Item = Held<'_>> {
        self.clusters.values().flat_map(|entry| entry.versions.held(entry.is_static))
    }

    /// Route tables held.
    pub fn routes(&self) -> impl Iterator<Item = Held<'_>> {
        self.routes.values().map(|entry| Held { resource: &entry.resource, active: true, is_static: false })
    }

    /// Listeners taken in by [`Builder::build`] since the last call, which had been refused for an address that another
    /// listener had then.
    pub fn take_admitted(&mut self) -> Vec<Arc<str>> {
        self.contenders.take_admitted()
    }

    /// The configuration to serve from now on. The same `Arc` as before when nothing changed.
    pub fn build(&mut self) -> Arc<Config> {
        self.forget_unreferenced();
        self.warm();
        if self.admit_contenders() {
            self.warm();
        }
        let next = Config {
            generation: self.current.generation + 1,
            listeners: self
                .listeners
                .iter()
                .filter_map(|(name, entry)| Some((name.clone(), entry.serving.clone()?)))
                .collect(),
            routes: self.routes.iter().filter_map(|(name, entry)| Some((name.clone(), entry.table.clone()?))).collect(),
            clusters: self.clusters.iter().filter_map(|(name, entry)| Some((name.clone(), entry.serving()?))).collect(),
            by_name: self.asks_by_name(),
            absent: self.absent().cloned().collect(),
        };
        if !next.same_as(&self.current) {
            self.current = Arc::new(next);
        }
        self.current.clone()
    }

    /// Lets resources serve whose dependencies have come.
    fn warm(&mut self) {
        let mut clusters = std::mem::take(&mut self.clusters);
        for entry in clusters.values_mut() {
            let ready = |version: &Version<CompiledCluster>| self.cluster_is_answered(&version.compiled);
            entry.advance(ready, &self.endpoints);
        }
        self.clusters = clusters;
        self.warm_routes();
        self.grow();
        let mut listeners = std::mem::take(&mut self.listeners);
        for entry in listeners.values_mut() {
            entry.advance(|version| {
                version.compiled.references.routes.iter().all(|route| self.has_route(route))
                    && self.has_clusters_of(&version.compiled)
                    && version.compiled.references.secrets.iter().all(|secret| self.has_secret(secret))
            });
        }
        self.listeners = listeners;
    }

    /// Takes in listeners that were refused for an address which is free by now; true when there were any.
    fn admit_contenders(&mut self) -> bool {
        let mut admitted = false;
        for contender in self.contenders.take() {
            if self.holder_of(contender.address, &contender.name).is_some() {
                self.contenders.add(contender);
            } else if self.listener(&contender.resource, false).is_ok() {
                self.contenders.note_admitted(contender.name);
                admitted = true;
            }
        }
        admitted
    }

    /// Drops what no resource refers to any more; its subscription ends with it.
    fn forget_unreferenced(&mut self) {
        let interest = self.interest();
        let endpoints: HashSet<&str> = interest.endpoints.iter().map(|eds| &*eds.name).collect();
        let routes: HashSet<&str> = interest.routes.iter().map(|rds| &*rds.name).collect();
        let secrets: HashSet<SdsSecret> = interest.secrets.iter().map(secret_of).collect();
        self.forget_unnamed(&interest.listeners, &interest.clusters);
        self.endpoints.retain(|name, _| endpoints.contains(&**name));
        self.routes.retain(|name, _| routes.contains(&**name));
        self.delivered.retain(|name, _| secrets.contains(name));
        self.given_up.retain(|awaited| match awaited {
            Awaited::Route(name) => routes.contains(&**name),
            Awaited::Secret(secret) => secrets.contains(secret),
        });
    }

    fn has_route(&self, reference: &Reference) -> bool {
        // A table whose clusters are not asked for by name waits for nothing.
        let has_table = |entry: &RouteEntry| entry.table.is_some() || !self.asks_by_name();
        self.routes.get(&reference.name).is_some_and(has_table)
            || self.given_up.contains(&Awaited::Route(reference.name.clone()))
    }

    fn has_secret(&self, reference: &Reference) -> bool {
        let secret = secret_of(reference);
        let there = self.delivered.get(&secret).is_some_and(|slot| match slot {
            HeldSlot::Certificate(slot) => slot.missing().is_none(),
            HeldSlot::Trust(slot) => slot.missing().is_none(),
        });
        there || self.given_up.contains(&Awaited::Secret(secret))
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
        let chains = entry.map(|entry| known_chains(&entry.versions, &message)).unwrap_or_default();
        let known = |name: &str| self.asks_by_name() || self.clusters.contains_key(name);
        let mut cx = Cx::new(&self.environment);
        cx.known_clusters = Some(&known);
        let compiled: CompiledListener =
            check("Listener", &message.name, resource, cx, |cx| listener(cx, &message, &self.secrets, &chains))?;
        if let Err(rejection) = self.refuse_duplicate_address(&compiled.listener) {
            if !is_static {
                self.contenders.add(Contender::new(&compiled.listener, resource));
            }
            return Err(rejection);
        }
        let entry = self.listeners.entry(compiled.listener.name.clone()).or_default();
        entry.is_static = is_static;
        entry.versions.set(Version { resource: resource.clone(), compiled: Arc::new(compiled) });
        Ok(())
    }

    /// Two listeners cannot share a socket. A version that still serves counts, as it does for Envoy; port 0 names no
    /// port that could be taken.
    fn refuse_duplicate_address(&self, new: &Listener) -> Result<(), Rejection> {
        if !new.bind_to_port || new.address.port() == 0 {
            return Ok(());
        }
        let Some(holder) = self.holder_of(new.address, &new.name) else { return Ok(()) };
        let reason = format!("{} is a duplicate address: listener {:?} has it", new.address, holder.name);
        let problem = Problem { path: "address".to_owned(), reason };
        Err(Rejection { kind: "Listener", name: new.name.to_string(), problems: vec![problem] })
    }

    /// The listener that has a socket at `address`, other than the one of this name.
    fn holder_of(&self, address: SocketAddr, name: &str) -> Option<&Arc<Listener>> {
        let others = self.listeners.iter().filter(|(other, _)| ***other != *name);
        let mut versions = others.flat_map(|(_, entry)| entry.versions.all()).map(|version| &version.compiled.listener);
        versions.find(|held| held.bind_to_port && held.address == address)
    }

    fn cluster(&mut self, resource: &Any, is_static: bool) -> Result<(), Rejection> {
        let message: cluster_pb::Cluster = decode("Cluster", resource)?;
        let entry = self.clusters.get(message.name.as_str());
        refuse_static("Cluster", &message.name, is_static, entry.is_some_and(|entry| entry.is_static))?;
        if entry.is_some_and(|entry| entry.versions.is_newest(resource)) {
            return Ok(());
        }
        let cx = Cx::new(&self.environment);
        let compiled =
            check("Cluster", &message.name, resource, cx, |cx| cluster(cx, &message, &resource.value, &self.secrets))?;
        let entry = self.clusters.entry(compiled.cluster.name.clone()).or_default();
        entry.is_static = is_static;
        entry.versions.set(Version { resource: resource.clone(), compiled: Arc::new(compiled) });
        Ok(())
    }
}

/// The filter chains that are held of a listener, for its next version.
fn known_chains(versions: &Versions<CompiledListener>, next: &listener_pb::Listener) -> KnownChains {
    let mut known = KnownChains::default();
    for version in versions.all() {
        // What was decoded once decodes again; keeping it decoded would cost several times the memory.
        if let Ok(message) = evenkeel_xds::unpack(&version.resource) {
            known.add(message, &version.compiled, next);
        }
    }
    known
}

/// A name for a listener of the bootstrap that has none; Envoy makes one up, too.
fn address_name(listener: &listener_pb::Listener) -> String {
    use evenkeel_xds::pb::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
    match listener.address.as_ref().and_then(|address| address.address.as_ref()) {
        Some(Address::SocketAddress(socket)) => match &socket.port_specifier {
            Some(PortSpecifier::PortValue(port)) => format!("{}_{port}", socket.address),
            _ => socket.address.clone(),
        },
        _ => String::new(),
    }
}

fn distinct<'r>(
    references: impl Iterator<Item = &'r Reference>,
    wanted: impl Fn(&Reference) -> bool,
) -> Vec<Reference> {
    let mut seen = BTreeSet::new();
    let mut distinct: Vec<Reference> = references
        .filter(|reference| wanted(reference))
        .filter(|reference| seen.insert((&reference.name, &reference.source)))
        .cloned()
        .collect();
    distinct.sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
    distinct
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

/// First the table of supported fields, then the values.
fn check<'e, T>(
    kind: &'static str,
    name: &str,
    resource: &Any,
    mut cx: Cx<'e>,
    compile: impl FnOnce(&mut Cx<'e>) -> Option<T>,
) -> Result<T, Rejection> {
    let rejection = |problems| Rejection { kind, name: name.into(), problems };
    let unsupported = support::check(resource);
    if !unsupported.is_empty() {
        return Err(rejection(unsupported));
    }
    match compile(&mut cx) {
        Some(value) if cx.problems.is_empty() => Ok(value),
        _ => Err(rejection(cx.problems)),
    }
}
