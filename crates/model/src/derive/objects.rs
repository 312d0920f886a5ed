//! The objects of all sources, each name once per group, kind and namespace, with indexes for frequent queries.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::istio::{MeshConfig, WorkloadEntry};
use evenkeel_api::kubernetes::EndpointSlice;
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::suggest::closest;
use evenkeel_base::{Diagnostic, Diagnostics, SourceId};

use super::discovery::Discovery;
use super::labels_text;
use super::run::Run;
use super::statuses::Statuses;
use super::step::{self, Results, Step};
use super::tracking::{Cx, Fact, Tracker, first_label, label_key};
use crate::labels::selects;
use crate::source::EntryId;
use crate::{Address, Entry, Labels, Place, SourceEvent};

/// An object and its place in the order of precedence.
pub(super) type Placed = (Place, Arc<Object>);

/// Namespace and name of a Service.
type ServiceKey = (Arc<str>, Arc<str>);

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Objects {
    sources: BTreeMap<SourceId, SourceObjects>,
    /// Which objects are read; the others are never in force.
    discovery: Discovery,
    pub(super) statuses: Statuses,
    /// All objects with the same key, the one in force first.
    claims: BTreeMap<ObjectKey, Vec<Placed>>,
    in_force: BTreeMap<Kind, BTreeMap<Place, Arc<Object>>>,
    /// Labels of Pods and of the templates of Deployments, by namespace.
    running: BTreeMap<Arc<str>, BTreeMap<Place, Labels>>,
    /// The places in `running` of objects with a label.
    running_with: HashMap<u64, BTreeSet<Place>>,
    /// Objects with a selector, under the selector's first label.
    selecting: HashMap<u64, BTreeMap<Place, ObjectKey>>,
    /// EndpointSlices by namespace and Service.
    slices: BTreeMap<ServiceKey, BTreeMap<Place, Arc<Object>>>,
    /// Objects that name an address as that of an endpoint.
    at_address: HashMap<IpAddr, BTreeMap<Place, ObjectKey>>,
}

/// The objects that a source has announced.
#[derive(Debug, Default)]
struct SourceObjects {
    entries: HashMap<Address, (EntryId, Vec<Arc<Object>>)>,
    /// During a resync: the entries that it has not announced again yet.
    unconfirmed: Option<HashSet<Address>>,
}

impl Objects {
    /// The number of objects, including those not in force.
    pub(super) fn len(&self) -> usize {
        self.sources.values().flat_map(|known| known.entries.values()).map(|(_, objects)| objects.len()).sum()
    }

    /// All objects of all sources.
    pub(super) fn events(&self) -> Vec<(SourceId, SourceEvent)> {
        let entry = |(address, (id, objects)): (&Address, &(EntryId, Vec<Arc<Object>>))| Entry {
            address: address.clone(),
            created: id.created(),
            objects: objects.clone(),
        };
        let all = |known: &SourceObjects| SourceEvent::Snapshot(known.entries.iter().map(entry).collect());
        self.sources.iter().map(|(source, known)| (source.clone(), all(known))).collect()
    }

    /// Applies an event of a source.
    pub(super) fn take(&mut self, source: &SourceId, event: SourceEvent, tracker: &mut Tracker) {
        match event {
            SourceEvent::Upsert(entry) => self.set(source, entry, tracker),
            SourceEvent::Delete(address) => {
                self.set(source, Entry { address, created: 0, objects: Vec::new() }, tracker)
            }
            SourceEvent::Resync => {
                let known = self.sources.entry(source.clone()).or_default();
                known.unconfirmed = Some(known.entries.keys().cloned().collect());
            }
            SourceEvent::Synced => {
                let unconfirmed = self.sources.get_mut(source).and_then(|known| known.unconfirmed.take());
                for address in unconfirmed.into_iter().flatten() {
                    self.set(source, Entry { address, created: 0, objects: Vec::new() }, tracker);
                }
            }
            SourceEvent::Snapshot(entries) => {
                self.take(source, SourceEvent::Resync, tracker);
                entries.into_iter().for_each(|entry| self.set(source, entry, tracker));
                self.take(source, SourceEvent::Synced, tracker);
            }
        }
    }

