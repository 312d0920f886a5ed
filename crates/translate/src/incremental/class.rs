//! A class: proxies that give the same answers to all questions, with the resources they share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_model::{Changes, Key, Snapshot};
use evenkeel_xds::server::ChangedNames;
use evenkeel_xds::{ResourceSet, ResourceType};
use imbl::{OrdMap, OrdSet};

use super::unit::{UnitMaker, UnitResult};
use crate::facts::{Client, Question};
use crate::output::{Collection, Part, Unit};

/// The state of a class. Cloning is cheap, because all large parts are persistent.
#[derive(Debug, Clone)]
pub struct Class {
    /// One of its proxies.
    pub client: Client,
    /// The resources they share.
    set: ResourceSet,
    /// The resources that were last sent to its proxies; `None` before that.
    sent: Option<Arc<ResourceSet>>,
    units: OrdMap<Unit, Arc<UnitResult>>,
    /// Parts of collections, in the order of the units that gave them.
    parts: OrdMap<Collection, Parts>,
    /// The units that read a key.
    readers: OrdSet<(Key, Unit)>,
    /// The questions to proxies, with the number of units that ask them.
    questions: OrdMap<Question, usize>,
    /// Whether the set of questions has changed since the last check.
    asks_otherwise: bool,
    /// The units with questions to proxies.
    conditional: OrdSet<Unit>,
}

/// The parts of one collection, by unit and position in the unit.
type Parts = OrdMap<(Unit, usize), Arc<Part>>;

/// Units generated for one class, which other classes can reuse during the same change if they get the same answers.
pub type Siblings = HashMap<Unit, Vec<Arc<UnitResult>>>;

