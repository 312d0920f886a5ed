//! The results of units, with the keys and answers they depend on.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use evenkeel_model::{Key, Reads, Snapshot, Tracked};
use evenkeel_xds::{Cause, Resource, ResourceType};

use super::ClassId;
use crate::context::Context;
use crate::facts::{Answer, Client, Facts, Question};
use crate::output::{Collection, Output, Part, Unit};
use crate::view::ProxyView;

/// The result of a unit. It is valid for every proxy with the same answers, until one of its keys is touched.
#[derive(Debug)]
pub struct UnitResult {
    /// The keys read from the snapshot, except the mesh settings: when those change, everything is generated again.
    pub reads: Box<[Key]>,
    /// The questions to the proxy, with the answers.
    pub answers: Box<[(Question, Answer)]>,
    /// Resources.
    pub resources: Box<[(ResourceType, Arc<Resource>)]>,
    /// Parts of collections.
    pub parts: Box<[(Collection, Arc<Part>)]>,
}

impl UnitResult {
    /// Whether it has a resource of this name.
    pub fn gives(&self, kind: ResourceType, name: &str) -> bool {
        self.resources.iter().any(|(other, resource)| *other == kind && *resource.name == *name)
    }

    /// Whether it is valid for a proxy.
    pub fn holds_for(&self, client: &Client) -> bool {
        self.answers.iter().all(|(question, answer)| client.answer(question) == *answer)
    }
}

/// Generates units from one snapshot.
#[derive(Debug)]
pub struct UnitMaker<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The change that caused the snapshot.
    pub cause: Cause,
    /// State that is kept from one snapshot to the next.
    pub work: &'a mut SharedWork,
}

/// State that is kept from one snapshot to the next.
#[derive(Debug, Default)]
pub struct SharedWork {
    /// The existing resources.
    pub pool: ResourcePool,
    /// Units generated so far.
    pub made: u64,
    /// Resources generated so far, by type, including unchanged ones.
    pub resources: [u64; ResourceType::ALL.len()],
    /// Parts given to collections so far.
    pub parts: u64,
    /// Proxies whose workloads were looked up because of changes so far.
    pub looked_up: u64,
    /// Classes made so far.
    classes: u64,
}

impl SharedWork {
    /// State for a full regeneration: counters go on, and resources keep their causes.
    pub fn renewed(self) -> Self {
        Self { pool: self.pool.renewed(), ..self }
    }

    /// A new class id.
    pub fn new_class(&mut self) -> ClassId {
        self.classes += 1;
        ClassId(self.classes)
    }
}

impl UnitMaker<'_> {
    /// The present state of a proxy.
    pub fn look_up(&mut self, view: Arc<ProxyView>) -> Client {
        self.work.looked_up += 1;
        Client::new(view, self.snapshot)
    }

    /// Generates a unit. Resources that equal those of `before` keep their allocation.
    pub fn make(&mut self, unit: &Unit, client: &Client, parts: &[&Part], before: Option<&UnitResult>) -> UnitResult {
        self.work.made += 1;
        let (reads, facts) = (Reads::new(), Facts::new());
        let context = Context::new(client, Tracked::new(self.snapshot, &reads), &facts);
        let mut out = Output::new(context.patches());
        unit.generate(context, parts, &mut out);
        let Output { resources, parts, .. } = out;
        resources.iter().for_each(|(kind, _)| self.work.resources[kind.index()] += 1);
        self.work.parts += parts.len() as u64;
        let answers = facts.into_questions().into_iter().map(|question| {
            let answer = client.answer(&question);
            (question, answer)
        });
        let resources = resources.into_iter().map(|(kind, resource)| {
            let old =
                before.and_then(|made| made.resources.iter().find(|(k, r)| *k == kind && r.name == resource.name));
            (kind, self.work.pool.share(kind, resource, self.cause, old.map(|(_, resource)| resource)))
        });
        UnitResult {
            resources: resources.collect(),
            parts: parts.into_iter().map(|(collection, part)| (collection, Arc::new(part))).collect(),
            answers: answers.collect(),
            reads: reads.into_keys().into_iter().filter(|key| *key != Key::Mesh).collect(),
        }
    }
}