    /// Sets the objects of an entry; none means that it is gone.
    fn set(&mut self, source: &SourceId, entry: Entry, tracker: &mut Tracker) {
        let Entry { address, created, objects } = entry;
        let known = match self.sources.get_mut(source) {
            Some(known) => known,
            None => self.sources.entry(source.clone()).or_default(),
        };
        if let Some(unconfirmed) = &mut known.unconfirmed {
            unconfirmed.remove(&address);
        }
        let old = known.entries.remove(&address);
        // An entry with another age has another place.
        let known = old.as_ref().map(|(id, _)| id).filter(|id| objects.is_empty() || id.created() == created);
        let moved = known.is_none();
        let id = known.cloned().unwrap_or_else(|| EntryId::new(source, created, &address));
        let (before, old) = old.unwrap_or_else(|| (id.clone(), Vec::new()));
        let unchanged = |position: usize| match (old.get(position), objects.get(position)) {
            (Some(old), Some(new)) => !moved && (Arc::ptr_eq(old, new) || old.same_as_written(new)),
            _ => false,
        };
        let changed: Vec<usize> = (0..old.len().max(objects.len())).filter(|p| !unchanged(*p)).collect();
        let mut touched: BTreeMap<ObjectKey, Option<Placed>> = BTreeMap::new();
        for position in &changed {
            if let Some(gone) = old.get(*position) {
                let key = gone.key();
                touched.entry(key.clone()).or_insert_with(|| self.in_force(&key).cloned());
                self.drop_claim(&key, &before.place(*position, gone));
                self.statuses.set(gone, false);
            }
        }
        for position in &changed {
            if let Some(new) = objects.get(*position) {
                let key = new.key();
                touched.entry(key.clone()).or_insert_with(|| self.in_force(&key).cloned());
                let (place, claims) = (id.place(*position, new), self.claims.entry(key).or_default());
                let at = claims.partition_point(|(p, _)| *p < place);
                claims.insert(at, (place, new.clone()));
                self.statuses.set(new, true);
            }
        }
        // Objects that did not change keep their old allocation, and so do all results made from them.
        let now: Vec<Arc<Object>> = objects
            .into_iter()
            .enumerate()
            .map(|(p, new)| old.get(p).filter(|_| changed.binary_search(&p).is_err()).cloned().unwrap_or(new))
            .collect();
        if let Some(known) = self.sources.get_mut(source).filter(|_| !now.is_empty()) {
            known.entries.insert(address, (id, now));
        }
        self.settle(touched, tracker);
    }

    /// The object in force for a key: the first one, unless that records a deletion.
    pub(super) fn in_force(&self, id: &ObjectKey) -> Option<&Placed> {
        self.claims.get(id)?.first().filter(|(_, object)| self.may_be_in_force(object))
    }

    fn may_be_in_force(&self, object: &Object) -> bool {
        !object.is_deletion() && self.discovery.reads(object)
    }

    /// Sets which objects are read.
    pub(super) fn discover(&mut self, discovery: Discovery, tracker: &mut Tracker) {
        if discovery == self.discovery {
            return;
        }
        let before: Vec<(ObjectKey, Option<Placed>)> =
            self.claims.keys().map(|id| (id.clone(), self.in_force(id).cloned())).collect();
        self.discovery = discovery;
        self.replace(before, tracker);
    }

    fn drop_claim(&mut self, id: &ObjectKey, place: &Place) {
        let Some(claims) = self.claims.get_mut(id) else { return };
        claims.retain(|(p, _)| p != place);
        if claims.is_empty() {
            self.claims.remove(id);
        }
    }

