//! Proxies of the same kinds, namespace and Sidecar, sorted into classes by what generators ask of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_model::{Changes, Snapshot};
use evenkeel_xds::ResourceSet;
use evenkeel_xds::server::Touched;

use super::class::{Class, Siblings};
use super::made::{Made, Maker};
use super::{Change, Mismatch};
use crate::facts::{Answer, Client, Question};
use crate::plan::Unit;
use crate::view::ProxyView;

/// Proxies of the same kinds, namespace and Sidecar.
#[derive(Debug, Default)]
pub struct Group {
    classes: BTreeMap<u64, Class>,
    next_class: u64,
    members: HashMap<Arc<ProxyView>, Member>,
    /// What is asked of proxies, in order.
    questions: Vec<Question>,
}

/// One proxy, or several that say the same of themselves.
#[derive(Debug)]
struct Member {
    client: Client,
    class: u64,
    /// Of its class, when `set` was made.
    class_set: ResourceSet,
    /// What is made for it alone.
    own: Vec<(Unit, Made)>,
    set: Arc<ResourceSet>,
    users: usize,
}

/// What a proxy that changes its group takes along.
#[derive(Debug)]
pub struct Left {
    set: Arc<ResourceSet>,
    users: usize,
    /// The class it was in, from which one of the new group is made: what is the same there stays the same, and what is
    /// not is found quickly.
    class: Option<Class>,
}

impl Member {
    /// Makes its set anew if its class or what is its own changed. What it held before, if that is different.
    fn refresh(&mut self, class: &Class, maker: &Maker<'_>) -> Option<Arc<ResourceSet>> {
        if class.set.is_same(&self.class_set) {
            return None;
        }
        self.class_set = class.set.clone();
        let mut set = class.set.clone();
        for (kind, resource) in self.own.iter().flat_map(|(_, made)| &made.resources) {
            set.insert(*kind, resource.clone());
        }
        let differs = set.diff(&self.set).next().is_some();
        set.generation = if differs { maker.cause.generation } else { self.set.generation };
        let before = std::mem::replace(&mut self.set, Arc::new(set));
        differs.then_some(before)
    }
}

impl Group {
    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// What a proxy is to hold.
    pub fn set_of(&self, view: &ProxyView) -> Option<&Arc<ResourceSet>> {
        Some(&self.members.get(view)?.set)
    }

    /// Adds a proxy.
    pub fn join(&mut self, client: Client, maker: &mut Maker<'_>) -> Arc<ResourceSet> {
        let view = client.view.clone();
        match self.members.get_mut(&view) {
            Some(member) => member.users += 1,
            None => _ = self.enter(client, Left { set: Arc::default(), users: 1, class: None }, maker),
        }
        self.members.get(&view).map(|member| member.set.clone()).unwrap_or_default()
    }

    /// Adds a proxy that has left another group. What is different for it.
    pub fn admit(&mut self, client: Client, left: Left, maker: &mut Maker<'_>) -> Option<Change> {
        let view = client.view.clone();
        let before = self.enter(client, left, maker)?;
        let now = self.members.get(&view)?.set.clone();
        let touched = Touched::between(&before, &now);
        Some(Change { view, before, now, touched })
    }

    /// Puts a proxy into the class of those that answer as it does. What it held before, if that is different.
    fn enter(&mut self, client: Client, left: Left, maker: &mut Maker<'_>) -> Option<Arc<ResourceSet>> {
        let view = client.view.clone();
        if let Some(class) = left.class.filter(|_| self.classes.is_empty()) {
            let mut class = class.led_by(client.clone());
            class.redo(class.everything(maker.snapshot), maker, &mut Siblings::new());
            self.classes.insert(self.next_class, class);
            self.next_class += 1;
            self.questions = self.asked();
        }
        let answers = answers(&self.questions, &client);
        let same = |class: &Class| self::answers(&self.questions, &class.client) == answers;
        let found = self.classes.iter().find(|(_, class)| same(class)).map(|(id, _)| *id);
        let member = Member {
            class: found.unwrap_or(u64::MAX),
            class_set: ResourceSet::default(),
            own: own_units(&client, maker),
            set: left.set,
            users: left.users,
            client,
        };
        self.members.insert(view.clone(), member);
        if found.is_none() {
            self.settle(maker);
        }
        let member = self.members.get_mut(&view)?;
        member.refresh(self.classes.get(&member.class)?, maker)
    }