impl Class {
    /// A class without units yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            set: ResourceSet::default(),
            sent: None,
            units: OrdMap::new(),
            parts: OrdMap::new(),
            readers: OrdSet::new(),
            questions: OrdMap::new(),
            asks_otherwise: false,
            conditional: OrdSet::new(),
        }
    }

    /// A new class with the same content, for proxies that answer like `client`.
    pub fn led_by(&self, client: Client) -> Self {
        Self { client, sent: None, ..self.clone() }
    }

    /// This class in place of `before`, for those of its proxies that stay.
    pub fn continuing(self, before: &Self) -> Self {
        Self { sent: before.sent.clone(), ..self }
    }

    /// The resources that were last sent to its proxies.
    pub fn sent(&self) -> Arc<ResourceSet> {
        self.sent.clone().unwrap_or_default()
    }

    /// Begins a new class with the resources it shares.
    pub fn begin(&mut self, generation: u64) {
        if self.sent.is_none() {
            self.sent = Some(Arc::new(self.set_at(generation)));
        }
    }

    /// The new resources for its proxies and the changed names, if there are any.
    pub fn tell(&mut self, generation: u64) -> Option<(Arc<ResourceSet>, ChangedNames)> {
        let before = self.sent.take_if(|sent| !self.set.is_same(sent))?;
        let touched = ChangedNames::between(&before, &self.set);
        // Only positions in files have changed: proxies need not be told, and the generation stays.
        let generation = if touched.is_empty() { before.generation } else { generation };
        let now = Arc::new(self.set_at(generation));
        self.sent = Some(now.clone());
        (!touched.is_empty()).then_some((now, touched))
    }

    fn set_at(&self, generation: u64) -> ResourceSet {
        let mut set = self.set.clone();
        set.generation = generation;
        set
    }

    /// The questions to its proxies.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.questions.keys()
    }

    /// Whether its questions have changed since the last call.
    pub fn take_asks_otherwise(&mut self) -> bool {
        std::mem::take(&mut self.asks_otherwise)
    }

    /// The result of a unit.
    pub fn made(&self, unit: &Unit) -> Option<&Arc<UnitResult>> {
        self.units.get(unit)
    }

    /// All present units, and all that should exist.
    pub fn everything(&self, snapshot: &Snapshot) -> BTreeSet<Unit> {
        let sidecar = self.client.is_sidecar();
        let should_be = Unit::of_mesh(snapshot).chain(Unit::of_kind(sidecar).iter().cloned());
        self.units.keys().cloned().chain(should_be).collect()
    }

    /// The units that a change may affect.
    pub fn touched(&self, changes: &Changes, snapshot: &Snapshot) -> BTreeSet<Unit> {
        if changes.mesh {
            return self.everything(snapshot);
        }
        let services = changes.services.iter().flat_map(Unit::of_service);
        let mut touched: BTreeSet<Unit> = services.chain(changes.routed.iter().cloned().map(Unit::Routed)).collect();
        for key in changes.exact() {
            // Basics come before all other units.
            let readers = self.readers.range((key.clone(), Unit::Basics)..).take_while(|(read, _)| read == key);
            touched.extend(readers.map(|(_, unit)| unit.clone()));
        }
        if changes.reach_wide() {
            touched.extend(self.readers.iter().filter(|(key, _)| changes.touch(key)).map(|(_, unit)| unit.clone()));
        }
        touched
    }

    /// The units for which `client` gives other answers than were recorded.
    pub fn mismatched(&self) -> BTreeSet<Unit> {
        let holds = |unit: &&Unit| self.units.get(*unit).is_some_and(|made| made.holds_for(&self.client));
        self.conditional.iter().filter(|unit| !holds(unit)).cloned().collect()
    }

    /// Generates units again, and the assemblies of their parts.
    pub fn redo(&mut self, mut units: BTreeSet<Unit>, maker: &mut UnitMaker<'_>, siblings: &mut Siblings) {
        let (mut gone, mut redone) = (Vec::new(), Vec::new());
        while let Some(unit) = units.pop_first() {
            let before = self.units.get(&unit).cloned();
            let made = self.make(&unit, before.as_deref(), maker, siblings);
            if made.is_none() && before.is_none() {
                continue;
            }
            units.extend(self.replace_parts(&unit, before.as_deref(), made.as_deref()));
            gone.extend(self.replace_resources(before.as_deref(), made.as_deref()));
            self.replace_reads(&unit, before.as_deref(), made.as_deref());
            match made {
                Some(made) => {
                    redone.push(unit.clone());
                    self.units.insert(unit, made);
                }
                None => _ = self.units.remove(&unit),
            }
        }
        self.remove(&gone, &redone, maker);
    }

    /// Generates a unit; `None` if it should no longer exist.
    fn make(
        &self,
        unit: &Unit,
        before: Option<&UnitResult>,
        maker: &mut UnitMaker<'_>,
        siblings: &mut Siblings,
    ) -> Option<Arc<UnitResult>> {
        if let Unit::Assembly(collection) = unit {
            let parts = self.parts_of(collection);
            return (!parts.is_empty()).then(|| Arc::new(maker.make(unit, &self.client, &parts, before)));
        }
        if !unit.exists(maker.snapshot) {
            return None;
        }
        let known = siblings.entry(unit.clone()).or_default();
        if let Some(same) = known.iter().find(|made| made.holds_for(&self.client)) {
            return Some(same.clone());
        }
        let made = Arc::new(maker.make(unit, &self.client, &[], before));
        known.push(made.clone());
        Some(made)
    }

    fn parts_of(&self, collection: &Collection) -> Vec<&Part> {
        self.parts.get(collection).into_iter().flat_map(Parts::values).map(|part| &**part).collect()
    }

    /// Replaces a unit's parts; returns the assemblies whose parts have changed.
    fn replace_parts(&mut self, unit: &Unit, before: Option<&UnitResult>, now: Option<&UnitResult>) -> Vec<Unit> {
        fn given(made: Option<&UnitResult>) -> &[(Collection, Arc<Part>)] {
            made.map(|made| &*made.parts).unwrap_or_default()
        }
        let (before, now) = (given(before), given(now));
        if before == now {
            return Vec::new();
        }
        for (place, (collection, _)) in before.iter().enumerate() {
            if let Some(parts) = self.parts.get_mut(collection) {
                parts.remove(&(unit.clone(), place));
            }
        }
        for (place, (collection, part)) in now.iter().enumerate() {
            self.parts.entry(collection.clone()).or_default().insert((unit.clone(), place), part.clone());
        }
        for (collection, _) in before {
            if self.parts.get(collection).is_some_and(Parts::is_empty) {
                self.parts.remove(collection);
            }
        }
        let all: BTreeSet<&Collection> = before.iter().chain(now).map(|(collection, _)| collection).collect();
        let of = |made: &[(Collection, Arc<Part>)], wanted: &Collection| -> Vec<Arc<Part>> {
            made.iter().filter(|(collection, _)| collection == wanted).map(|(_, part)| part.clone()).collect()
        };
        let differ = all.into_iter().filter(|collection| of(before, collection) != of(now, collection));
        let matters = differ.filter(|collection| !self.adds_nothing(collection, unit, before.iter().chain(now)));
        matters.map(|collection| Unit::Assembly(collection.clone())).collect()
    }

    /// Whether a unit's parts make no difference to a collection.
    fn adds_nothing<'a>(
        &self,
        collection: &Collection,
        unit: &Unit,
        given: impl Iterator<Item = &'a (Collection, Arc<Part>)>,
    ) -> bool {
        let Some(parts) = self.parts.get(collection) else { return false };
        let mut given = given.filter(|(to, _)| to == collection);
        given.all(|(_, part)| {
            let earlier = parts.iter().take_while(|((other, _), _)| other < unit);
            let mut of_its_sort = earlier.filter(|(_, other)| other.is_of_the_sort_of(part));
            of_its_sort.next().is_some_and(|(_, first)| part.adds_nothing_to(first))
        })
    }

    /// Replaces a unit's resources. Returns those that it no longer has; another unit may provide the same name in this
    /// change.
    fn replace_resources(
        &mut self,
        before: Option<&UnitResult>,
        now: Option<&UnitResult>,
    ) -> Vec<(ResourceType, Arc<str>)> {
        for (kind, resource) in now.into_iter().flat_map(|made| &made.resources) {
            if self.set.get(*kind, &resource.name).is_none_or(|held| !Arc::ptr_eq(held, resource)) {
                self.set.insert(*kind, resource.clone());
            }
        }
        let given = |kind: ResourceType, name: &str| now.is_some_and(|made| made.gives(kind, name));
        let before = before.into_iter().flat_map(|made| &made.resources);
        let gone = before.filter(|(kind, resource)| !given(*kind, &resource.name));
        gone.map(|(kind, resource)| (*kind, resource.name.clone())).collect()
    }

    /// Removes resources that units no longer have, except those whose names other regenerated units provide now.
    fn remove(&mut self, gone: &[(ResourceType, Arc<str>)], redone: &[Unit], maker: &mut UnitMaker<'_>) {
        if gone.is_empty() {
            return;
        }
        let made = redone.iter().filter_map(|unit| self.units.get(unit));
        let resources = made.flat_map(|made| &made.resources);
        let given: HashSet<(ResourceType, &str)> = resources.map(|(kind, resource)| (*kind, &*resource.name)).collect();
        for (kind, name) in gone.iter().filter(|(kind, name)| !given.contains(&(*kind, &**name))) {
            self.set.remove(*kind, name);
            maker.work.pool.removed(*kind, name);
        }
    }

    fn replace_reads(&mut self, unit: &Unit, before: Option<&UnitResult>, now: Option<&UnitResult>) {
        if before.map(|made| &made.reads) != now.map(|made| &made.reads) {
            for key in before.into_iter().flat_map(|made| &made.reads) {
                self.readers.remove(&(key.clone(), unit.clone()));
            }
            for key in now.into_iter().flat_map(|made| &made.reads) {
                self.readers.insert((key.clone(), unit.clone()));
            }
        }
        for (question, _) in before.into_iter().flat_map(|made| &made.answers) {
            if let Some(count) = self.questions.get_mut(question) {
                *count -= 1;
                if *count == 0 {
                    self.questions.remove(question);
                    self.asks_otherwise = true;
                }
            }
        }
        for (question, _) in now.into_iter().flat_map(|made| &made.answers) {
            match self.questions.get_mut(question) {
                Some(count) => *count += 1,
                None => {
                    self.questions.insert(question.clone(), 1);
                    self.asks_otherwise = true;
                }
            }
        }
        if now.is_some_and(|made| !made.answers.is_empty()) {
            _ = self.conditional.insert(unit.clone())
        } else {
            _ = self.conditional.remove(unit)
        }
    }
}
