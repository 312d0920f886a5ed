//! Services: Kubernetes' own and the hosts of ServiceEntries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::annotations::{CONNECT_STRATEGY, allocates_addresses, further_identities};
use evenkeel_api::decode::IntOrString;
use evenkeel_api::istio::{self, Location, ServiceEntrySpec, VisibilityLevel};
use evenkeel_api::kubernetes::{
    self, ClusterIp, InternalTrafficPolicy, ServiceType, TrafficDistribution, TransportProtocol,
};
use evenkeel_api::remote::{self, GATEWAY_PORT_LABEL, NETWORK_LABEL};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, ObjectRef, Span};

use super::objects::note_idle_selector;
use super::run::Run;
use super::statuses::Allotted;
use super::step::{Results, Step, Tables};
use super::tracking::{Cx, Fact, Tracker};
use super::{reuse_if_equal, shared};
use crate::address_book::{Allotment, Range, SERVICE_ENTRIES, SERVICES};
use crate::index::wildcards_over;
use crate::labels;
use crate::service::{Distribution, preferred};
use crate::{
    HostAddress, Labels, List, MeshConfig, NetworkGateway, Place, Protocol, Resolution, Service, ServicePort, Snapshot,
    SortedMap, TargetPort, Visibility,
};

/// The annotation of a Service that limits which namespaces see it.
const EXPORT_TO_ANNOTATION: &str = "networking.istio.io/exportTo";
/// The annotation that says which endpoints are preferred.
const DISTRIBUTION_ANNOTATION: &str = "networking.istio.io/traffic-distribution";
/// The longest chain of aliases that is followed, in hops.
const MAX_ALIAS_HOPS: usize = 16;

/// One host of an object; its address may still be missing.
#[derive(Debug, PartialEq)]
pub(super) struct Draft {
    service: Service,
    address: Address,
    /// The gateways into a network that the object describes.
    gateways: Vec<NetworkGateway>,
}

/// The source of a service's address.
#[derive(Debug, PartialEq)]
enum Address {
    /// From the manifest, if it has any.
    AsWritten,
    /// An address that the manifest claims.
    Pinned(IpAddr, Span),
    /// An address must be assigned from this range.
    Wanted(Range),
    /// As [`Self::Wanted`] for a ServiceEntry, which has had this address, as its status says.
    Stored(IpAddr),
    /// That of a remote cluster, which means something only there. If no other cluster has the Service, an address is assigned.
    Remote(Option<IpAddr>),
}

/// The order of one host's services: by namespace, Services before ServiceEntries, then by precedence.
type Rank = (Arc<str>, Kind, Place, usize);

/// Services, and the intermediate results they are made from.
#[derive(Debug, Default)]
pub(super) struct Table {
    drafts: HashMap<ObjectKey, (Place, Vec<Arc<Draft>>)>,
    by_host: BTreeMap<Hostname, SortedMap<Rank, (ObjectKey, Arc<Draft>)>>,
    /// The objects that claim an address; the first one gets it.
    pins: HashMap<IpAddr, SortedMap<Place, (ObjectKey, Span)>>,
    listed: BTreeMap<Hostname, Vec<(ObjectKey, Arc<Service>)>>,
    /// Hosts in `listed` whose services have changed.
    changed: BTreeSet<Hostname>,
    /// ServiceEntries with hosts that have changed.
    readdressed: BTreeSet<ObjectKey>,
    /// Hosts in `listed` that are other names of hosts.
    alias_hosts: BTreeSet<Hostname>,
    /// The other names of a host.
    aliases: BTreeMap<Hostname, List<Service>>,
    /// The gateways into networks, by the object that describes them.
    gateways: BTreeMap<ObjectKey, Vec<NetworkGateway>>,
    /// Whether these have changed.
    gateways_changed: bool,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let drafts = run.read(|cx, found| drafts(cx, key, found));
    let keep = drafts.is_some();
    let Tables { services, addresses, .. } = &mut *run.tables;
    services.set_drafts(key, drafts, addresses, run.tracker);
    keep
}

pub(super) fn want_step(run: &mut Run<'_>, host: &Hostname) -> bool {
    let (range, keep) = run.read(|cx, _| (want(cx, host), is_described(cx, host)));
    run.tables.addresses.want(host.as_str(), range);
    run.tracker.want(Step::Addresses);
    keep
}

pub(super) fn addresses_step(run: &mut Run<'_>) -> bool {
    for host in run.tables.addresses.allot() {
        run.tracker.changed(Fact::Address(&host));
    }
    true
}