    /// Takes out the proxies that do not belong here any more, each as it is now.
    pub fn take_those(&mut self, leaves: impl Fn(&Client) -> bool, maker: &mut Maker<'_>) -> Vec<(Client, Left)> {
        let now = self.members.keys().map(|view| Client::new(view.clone(), maker.snapshot));
        let leaving: Vec<Client> = now.filter(|client| leaves(client)).collect();
        let left: Vec<(Client, Left)> = leaving
            .into_iter()
            .filter_map(|client| {
                let Member { set, users, class, .. } = self.members.remove(&client.view)?;
                Some((client, Left { set, users, class: self.classes.get(&class).cloned() }))
            })
            .collect();
        // A class nobody is left in goes.
        self.classes.retain(|id, _| self.members.values().any(|member| member.class == *id));
        left
    }

    /// Takes a proxy out once.
    pub fn leave(&mut self, view: &ProxyView, maker: &mut Maker<'_>) {
        let Some(member) = self.members.get_mut(view) else { return };
        member.users -= 1;
        if member.users > 0 {
            return;
        }
        let Some(gone) = self.members.remove(view) else { return };
        for (kind, resource) in gone.own.iter().flat_map(|(_, made)| &made.resources) {
            maker.pool.dropped(*kind, &resource.name);
        }
        if !self.members.values().any(|member| member.class == gone.class) {
            self.settle(maker);
        }
    }

    /// Follows a change.
    pub fn update(&mut self, changes: &Changes, maker: &mut Maker<'_>) -> Vec<Change> {
        let mut siblings = Siblings::new();
        for class in self.classes.values_mut() {
            let touched = class.touched(changes, maker.snapshot);
            class.redo(touched, maker, &mut siblings);
        }
        let moved = self.update_members(changes, maker);
        if moved || self.asked() != self.questions {
            self.settle(maker);
        }
        self.refresh(maker)
    }

    /// What is made for each proxy alone. Whether any is another than before.
    fn update_members(&mut self, changes: &Changes, maker: &mut Maker<'_>) -> bool {
        let mut moved = false;
        for member in self.members.values_mut() {
            let mut all = changes.mesh;
            if changes.workloads {
                let client = Client::new(member.client.view.clone(), maker.snapshot);
                // By pointer: workloads are large, and an unchanged one is the same.
                if client.workload.as_ref().map(Arc::as_ptr) != member.client.workload.as_ref().map(Arc::as_ptr) {
                    member.client = client;
                    (all, moved) = (true, true);
                }
            }
            for (unit, made) in &mut member.own {
                if all || made.reads.iter().any(|key| changes.touch(key)) {
                    *made = maker.make(unit, &member.client, &[], Some(made));
                    // Makes its set new.
                    member.class_set = ResourceSet::default();
                }
            }
        }
        moved
    }

    /// What units ask of the proxies.
    fn asked(&self) -> Vec<Question> {
        let all: BTreeSet<&Question> = self.classes.values().flat_map(Class::questions).collect();
        all.into_iter().cloned().collect()
    }

    /// Sorts proxies into classes by their answers, until nothing more is asked of them: a class that is split makes
    /// anew what the answers concern, which may ask more. What is asked in the end depends on the proxies alone, so
    /// this ends.
    fn settle(&mut self, maker: &mut Maker<'_>) {
        let mut siblings = Siblings::new();
        loop {
            self.questions = self.asked();
            let mut sorts: BTreeMap<Vec<Answer>, Vec<Arc<ProxyView>>> = BTreeMap::new();
            for (view, member) in &self.members {
                sorts.entry(answers(&self.questions, &member.client)).or_default().push(view.clone());
            }
            let before = std::mem::take(&mut self.classes);
            for views in sorts.into_values() {
                self.continue_class(&before, &views, maker, &mut siblings);
            }
            if self.asked() == self.questions {
                return;
            }
        }
    }

