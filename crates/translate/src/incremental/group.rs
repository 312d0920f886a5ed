//! A group: proxies of the same kind and Sidecar, sorted into classes by the answers they give to generators.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_model::{Changes, Snapshot};
use evenkeel_xds::server::ChangedNames;
use evenkeel_xds::{Cause, Resource, ResourceType};

use super::class::{Class, Siblings};
use super::proxy_index::ProxyIndex;
use super::readers::Readers;
use super::unit::{UnitMaker, UnitResult};
use super::{Changed, ClassChange, ClassId, Holding, Joined, Mismatch, ProxyChange};
use crate::facts::{Answer, Client, Question};
use crate::output::Unit;
use crate::view::ProxyView;

/// Proxies of the same kinds and Sidecar.
#[derive(Debug, Default)]
pub struct Group {
    classes: BTreeMap<ClassId, Class>,
    members: HashMap<Arc<ProxyView>, Member>,
    /// Proxies by Pod and address, to find those whose workload has changed.
    index: ProxyIndex,
    /// Proxies by the keys that their own resources depend on.
    readers: Readers,
    /// Members whose own resources or class have changed since the last send, with their state then.
    moved: HashMap<Arc<ProxyView>, Joined>,
    /// The questions to proxies, in order.
    questions: Vec<Question>,
}

/// One proxy, or several with equal nodes.
#[derive(Debug)]
struct Member {
    client: Client,
    holding: Holding,
    /// Units generated for it alone.
    units: Vec<(Unit, UnitResult)>,
    users: usize,
}

/// The state that a proxy keeps when it changes its group.
#[derive(Debug)]
pub struct CarryOver {
    /// What was last sent to it.
    sent: Joined,
    users: usize,
    /// The class it was in, from which a class of the new group is derived, so that unchanged resources are kept and
    /// changes are found quickly.
    class: Option<Class>,
}

impl Member {
    fn new(client: Client, class: ClassId, users: usize, maker: &mut UnitMaker<'_>) -> Self {
        let units = Unit::of_one(client.is_sidecar()).iter();
        let units: Vec<_> = units.map(|unit| (unit.clone(), maker.make(unit, &client, &[], None))).collect();
        let holding = Holding { class, own: given(&units), since: maker.cause.generation };
        Self { client, holding, units, users }
    }

    /// Generates its own units again.
    fn made_anew(&self, maker: &mut UnitMaker<'_>) -> Vec<(Unit, UnitResult)> {
        let anew = |(unit, made): &(Unit, UnitResult)| (unit.clone(), maker.make(unit, &self.client, &[], Some(made)));
        self.units.iter().map(anew).collect()
    }

    fn joined(&self, view: &Arc<ProxyView>, classes: &BTreeMap<ClassId, Class>) -> Joined {
        let shared = classes.get(&self.holding.class).map(Class::sent).unwrap_or_default();
        Joined { view: view.clone(), holding: self.holding.clone(), shared }
    }
}

impl Group {
    /// Whether it has no proxies.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The present state of a proxy.
    pub fn joined(&self, view: &ProxyView) -> Option<Joined> {
        let (view, member) = self.members.get_key_value(view)?;
        Some(member.joined(view, &self.classes))
    }

    /// Adds a proxy.
    pub fn join(&mut self, client: Client, maker: &mut UnitMaker<'_>) -> Joined {
        let view = client.view.clone();
        match self.members.get_mut(&view) {
            Some(member) => member.users += 1,
            None => self.enter(client, 1, maker),
        }
        // The update is sent right away.
        self.moved.remove(&view);
        let (view, member) = self.members.get_key_value(&view).expect("it has just entered");
        member.joined(view, &self.classes)
    }

    /// Adds a proxy that has left another group.
    pub fn admit(&mut self, client: Client, left: CarryOver, maker: &mut UnitMaker<'_>) {
        if let Some(class) = left.class.filter(|_| self.classes.is_empty()) {
            let mut class = class.led_by(client.clone());
            class.redo(class.everything(maker.snapshot), maker, &mut Siblings::new());
            class.begin(maker.cause.generation);
            self.classes.insert(maker.work.new_class(), class);
            self.questions = self.asked();
        }
        self.moved.insert(client.view.clone(), left.sent);
        self.enter(client, left.users, maker);
    }