    /// Updates the indexes for the keys whose object in force has changed.
    fn settle(&mut self, touched: BTreeMap<ObjectKey, Option<Placed>>, tracker: &mut Tracker) {
        for id in touched.keys() {
            tracker.want(Step::Duplicates(id.clone()));
            tracker.changed(Fact::Claims(id));
            if matches!(
                id.kind,
                Kind::AuthorizationPolicy | Kind::PeerAuthentication | Kind::RequestAuthentication | Kind::Sidecar
            ) {
                // An ignored security object closes what it would have protected.
                announce(id, tracker);
            }
        }
        self.replace(touched, tracker);
    }

    /// Updates the indexes for keys with the objects that were in force before.
    fn replace(&mut self, keys: impl IntoIterator<Item = (ObjectKey, Option<Placed>)>, tracker: &mut Tracker) {
        let same = |a: &Placed, b: &Placed| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1);
        let mut changed = Vec::new();
        for (id, before) in keys {
            let now = self.in_force(&id).cloned();
            let is_unchanged = match (&before, &now) {
                (Some(a), Some(b)) => same(a, b),
                (None, None) => true,
                _ => false,
            };
            if !is_unchanged {
                changed.push((id, before, now));
            }
        }
        // An object may now have the place of another, so all are removed before any is inserted.
        for (id, before, _) in &changed {
            before.iter().for_each(|(place, object)| self.index(id, place, object, false, tracker));
        }
        for (id, _, now) in &changed {
            now.iter().for_each(|(place, object)| self.index(id, place, object, true, tracker));
            announce(id, tracker);
        }
    }

    fn index(&mut self, id: &ObjectKey, place: &Place, object: &Arc<Object>, is_there: bool, tracker: &mut Tracker) {
        put(self.in_force.entry(id.kind).or_default(), place, object.clone(), is_there);
        if let Some(labels) = running_labels(object) {
            for (name, value) in &labels {
                // The empty namespace stands for all.
                for namespace in [&*id.namespace, ""] {
                    let places = self.running_with.entry(label_key(namespace, name, value)).or_default();
                    if is_there {
                        places.insert(place.clone());
                    } else {
                        places.remove(place);
                    }
                    tracker.changed(Fact::RunningWith(namespace, name, value));
                }
            }
            self.running_with.retain_some(label_keys(&id.namespace, &labels));
            self.running_with.retain_some(label_keys("", &labels));
            put(self.running.entry(id.namespace.clone()).or_default(), place, labels, is_there);
            tracker.changed(Fact::Running(&id.namespace));
        }
        if let Some(selector) = selector_of(object) {
            let namespace = selecting_namespace(id.kind, &id.namespace);
            let (name, value) = first_label(selector);
            let key = label_key(namespace, name, value);
            put(self.selecting.entry(key).or_default(), place, id.clone(), is_there);
            if self.selecting.get(&key).is_some_and(BTreeMap::is_empty) {
                self.selecting.remove(&key);
            }
            tracker.changed(Fact::Selecting(namespace, name, value));
        }
        if id.kind == Kind::EndpointSlice
            && let Some(service) = EndpointSlice::service_name(&object.labels)
        {
            let key = (id.namespace.clone(), service.into());
            put(self.slices.entry(key.clone()).or_default(), place, object.clone(), is_there);
            if self.slices.get(&key).is_some_and(BTreeMap::is_empty) {
                self.slices.remove(&key);
            }
            tracker.changed(Fact::Slices(&id.namespace, service));
        }
        for address in endpoint_addresses(object) {
            put(self.at_address.entry(address).or_default(), place, id.clone(), is_there);
            if self.at_address.get(&address).is_some_and(BTreeMap::is_empty) {
                self.at_address.remove(&address);
            }
            tracker.changed(Fact::At(address));
        }
    }
}

