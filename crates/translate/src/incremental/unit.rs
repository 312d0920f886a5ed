//! What a unit came to, with all it was made of.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use evenkeel_model::{Key, Reads, Snapshot, Tracked};
use evenkeel_xds::{Cause, Resource, ResourceType};

use super::ClassId;
use crate::context::Context;
use crate::facts::{Answer, Client, Facts, Question};
use crate::plan::{Collection, Output, Part, Unit};
use crate::view::ProxyView;

/// What a unit came to. It holds for every proxy that answers the same, until one of the keys is touched.
#[derive(Debug)]
pub struct UnitResult {
    /// What was asked of the snapshot, but for the settings of the mesh: when those change everything is made anew.
    pub reads: Box<[Key]>,
    /// What was asked of the proxy, and what it answered.
    pub answers: Box<[(Question, Answer)]>,
    /// Resources.
    pub resources: Box<[(ResourceType, Arc<Resource>)]>,
    /// Parts of others.
    pub parts: Box<[(Collection, Arc<Part>)]>,
}

impl UnitResult {
    /// Whether a resource of this name came of it.
    pub fn gives(&self, kind: ResourceType, name: &str) -> bool {
        self.resources.iter().any(|(other, resource)| *other == kind && *resource.name == *name)
    }

    /// Whether a proxy would get just this.
    pub fn holds_for(&self, client: &Client) -> bool {
        self.answers.iter().all(|(question, answer)| client.answer(question) == *answer)
    }
}

/// The moment for which units are made.
#[derive(Debug)]
pub struct UnitMaker<'a> {
    /// What is known.
    pub snapshot: &'a Snapshot,
    /// The change that made it so.
    pub cause: Cause,
    /// What goes on from one moment to the next.
    pub work: &'a mut SharedWork,
}

/// What goes on from one moment to the next.
#[derive(Debug, Default)]
pub struct SharedWork {
    /// Resources that exist.
    pub pool: ResourcePool,
    /// Units made so far.
    pub made: u64,
    /// Resources made so far, of each type, those that came out as they were included.
    pub resources: [u64; ResourceType::ALL.len()],
    /// Parts given to collections so far.
    pub parts: u64,
    /// Proxies whose workloads were looked up so far, for a change.
    pub looked_up: u64,
    /// Classes made so far.
    classes: u64,
}

impl SharedWork {
    /// For all to be made from nothing: numbers go on, and resources come about as they did.
    pub fn renewed(self) -> Self {
        Self { pool: self.pool.renewed(), ..self }
    }

    /// A number no class has had.
    pub fn new_class(&mut self) -> ClassId {
        self.classes += 1;
        ClassId(self.classes)
    }
}

impl UnitMaker<'_> {
    /// A proxy as it is now.
    pub fn look_up(&mut self, view: Arc<ProxyView>) -> Client {
        self.work.looked_up += 1;
        Client::new(view, self.snapshot)
    }

    /// Makes a unit. What is as it was `before` stays the same allocation.
    pub fn make(&mut self, unit: &Unit, client: &Client, parts: &[&Part], before: Option<&UnitResult>) -> UnitResult {
        self.work.made += 1;
        let (reads, facts) = (Reads::new(), Facts::new());
        let mut out = Output::default();
        unit.generate(Context::new(client, Tracked::new(self.snapshot, &reads), &facts), parts, &mut out);
        out.resources.iter().for_each(|(kind, _)| self.work.resources[kind.index()] += 1);
        self.work.parts += out.parts.len() as u64;
        let answers = facts.into_questions().into_iter().map(|question| {
            let answer = client.answer(&question);
            (question, answer)
        });
        let resources = out.resources.into_iter().map(|(kind, resource)| {
            let old =
                before.and_then(|made| made.resources.iter().find(|(k, r)| *k == kind && r.name == resource.name));
            (kind, self.work.pool.share(kind, resource, self.cause, old.map(|(_, resource)| resource)))
        });
        UnitResult {
            resources: resources.collect(),
            parts: out.parts.into_iter().map(|(collection, part)| (collection, Arc::new(part))).collect(),
            answers: answers.collect(),
            reads: reads.into_keys().into_iter().filter(|key| *key != Key::Mesh).collect(),
        }
    }
}

/// The resources that exist, so that equal ones of different proxies are one allocation.
#[derive(Debug, Default)]
pub struct ResourcePool {
    resources: HashMap<(ResourceType, Arc<str>), Vec<Weak<Resource>>>,
    /// Names that may have nothing left.
    stale: Vec<(ResourceType, Arc<str>)>,
    /// While all is made from nothing: what there was, for the causes.
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
            // Only lines of the file moved: what it says was caused earlier.
            cause = before.cause;
        }
        let same_name = self.resources.entry((kind, resource.name.clone())).or_default();
        same_name.retain(|weak| weak.strong_count() > 0);
        let same = |r: &Arc<Resource>| **r == resource && r.origin == resource.origin;
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

    /// No resources yet; such as there are in this one come about as they did here.
    pub fn renewed(self) -> Self {
        Self { earlier: self.resources, ..Self::default() }
    }

    /// All has been made.
    pub fn settled(&mut self) {
        self.earlier = HashMap::new();
    }

    /// Notes that somebody no longer holds a resource.
    pub fn dropped(&mut self, kind: ResourceType, name: &Arc<str>) {
        self.stale.push((kind, name.clone()));
    }

    /// Forgets what nobody holds. Names that are still held, by streams that have not sent the change yet, are looked at
    /// again the next time.
    pub fn tidy(&mut self) {
        let Self { resources, stale, .. } = self;
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
        if stale.is_empty() {
            stale.shrink_to_fit();
            let (held, room) = (resources.len(), resources.capacity());
            if room > 4 * held {
                resources.shrink_to_fit();
            }
        }
    }
}
