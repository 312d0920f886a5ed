//! Proxies that give the same answers to all that is asked of them: what they share, and how it follows a change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_model::{Changes, Key, Snapshot};
use evenkeel_xds::server::ChangedNames;
use evenkeel_xds::{ResourceSet, ResourceType};
use imbl::{OrdMap, OrdSet};

use super::unit::{UnitMaker, UnitResult};
use crate::facts::{Client, Question};
use crate::plan::{Collection, Part, Unit};

/// What a class of proxies shares. Cloning is cheap: all that is large is persistent.
#[derive(Debug, Clone)]
pub struct Class {
    /// One of them.
    pub client: Client,
    /// The resources they have in common.
    set: ResourceSet,
    /// The same as its proxies were told last; `None` before that.
    told: Option<Arc<ResourceSet>>,
    units: OrdMap<Unit, Arc<UnitResult>>,
    /// Parts of collections, in the order of the units that gave them.
    parts: OrdMap<Collection, Parts>,
    /// Which units asked for a key.
    readers: OrdSet<(Key, Unit)>,
    /// What is asked of proxies, and by how many units.
    questions: OrdMap<Question, usize>,
    /// Whether something is asked now that was not, or the other way round, since somebody looked.
    asks_otherwise: bool,
    /// The units that ask something of proxies.
    conditional: OrdSet<Unit>,
}

/// The parts given to one collection: by the unit, and the place among what it gave.
type Parts = OrdMap<(Unit, usize), Arc<Part>>;

/// Units made for one class, for others of the same change that would get the same.
pub type Siblings = HashMap<Unit, Vec<Arc<UnitResult>>>;

impl Class {
    /// A class of which nothing is made yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            set: ResourceSet::default(),
            told: None,
            units: OrdMap::new(),
            parts: OrdMap::new(),
            readers: OrdSet::new(),
            questions: OrdMap::new(),
            asks_otherwise: false,
            conditional: OrdSet::new(),
        }
    }

    /// A new class with the same in it, of proxies that answer as `client` does.
    pub fn led_by(&self, client: Client) -> Self {
        Self { client, told: None, ..self.clone() }
    }

    /// The one that `before` was, for those of its proxies who stay.
    pub fn continuing(self, before: &Self) -> Self {
        Self { told: before.told.clone(), ..self }
    }

    /// What its proxies were told last.
    pub fn told(&self) -> Arc<ResourceSet> {
        self.told.clone().unwrap_or_default()
    }

    /// Has a new class tell what it shares.
    pub fn begin(&mut self, generation: u64) {
        if self.told.is_none() {
            self.told = Some(Arc::new(self.set_at(generation)));
        }
    }

    /// What its proxies are to be told anew, and in which names that differs.
    pub fn tell(&mut self, generation: u64) -> Option<(Arc<ResourceSet>, ChangedNames)> {
        let before = self.told.take_if(|told| !self.set.is_same(told))?;
        let touched = ChangedNames::between(&before, &self.set);
        // Only where resources were written has changed: nothing to tell, and the same generation.
        let generation = if touched.is_empty() { before.generation } else { generation };
        let now = Arc::new(self.set_at(generation));
        self.told = Some(now.clone());
        (!touched.is_empty()).then_some((now, touched))
    }

    fn set_at(&self, generation: u64) -> ResourceSet {
        let mut set = self.set.clone();
        set.generation = generation;
        set
    }

    /// What is asked of its proxies.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.questions.keys()
    }

    /// Whether it asks something else of its proxies than when this was asked last.
    pub fn take_asks_otherwise(&mut self) -> bool {
        std::mem::take(&mut self.asks_otherwise)
    }

    /// What a unit came to.
    pub fn made(&self, unit: &Unit) -> Option<&Arc<UnitResult>> {
        self.units.get(unit)
    }

    /// All units there are, and all there should be.
    pub fn everything(&self, snapshot: &Snapshot) -> BTreeSet<Unit> {
        let sidecar = self.client.is_sidecar();
        let should_be = Unit::of_mesh(snapshot).chain(Unit::of_kind(sidecar).iter().cloned());
        self.units.keys().cloned().chain(should_be).collect()
    }

    /// The units that a change may make different.
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

    /// The units for which `client` would answer otherwise than was noted.
    pub fn mismatched(&self) -> BTreeSet<Unit> {
        let holds = |unit: &&Unit| self.units.get(*unit).is_some_and(|made| made.holds_for(&self.client));
        self.conditional.iter().filter(|unit| !holds(unit)).cloned().collect()
    }

    /// Makes units anew, and those that are put together from their parts.
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

    /// `None` if there is no reason for the unit any more.
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

    /// The assemblies of which a part is another now.
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

    /// Whether a collection comes out the same with or without what a unit gives or gave to it.
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

    /// What the unit no longer gives is returned: another of the same change may give the same name.
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

    /// Removes resources that units gave up, but for those whose names others of these units give now.
    fn remove(&mut self, gone: &[(ResourceType, Arc<str>)], redone: &[Unit], maker: &mut UnitMaker<'_>) {
        if gone.is_empty() {
            return;
        }
        let made = redone.iter().filter_map(|unit| self.units.get(unit));
        let resources = made.flat_map(|made| &made.resources);
        let given: HashSet<(ResourceType, &str)> = resources.map(|(kind, resource)| (*kind, &*resource.name)).collect();
        for (kind, name) in gone.iter().filter(|(kind, name)| !given.contains(&(*kind, &**name))) {
            self.set.remove(*kind, name);
            maker.work.pool.dropped(*kind, name);
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
        match now.is_some_and(|made| !made.answers.is_empty()) {
            true => _ = self.conditional.insert(unit.clone()),
            false => _ = self.conditional.remove(unit),
        }
    }
}