    /// Puts a proxy into the class of those that give the same answers.
    fn enter(&mut self, client: Client, users: usize, maker: &mut UnitMaker<'_>) {
        let view = client.view.clone();
        let answers = answers(&self.questions, &client);
        let same = |class: &Class| self::answers(&self.questions, &class.client) == answers;
        let found = self.classes.iter().find(|(_, class)| same(class)).map(|(id, _)| *id);
        let class = found.unwrap_or_else(|| maker.work.new_class());
        let member = Member::new(client, class, users, maker);
        self.readers.add(&view, &member.units);
        self.index.add(&view);
        self.members.insert(view.clone(), member);
        if found.is_none() {
            self.add_class(&view, class, maker);
        }
    }

    /// Makes a class for a proxy with unique answers: derives it from another class, and generates the units with
    /// different answers, or takes them from a class with the same answers.
    fn add_class(&mut self, view: &Arc<ProxyView>, id: ClassId, maker: &mut UnitMaker<'_>) {
        let client = self.members.get(view).map(|member| member.client.clone());
        let (Some((_, template)), Some(client)) = (self.classes.last_key_value(), client) else {
            return self.settle(maker);
        };
        let mut class = template.led_by(client);
        let units = class.mismatched();
        let known = |unit: &Unit| {
            let mut made: Vec<Arc<UnitResult>> = Vec::new();
            for other in self.classes.values().filter_map(|class| class.made(unit)) {
                if !made.iter().any(|known| Arc::ptr_eq(known, other)) {
                    made.push(other.clone());
                }
            }
            (unit.clone(), made)
        };
        let mut siblings: Siblings = units.iter().map(known).collect();
        class.redo(units, maker, &mut siblings);
        class.begin(maker.cause.generation);
        let asks_more = class.questions().any(|question| self.questions.binary_search(question).is_err());
        self.classes.insert(id, class);
        if asks_more {
            self.settle(maker);
        }
    }

    /// All proxies.
    pub fn views(&self) -> HashSet<Arc<ProxyView>> {
        self.members.keys().cloned().collect()
    }

    /// The proxies whose workloads may have changed.
    pub fn views_at(&self, changes: &Changes) -> HashSet<Arc<ProxyView>> {
        self.index.touched(changes)
    }

    /// Removes those of `views` that do not belong to this group any more, and returns them.
    pub fn take_those(
        &mut self,
        views: HashSet<Arc<ProxyView>>,
        leaves: impl Fn(&Client) -> bool,
        maker: &mut UnitMaker<'_>,
    ) -> Vec<(Client, CarryOver)> {
        let now = views.into_iter().map(|view| maker.look_up(view));
        let leaving: Vec<Client> = now.filter(|client| leaves(client)).collect();
        if leaving.is_empty() {
            return Vec::new();
        }
        let left: Vec<(Client, CarryOver)> = leaving
            .into_iter()
            .filter_map(|client| {
                let member = self.members.remove(&client.view)?;
                self.readers.remove(&client.view, &member.units);
                self.index.remove(&client.view);
                let class = self.classes.get(&member.holding.class).cloned();
                let now = || member.joined(&client.view, &self.classes);
                let sent = self.moved.remove(&client.view).unwrap_or_else(now);
                Some((client, CarryOver { sent, users: member.users, class }))
            })
            .collect();
        // A class without proxies is removed.
        let inhabited: HashSet<ClassId> = self.members.values().map(|member| member.holding.class).collect();
        self.classes.retain(|id, _| inhabited.contains(id));
        left
    }

    /// The proxies, with only what was sent to them.
    pub fn into_members(self, snapshot: &Snapshot) -> impl Iterator<Item = (Client, CarryOver)> {
        let Self { members, classes, mut moved, .. } = self;
        members.into_iter().map(move |(view, member)| {
            let sent = moved.remove(&view).unwrap_or_else(|| member.joined(&view, &classes));
            (Client::new(view, snapshot), CarryOver { sent, users: member.users, class: None })
        })
    }