    /// Makes a class of these proxies from one that some of them were in.
    fn continue_class(
        &mut self,
        before: &BTreeMap<u64, Class>,
        views: &[Arc<ProxyView>],
        maker: &mut Maker<'_>,
        siblings: &mut Siblings,
    ) {
        let members = || views.iter().filter_map(|view| self.members.get(view));
        let Some(client) = members().next().map(|member| member.client.clone()) else { return };
        let own = members().find_map(|member| before.get_key_value(&member.class));
        let mut class = match own.or(before.first_key_value()) {
            Some((_, class)) => class.clone().led_by(client),
            None => Class::new(client),
        };
        let units = match before.is_empty() {
            true => class.everything(maker.snapshot),
            false => class.mismatched(),
        };
        class.redo(units, maker, siblings);
        let kept = own.map(|(id, _)| *id).filter(|id| !self.classes.contains_key(id));
        let id = kept.unwrap_or_else(|| {
            self.next_class += 1;
            self.next_class
        });
        self.classes.insert(id, class);
        for view in views {
            if let Some(member) = self.members.get_mut(view) {
                member.class = id;
            }
        }
    }

    /// Makes the sets of proxies whose class or own resources changed.
    fn refresh(&mut self, maker: &Maker<'_>) -> Vec<Change> {
        let mut changed = Vec::new();
        let mut known: HashMap<u64, (ResourceSet, Touched)> = HashMap::new();
        for (view, member) in &mut self.members {
            let Some(class) = self.classes.get(&member.class) else { continue };
            let class_before = member.class_set.clone();
            let Some(before) = member.refresh(class, maker) else { continue };
            let touched = match known.get(&member.class) {
                // Of its class nothing is known: what is its own changed.
                _ if class_before.is_empty() => Touched::between(&before, &member.set),
                Some((from, touched)) if from.is_same(&class_before) => touched.clone(),
                _ => {
                    let touched = Touched::between(&class_before, &class.set);
                    known.insert(member.class, (class_before, touched.clone()));
                    touched
                }
            };
            changed.push(Change { view: view.clone(), before, now: member.set.clone(), touched });
        }
        changed
    }

    /// What is otherwise than if it were made from nothing.
    pub fn compare(&self, snapshot: &Snapshot) -> Vec<Mismatch> {
        let mut found = Vec::new();
        for (view, member) in &self.members {
            let whole = crate::resources(view, snapshot, member.set.generation);
            let proxy = || format!("{}/{}", view.namespace, view.pod);
            let differ = whole.diff(&member.set).filter(|d| d.old.map(|r| &**r) != d.new.map(|r| &**r));
            found.extend(differ.map(|d| Mismatch { proxy: proxy(), kind: d.kind, name: d.name.clone() }));
        }
        found
    }

    /// Makes everything anew.
    pub fn rebuild(&mut self, maker: &mut Maker<'_>) -> Vec<Change> {
        self.classes.clear();
        for member in self.members.values_mut() {
            member.client = Client::new(member.client.view.clone(), maker.snapshot);
            member.own = own_units(&member.client, maker);
            member.class_set = ResourceSet::default();
        }
        self.settle(maker);
        self.refresh(maker)
    }
}

/// What a proxy answers to each question.
fn answers(questions: &[Question], client: &Client) -> Vec<Answer> {
    questions.iter().map(|question| client.answer(question)).collect()
}

fn own_units(client: &Client, maker: &mut Maker<'_>) -> Vec<(Unit, Made)> {
    let units = Unit::of_one(client.is_sidecar()).iter();
    units.map(|unit| (unit.clone(), maker.make(unit, client, &[], None))).collect()
}
