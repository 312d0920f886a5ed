//! The resources of all connected proxies, kept up to date. The cost of a change depends only on the change.
//!
//! A change touches keys; the units that read them are generated again ([`plan`](crate::plan)); the resource sets of
//! classes with changed units are patched. Dependencies are not declared: units ask through
//! [`Context`](crate::Context), which records every question.

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
use crate::proxy_options::ProxyOptions;
use crate::view::{ClientKind, ProxyKind, ProxyView};
use group::Group;
use unit::{SharedWork, UnitMaker};

/// The resources of all connected proxies.
#[derive(Debug)]
pub struct Translator {
    snapshot: Arc<Snapshot>,
    cause: Cause,
    groups: HashMap<GroupKey, Group>,
    work: SharedWork,
}

/// Kind, Sidecar and ProxyConfig. Proxies that differ in one of these share no units.
#[derive(Debug, Clone)]
struct GroupKey {
    kinds: (ProxyKind, ClientKind),
    /// Compared by pointer, because an unchanged Sidecar is the same allocation.
    sidecar: Option<Arc<Sidecar>>,
    /// See [`Client::registry_only`].
    registry_only: bool,
    /// The parts of the ProxyConfig that resources depend on.
    options: Arc<ProxyOptions>,
}

impl GroupKey {
    fn of(client: &Client) -> Self {
        let view = &client.view;
        let (sidecar, registry_only) = (client.sidecar.clone(), client.registry_only);
        Self { kinds: (view.kind, view.client_kind), sidecar, registry_only, options: client.options.clone() }
    }

    fn parts(&self) -> (&(ProxyKind, ClientKind), Option<*const Sidecar>, bool, &ProxyOptions) {
        (&self.kinds, self.sidecar.as_ref().map(Arc::as_ptr), self.registry_only, &self.options)
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

/// The id of a class: proxies with the same resources, apart from each one's own. Ids of one translator are never
/// reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u64);

/// The resources of a proxy: those shared by its class, with its own on top.
#[derive(Debug, Clone)]
pub struct Holding {
    /// Its class.
    pub class: ClassId,
    own: Arc<[(ResourceType, Arc<Resource>)]>,
    /// The generation since which it has its own resources in this class.
    since: u64,
}

impl Holding {
    /// Whether it is the same or a clone.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.class, self.since) == (other.class, other.since) && Arc::ptr_eq(&self.own, &other.own)
    }

    /// Combines them with the shared ones, which is cheap: see [`ResourceSet::layered`].
    pub fn over(&self, shared: &Arc<ResourceSet>) -> Arc<ResourceSet> {
        if self.own.is_empty() && self.since <= shared.generation {
            return shared.clone();
        }
        let mut set = ResourceSet::layered(shared, self.own.clone());
        set.generation = set.generation.max(self.since);
        Arc::new(set)
    }
}

/// A proxy that joined, or several with equal nodes.
#[derive(Debug, Clone)]
pub struct Joined {
    /// Its node; the same allocation as long as it stays.
    pub view: Arc<ProxyView>,
    /// Its resources.
    pub holding: Holding,
    /// The resources shared by its class.
    pub shared: Arc<ResourceSet>,
}

impl Joined {
    /// All its resources.
    pub fn set(&self) -> Arc<ResourceSet> {
        self.holding.over(&self.shared)
    }
}

/// The effects of a change. Everything not named here is unchanged.
#[derive(Debug, Default)]
pub struct Changed {
    /// Classes whose shared resources have changed.
    pub classes: Vec<ClassChange>,
    /// Proxies whose own resources or class have changed.
    pub proxies: Vec<ProxyChange>,
}

impl Changed {
    fn extend(&mut self, more: Self) {
        self.classes.extend(more.classes);
        self.proxies.extend(more.proxies);
    }
}

/// A change of a class's shared resources.
#[derive(Debug, Clone)]
pub struct ClassChange {
    /// The class.
    pub class: ClassId,
    /// The shared resources.
    pub shared: Arc<ResourceSet>,
    /// The changed names.
    pub touched: ChangedNames,
}

/// A change of a proxy's own resources or of its class.
#[derive(Debug, Clone)]
pub struct ProxyChange {
    /// Its present state, including changes of its class.
    pub now: Joined,
    /// The changed names of its resources; none if it is in another class with equal resources.
    pub touched: ChangedNames,
}

/// A resource that differs from a full regeneration, which is a bug.
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
    /// A translator without proxies.
    pub fn new(snapshot: Arc<Snapshot>, cause: Cause) -> Self {
        Self { snapshot, cause, groups: HashMap::new(), work: SharedWork::default() }
    }