pub(super) fn host_step(run: &mut Run<'_>, host: &Hostname) -> bool {
    let listed = run.read(|cx, found| listed(cx, host, found));
    let keep = !listed.is_empty();
    run.tables.services.set_listed(host, listed, run.tracker);
    keep
}

pub(super) fn aliases_step(run: &mut Run<'_>) -> bool {
    let aliases = run.read(|cx, _| aliases(cx));
    run.tables.services.aliases = aliases;
    true
}

/// The other names of each host, resolved through several hops (Istio's `resolveServiceAliases`).
fn aliases(cx: &Cx<'_>) -> BTreeMap<Hostname, List<Service>> {
    let table = &cx.read(Fact::Aliases).services;
    let alias_at = |host: &Hostname| {
        table.listed.get(host)?.iter().map(|(_, service)| service).find(|service| service.alias_of.is_some())
    };
    let mut all: BTreeMap<Hostname, Vec<Arc<Service>>> = BTreeMap::new();
    for alias in table.alias_hosts.iter().filter_map(alias_at) {
        let mut target = alias.alias_of.as_ref();
        // A circle leads nowhere.
        for _ in 0..MAX_ALIAS_HOPS {
            let Some(next) = target.and_then(&alias_at) else { break };
            target = next.alias_of.as_ref();
        }
        if let Some(target) = target.filter(|host| alias_at(host).is_none()) {
            all.entry(target.clone()).or_default().push(alias.clone());
        }
    }
    all.into_iter().map(|(host, aliases)| (host, aliases.into_iter().collect())).collect()
}

impl Results for Allotment {}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let mut changed = false;
        for (host, services) in self.changed() {
            changed |= next.services.set(&host, services);
        }
        changed |= next.index.set_aliases(&self.aliases);
        if std::mem::take(&mut self.gateways_changed) {
            let mut by_network: BTreeMap<Arc<str>, Vec<NetworkGateway>> = BTreeMap::new();
            for gateway in self.gateways.values().flatten() {
                by_network.entry(gateway.network.clone()).or_default().push(gateway.clone());
            }
            for gateways in by_network.values_mut() {
                gateways.sort();
                gateways.dedup();
            }
            changed |= by_network != *next.network_gateways;
            next.network_gateways = Arc::new(by_network);
        }
        changed
    }
}

