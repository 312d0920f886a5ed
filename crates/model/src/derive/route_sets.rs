//! Route sets. In the mesh the first one that a proxy sees routes a host's requests; at a gateway they are merged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::{Diagnostic, Diagnostics, Span};

use super::run::Run;
use super::step::{Results, Step};
use super::tracking::{Cx, Fact, Tracker};
use super::{delegates, gateway_api, ingresses, set, virtual_services};
use crate::index::RouteSetRank;
use crate::{GatewayRef, List, Place, RouteSet, Snapshot, SortedMap, Visibility};

/// The routes of an object as it is written, with those of its delegates.
#[derive(Debug, Clone)]
pub(super) struct CompleteRoutes {
    place: Place,
    object: Arc<Object>,
    service: Arc<RouteSet>,
    /// Those route sets, if the object has others where it applies (in `service` are those of the mesh).
    elsewhere: Vec<RouteSet>,
    /// The objects that its routes delegate to.
    delegates: BTreeSet<ObjectKey>,
}

/// The objects that name a host, in the order of precedence; the number is the position of the host in the object.
type Claimants = SortedMap<(Place, usize), ObjectKey>;

/// A place in the order of a gateway's route sets.
type AtGateway = (GatewayRef, RouteSetRank);

/// Route sets and their hosts.
#[derive(Debug, Default)]
pub(super) struct Table {
    wholes: HashMap<ObjectKey, CompleteRoutes>,
    in_mesh: BTreeMap<Hostname, Claimants>,
    at_gateways: BTreeMap<(GatewayRef, Hostname), Claimants>,
    /// The Ingresses with rules for a host.
    ingresses: BTreeMap<Hostname, Claimants>,
    /// The objects with routes that delegate to an object.
    roots: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    parts: HashMap<ObjectKey, Vec<(RouteSetRank, Arc<RouteSet>)>>,
    /// In the order of precedence.
    listed: BTreeMap<RouteSetRank, Arc<RouteSet>>,
    by_host: BTreeMap<Hostname, SortedMap<RouteSetRank, Arc<RouteSet>>>,
    by_destination: BTreeMap<Hostname, SortedMap<RouteSetRank, Arc<RouteSet>>>,
    /// The places in `listed` that have changed.
    changed: BTreeSet<RouteSetRank>,
    changed_hosts: BTreeSet<Hostname>,
    changed_destinations: BTreeSet<Hostname>,
    /// Gateways with the places in `listed` that may have changed there.
    changed_at_gateways: BTreeSet<AtGateway>,
}

pub(super) fn object_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    // An Ingress routes only while its class is Istio's.
    let (mut whole, keep) = run.read(|cx, found| (whole(cx, key, found), cx.object(key).is_some()));
    let result = whole.as_mut().and_then(|whole| whole.result.take());
    run.tables.gateway_api_statuses.set_route(key, result, run.tracker);
    run.tables.routes.set_whole(key, whole, run.tracker);
    keep
}

pub(super) fn gateway_host_step(run: &mut Run<'_>, gateway: &GatewayRef, host: &Hostname) -> bool {
    run.read(|cx, found| {
        note_merged(cx, gateway, host, found);
        is_claimed_at(cx, gateway, host)
    })
}

pub(super) fn mesh_host_step(run: &mut Run<'_>, host: &Hostname) -> bool {
    run.read(|cx, found| {
        note_aliases(cx, host, found);
        note_duplicates(cx, host, found)
    })
}

pub(super) fn parts_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (parts, keep) = run.read(|cx, _| (parts(cx, key), cx.object(key).is_some()));
    run.tables.routes.set_parts(key, parts);
    keep
}

