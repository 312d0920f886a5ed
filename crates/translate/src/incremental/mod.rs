//! What every connected proxy is to hold, kept up to date: the cost of a change depends on the change.
//!
//! A change touches keys; units that asked for them are made anew ([`plan`](crate::plan)); sets of classes of proxies
//! whose units came out differently are patched. Nobody lists what depends on what: units ask through
//! [`Context`](crate::Context), which notes every question.

mod class;
mod group;
mod proxy_index;
mod readers;
mod unit;

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use evenkeel_model::{Changes, Sidecar, Snapshot};
use evenkeel_xds::server::ChangedNames;
use evenkeel_xds::{Cause, Resource, ResourceSet, ResourceType};

use crate::facts::Client;
use crate::view::{ClientKind, ProxyKind, ProxyView};
use group::Group;
use unit::{SharedWork, UnitMaker};

/// What every connected proxy is to hold.
#[derive(Debug)]
pub struct Translator {
    snapshot: Arc<Snapshot>,
    cause: Cause,
    groups: HashMap<GroupKey, Group>,
    work: SharedWork,
}

/// Kinds and Sidecars. Proxies that differ in one of these share no units.
#[derive(Debug, Clone)]
struct GroupKey {
    kinds: (ProxyKind, ClientKind),
    /// Compared by pointer: one that did not change is the same.
    sidecar: Option<Arc<Sidecar>>,
    /// See [`Client::registry_only`].
    registry_only: bool,
}

impl GroupKey {
    fn of(client: &Client) -> Self {
        let view = &client.view;
        let (sidecar, registry_only) = (client.sidecar.clone(), client.registry_only);
        Self { kinds: (view.kind, view.client_kind), sidecar, registry_only }
    }

    fn parts(&self) -> (&(ProxyKind, ClientKind), Option<*const Sidecar>, bool) {
        (&self.kinds, self.sidecar.as_ref().map(Arc::as_ptr), self.registry_only)
    }
}

impl PartialEq for GroupKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for GroupKey {}

impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// Proxies that are to hold the same, but for what is each one's own. No two of one translator have the same number, ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u64);

/// What a proxy is to hold: what its class shares, with its own on top.
#[derive(Debug, Clone)]
pub struct Holding {
    /// Its class.
    pub class: ClassId,
    own: Arc<[(ResourceType, Arc<Resource>)]>,
    /// Generation since when it holds its own in this class.
    since: u64,
}

impl Holding {
    /// Whether it is the other one, or its clone.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.class, self.since) == (other.class, other.since) && Arc::ptr_eq(&self.own, &other.own)
    }

    /// Puts them together. Cheap: see [`ResourceSet::layered`].
    pub fn over(&self, shared: &Arc<ResourceSet>) -> Arc<ResourceSet> {
        if self.own.is_empty() && self.since <= shared.generation {
            return shared.clone();
        }
        let mut set = ResourceSet::layered(shared, self.own.clone());
        set.generation = set.generation.max(self.since);
        Arc::new(set)
    }
}

/// One proxy that joined, or several that say the same of themselves.
#[derive(Debug, Clone)]
pub struct Joined {
    /// What it says of itself: the same allocation for as long as it stays.
    pub view: Arc<ProxyView>,
    /// What it is to hold.
    pub holding: Holding,
    /// What its class shares.
    pub shared: Arc<ResourceSet>,
}

impl Joined {
    /// What it is to hold, put together.
    pub fn set(&self) -> Arc<ResourceSet> {
        self.holding.over(&self.shared)
    }
}

/// What a change came to. Of what is not named here nothing is different.
#[derive(Debug, Default)]
pub struct Changed {
    /// Classes that share something else now, each with all its proxies.
    pub classes: Vec<ClassChange>,
    /// Proxies whose own is different now, or which are in another class.
    pub proxies: Vec<ProxyChange>,
}

impl Changed {
    fn extend(&mut self, more: Self) {
        self.classes.extend(more.classes);
        self.proxies.extend(more.proxies);
    }
}

/// A class shares something else now.
#[derive(Debug, Clone)]
pub struct ClassChange {
    /// Which.
    pub class: ClassId,
    /// What it shares.
    pub shared: Arc<ResourceSet>,
    /// In which names that differs from what it was.
    pub touched: ChangedNames,
}

/// A proxy's own is different now, or it is in another class.
#[derive(Debug, Clone)]
pub struct ProxyChange {
    /// As it is now, changes of its class included.
    pub now: Joined,
    /// In which names what it is to hold differs from what it was; none if it is in another class that shares the same.
    pub touched: ChangedNames,
}