/// Reads the hosts of one object.
fn drafts(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> Option<(Place, Vec<Draft>)> {
    let (place, object) = cx.placed(id)?;
    if let Resource::ServiceEntry(entry) = &object.resource {
        note_race(object, &entry.spec, found);
    }
    let mut drafts: Vec<Draft> = match &object.resource {
        Resource::Service(service) => {
            let mut described = of_service(object, service, cx.mesh());
            described.distribution = distribution(cx, service.spec.traffic_distribution, object);
            let address = if described.cluster.is_empty() {
                note_idle_selector(cx, object, &service.spec.selector, found);
                address_of(service)
            } else {
                remote_address(&mut described, service)
            };
            let gateways = network_gateways(object, service, &described);
            vec![Draft { service: described, address, gateways }]
        }
        Resource::ServiceEntry(entry) => of_entry(cx, object, &entry.spec)
            .map(|service| {
                let wants = allocates_addresses(&object.labels)
                    && service.addresses.is_empty()
                    && !service.headless
                    && service.resolution != Resolution::Passthrough
                    && !service.host.is_wildcard();
                let address = match entry.allotted_address(&service.host) {
                    _ if !wants => Address::AsWritten,
                    Some(address) => Address::Stored(address),
                    None => Address::Wanted(SERVICE_ENTRIES),
                };
                Draft { service, address, gateways: Vec::new() }
            })
            .collect(),
        _ => return None,
    };
    let closed_by = cx.closed_by(object);
    for (at, draft) in drafts.iter_mut().enumerate() {
        draft.service.rank = Some((place.clone(), at));
        draft.service.closed_by.clone_from(&closed_by);
    }
    Some((place.clone(), drafts))
}

/// The range for a host's address, if it needs one.
fn want(cx: &Cx<'_>, host: &Hostname) -> Option<Range> {
    let stored = stored_address(cx, host);
    let is_own = || cx.drafts_of(host).any(|(_, draft)| draft.service.cluster.is_empty());
    let wanted = cx.drafts_of(host).filter_map(|(id, draft)| match &draft.address {
        Address::Wanted(range) => Some(*range).filter(|range| stored.is_none() || *range != SERVICE_ENTRIES),
        Address::Stored(_) => stored.is_none().then_some(SERVICE_ENTRIES),
        // Another Service has the address already.
        Address::Pinned(address, _) if !cx.is_granted(*address, id) => Some(SERVICES),
        Address::Remote(Some(_)) if !is_own() => Some(SERVICE_ENTRIES),
        Address::Pinned(..) | Address::AsWritten | Address::Remote(_) => None,
    });
    // The range of Services takes precedence over that of ServiceEntries.
    wanted.min_by_key(|range| *range != SERVICES)
}

/// The address of a host by the statuses of its ServiceEntries: the oldest object with an address has it.
fn stored_address(cx: &Cx<'_>, host: &Hostname) -> Option<IpAddr> {
    cx.drafts_of(host).find_map(|(id, draft)| match &draft.address {
        Address::Stored(address) if cx.is_granted(*address, id) => Some(*address),
        _ => None,
    })
}

/// Whether any object defines a host.
fn is_described(cx: &Cx<'_>, host: &Hostname) -> bool {
    cx.drafts_of(host).next().is_some()
}

/// The services of a host: those of Kubernetes first, then in the order of precedence. A namespace can define a host only
/// once; the first definition wins.
fn listed(cx: &Cx<'_>, host: &Hostname, found: &mut Diagnostics) -> Vec<(ObjectKey, Service)> {
    let mut listed: Vec<(ObjectKey, Service)> = Vec::new();
    for (id, draft) in cx.drafts_of(host) {
        let mut service = draft.service.clone();
        match &draft.address {
            Address::Pinned(address, _) if cx.is_granted(*address, id) => service.addresses = vec![(*address).into()],
            Address::Pinned(address, span) => {
                found.extend(claim_conflict(cx, *address, span).map(|finding| about(cx, id, finding)));
                service.addresses = cx.address(host).into_iter().collect();
            }
            Address::Wanted(SERVICES) => service.addresses = cx.address(host).into_iter().collect(),
            Address::Wanted(_) | Address::Stored(_) => {
                let stored = stored_address(cx, host).map(IpNet::from);
                service.addresses = stored.or_else(|| cx.address(host)).into_iter().collect();
                service.allotted = true;
            }
            Address::Remote(Some(_)) => {
                service.addresses = cx.address(host).into_iter().collect();
                service.allotted = true;
            }
            Address::AsWritten | Address::Remote(None) => {}
        }
        if let Some((_, first)) = listed.last_mut().filter(|(owner, first)| merges(owner, first, id, &service)) {
            match id.kind {
                Kind::Service => first.remote_addresses.extend(service.remote_addresses),
                _ => add_ports(first, service),
            }
            continue;
        }
        match listed.last().filter(|(_, last)| last.namespace == service.namespace) {
            Some((_, first)) => {
                let finding = Diagnostic::error(
                    "duplicate-host",
                    service.origin.clone(),
                    format!("`{}` is already defined in this namespace; this one is ignored", service.host),
                )
                .with_help("merge the two")
                .with_related(first.origin.clone(), "first defined here");
                found.push(about(cx, id, finding));
            }
            None => listed.push((id.clone(), service)),
        }
    }
    if listed.len() > 1 {
        let rank = |id: &ObjectKey| cx.ranked_drafts_of(host).find(|(_, (owner, _))| owner == id);
        listed.sort_by_cached_key(|(id, _)| rank(id).map(|((_, kind, place, _), _)| (*kind, place.clone())));
    }
    listed
}

/// Whether a later ServiceEntry adds to an earlier one for the same host (Istio's `canMergeServices`), or a later Service is the
/// same one in another cluster.
fn merges(owner: &ObjectKey, first: &Service, id: &ObjectKey, later: &Service) -> bool {
    if owner.kind == Kind::Service && id.kind == Kind::Service {
        return first.namespace == later.namespace && first.cluster != later.cluster;
    }
    owner.kind == Kind::ServiceEntry
        && id.kind == Kind::ServiceEntry
        && first.namespace == later.namespace
        && first.resolution == later.resolution
        && first.selector == later.selector
}

/// Adds ports with new numbers. As in Istio the earlier entry's other properties hold; if it has no address of its own,
/// it takes that of the later one.
fn add_ports(first: &mut Service, later: Service) {
    first.closed_by.extend(later.closed_by);
    for port in later.ports {
        if !first.ports.iter().any(|own| own.number == port.number) {
            first.ports.push(port);
        }
    }
    let new = later.addresses.iter().filter(|address| !first.addresses.contains(address));
    let new: Vec<IpNet> = new.copied().collect();
    if !later.allotted && !new.is_empty() {
        if first.allotted {
            first.addresses = new
        } else {
            first.addresses.extend(new)
        }
        first.allotted = false;
    }
}

fn about(cx: &Cx<'_>, id: &ObjectKey, finding: Diagnostic) -> Diagnostic {
    match cx.object(id) {
        Some(object) => finding.about(object.reference()),
        None => finding,
    }
}

fn claim_conflict(cx: &Cx<'_>, address: IpAddr, span: &Span) -> Option<Diagnostic> {
    let (owner, first) = cx.pinned_by(address)?;
    let owner = cx.object(owner)?;
    let message = format!("{address} is already the address of {owner}; another one is assigned");
    Some(
        Diagnostic::error("address-conflict", span.clone(), message)
            .with_help("give each Service its own `clusterIP`, or leave it out")
            .with_related(first.clone(), "first used here"),
    )
}

impl Table {
    fn set_drafts(
        &mut self,
        id: &ObjectKey,
        drafts: Option<(Place, Vec<Draft>)>,
        addresses: &mut Allotment,
        tracker: &mut Tracker,
    ) {
        let drafts = drafts.map(|(place, drafts)| (place, drafts.into_iter().map(Arc::new).collect::<Vec<_>>()));
        let old = self.drafts.remove(id);
        if old == drafts {
            self.drafts.extend(old.map(|old| (id.clone(), old)));
            return;
        }
        let gateways = drafts.iter().flat_map(|(_, drafts)| drafts).flat_map(|draft| draft.gateways.clone());
        let gateways: Vec<NetworkGateway> = gateways.collect();
        let before = if gateways.is_empty() {
            self.gateways.remove(id)
        } else {
            self.gateways.insert(id.clone(), gateways.clone())
        };
        self.gateways_changed |= before.unwrap_or_default() != gateways;
        let mut claimed = BTreeSet::new();
        for (is_there, (place, drafts)) in
            [(false, old), (true, drafts.clone())].into_iter().filter_map(|(t, d)| Some((t, d?)))
        {
            for (position, draft) in drafts.iter().enumerate() {
                let rank = (id.namespace.clone(), id.kind, place.clone(), position);
                let host = &draft.service.host;
                let here = self.by_host.entry(host.clone()).or_default();
                match is_there {
                    true => {
                        here.insert(rank, (id.clone(), draft.clone()));
                    }
                    // Another object may have taken this place.
                    false if here.get(&rank).is_some_and(|(owner, _)| owner == id) => {
                        here.remove(&rank);
                    }
                    false => {}
                }
                if here.is_empty() {
                    self.by_host.remove(host);
                }
                tracker.changed(Fact::Drafts(host.as_str()));
                tracker.want(Step::Want(host.clone()));
                tracker.want(Step::Host(host.clone()));
                if let Some(Claim { address, place: span }) = draft.claim() {
                    let claims = self.pins.entry(address).or_default();
                    match is_there {
                        true => {
                            claims.insert(place.clone(), (id.clone(), span.clone()));
                        }
                        false if claims.get(&place).is_some_and(|(owner, _)| owner == id) => {
                            claims.remove(&place);
                        }
                        false => {}
                    }
                    if claims.is_empty() {
                        self.pins.remove(&address);
                    }
                    claimed.insert(address);
                }
                for address in draft.claims() {
                    addresses.reserve(address, is_there);
                }
            }
        }
        for address in claimed {
            tracker.changed(Fact::Pin(address));
        }
        tracker.want(Step::Addresses);
        self.drafts.extend(drafts.map(|drafts| (id.clone(), drafts)));
    }

    fn set_listed(&mut self, host: &Hostname, listed: Vec<(ObjectKey, Service)>, tracker: &mut Tracker) {
        let old = self.listed.remove(host).unwrap_or_default();
        let before = |namespace: &str| old.iter().find(|(_, s)| *s.namespace == *namespace).map(|(_, service)| service);
        let new: Vec<(ObjectKey, Arc<Service>)> = listed
            .into_iter()
            .map(|(id, service)| (id, reuse_if_equal(before(&service.namespace.clone()), service)))
            .collect();
        let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        if !same {
            tracker.changed(Fact::Host(host.as_str()));
            for wildcard in wildcards_over(host.as_str()) {
                tracker.changed(Fact::Covered(&wildcard));
            }
            if host.is_wildcard() {
                tracker.changed(Fact::Covered(host.as_str()));
            }
            tracker.changed(Fact::Services);
            let aliases = |all: &[(ObjectKey, Arc<Service>)]| all.iter().any(|(_, service)| service.alias_of.is_some());
            if aliases(&old) || aliases(&new) {
                if aliases(&new) {
                    self.alias_hosts.insert(host.clone());
                } else {
                    self.alias_hosts.remove(host);
                }
                tracker.want(Step::Aliases);
            }
            for (_, service) in old.iter().chain(&new) {
                tracker.want(Step::Endpoints((service.namespace.clone(), host.clone())));
            }
            self.changed.insert(host.clone());
            let entries = self.by_host.get(host).into_iter().flat_map(SortedMap::values).map(|(id, _)| id.clone());
            self.readdressed.extend(entries.filter(|id| id.kind == Kind::ServiceEntry));
        }
        if !new.is_empty() {
            self.listed.insert(host.clone(), new);
        }
    }

    /// Takes the ServiceEntries with hosts that have changed.
    pub(super) fn take_readdressed(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.readdressed)
    }

    /// The addresses that the hosts of a ServiceEntry have been allotted.
    pub(super) fn allotted(&self, object: &ObjectRef) -> Allotted {
        let mut allotted = Allotted { addresses: Vec::new(), are_stored: true };
        if object.kind != Kind::ServiceEntry.as_str() {
            return allotted;
        }
        let id = ObjectKey { kind: Kind::ServiceEntry, namespace: object.namespace.clone(), name: object.name.clone() };
        let drafts = self.drafts.get(&id).into_iter().flat_map(|(_, drafts)| drafts);
        let drafts = drafts.filter(|draft| matches!(draft.address, Address::Wanted(_) | Address::Stored(_)));
        for draft in drafts {
            let listed = self.listed.get(&draft.service.host).into_iter().flatten();
            let mut listed = listed.filter(|(_, service)| service.namespace == id.namespace && service.allotted);
            let Some(address) = listed.next().and_then(|(_, service)| service.vips().next()) else { continue };
            allotted.are_stored &= draft.address == Address::Stored(address);
            allotted.addresses.push(HostAddress { host: draft.service.host.as_str().into(), address });
        }
        allotted
    }

    /// The hosts whose services have changed, with the present ones.
    fn changed(&mut self) -> Vec<(Hostname, List<Service>)> {
        let changed = std::mem::take(&mut self.changed);
        let now = |host: &Hostname| self.listed.get(host).into_iter().flatten().map(|(_, s)| s.clone()).collect();
        changed.into_iter().map(|host| (host.clone(), now(&host))).collect()
    }
}

