//! What every connected proxy is to hold, kept up to date: the cost of a change depends on the change.
//!
//! A change touches keys; units that asked for them are made anew ([`plan`](crate::plan)); sets of classes of proxies
//! whose units came out differently are patched. Nobody lists what depends on what: units ask through
//! [`Context`](crate::Context), which notes every question.

mod class;
mod group;
mod made;

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use evenkeel_model::{Changes, Sidecar, Snapshot};
use evenkeel_xds::server::Touched;
use evenkeel_xds::{Cause, ResourceSet, ResourceType};

use crate::facts::Client;
use crate::view::{ClientKind, ProxyKind, ProxyView};
use group::Group;
use made::{Maker, Pool};

/// What every connected proxy is to hold.
#[derive(Debug)]
pub struct Translator {
    snapshot: Arc<Snapshot>,
    cause: Cause,
    groups: HashMap<GroupKey, Group>,
    pool: Pool,
    made: u64,
}

/// Kinds and Sidecar. Proxies that differ in one of these share no units.
#[derive(Debug, Clone)]
struct GroupKey {
    kinds: (ProxyKind, ClientKind),
    /// Compared by pointer: one that did not change is the same.
    sidecar: Option<Arc<Sidecar>>,
}

impl GroupKey {
    fn of(client: &Client) -> Self {
        let view = &client.view;
        Self { kinds: (view.kind, view.client_kind), sidecar: client.sidecar.clone() }
    }

    fn parts(&self) -> (&(ProxyKind, ClientKind), Option<*const Sidecar>) {
        (&self.kinds, self.sidecar.as_ref().map(Arc::as_ptr))
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

/// What changed for one proxy, or for several that say the same of themselves.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which; see [`Translator::view_of`].
    pub view: Arc<ProxyView>,
    /// What it was to hold.
    pub before: Arc<ResourceSet>,
    /// What it is to hold.
    pub now: Arc<ResourceSet>,
    /// In which names these differ, and perhaps some more; shared by proxies of which the same is true.
    pub touched: Touched,
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
        Self { snapshot, cause, groups: HashMap::new(), pool: Pool::default(), made: 0 }
    }

    /// The snapshot proxies are told of.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// How many units were made so far.
    pub fn units_made(&self) -> u64 {
        self.made
    }

    /// Keeps a proxy's resources until it [`leave`](Self::leave)s as often as it joined.
    pub fn join(&mut self, view: &ProxyView) -> Arc<ResourceSet> {
        let Self { snapshot, cause, groups, pool, made } = self;
        let client = Client::new(Arc::new(view.clone()), snapshot);
        let group = groups.entry(GroupKey::of(&client)).or_default();
        group.join(client, &mut Maker { snapshot, cause: *cause, pool, made })
    }

    /// Takes a proxy out, and all that was kept for it alone.
    pub fn leave(&mut self, view: &ProxyView) {
        let key = self.group_of(view);
        let Some(group) = self.groups.get_mut(&key) else { return };
        let Self { snapshot, cause, pool, made, .. } = self;
        group.leave(view, &mut Maker { snapshot, cause: *cause, pool, made });
        if group.is_empty() {
            self.groups.remove(&key);
        }
        self.pool.tidy();
    }

    /// What a proxy that joined is to hold.
    pub fn set_of(&self, view: &ProxyView) -> Option<&Arc<ResourceSet>> {
        self.groups.get(&self.group_of(view))?.set_of(view)
    }

    /// What a proxy that joined says of itself, as changes name it: the same allocation for as long as it stays.
    pub fn view_of(&self, view: &ProxyView) -> Option<&Arc<ProxyView>> {
        self.groups.get(&self.group_of(view))?.view_of(view)
    }

    /// The group a proxy is in: that of its Sidecar in the snapshot all groups follow.
    fn group_of(&self, view: &ProxyView) -> GroupKey {
        GroupKey::of(&Client::new(Arc::new(view.clone()), &self.snapshot))
    }

    /// Follows a change. Proxies for which nothing is different are not among what it returns.
    pub fn update(&mut self, snapshot: Arc<Snapshot>, cause: Cause) -> Vec<Change> {
        let changes = Changes::between(&self.snapshot, &snapshot);
        (self.snapshot, self.cause) = (snapshot, cause);
        if changes.is_empty() {
            return Vec::new();
        }
        let Self { snapshot, cause, groups, pool, made } = self;
        let mut maker = Maker { snapshot, cause: *cause, pool, made };
        let mut leaving = Vec::new();
        // Which Sidecar holds for a proxy depends on its labels, and on the name of the root namespace.
        let may_hold_others = (changes.workloads || changes.mesh) && !snapshot.sidecars.is_empty();
        if changes.sidecars || may_hold_others {
            for (key, group) in &mut *groups {
                leaving.extend(group.take_those(|client| GroupKey::of(client) != *key, &mut maker));
            }
            groups.retain(|_, group| !group.is_empty());
        }
        let mut changed: Vec<Change> =
            groups.values_mut().flat_map(|group| group.update(&changes, &mut maker)).collect();
        for (client, left) in leaving {
            let group = groups.entry(GroupKey::of(&client)).or_default();
            changed.extend(group.admit(client, left, &mut maker));
        }
        self.pool.tidy();
        changed
    }

    /// Makes everything from nothing, of a snapshot equal to the present one: what is left after much has gone lies
    /// scattered, and holds on to the old snapshot. Proxies get new sets with the same in them ([`set_of`](Self::set_of));
    /// what differs is returned, and is a defect.
    pub fn rebuild(&mut self, snapshot: Arc<Snapshot>) -> Vec<Change> {
        let mut fresh = Self::new(snapshot, self.cause);
        (fresh.made, fresh.pool) = (self.made, std::mem::take(&mut self.pool).renewed());
        let Self { snapshot, cause, groups, pool, made } = &mut fresh;
        let mut maker = Maker { snapshot, cause: *cause, pool, made };
        let mut differs = Vec::new();
        for group in std::mem::take(&mut self.groups).into_values() {
            for (client, left) in group.into_members(maker.snapshot) {
                let group = groups.entry(GroupKey::of(&client)).or_default();
                differs.extend(group.admit(client, left, &mut maker));
            }
        }
        fresh.pool.settled();
        *self = fresh;
        differs
    }

    /// Makes everything from nothing and compares. If anything differs it takes what was made from nothing: the changes
    /// this means for proxies are returned with it.
    pub fn verify(&mut self) -> (Vec<Mismatch>, Vec<Change>) {
        let mut mismatches = Vec::new();
        let mut healed = Vec::new();
        let Self { snapshot, cause, groups, pool, made } = self;
        for group in groups.values_mut() {
            let found = group.compare(snapshot);
            if !found.is_empty() {
                healed.extend(group.rebuild(&mut Maker { snapshot, cause: *cause, pool, made }));
                mismatches.extend(found);
            }
        }
        (mismatches, healed)
    }
}

impl Client {
    /// Whether the proxy stands beside a workload.
    pub fn is_sidecar(&self) -> bool {
        self.view.kind == ProxyKind::Sidecar
    }
}