    /// Removes a proxy once.
    pub fn leave(&mut self, view: &ProxyView, maker: &mut UnitMaker<'_>) {
        let Some(member) = self.members.get_mut(view) else { return };
        member.users -= 1;
        if member.users > 0 {
            return;
        }
        let Some((view, gone)) = self.members.remove_entry(view) else { return };
        self.moved.remove(&view);
        self.readers.remove(&view, &gone.units);
        self.index.remove(&view);
        for (kind, resource) in &*gone.holding.own {
            maker.work.pool.dropped(*kind, &resource.name);
        }
        if !self.members.values().any(|member| member.holding.class == gone.holding.class) {
            self.settle(maker);
        }
    }

    /// Applies a change; [`changed`](Self::changed) returns the effects.
    pub fn update(&mut self, changes: &Changes, maker: &mut UnitMaker<'_>) {
        let others = self.update_clients(changes, maker);
        let mut siblings = Siblings::new();
        for class in self.classes.values_mut() {
            let touched = class.touched(changes, maker.snapshot);
            class.redo(touched, maker, &mut siblings);
        }
        let touched = if changes.mesh { self.members.keys().cloned().collect() } else { self.readers.touched(changes) };
        touched.iter().for_each(|view| self.redo_own(view, maker));
        let asks_otherwise = self.classes.values_mut().fold(false, |any, class| class.take_asks_otherwise() | any);
        if others || asks_otherwise && self.asked() != self.questions {
            self.settle(maker);
        }
    }

    /// Looks up workloads that may have changed. Returns whether a proxy gives other answers because of that, and so
    /// may belong to another class.
    fn update_clients(&mut self, changes: &Changes, maker: &mut UnitMaker<'_>) -> bool {
        let mut answers_otherwise = false;
        for view in self.index.touched(changes) {
            let client = maker.look_up(view);
            let Some(member) = self.members.get_mut(&client.view) else { continue };
            // Compare pointers: workloads are large, and an unchanged one is the same allocation.
            if client.workload.as_ref().map(Arc::as_ptr) == member.client.workload.as_ref().map(Arc::as_ptr) {
                continue;
            }
            if answers(&self.questions, &client) == answers(&self.questions, &member.client) {
                // Further questions of its class must not get its old answers. A class that it will leave keeps its
                // content.
                let leads = |class: &&mut Class| class.client.view == client.view;
                self.classes.values_mut().filter(leads).for_each(|class| class.client = client.clone());
            } else {
                answers_otherwise = true
            }
            member.client = client.clone();
            self.redo_own(&client.view, maker);
        }
        answers_otherwise
    }

    /// Generates the own units of one proxy again.
    fn redo_own(&mut self, view: &Arc<ProxyView>, maker: &mut UnitMaker<'_>) {
        let Some(member) = self.members.get_mut(view) else { return };
        let units = member.made_anew(maker);
        self.readers.remove(view, &member.units);
        self.readers.add(view, &units);
        member.units = units;
        let own = given(&member.units);
        let same = |(one, other): (&TypedResource, &TypedResource)| one.0 == other.0 && Arc::ptr_eq(&one.1, &other.1);
        if own.len() != member.holding.own.len() || !own.iter().zip(&*member.holding.own).all(same) {
            self.moved.entry(view.clone()).or_insert_with(|| member.joined(view, &self.classes));
            member.holding.own = own;
        }
    }

    /// The questions of all units.
    fn asked(&self) -> Vec<Question> {
        let all: BTreeSet<&Question> = self.classes.values().flat_map(Class::questions).collect();
        all.into_iter().cloned().collect()
    }

    /// Sorts proxies into classes by their answers, until there are no new questions: a class that is split generates
    /// the affected units again, which may ask more. The final set of questions depends only on the proxies, so this
    /// terminates.
    fn settle(&mut self, maker: &mut UnitMaker<'_>) {
        let mut siblings = Siblings::new();
        loop {
            self.questions = self.asked();
            let mut sorts: BTreeMap<Vec<Answer>, Vec<Arc<ProxyView>>> = BTreeMap::new();
            for (view, member) in &self.members {
                sorts.entry(answers(&self.questions, &member.client)).or_default().push(view.clone());
            }
            let before = std::mem::take(&mut self.classes);
            for (answers, views) in sorts {
                self.continue_class(&before, &answers, &views, maker, &mut siblings);
            }
            if self.asked() == self.questions {
                return;
            }
        }
    }