/// A claim of an address, and where it is written.
struct Claim<'d> {
    address: IpAddr,
    place: &'d Span,
}

impl Draft {
    /// Returns the address that it has if it is the oldest that claims it.
    fn claim(&self) -> Option<Claim<'_>> {
        match &self.address {
            Address::Pinned(address, place) => Some(Claim { address: *address, place }),
            Address::Stored(address) => Some(Claim { address: *address, place: &self.service.origin }),
            Address::AsWritten | Address::Wanted(_) | Address::Remote(_) => None,
        }
    }

    /// Returns the addresses that must not be assigned to other services.
    fn claims(&self) -> Vec<IpAddr> {
        match &self.address {
            Address::Pinned(address, _) | Address::Stored(address) => vec![*address],
            Address::AsWritten | Address::Wanted(_) | Address::Remote(_) => self.service.vips().collect(),
        }
    }
}

impl<'t> Cx<'t> {
    fn drafts_of(&self, host: &Hostname) -> impl Iterator<Item = &'t (ObjectKey, Arc<Draft>)> + use<'t> {
        self.ranked_drafts_of(host).map(|(_, draft)| draft)
    }

    fn ranked_drafts_of(
        &self,
        host: &Hostname,
    ) -> impl Iterator<Item = (&'t Rank, &'t (ObjectKey, Arc<Draft>))> + use<'t> {
        self.read(Fact::Drafts(host.as_str())).services.by_host.get(host).into_iter().flat_map(SortedMap::iter)
    }

    fn pinned_by(&self, address: IpAddr) -> Option<&'t (ObjectKey, Span)> {
        self.read(Fact::Pin(address)).services.pins.get(&address)?.values().next()
    }

    fn is_granted(&self, address: IpAddr, id: &ObjectKey) -> bool {
        self.pinned_by(address).is_some_and(|(owner, _)| owner == id)
    }

    /// The address a host has been allotted.
    fn address(&self, host: &Hostname) -> Option<IpNet> {
        self.read(Fact::Address(host.as_str())).addresses.book().address(host.as_str()).map(IpNet::from)
    }

    /// All services of exactly this host with their objects, regardless of visibility.
    pub(super) fn services_of(&self, host: &Hostname) -> &'t [(ObjectKey, Arc<Service>)] {
        self.read(Fact::Host(host.as_str())).services.listed.get(host).map_or(&[], Vec::as_slice)
    }

    /// The service of a host in a namespace.
    pub(super) fn service_in(&self, host: &Hostname, namespace: &str) -> Option<&'t (ObjectKey, Arc<Service>)> {
        self.services_of(host).iter().find(|(_, service)| *service.namespace == *namespace)
    }

    /// The service of exactly this host as a client in `namespace` sees it.
    pub(super) fn service(&self, host: &Hostname, namespace: &str) -> Option<&'t Arc<Service>> {
        preferred(self.services_of(host).iter().map(|(_, service)| service), namespace)
    }

    /// The service that a route to a host leads to: its own, or that of the host that it is another name of.
    pub(super) fn destination(&self, host: &Hostname, namespace: &str) -> Option<&'t Arc<Service>> {
        let mut found = self.service(host, namespace)?;
        for _ in 0..MAX_ALIAS_HOPS {
            let Some(target) = &found.alias_of else { return Some(found) };
            found = self.service(target, namespace)?;
        }
        None
    }

    /// Returns the services that a host matches: that of this name, or those that a wildcard covers.
    pub(super) fn covered(&self, host: &Hostname) -> Vec<&'t Arc<Service>> {
        if !host.is_wildcard() {
            return self.services_of(host).iter().map(|(_, service)| service).collect();
        }
        let all = &self.read(Fact::Covered(host.as_str())).services.listed;
        let covered = all.iter().filter(|(name, _)| host.covers(name));
        covered.flat_map(|(_, services)| services.iter().map(|(_, service)| service)).collect()
    }

    /// All services, ordered by host.
    pub(super) fn services(&self) -> impl Iterator<Item = &'t Arc<Service>> + Clone + use<'t> {
        self.read(Fact::Services).services.listed.values().flatten().map(|(_, service)| service)
    }

    /// The objects that a service is made from, each with the service as it describes it: one, or several ServiceEntries
    /// that share a host.
    pub(super) fn parts_of(&self, service: &Service) -> impl Iterator<Item = (&'t ObjectKey, &'t Service)> + use<'t> {
        let owner = self.service_in(&service.host, &service.namespace);
        let drafts = self.drafts_of(&service.host).map(|(id, draft)| (id, &draft.service));
        let is_part = move |(id, draft): &(&ObjectKey, &Service)| {
            owner.is_some_and(|(owner, first)| owner == *id || merges(owner, first, id, draft))
        };
        drafts.filter(is_part)
    }

    /// The services made from an object, unless others replaced them, ordered by host.
    pub(super) fn services_from(&self, id: &ObjectKey) -> Vec<&'t Arc<Service>> {
        // The hosts of an object depend only on the object itself.
        let drafts = self.read(Fact::Object(id)).services.drafts.get(id).into_iter().flat_map(|(_, drafts)| drafts);
        let mut found: Vec<&Arc<Service>> = drafts
            .filter_map(|draft| self.service_in(&draft.service.host, &id.namespace))
            .filter(|(owner, service)| owner == id || self.parts_of(service).any(|(part, _)| part == id))
            .map(|(_, service)| service)
            .collect();
        found.sort_by(|a, b| a.host.cmp(&b.host));
        found.dedup_by(|a, b| a.host == b.host);
        found
    }
}

