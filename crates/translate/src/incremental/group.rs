//! Proxies of the same kinds and Sidecar, sorted into classes by what generators ask of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_model::{Changes, Snapshot};
use evenkeel_xds::server::Touched;
use evenkeel_xds::{Resource, ResourceSet, ResourceType};

use super::class::{Class, Siblings};
use super::made::{Made, Maker};
use super::{Change, Mismatch};
use crate::facts::{Answer, Client, Question};
use crate::plan::Unit;
use crate::view::ProxyView;

/// Proxies of the same kinds and Sidecar.
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
    /// Of its class, when `set` was made; `None` if its own has changed since.
    class_set: Option<ResourceSet>,
    own: Own,
    set: Arc<ResourceSet>,
    users: usize,
}

/// What is made for one proxy alone.
#[derive(Debug)]
struct Own {
    units: Vec<(Unit, Made)>,
    /// All that these give, shared by the sets it lies on top of.
    resources: Arc<[(ResourceType, Arc<Resource>)]>,
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

/// How the set of a class changed, worked out once for all its members.
#[derive(Debug)]
struct Step {
    from: ResourceSet,
    names: Vec<(ResourceType, Arc<str>)>,
    touched: Touched,
}

impl Step {
    fn new(from: ResourceSet, to: &ResourceSet) -> Self {
        let names = to.diff(&from).map(|difference| (difference.kind, difference.name.clone())).collect();
        Self { names, touched: Touched::between(&from, to), from }
    }
}

impl Member {
    /// Makes its set anew if its class or what is its own changed. What it held before, if that is different; and in which
    /// names, if that is known already. `step` is kept from one member of the class to the next.
    fn refresh(
        &mut self,
        class: &Class,
        step: &mut Option<Step>,
        maker: &Maker<'_>,
    ) -> Option<(Arc<ResourceSet>, Option<Touched>)> {
        if self.class_set.as_ref().is_some_and(|known| class.set.is_same(known)) {
            return None;
        }
        let from = self.class_set.replace(class.set.clone());
        let mut set = ResourceSet::layered(&class.set, self.own.resources.clone());
        let touched = match from {
            Some(from) => {
                let step = match step {
                    Some(step) if step.from.is_same(&from) => step,
                    _ => step.insert(Step::new(from, &class.set)),
                };
                // What a proxy has for itself hides what its class has under that name.
                let hidden = |(kind, name): &(ResourceType, Arc<str>)| self.own.gives(*kind, name);
                (!step.names.iter().all(hidden)).then(|| Some(step.touched.clone()))
            }
            // Of one that has just come it would be all there is, and nobody asks.
            None => set.diff(&self.set).next().is_some().then_some(None),
        };
        set.generation = if touched.is_some() { maker.cause.generation } else { self.set.generation };
        let before = std::mem::replace(&mut self.set, Arc::new(set));
        touched.map(|touched| (before, touched))
    }
}

impl Own {
    fn new(client: &Client, maker: &mut Maker<'_>) -> Self {
        let units = Unit::of_one(client.is_sidecar()).iter();
        let units: Vec<_> = units.map(|unit| (unit.clone(), maker.make(unit, client, &[], None))).collect();
        Self { resources: given(&units), units }
    }

    /// Makes anew the units that `is_touched` names. Whether there were any.
    fn redo(&mut self, is_touched: impl Fn(&Made) -> bool, client: &Client, maker: &mut Maker<'_>) -> bool {
        let mut any = false;
        for (unit, made) in self.units.iter_mut().filter(|(_, made)| is_touched(made)) {
            *made = maker.make(unit, client, &[], Some(made));
            any = true;
        }
        if any {
            self.resources = given(&self.units);
        }
        any
    }

    fn gives(&self, kind: ResourceType, name: &str) -> bool {
        self.units.iter().any(|(_, made)| made.gives(kind, name))
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

    /// What a proxy says of itself, as it is kept.
    pub fn view_of(&self, view: &ProxyView) -> Option<&Arc<ProxyView>> {
        self.members.get_key_value(view).map(|(known, _)| known)
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
            class_set: None,
            own: Own::new(&client, maker),
            set: left.set,
            users: left.users,
            client,
        };
        self.members.insert(view.clone(), member);
        if found.is_none() {
            self.add_class(&view, maker);
        }
        let member = self.members.get_mut(&view)?;
        member.refresh(self.classes.get(&member.class)?, &mut None, maker).map(|(before, _)| before)
    }