pub(super) fn delegate_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    run.read(|cx, found| note_unused_delegate(cx, key, found))
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let mut changed = false;
        for (rank, service) in self.changed() {
            changed |= next.route_sets.set(&rank, service);
        }
        for (host, services) in self.changed_hosts() {
            set(&mut next.index.route_sets, host, services);
        }
        for (host, services) in self.changed_destinations() {
            set(&mut next.index.routes_to, host, services);
        }
        for ((gateway, rank), service) in self.changed_at_gateways() {
            let mut here = next.index.at_gateway.get(&gateway).cloned().unwrap_or_default();
            here.set(&rank, service);
            if here.is_empty() {
                next.index.at_gateway.remove(&gateway);
            } else {
                next.index.at_gateway.insert(gateway, here);
            }
        }
        changed
    }
}

/// The routes of an object of any kind.
fn whole(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> Option<ConvertedObject> {
    let (place, object) = cx.placed(id)?;
    let (mut elsewhere, mut result) = (Vec::new(), None);
    let (service, delegates) = match &object.resource {
        Resource::VirtualService(written) => {
            let delegates = written.spec.http.iter().filter_map(|route| route.delegate.as_ref());
            let delegates = delegates.map(|delegate| delegates::delegate_key(delegate, object)).collect();
            (virtual_services::route_set(cx, object, &written.spec, found), delegates)
        }
        Resource::Ingress(written) => (ingresses::whole(cx, object, written, found)?, BTreeSet::new()),
        _ => {
            let parts = gateway_api::parts(cx, object, found)?;
            (elsewhere, result) = (parts.sets, Some(parts.result));
            (gateway_api::in_mesh(object, &elsewhere), BTreeSet::new())
        }
    };
    Some(ConvertedObject { place: place.clone(), object: object.clone(), service, elsewhere, delegates, result })
}

/// Reports objects whose routes for a host are merged at a gateway.
fn note_merged(cx: &Cx<'_>, gateway: &GatewayRef, host: &Hostname, found: &mut Diagnostics) {
    let claimants =
        cx.read(Fact::GatewayHost(gateway, host.as_str())).routes.at_gateways.get(&(gateway.clone(), host.clone()));
    let mut claims = claimants.into_iter().flat_map(SortedMap::iter).filter_map(|((_, at), id)| {
        let whole = cx.whole(id)?;
        Some((&whole.object, &whole.service.hosts.get(at % whole.service.hosts.len().max(1))?.span))
    });
    let Some((first, first_span)) = claims.next() else { return };
    for (object, span) in claims {
        let message =
            format!("{first} also routes `{host}` at the Gateway {gateway}; its routes come before those of {object}");
        found.push(
            Diagnostic::info("merged", span.clone(), message)
                .about(object.reference())
                .with_help("the first route that matches is used; put a route without a match last")
                .with_related(first_span.clone(), "these routes come first"),
        );
    }
}

/// Whether a route set names a host at a gateway.
fn is_claimed_at(cx: &Cx<'_>, gateway: &GatewayRef, host: &Hostname) -> bool {
    let claims = &cx.read(Fact::GatewayHost(gateway, host.as_str())).routes.at_gateways;
    claims.contains_key(&(gateway.clone(), host.clone()))
}

/// Reports objects whose requests for a host in the mesh are routed by another object, at least in some namespaces.
/// Routes of connections are all used. Returns whether there are any objects.
fn note_duplicates(cx: &Cx<'_>, host: &Hostname, found: &mut Diagnostics) -> bool {
    let claimants = cx.read(Fact::MeshHost(host.as_str())).routes.in_mesh.get(host);
    let claims = claimants.into_iter().flat_map(SortedMap::iter).filter_map(|(rank, id)| {
        let whole = cx.whole(id)?;
        Some((whole, &whole.service.hosts.get(rank.1)?.span))
    });
    let claims: Vec<(&CompleteRoutes, &Span)> = claims.filter(|(whole, _)| !whole.service.http.is_empty()).collect();
    for (at, (loser, span)) in claims.iter().enumerate() {
        let mut others = claims.iter().enumerate().filter(|(other, _)| *other != at);
        let winner = others.find_map(|(other, (winner, span))| {
            let is_merged = winner.service.is_sorted_with(&loser.service)
                && winner.service.export_to.nearness(&winner.object.namespace, &*loser.object.namespace)
                    == loser.service.export_to.nearness(&loser.object.namespace, &*loser.object.namespace);
            let namespaces = overridden_in(&winner.service, &loser.service, other < at)?;
            (!is_merged).then_some((winner, span, namespaces))
        });
        let Some((winner, winner_span, namespaces)) = winner else { continue };
        let scope = match namespaces.as_slice() {
            [] => String::new(),
            some => format!(" in {}", one_of(some.iter().map(|namespace| &**namespace))),
        };
        let message = format!(
            "{} already routes `{host}` in the mesh; the routes of {} for it are ignored{scope}",
            winner.object, loser.object
        );
        found.push(
            Diagnostic::warning("duplicate-host", (*span).clone(), message)
                .about(loser.object.reference())
                .with_help("put all routes of a host into one VirtualService")
                .with_related((*winner_span).clone(), "this one applies"),
        );
    }
    claimants.is_some()
}

/// Reports routes for another name of a service that has routes itself: these hold for all its names, unless those for the
/// name come first.
fn note_aliases(cx: &Cx<'_>, host: &Hostname, found: &mut Diagnostics) {
    let claims = |host: &Hostname| {
        let claimants = cx.read(Fact::MeshHost(host.as_str())).routes.in_mesh.get(host);
        let claims = claimants.into_iter().flat_map(SortedMap::iter).filter_map(|(rank, id)| {
            let whole = cx.whole(id).filter(|whole| !whole.service.http.is_empty())?;
            Some((rank, whole, whole.service.hosts.get(rank.1)?.span.clone()))
        });
        claims.collect::<Vec<_>>()
    };
    for (rank, routes, span) in claims(host) {
        let namespace = &routes.object.namespace;
        let is_alias = cx.service(host, namespace).is_some_and(|service| service.alias_of.is_some());
        let Some(target) = cx.destination(host, namespace).filter(|_| is_alias) else { continue };
        let of_target = claims(&target.host);
        let earlier = of_target.iter().find_map(|(other, winner, winner_span)| {
            overridden_in(&winner.service, &routes.service, other < &rank)?;
            Some((winner, winner_span))
        });
        let Some((winner, winner_span)) = earlier else { continue };
        let message = format!(
            "{}: `{host}` is another name of the Service `{}`, whose routes in {} come first and hold for this name, too; these have no effect on calls of it",
            routes.object, target.host, winner.object
        );
        found.push(
            Diagnostic::warning("no-effect", span, message)
                .about(routes.object.reference())
                .with_help(format!("name `{}` in `hosts`, or call another host", target.host))
                .with_related(winner_span.clone(), "these routes come first"),
        );
    }
}

/// The namespaces in which `winner` takes precedence over `loser` for a host of both; empty: wherever `loser` is seen.
/// `None`: in none. The nearer one does, or else the one that comes first.
fn overridden_in(winner: &RouteSet, loser: &RouteSet, winner_is_first: bool) -> Option<Vec<Arc<str>>> {
    let (seen, of_loser) = match (&winner.export_to, &loser.export_to) {
        (Visibility::None, _) | (_, Visibility::None) | (Visibility::Public, Visibility::Namespaces(_)) => return None,
        (Visibility::Public, Visibility::Public) => return winner_is_first.then(Vec::new),
        (Visibility::Namespaces(seen), Visibility::Public) => return Some(seen.iter().cloned().collect()),
        (Visibility::Namespaces(seen), Visibility::Namespaces(of_loser)) => (seen, of_loser),
    };
    let rank = |of: &RouteSet, viewer: &str, is_first: bool| (of.export_to.nearness(&of.namespace, viewer), !is_first);
    let wins = |viewer: &str| rank(winner, viewer, winner_is_first) < rank(loser, viewer, !winner_is_first);
    let won: Vec<Arc<str>> = seen.intersection(of_loser).filter(|viewer| wins(viewer)).cloned().collect();
    match won.len() {
        0 => None,
        all if all == of_loser.len() => Some(Vec::new()),
        _ => Some(won),
    }
}

/// The route sets of an object. A delegate has none of its own: it is part of others.
fn parts(cx: &Cx<'_>, id: &ObjectKey) -> Vec<(RouteSetRank, Arc<RouteSet>)> {
    let Some(CompleteRoutes { place, service, object, elsewhere, .. }) = cx.whole(id) else { return Vec::new() };
    match &object.resource {
        Resource::Ingress(ingress) => {
            // Its hosts have different routes.
            let mut parts = ingresses::parts(cx, object, ingress);
            parts.iter_mut().for_each(|part| part.gateways = gateways_of_host(cx, part));
            parts.into_iter().enumerate().map(|(at, part)| ((place.clone(), at), Arc::new(part))).collect()
        }
        Resource::HttpRoute(_)
        | Resource::GrpcRoute(_)
        | Resource::TlsRoute(_)
        | Resource::TcpRoute(_)
        | Resource::UdpRoute(_) => {
            elsewhere.iter().enumerate().map(|(at, part)| ((place.clone(), at), Arc::new(part.clone()))).collect()
        }
        _ if service.hosts.is_empty() => Vec::new(),
        _ => vec![((place.clone(), 0), service.clone())],
    }
}

/// The Gateways of all Ingresses that have rules for the host of a part: the paths of one host may be split among Ingresses,
/// of which only the first serves the host with TLS.
fn gateways_of_host(cx: &Cx<'_>, part: &RouteSet) -> Vec<GatewayRef> {
    let Some(host) = part.hosts.first() else { return part.gateways.clone() };
    let claims = cx.read(Fact::IngressHost(host.as_str())).routes.ingresses.get(&host.value);
    let sharing = claims.into_iter().flat_map(SortedMap::values).filter_map(|id| cx.whole(id));
    sharing.flat_map(|whole| whole.service.gateways.iter().cloned()).collect()
}

/// Reports an object without hosts that no route delegates to. Returns whether it is there.
fn note_unused_delegate(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) -> bool {
    let may_be_one = |whole: &&CompleteRoutes| whole.service.hosts.is_empty() && id.kind == Kind::VirtualService;
    let Some(whole) = cx.whole(id).filter(may_be_one) else { return false };
    if !cx.read(Fact::Roots(id)).routes.roots.contains_key(id) {
        let object = &whole.object;
        let message =
            format!("{object} has no `hosts`, and no VirtualService delegates to it; its routes have no effect");
        found.push(
            Diagnostic::warning("unused-delegate", object.origin.clone(), message)
                .about(object.reference())
                .with_help("add `hosts`, or `delegate` to it from a route of another VirtualService"),
        );
    }
    true
}

/// The route set converted from an object.
struct ConvertedObject {
    place: Place,
    object: Arc<Object>,
    service: RouteSet,
    elsewhere: Vec<RouteSet>,
    delegates: BTreeSet<ObjectKey>,
    /// What becomes of a route of the Gateway API at its parents.
    result: Option<gateway_api::RouteResult>,
}

impl Table {
    fn set_whole(&mut self, id: &ObjectKey, new: Option<ConvertedObject>, tracker: &mut Tracker) {
        let old = self.wholes.remove(id);
        let new = new.map(|ConvertedObject { place, object, service, elsewhere, delegates, .. }| {
            // If the object was rewritten, the route set is new, too: positions in it may differ.
            let is_same = |old: &&CompleteRoutes| {
                Arc::ptr_eq(&old.object, &object) && *old.service == service && old.elsewhere == elsewhere
            };
            let same = old.as_ref().filter(is_same);
            let service = same.map_or_else(|| Arc::new(service), |old| old.service.clone());
            CompleteRoutes { place, object, service, elsewhere, delegates }
        });
        let same = match (&old, &new) {
            (Some(old), Some(new)) => old.place == new.place && Arc::ptr_eq(&old.service, &new.service),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            for (is_there, whole) in [(false, &old), (true, &new)] {
                let Some(whole) = whole else { continue };
                self.claim(id, whole, is_there, tracker);
                self.note_roots(id, whole, is_there, tracker);
            }
            tracker.changed(Fact::Whole(id));
            tracker.want(Step::Parts(id.clone()));
            if new.as_ref().is_some_and(|new| new.service.hosts.is_empty()) {
                tracker.want(Step::Delegate(id.clone()));
            }
        }
        self.wholes.extend(new.map(|new| (id.clone(), new)));
    }

    fn note_roots(&mut self, id: &ObjectKey, whole: &CompleteRoutes, is_there: bool, tracker: &mut Tracker) {
        for delegate in &whole.delegates {
            let roots = self.roots.entry(delegate.clone()).or_default();
            if is_there {
                roots.insert(id.clone())
            } else {
                roots.remove(id)
            };
            if roots.is_empty() {
                self.roots.remove(delegate);
            }
            tracker.changed(Fact::Roots(delegate));
        }
    }

    fn claim(&mut self, id: &ObjectKey, whole: &CompleteRoutes, is_there: bool, tracker: &mut Tracker) {
        let service = &whole.service;
        for (at, host) in service.hosts.iter().map(|host| &host.value).enumerate() {
            if id.kind == Kind::Ingress {
                put(&mut self.ingresses, host.clone(), (whole.place.clone(), at), id, is_there);
                tracker.changed(Fact::IngressHost(host.as_str()));
            }
            if service.applies_at(&GatewayRef::Mesh) {
                put(&mut self.in_mesh, host.clone(), (whole.place.clone(), at), id, is_there);
                tracker.changed(Fact::MeshHost(host.as_str()));
                tracker.want(Step::MeshHost(host.clone()));
            }
            let named = service.gateways.iter().filter(|g| **g != GatewayRef::Mesh);
            for (number, gateway) in named.enumerate() {
                // An object that names a gateway or a host twice claims it twice.
                let rank = (whole.place.clone(), number * service.hosts.len() + at);
                put(&mut self.at_gateways, (gateway.clone(), host.clone()), rank, id, is_there);
                tracker.changed(Fact::GatewayHost(gateway, host.as_str()));
                tracker.want(Step::GatewayHost(gateway.clone(), host.clone()));
            }
        }
    }

    /// Whether any object claims a host in the mesh.
    pub(super) fn claims(&self, host: &Hostname) -> bool {
        self.in_mesh.contains_key(host)
    }

    fn set_parts(&mut self, id: &ObjectKey, new: Vec<(RouteSetRank, Arc<RouteSet>)>) {
        let old = self.parts.remove(id).unwrap_or_default();
        let whole = self.wholes.get(id);
        // A part is replaced only if the whole route set is, or if the part has changed.
        let reuse = |(rank, part): (RouteSetRank, Arc<RouteSet>)| {
            let is_whole = whole.is_some_and(|whole| Arc::ptr_eq(&whole.service, &part));
            let before = old.iter().find(|(before, old)| *before == rank && same_written(old, &part));
            let part = before.filter(|_| !is_whole).map_or(part, |(_, old)| old.clone());
            (rank, part)
        };
        let new: Vec<_> = new.into_iter().map(reuse).collect();
        let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        if !same {
            for (is_there, parts) in [(false, &old), (true, &new)] {
                parts.iter().for_each(|(rank, part)| self.list(rank, part, is_there));
            }
        }
        if !new.is_empty() {
            self.parts.insert(id.clone(), new);
        }
    }

    fn list(&mut self, rank: &RouteSetRank, part: &Arc<RouteSet>, is_there: bool) {
        match is_there {
            true => {
                self.listed.insert(rank.clone(), part.clone());
            }
            false if self.listed.get(rank).is_some_and(|listed| Arc::ptr_eq(listed, part)) => {
                self.listed.remove(rank);
            }
            false => {}
        }
        self.changed.insert(rank.clone());
        for host in part.hosts.iter().map(|host| &host.value) {
            put_ranked(self.by_host.entry(host.clone()).or_default(), rank, part, is_there);
            self.changed_hosts.insert(host.clone());
        }
        for destination in part.destinations().filter(|_| part.applies_at(&GatewayRef::Mesh)) {
            put_ranked(self.by_destination.entry(destination.host.clone()).or_default(), rank, part, is_there);
            self.changed_destinations.insert(destination.host.clone());
        }
        self.changed_at_gateways.extend(part.gateways.iter().map(|gateway| (gateway.clone(), rank.clone())));
    }

    /// The places whose route set may have changed, with the present one.
    fn changed(&mut self) -> Vec<(RouteSetRank, Option<Arc<RouteSet>>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|rank| (rank.clone(), self.listed.get(&rank).cloned())).collect()
    }

    /// The hosts whose route sets have changed, with the present ones.
    fn changed_hosts(&mut self) -> Vec<(Hostname, List<RouteSet>)> {
        let changed = std::mem::take(&mut self.changed_hosts);
        changed.into_iter().map(|host| (host.clone(), take_ranked(&mut self.by_host, &host))).collect()
    }

    /// The services whose route sets have changed, with the present ones.
    fn changed_destinations(&mut self) -> Vec<(Hostname, List<RouteSet>)> {
        let changed = std::mem::take(&mut self.changed_destinations);
        changed.into_iter().map(|host| (host.clone(), take_ranked(&mut self.by_destination, &host))).collect()
    }

    /// The places that may have changed at each gateway, with the present route sets.
    fn changed_at_gateways(&mut self) -> Vec<(AtGateway, Option<Arc<RouteSet>>)> {
        let changed = std::mem::take(&mut self.changed_at_gateways);
        let now =
            |(gateway, rank): &AtGateway| self.listed.get(rank).filter(|part| part.gateways.contains(gateway)).cloned();
        changed.into_iter().map(|at| (at.clone(), now(&at))).collect()
    }
}