    /// The present snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The number of units generated so far.
    pub fn units_made(&self) -> u64 {
        self.work.made
    }

    /// The number of resources of a type generated so far, including unchanged ones.
    pub fn resources_made(&self, kind: ResourceType) -> u64 {
        self.work.resources[kind.index()]
    }

    /// The number of parts of tables, listeners and the like generated so far.
    pub fn parts_made(&self) -> u64 {
        self.work.parts
    }

    /// The number of proxies checked because of changes so far.
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

    /// Removes a proxy, and everything kept only for it.
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

    /// The present state of a proxy that joined.
    pub fn joined(&self, view: &ProxyView) -> Option<Joined> {
        self.groups.get(&self.group_of(view))?.joined(view)
    }

    /// The group of a proxy, by its Sidecar in the present snapshot.
    fn group_of(&self, view: &ProxyView) -> GroupKey {
        GroupKey::of(&Client::new(Arc::new(view.clone()), &self.snapshot))
    }

    /// Applies a change. The cost depends on the differences and on the number of affected classes, not on the number
    /// of proxies in them.
    pub fn update(&mut self, snapshot: Arc<Snapshot>, cause: Cause) -> Changed {
        let changes = Changes::between(&self.snapshot, &snapshot);
        let says = |snapshot: &Snapshot| {
            let mut workloads = changes.pods.iter().filter_map(|(namespace, pod)| snapshot.workload(namespace, pod));
            workloads.any(|workload| workload.proxy_config.is_some())
        };
        let says_itself = says(&self.snapshot) || says(&snapshot);
        (self.snapshot, self.cause) = (snapshot, cause);
        if changes.is_empty() {
            return Changed::default();
        }
        let Self { snapshot, cause, groups, work } = self;
        let mut maker = UnitMaker { snapshot, cause: *cause, work };
        let mut leaving = Vec::new();
        // Which Sidecar and which ProxyConfig apply to a proxy depends on its labels and on the mesh's settings; its
        // Pod may have settings of its own.
        let any_may = changes.sidecars || changes.mesh;
        let by_labels = !snapshot.sidecars.is_empty() || !snapshot.proxy_rules.is_empty();
        if any_may || !changes.pods.is_empty() && (by_labels || says_itself) {
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

    /// Generates everything again from a snapshot equal to the present one, to free memory: after large removals the
    /// rest is scattered and keeps the old snapshot alive. All proxies get new classes with equal resources; a
    /// difference would be a bug.
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

    /// Generates everything from scratch and compares. If there are differences it keeps the new results and returns
    /// the resulting changes for proxies.
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

#[allow(clippy::mutable_key_type, reason = "what a Sidecar keeps in a cell counts for nothing in comparisons")]
fn changed(groups: &mut HashMap<GroupKey, Group>, cause: Cause) -> Changed {
    let mut all = Changed::default();
    groups.values_mut().for_each(|group| all.extend(group.changed(cause)));
    all
}

impl Client {
    /// Whether the proxy is a sidecar.
    pub fn is_sidecar(&self) -> bool {
        self.view.kind == ProxyKind::Sidecar
    }
}