/// Records that the object in force for a key has changed.
fn announce(id: &ObjectKey, tracker: &mut Tracker) {
    tracker.changed(Fact::Object(id));
    tracker.changed(Fact::Objects(id.kind));
    tracker.changed(Fact::ObjectsIn(id.kind, &id.namespace));
    step::announce(id, tracker);
}

fn put<V>(map: &mut BTreeMap<Place, V>, place: &Place, value: V, is_there: bool) {
    if is_there {
        map.insert(place.clone(), value);
    } else {
        map.remove(place);
    }
}

fn label_keys(namespace: &str, labels: &Labels) -> Vec<u64> {
    labels.iter().map(|(name, value)| label_key(namespace, name, value)).collect()
}

/// Removes entries that have become empty.
trait RetainSome {
    fn retain_some(&mut self, keys: Vec<u64>);
}

impl RetainSome for HashMap<u64, BTreeSet<Place>> {
    fn retain_some(&mut self, keys: Vec<u64>) {
        for key in keys {
            if self.get(&key).is_some_and(BTreeSet::is_empty) {
                self.remove(&key);
            }
        }
    }
}

/// The addresses that a ServiceEntry or EndpointSlice names as those of endpoints.
fn endpoint_addresses(object: &Object) -> BTreeSet<IpAddr> {
    match &object.resource {
        Resource::ServiceEntry(entry) => entry.spec.endpoints.iter().filter_map(|e| e.ip()).collect(),
        Resource::EndpointSlice(slice) => {
            let all = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            all.filter_map(|address| address.parse().ok()).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Labels of a workload, or of the template of a Deployment.
fn running_labels(object: &Object) -> Option<Labels> {
    match &object.resource {
        Resource::Pod(_) => Some(object.labels.clone()),
        Resource::WorkloadEntry(entry) => Some(entry_labels(object, entry)),
        // Its workloads may register later.
        Resource::WorkloadGroup(group) => Some(group.spec.labels()),
        Resource::Deployment(deployment) => Some(deployment.spec.template.labels()),
        Resource::StatefulSet(set) => Some(set.spec.template.labels()),
        Resource::DaemonSet(set) => Some(set.spec.template.labels()),
        _ => None,
    }
}

/// The labels of a WorkloadEntry: those of its specification, overridden by its own (Istio's `ConvertWorkloadEntry`).
pub(super) fn entry_labels(object: &Object, entry: &WorkloadEntry) -> Labels {
    let own = object.labels.iter().map(|(name, value)| (name.clone(), value.clone()));
    entry.spec.labels.clone().into_iter().chain(own).collect()
}

/// The selector of an object. Services and Gateways with an empty selector do not select all Pods.
pub(super) fn selector_of(object: &Object) -> Option<&Labels> {
    match &object.resource {
        // A Service without a selector has explicit endpoints; it does not select all Pods.
        Resource::Service(service) => Some(&service.spec.selector).filter(|s| !s.is_empty()),
        Resource::ServiceEntry(entry) => {
            entry.spec.workload_selector.as_ref().map(|s| &s.labels).filter(|s| !s.is_empty())
        }
        Resource::Gateway(gateway) => Some(&gateway.spec.selector).filter(|s| !s.is_empty()),
        Resource::Deployment(deployment) => Some(&deployment.spec.selector.match_labels),
        Resource::StatefulSet(set) => Some(&set.spec.selector.match_labels),
        Resource::DaemonSet(set) => Some(&set.spec.selector.match_labels),
        _ => None,
    }
}

/// The namespace in which an object selects; Gateways select in all.
fn selecting_namespace(kind: Kind, namespace: &str) -> &str {
    match kind {
        Kind::Gateway => "",
        _ => namespace,
    }
}

impl<'t> Cx<'t> {
    /// The object in force under an id.
    pub(super) fn object(&self, id: &ObjectKey) -> Option<&'t Arc<Object>> {
        self.placed(id).map(|(_, object)| object)
    }

    /// The object in force for a key, and its place.
    pub(super) fn placed(&self, id: &ObjectKey) -> Option<&'t Placed> {
        self.read(Fact::Object(id)).objects.in_force(id)
    }

    /// All objects with a key.
    pub(super) fn claims(&self, id: &ObjectKey) -> &'t [Placed] {
        self.read(Fact::Claims(id)).objects.claims.get(id).map_or(&[], Vec::as_slice)
    }

    /// All objects of a kind, in the order of precedence.
    pub(super) fn objects(&self, kind: Kind) -> impl Iterator<Item = &'t Arc<Object>> + use<'t> {
        self.read(Fact::Objects(kind)).objects.in_force.get(&kind).into_iter().flat_map(BTreeMap::values)
    }

    /// All objects of a kind in one namespace, in the order of precedence.
    pub(super) fn objects_in(&self, kind: Kind, namespace: &Arc<str>) -> Vec<&'t Placed> {
        let objects = &self.read(Fact::ObjectsIn(kind, namespace)).objects;
        let first = ObjectKey { kind, namespace: namespace.clone(), name: "".into() };
        let here = objects.claims.range(first..).take_while(|(id, _)| id.kind == kind && id.namespace == *namespace);
        let first =
            |(_, claims): (_, &'t Vec<Placed>)| claims.first().filter(|(_, object)| objects.may_be_in_force(object));
        let mut placed: Vec<&Placed> = here.filter_map(first).collect();
        placed.sort_by(|a, b| a.0.cmp(&b.0));
        placed
    }

    /// EndpointSlices of a Service, in the order of precedence.
    pub(super) fn slices(&self, namespace: &Arc<str>, service: &Arc<str>) -> impl Iterator<Item = &'t Arc<Object>> {
        let slices = &self.read(Fact::Slices(namespace, service)).objects.slices;
        slices.get(&(namespace.clone(), service.clone())).into_iter().flat_map(BTreeMap::values)
    }

    /// The ServiceEntries and EndpointSlices with an endpoint at this address, in the order of precedence.
    pub(super) fn naming(&self, address: IpAddr) -> impl Iterator<Item = &'t ObjectKey> + use<'t> {
        self.read(Fact::At(address)).objects.at_address.get(&address).into_iter().flat_map(BTreeMap::values)
    }

    /// Labels of all Pods and Deployment templates in a namespace.
    pub(super) fn running(&self, namespace: &str) -> impl Iterator<Item = &'t Labels> + use<'t> {
        self.read(Fact::Running(namespace)).objects.running.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    /// Whether a Pod or Deployment template in a namespace matches a selector.
    pub(super) fn selects_something(&self, namespace: &str, selector: &Labels) -> bool {
        if selector.is_empty() {
            return self.running(namespace).next().is_some();
        }
        let (name, value) = first_label(selector);
        let objects = &self.read(Fact::RunningWith(namespace, name, value)).objects;
        let places = objects.running_with.get(&label_key(namespace, name, value)).into_iter().flatten();
        let here = objects.running.get(namespace);
        places.filter_map(|place| here?.get(place)).any(|labels| selects(selector, labels))
    }

    /// The namespaces with a Pod or Deployment template that matches a selector, which must not be empty.
    pub(super) fn namespaces_of_selected(&self, selector: &Labels) -> BTreeSet<&'t Arc<str>> {
        let (name, value) = first_label(selector);
        let objects = &self.read(Fact::RunningWith("", name, value)).objects;
        let places = objects.running_with.get(&label_key("", name, value)).into_iter().flatten();
        let namespace = |place: &Place| {
            let labels = objects.running.iter().find_map(|(namespace, here)| Some((namespace, here.get(place)?)));
            labels.filter(|(_, labels)| selects(selector, labels)).map(|(namespace, _)| namespace)
        };
        places.filter_map(namespace).collect()
    }

    /// The objects of a kind that select Pods with these labels in this namespace, in the order of precedence.
    pub(super) fn selecting(
        &self,
        kind: Kind,
        namespace: &str,
        labels: &Labels,
    ) -> Vec<(&'t ObjectKey, &'t Arc<Object>)> {
        let namespace = selecting_namespace(kind, namespace);
        let mut found: Vec<(&Place, &ObjectKey, &Arc<Object>)> = Vec::new();
        let pairs = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in std::iter::once(("", "")).chain(pairs) {
            let objects = &self.read(Fact::Selecting(namespace, name, value)).objects;
            let here = objects.selecting.get(&label_key(namespace, name, value)).into_iter().flatten();
            for (_, id) in here.filter(|(_, id)| id.kind == kind) {
                let Some((place, object)) = self.placed(id) else { continue };
                let in_namespace = selecting_namespace(kind, &id.namespace) == namespace;
                if in_namespace && selector_of(object).is_some_and(|selector| selects(selector, labels)) {
                    found.push((place, id, object));
                }
            }
        }
        found.sort_by_key(|(place, ..)| *place);
        found.dedup_by(|a, b| a.0 == b.0);
        found.into_iter().map(|(_, id, object)| (id, object)).collect()
    }
}