    /// Makes a class for a proxy that answers as nobody else does: of another class, with what the answers concern made
    /// anew or taken from whom it is the same for.
    fn add_class(&mut self, view: &Arc<ProxyView>, maker: &mut Maker<'_>) {
        let client = self.members.get(view).map(|member| member.client.clone());
        let (Some((_, template)), Some(client)) = (self.classes.last_key_value(), client) else {
            return self.settle(maker);
        };
        let mut class = template.clone().led_by(client);
        let units = class.mismatched();
        let known = |unit: &Unit| {
            let mut made: Vec<Arc<Made>> = Vec::new();
            for other in self.classes.values().filter_map(|class| class.made(unit)) {
                if !made.iter().any(|known| Arc::ptr_eq(known, other)) {
                    made.push(other.clone());
                }
            }
            (unit.clone(), made)
        };
        let mut siblings: Siblings = units.iter().map(known).collect();
        class.redo(units, maker, &mut siblings);
        let asks_more = class.questions().any(|question| self.questions.binary_search(question).is_err());
        self.next_class += 1;
        self.classes.insert(self.next_class, class);
        if let Some(member) = self.members.get_mut(view) {
            member.class = self.next_class;
        }
        if asks_more {
            self.settle(maker);
        }
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

    /// The proxies, without what was made for them.
    pub fn into_members(self, snapshot: &Snapshot) -> impl Iterator<Item = (Client, Left)> {
        let Self { members, .. } = self;
        members
            .into_iter()
            .map(|(view, Member { set, users, .. })| (Client::new(view, snapshot), Left { set, users, class: None }))
    }

    /// Takes a proxy out once.
    pub fn leave(&mut self, view: &ProxyView, maker: &mut Maker<'_>) {
        let Some(member) = self.members.get_mut(view) else { return };
        member.users -= 1;
        if member.users > 0 {
            return;
        }
        let Some(gone) = self.members.remove(view) else { return };
        for (kind, resource) in &*gone.own.resources {
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
        let asks_otherwise = self.classes.values_mut().fold(false, |any, class| class.take_asks_otherwise() | any);
        if moved || asks_otherwise && self.asked() != self.questions {
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
            let is_touched = |made: &Made| all || made.reads.iter().any(|key| changes.touch(key));
            if member.own.redo(is_touched, &member.client, maker) {
                member.class_set = None;
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
            for (answers, views) in sorts {
                self.continue_class(&before, &answers, &views, maker, &mut siblings);
            }
            if self.asked() == self.questions {
                return;
            }
        }
    }

    /// Makes a class of these proxies, which all give these answers, from one that some of them were in.
    fn continue_class(
        &mut self,
        before: &BTreeMap<u64, Class>,
        answers: &[Answer],
        views: &[Arc<ProxyView>],
        maker: &mut Maker<'_>,
        siblings: &mut Siblings,
    ) {
        let members = || views.iter().filter_map(|view| self.members.get(view));
        let Some(client) = members().next().map(|member| member.client.clone()) else { return };
        let own = members().find_map(|member| before.get_key_value(&member.class));
        let (mut class, answered_so) = match own.or(before.first_key_value()) {
            Some((_, class)) => {
                let same = self::answers(&self.questions, &class.client) == answers;
                (class.clone().led_by(client), same)
            }
            None => (Class::new(client), false),
        };
        let units = match before.is_empty() {
            true => class.everything(maker.snapshot),
            // All it asks is among the questions.
            false if answered_so => BTreeSet::new(),
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
        let mut steps: HashMap<u64, Option<Step>> = HashMap::new();
        for (view, member) in &mut self.members {
            let Some(class) = self.classes.get(&member.class) else { continue };
            let step = steps.entry(member.class).or_default();
            let Some((before, touched)) = member.refresh(class, step, maker) else { continue };
            let touched = touched.unwrap_or_else(|| Touched::between(&before, &member.set));
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
            member.own = Own::new(&member.client, maker);
            member.class_set = None;
        }
        self.settle(maker);
        self.refresh(maker)
    }
}

/// What a proxy answers to each question.
fn answers(questions: &[Question], client: &Client) -> Vec<Answer> {
    questions.iter().map(|question| client.answer(question)).collect()
}

/// All that units give.
fn given(units: &[(Unit, Made)]) -> Arc<[(ResourceType, Arc<Resource>)]> {
    units.iter().flat_map(|(_, made)| &made.resources).cloned().collect()
}