/// A resource that differs from what is made from nothing: a defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// `NAMESPACE/POD` of the proxy.
    pub proxy: String,
    /// The type.
    pub kind: ResourceType,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` of {}", self.kind, self.name, self.proxy)
    }
}

impl Translator {
    /// No proxy is known yet.
    pub fn new(snapshot: Arc<Snapshot>, cause: Cause) -> Self {
        Self { snapshot, cause, groups: HashMap::new(), work: SharedWork::default() }
    }

    /// The snapshot proxies are told of.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// How many units were made so far.
    pub fn units_made(&self) -> u64 {
        self.work.made
    }

    /// How many resources of a type were made so far, those that came out as they were included.
    pub fn resources_made(&self, kind: ResourceType) -> u64 {
        self.work.resources[kind.index()]
    }

    /// How many parts of tables, listeners and the like were made so far.
    pub fn parts_made(&self) -> u64 {
        self.work.parts
    }

    /// How many proxies a change was looked at for, so far.
    pub fn proxies_looked_up(&self) -> u64 {
        self.work.looked_up
    }

    /// Keeps a proxy's resources until it [`leave`](Self::leave)s as often as it joined.
    pub fn join(&mut self, view: Arc<ProxyView>) -> Joined {
        let Self { snapshot, cause, groups, work } = self;
        let client = Client::new(view, snapshot);
        let group = groups.entry(GroupKey::of(&client)).or_default();
        group.join(client, &mut UnitMaker { snapshot, cause: *cause, work })
    }

    /// Takes a proxy out, and all that was kept for it alone.
    pub fn leave(&mut self, view: &ProxyView) {
        let key = self.group_of(view);
        let Some(group) = self.groups.get_mut(&key) else { return };
        let Self { snapshot, cause, work, .. } = self;
        group.leave(view, &mut UnitMaker { snapshot, cause: *cause, work });
        if group.is_empty() {
            self.groups.remove(&key);
        }
        self.work.pool.tidy();
    }

    /// A proxy that joined, as it is now.
    pub fn joined(&self, view: &ProxyView) -> Option<Joined> {
        self.groups.get(&self.group_of(view))?.joined(view)
    }

    /// The group a proxy is in: that of its Sidecar in the snapshot all groups follow.
    fn group_of(&self, view: &ProxyView) -> GroupKey {
        GroupKey::of(&Client::new(Arc::new(view.clone()), &self.snapshot))
    }

    /// Follows a change. What it costs depends on what is different and for how many classes, not on how many proxies are in
    /// them.
    pub fn update(&mut self, snapshot: Arc<Snapshot>, cause: Cause) -> Changed {
        let changes = Changes::between(&self.snapshot, &snapshot);
        (self.snapshot, self.cause) = (snapshot, cause);
        if changes.is_empty() {
            return Changed::default();
        }
        let Self { snapshot, cause, groups, work } = self;
        let mut maker = UnitMaker { snapshot, cause: *cause, work };
        let mut leaving = Vec::new();
        // Which Sidecar holds for a proxy depends on its labels, and on the name of the root namespace.
        let any_may = changes.sidecars || changes.mesh && !snapshot.sidecars.is_empty();
        if any_may || !changes.pods.is_empty() && !snapshot.sidecars.is_empty() {
            for (key, group) in &mut *groups {
                let views = if any_may { group.views() } else { group.views_at(&changes) };
                leaving.extend(group.take_those(views, |client| GroupKey::of(client) != *key, &mut maker));
            }
            groups.retain(|_, group| !group.is_empty());
        }
        for group in groups.values_mut() {
            group.update(&changes, &mut maker);
        }
        for (client, left) in leaving {
            groups.entry(GroupKey::of(&client)).or_default().admit(client, left, &mut maker);
        }
        let changed = changed(groups, *cause);
        self.work.pool.tidy();
        changed
    }

    /// Makes everything from nothing, of a snapshot equal to the present one: what is left after much has gone lies
    /// scattered, and holds on to the old snapshot. All proxies get new classes, which share the same; one of which
    /// something is different shows a defect.
    pub fn rebuild(&mut self, snapshot: Arc<Snapshot>) -> Changed {
        let mut fresh = Self::new(snapshot, self.cause);
        fresh.work = std::mem::take(&mut self.work).renewed();
        let Self { snapshot, cause, groups, work } = &mut fresh;
        let mut maker = UnitMaker { snapshot, cause: *cause, work };
        for group in std::mem::take(&mut self.groups).into_values() {
            for (client, left) in group.into_members(maker.snapshot) {
                groups.entry(GroupKey::of(&client)).or_default().admit(client, left, &mut maker);
            }
        }
        let changed = changed(groups, *cause);
        fresh.work.pool.settled();
        *self = fresh;
        changed
    }

    /// Makes everything from nothing and compares. If anything differs it takes what was made from nothing: the changes
    /// this means for proxies are returned with it.
    pub fn verify(&mut self) -> (Vec<Mismatch>, Changed) {
        let mut mismatches = Vec::new();
        let mut healed = Changed::default();
        let Self { snapshot, cause, groups, work } = self;
        for group in groups.values_mut() {
            let found = group.compare(snapshot);
            if !found.is_empty() {
                group.rebuild(&mut UnitMaker { snapshot, cause: *cause, work });
                healed.extend(group.changed(*cause));
                mismatches.extend(found);
            }
        }
        (mismatches, healed)
    }
}

fn changed(groups: &mut HashMap<GroupKey, Group>, cause: Cause) -> Changed {
    let mut all = Changed::default();
    groups.values_mut().for_each(|group| all.extend(group.changed(cause)));
    all
}

impl Client {
    /// Whether the proxy stands beside a workload.
    pub fn is_sidecar(&self) -> bool {
        self.view.kind == ProxyKind::Sidecar
    }
}