impl Results for Objects {}

pub(super) fn duplicates_step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    run.read(|cx, found| {
        note_duplicates(cx, key, found);
        cx.claims(key).len() > 1
    })
}

/// Reports objects that are ignored because another has their name.
fn note_duplicates(cx: &Cx<'_>, id: &ObjectKey, found: &mut Diagnostics) {
    // Applied objects replace others on purpose.
    let mut claims = cx.claims(id).iter().filter(|(_, object)| !object.is_applied());
    let Some((_, first)) = claims.next() else { return };
    for (_, object) in claims {
        let finding = if object.source == first.source {
            let message = format!("{object} is defined twice; this one is ignored");
            Diagnostic::error("duplicate-object", object.origin.clone(), message)
                .with_help("remove or rename one of the two")
                .with_related(first.origin.clone(), "first defined here")
        } else {
            // The rank of a source does so, too.
            let (own, other) = (&object.source, &first.source);
            let message = format!("{object} from {own} is ignored: the one from {other} takes precedence");
            Diagnostic::info("overruled-object", object.origin.clone(), message)
                .with_help("remove one of the two, unless this is intended")
                .with_related(first.origin.clone(), "this one applies")
        };
        found.push(finding.about(object.reference()));
    }
}

/// Warns about a selector that matches nothing in a namespace with Pods: it is most likely misspelt.
pub(super) fn note_idle_selector(cx: &Cx<'_>, object: &Object, selector: &Labels, found: &mut Diagnostics) {
    if selector.is_empty() || cx.selects_something(&object.namespace, selector) {
        return;
    }
    let candidates: Vec<&Labels> = cx.running(&object.namespace).collect();
    if candidates.is_empty() {
        return;
    }
    let text = labels_text(selector);
    let values: Vec<_> = candidates.iter().flat_map(|l| l.iter().map(|(k, v)| format!("{k}: {v}"))).collect();
    let help = match closest(&text, values.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "compare it with the labels of the Pod templates".to_owned(),
    };
    let message = format!("{object} selects `{text}`, which no Deployment or Pod has");
    let finding = Diagnostic::warning("selects-nothing", object.origin.clone(), message);
    found.push(finding.with_help(help).about(object.reference()));
}

/// ConfigMaps with mesh settings, in the order in which they are applied.
pub(super) fn mesh_settings<'t>(cx: &Cx<'t>) -> impl Iterator<Item = &'t Arc<Object>> + use<'t> {
    let mut all: Vec<_> = cx.objects(Kind::ConfigMap).filter(|object| MeshConfig::is_in(object)).collect();
    all.sort_by_key(|object| MeshConfig::layer(object));
    all.into_iter()
}