fn address_of(service: &kubernetes::Service) -> Address {
    match service.spec.cluster_ip.as_ref().map(|written| (&written.value, &written.span)) {
        _ if service.spec.kind == Some(ServiceType::ExternalName) => Address::AsWritten,
        None => Address::Wanted(SERVICES),
        Some((ClusterIp::Address(address), span)) => Address::Pinned(*address, span.clone()),
        Some(_) => Address::AsWritten,
    }
}

/// The address of a Service of a remote cluster, which is noted for the clients there.
fn remote_address(described: &mut Service, service: &kubernetes::Service) -> Address {
    match address_of(service) {
        Address::Pinned(address, _) => {
            described.remote_addresses.insert(described.cluster.clone(), address);
            Address::Remote(Some(address))
        }
        _ => Address::Remote(None),
    }
}

/// The port of gateways between networks, unless a label of their Service says otherwise, as in Istio.
const GATEWAY_PORT: u16 = 15443;

/// The gateways into a network: the addresses of the load balancer of a Service that names the network.
fn network_gateways(object: &Object, service: &kubernetes::Service, described: &Service) -> Vec<NetworkGateway> {
    let network = object.labels.get(NETWORK_LABEL).filter(|network| !network.is_empty());
    let Some(network) = network.map(|network| shared(network)) else { return Vec::new() };
    let port = object.labels.get(GATEWAY_PORT_LABEL).and_then(|port| port.parse().ok()).unwrap_or(GATEWAY_PORT);
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.into_iter().flat_map(|balancer| &balancer.ingress);
    let addresses = points.filter_map(|point| point.ip.as_ref()?.parse().ok());
    let gateway =
        |address| NetworkGateway { network: network.clone(), cluster: described.cluster.clone(), address, port };
    addresses.map(gateway).collect()
}