    /// Makes a class for these proxies, which all give these answers, from a class that some of them were in.
    fn continue_class(
        &mut self,
        before: &BTreeMap<ClassId, Class>,
        answers: &[Answer],
        views: &[Arc<ProxyView>],
        maker: &mut UnitMaker<'_>,
        siblings: &mut Siblings,
    ) {
        let members = || views.iter().filter_map(|view| self.members.get(view));
        let Some(client) = members().next().map(|member| member.client.clone()) else { return };
        let own = members().find_map(|member| before.get_key_value(&member.holding.class));
        let (mut class, answered_so) = match own.or(before.first_key_value()) {
            Some((_, class)) => {
                let same = self::answers(&self.questions, &class.client) == answers;
                (class.led_by(client), same)
            }
            None => (Class::new(client), false),
        };
        let units = match before.is_empty() {
            true => class.everything(maker.snapshot),
            // All its questions are among those.
            false if answered_so => BTreeSet::new(),
            false => class.mismatched(),
        };
        class.redo(units, maker, siblings);
        let id = match own.filter(|(id, _)| !self.classes.contains_key(id)) {
            Some((id, known)) => {
                class = class.continuing(known);
                *id
            }
            None => maker.work.new_class(),
        };
        class.begin(maker.cause.generation);
        self.classes.insert(id, class);
        for view in views {
            let Some(member) = self.members.get_mut(view).filter(|member| member.holding.class != id) else { continue };
            self.moved.entry(view.clone()).or_insert_with(|| member.joined(view, before));
            member.holding.class = id;
        }
    }

    /// The changes since the last call.
    pub fn changed(&mut self, cause: Cause) -> Changed {
        let mut changed = Changed::default();
        for (id, class) in &mut self.classes {
            if let Some((shared, touched)) = class.tell(cause.generation) {
                changed.classes.push(ClassChange { class: *id, shared, touched });
            }
        }
        for (view, before) in std::mem::take(&mut self.moved) {
            let Some(member) = self.members.get_mut(&view) else { continue };
            let before = before.set();
            let touched = ChangedNames::between(&before, &member.joined(&view, &self.classes).set());
            member.holding.since = if touched.is_empty() { before.generation } else { cause.generation };
            changed.proxies.push(ProxyChange { now: member.joined(&view, &self.classes), touched });
        }
        changed
    }

    /// The differences from a full regeneration.
    pub fn compare(&self, snapshot: &Snapshot) -> Vec<Mismatch> {
        let mut found = Vec::new();
        for (view, member) in &self.members {
            let set = member.joined(view, &self.classes).set();
            let whole = crate::resources(view, snapshot, set.generation);
            let proxy = || format!("{}/{}", view.namespace, view.pod);
            let differ = whole.diff(&set).filter(|d| d.old.map(|r| &**r) != d.new.map(|r| &**r));
            found.extend(differ.map(|d| Mismatch { proxy: proxy(), kind: d.kind, name: d.name.clone() }));
        }
        found
    }

    /// Generates everything again; [`changed`](Self::changed) returns the effects.
    pub fn rebuild(&mut self, maker: &mut UnitMaker<'_>) {
        let views: Vec<_> = self.members.keys().cloned().collect();
        for view in &views {
            let Some(member) = self.members.get_mut(view) else { continue };
            self.moved.entry(view.clone()).or_insert_with(|| member.joined(view, &self.classes));
            member.client = Client::new(view.clone(), maker.snapshot);
            self.redo_own(view, maker);
        }
        self.classes.clear();
        self.settle(maker);
    }
}

/// A resource and its type.
type TypedResource = (ResourceType, Arc<Resource>);

/// A proxy's answers to each question.
fn answers(questions: &[Question], client: &Client) -> Vec<Answer> {
    questions.iter().map(|question| client.answer(question)).collect()
}

/// All resources of units.
fn given(units: &[(Unit, UnitResult)]) -> Arc<[TypedResource]> {
    units.iter().flat_map(|(_, made)| &made.resources).cloned().collect()
}