/// Whether two parts are equal and come from the same text.
fn same_written(a: &RouteSet, b: &RouteSet) -> bool {
    let spans = |service: &RouteSet| service.hosts.iter().map(|host| host.span.clone()).collect::<Vec<_>>();
    a == b && spans(a) == spans(b)
}

fn put<K: Ord + Clone>(
    claims: &mut BTreeMap<K, Claimants>,
    key: K,
    rank: (Place, usize),
    id: &ObjectKey,
    is_there: bool,
) {
    let here = claims.entry(key.clone()).or_default();
    match is_there {
        true => {
            here.insert(rank, id.clone());
        }
        // Another object may have taken this place.
        false if here.get(&rank) == Some(id) => {
            here.remove(&rank);
        }
        false => {}
    }
    if here.is_empty() {
        claims.remove(&key);
    }
}

fn put_ranked(
    list: &mut SortedMap<RouteSetRank, Arc<RouteSet>>,
    rank: &RouteSetRank,
    part: &Arc<RouteSet>,
    is_there: bool,
) {
    match is_there {
        true => {
            list.insert(rank.clone(), part.clone());
        }
        false if list.get(rank).is_some_and(|listed| Arc::ptr_eq(listed, part)) => {
            list.remove(rank);
        }
        false => {}
    }
}

/// Takes a list out of the map; it is put back unless it is empty.
fn take_ranked<K: Ord>(lists: &mut BTreeMap<K, SortedMap<RouteSetRank, Arc<RouteSet>>>, key: &K) -> List<RouteSet> {
    let list: List<RouteSet> = lists.get(key).into_iter().flat_map(SortedMap::values).cloned().collect();
    if list.is_empty() {
        lists.remove(key);
    }
    list
}

impl<'t> Cx<'t> {
    fn whole(&self, id: &ObjectKey) -> Option<&'t CompleteRoutes> {
        self.read(Fact::Whole(id)).routes.wholes.get(id)
    }
}