fn of_service(object: &Object, service: &kubernetes::Service, mesh: &MeshConfig) -> Service {
    let (cluster, name) = remote::split(&object.name);
    let host = Hostname::of_service(name, &object.namespace, &mesh.cluster_domain);
    let spec = &service.spec;
    let alias_of = spec.external_name.as_ref().map(|n| n.value.clone());
    let headless = alias_of.is_none() && matches!(spec.cluster_ip.as_deref(), Some(ClusterIp::Headless));
    let export_to = object.annotations.get(EXPORT_TO_ANNOTATION);
    let export_to = export_to.into_iter().flat_map(|a| a.split(',')).map(str::trim).filter(|e| !e.is_empty());
    Service {
        name: if cluster.is_empty() { object.name.clone() } else { shared(name) },
        cluster: cluster.into(),
        remote_addresses: BTreeMap::new(),
        cluster_local: mesh.is_cluster_local(&host),
        host,
        namespace: object.namespace.clone(),
        labels: labels::of_mesh(&object.labels),
        selector: spec.selector.clone(),
        ports: spec.ports.iter().filter_map(service_port).collect(),
        addresses: Vec::new(),
        allotted: false,
        resolution: match (headless, &alias_of) {
            (_, Some(_)) => Resolution::Alias,
            // Clients choose a Pod themselves, and their connections go there.
            (true, None) => Resolution::Passthrough,
            (false, None) => Resolution::Static,
        },
        headless,
        rank: None,
        races_addresses: false,
        distribution: Distribution::Any,
        node_local: spec.internal_traffic_policy == Some(InternalTrafficPolicy::Local),
        external: false,
        export_to: MeshConfig::visibility(export_to, &mesh.service_export_to, &object.namespace),
        alias_of,
        subject_alt_names: Vec::new(),
        identities: further_identities(&object.annotations, &mesh.trust_domain, &object.namespace)
            .into_iter()
            .map(Into::into)
            .collect(),
        closed_by: Vec::new(),
        origin: object.origin.clone(),
    }
}