/// The existing resources, so that equal ones of different proxies share one allocation.
#[derive(Debug, Default)]
pub struct ResourcePool {
    resources: HashMap<(ResourceType, Arc<str>), Vec<Weak<Resource>>>,
    /// Names that may have no resource any more.
    stale: Vec<(ResourceType, Arc<str>)>,
    /// Names that a change has removed from proxies, while streams that have not sent the change yet hold their resources.
    removed: HashSet<(ResourceType, Arc<str>)>,
    /// During a full regeneration: the earlier resources, whose causes are kept.
    earlier: HashMap<(ResourceType, Arc<str>), Vec<Weak<Resource>>>,
}

impl ResourcePool {
    fn share(
        &mut self,
        kind: ResourceType,
        resource: Resource,
        cause: Cause,
        before: Option<&Arc<Resource>>,
    ) -> Arc<Resource> {
        let mut cause = cause;
        if let Some(before) = before.filter(|before| ***before == resource) {
            if before.origin == resource.origin {
                return before.clone();
            }
            // Only its position in the file has changed, so the earlier cause stays.
            cause = before.cause;
        }
        let key = (kind, resource.name.clone());
        // A resource that comes back is a change, even if streams still hold the one of before: its age begins now.
        let is_change = match before {
            Some(before) => **before != resource,
            None => self.removed.contains(&key),
        };
        let same_name = self.resources.entry(key).or_default();
        same_name.retain(|weak| weak.strong_count() > 0);
        let is_of_change = |r: &Arc<Resource>| !is_change || r.cause.generation == cause.generation;
        let same = |r: &Arc<Resource>| **r == resource && r.origin == resource.origin && is_of_change(r);
        if let Some(found) = same_name.iter().filter_map(Weak::upgrade).find(same) {
            return found;
        }
        let earlier = self.earlier.get(&(kind, resource.name.clone())).into_iter().flatten();
        let equal = earlier.filter_map(Weak::upgrade).filter(|earlier| **earlier == resource);
        let cause = equal.map(|earlier| earlier.cause).min_by_key(|cause| cause.generation).unwrap_or(cause);
        let new = Arc::new(resource.with_cause(cause).completed());
        same_name.push(Arc::downgrade(&new));
        new
    }

    /// An empty pool; resources that exist in this one will keep their causes.
    pub fn renewed(self) -> Self {
        Self { earlier: self.resources, removed: self.removed, ..Self::default() }
    }

    /// The full regeneration is done.
    pub fn settled(&mut self) {
        self.earlier = HashMap::new();
    }

    /// Records that a change has removed a resource.
    pub fn removed(&mut self, kind: ResourceType, name: &Arc<str>) {
        self.dropped(kind, name);
        self.removed.insert((kind, name.clone()));
    }

    /// Records that a resource was released.
    pub fn dropped(&mut self, kind: ResourceType, name: &Arc<str>) {
        self.stale.push((kind, name.clone()));
    }

    /// Removes resources that nobody holds. Names that are still held, by streams that have not sent the change yet,
    /// are checked again next time.
    pub fn tidy(&mut self) {
        let Self { resources, stale, removed, .. } = self;
        stale.sort_unstable();
        stale.dedup();
        stale.retain(|key| {
            let Some(same_name) = resources.get_mut(key) else { return false };
            same_name.retain(|weak| weak.strong_count() > 0);
            if same_name.is_empty() {
                resources.remove(key);
            }
            resources.contains_key(key)
        });
        removed.retain(|key| resources.contains_key(key));
        if removed.is_empty() {
            removed.shrink_to_fit();
        }
        if stale.is_empty() {
            stale.shrink_to_fit();
            let (held, room) = (resources.len(), resources.capacity());
            if room > 4 * held {
                resources.shrink_to_fit();
            }
        }
    }
}