/// Istio's `GetTrafficDistribution`: the field, else the annotation, in any case; else the annotation of the namespace.
fn distribution(cx: &Cx<'_>, field: Option<TrafficDistribution>, object: &Object) -> Distribution {
    let own = object.annotations.get(DISTRIBUTION_ANNOTATION);
    let of_namespace = || {
        let id = ObjectKey { kind: Kind::Namespace, namespace: "".into(), name: object.namespace.clone() };
        cx.object(&id)?.annotations.get(DISTRIBUTION_ANNOTATION)
    };
    let annotation = own.or_else(|| of_namespace().filter(|_| field.is_none()));
    let annotation = annotation.map(|text| text.to_ascii_lowercase());
    match (field, annotation.as_deref()) {
        (Some(TrafficDistribution::PreferSameNode), _) => Distribution::SameNode,
        (Some(_), _) => Distribution::SameZone,
        (None, Some("prefersamenode")) => Distribution::SameNode,
        (None, Some("preferclose" | "prefersamezone")) => Distribution::SameZone,
        (None, _) => Distribution::Any,
    }
}

/// The mesh cannot carry SCTP, so it ignores such ports.
fn service_port(port: &kubernetes::ServicePort) -> Option<ServicePort> {
    let transport = port.protocol.unwrap_or(TransportProtocol::Tcp);
    if transport == TransportProtocol::Sctp {
        return None;
    }
    let name = port.name.as_ref().map_or("", |n| &n.0);
    let udp = transport == TransportProtocol::Udp;
    Some(ServicePort {
        name: shared(name),
        number: port.port.0,
        protocol: Protocol::detect(udp, port.app_protocol.as_deref(), name),
        target: match port.target_port.as_deref() {
            None => TargetPort::Same,
            Some(IntOrString::Port(number)) => TargetPort::Number(number.0),
            Some(IntOrString::Name(name)) => TargetPort::Name(shared(name)),
        },
    })
}

/// Returns who sees a ServiceEntry: as it says, within the limits of the mesh's `serviceEntryVisibility`.
fn entry_visibility(cx: &Cx<'_>, object: &Object, spec: &ServiceEntrySpec) -> Visibility {
    let (mesh, namespace) = (cx.mesh(), &object.namespace);
    let own = MeshConfig::visibility(spec.export_to.iter().map(|e| e.as_str()), &mesh.service_export_to, namespace);
    let none = Labels::new();
    let limit = mesh.service_entry_visibility.as_ref();
    match limit.map(|limit| limit.of(cx.namespace_labels(namespace).unwrap_or(&none))) {
        None | Some(VisibilityLevel::Unspecified | VisibilityLevel::Public) => own,
        Some(VisibilityLevel::Namespace) if own.seen_by(&**namespace) => {
            Visibility::Namespaces([namespace.clone()].into())
        }
        Some(VisibilityLevel::Namespace | VisibilityLevel::None) => Visibility::None,
    }
}

fn of_entry<'e>(cx: &'e Cx<'_>, object: &'e Object, spec: &'e ServiceEntrySpec) -> impl Iterator<Item = Service> + 'e {
    spec.hosts.iter().map(move |host| Service {
        host: host.value.clone(),
        name: object.name.clone(),
        cluster: "".into(),
        remote_addresses: BTreeMap::new(),
        cluster_local: cx.mesh().is_cluster_local(&host.value),
        namespace: object.namespace.clone(),
        labels: labels::of_mesh(&object.labels),
        selector: spec.workload_selector.as_ref().map(|selector| selector.labels.clone()).unwrap_or_default(),
        ports: spec.ports.iter().map(entry_port).collect(),
        addresses: spec.addresses.iter().map(|a| a.value).collect(),
        allotted: false,
        resolution: match spec.resolution.unwrap_or(istio::Resolution::None) {
            istio::Resolution::None => Resolution::Passthrough,
            istio::Resolution::Static => Resolution::Static,
            istio::Resolution::Dns => Resolution::Dns,
            istio::Resolution::DnsRoundRobin => Resolution::DnsRoundRobin,
            istio::Resolution::DynamicDns => Resolution::DynamicDns,
        },
        // As Istio's `buildSidecarOutboundListeners` treats them.
        headless: spec.workload_selector.is_some()
            && spec.addresses.is_empty()
            && spec.resolution.is_none_or(|resolution| resolution == istio::Resolution::None),
        rank: None,
        races_addresses: races_addresses(object),
        distribution: distribution(cx, None, object),
        node_local: false,
        external: spec.location != Some(Location::MeshInternal),
        export_to: entry_visibility(cx, object, spec),
        alias_of: None,
        subject_alt_names: spec.subject_alt_names.iter().map(|n| shared(n)).collect(),
        identities: Vec::new(),
        closed_by: Vec::new(),
        origin: host.span.clone(),
    })
}

fn races_addresses(object: &Object) -> bool {
    let said = object.annotations.get(CONNECT_STRATEGY);
    said.is_some_and(|strategy| strategy.eq_ignore_ascii_case("RACE_FIRST_TCP_CONNECT"))
}

/// Reports that connections cannot race: the addresses are not those of one name (LOGICAL_DNS).
fn note_race(object: &Object, spec: &ServiceEntrySpec, found: &mut Diagnostics) {
    let by_name = matches!(spec.resolution, Some(istio::Resolution::Dns | istio::Resolution::DnsRoundRobin));
    let Some(strategy) = object.annotations.get(CONNECT_STRATEGY).filter(|_| races_addresses(object)) else { return };
    if by_name && spec.endpoints.len() < 2 && spec.workload_selector.is_none() {
        return;
    }
    let message = format!("{object}: connections race only to the addresses of one name, with `resolution: DNS`");
    let help = "write one ServiceEntry for each endpoint, or remove the annotation";
    let finding = Diagnostic::warning("no-effect", strategy.span.clone(), message).with_help(help);
    found.push(finding.about(object.reference()));
}

fn entry_port(port: &istio::ServiceEntryPort) -> ServicePort {
    ServicePort {
        name: port.name.0.clone(),
        number: port.number.0,
        protocol: match &port.protocol {
            Some(protocol) => Protocol::from_name(protocol).unwrap_or(Protocol::Tcp),
            None => Protocol::detect(false, None, &port.name.0),
        },
        target: port.target_port.map_or(TargetPort::Same, |p| TargetPort::Number(p.0)),
    }
}
