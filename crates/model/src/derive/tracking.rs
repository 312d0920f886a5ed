//! Records what each step has read, so that it runs again only when some of that changes.

use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use evenkeel_api::{Kind, ObjectKey};

use super::step::{Step, Tables};
use crate::labels::Labels;

/// A fact that a step can ask about. Code that changes the answer calls [`Tracker::changed`].
#[derive(Debug, Clone, Copy, Hash)]
pub(super) enum Fact<'a> {
    /// The object in force for a key, and its place in the order of precedence.
    Object(&'a ObjectKey),
    /// All objects with a key, in the order of precedence.
    Claims(&'a ObjectKey),
    /// All objects of a kind, in the order of precedence.
    Objects(Kind),
    /// All objects of a kind in one namespace, in the order of precedence.
    ObjectsIn(Kind, &'a str),
    /// Labels of Pods and Deployment templates in a namespace.
    Running(&'a str),
    /// Those labels, for Pods and templates with this label.
    RunningWith(&'a str, &'a str, &'a str),
    /// Selectors for a namespace (empty: all namespaces) whose first label is this one.
    Selecting(&'a str, &'a str, &'a str),
    /// EndpointSlices of a Service.
    Slices(&'a str, &'a str),
    /// Objects with an endpoint at this address.
    At(IpAddr),
    /// All Services that are other names of hosts.
    Aliases,
    /// The policies that close an object of a kind, a namespace and a name.
    Closing(&'a str, &'a str, &'a str),
    /// Definitions of a host, before it has an address.
    Drafts(&'a str),
    /// The objects that claim an address.
    Pin(IpAddr),
    /// The address a host is allotted.
    Address(&'a str),
    /// The services of exactly this host.
    Host(&'a str),
    /// The services that a wildcard covers.
    Covered(&'a str),
    /// All services.
    Services,
    /// The PeerAuthentications of a namespace.
    Peers(&'a str),
    /// The workload of a Pod.
    Workload(&'a str, &'a str),
    /// The workloads of a service, by namespace and host.
    Members(&'a str, &'a str),
    /// Workloads with two Services that have different protocols for a port.
    Conflict(&'a str, &'a str, u16),
    /// What the BackendTLSPolicies of a namespace say of this host.
    BackendTls(&'a str, &'a str),
    /// The hosts that a BackendTLSPolicy names.
    TargetsOf(&'a ObjectKey),
    /// The Gateways of the Gateway API whose routes lead to a host.
    AncestorsOf(&'a str),
    /// The DestinationRules of a namespace with this host as they are written.
    RuleDrafts(&'a str, &'a str),
    /// The merged rules of a namespace for this host.
    Rules(&'a str, &'a str),
    /// The credentials of this name, in all namespaces.
    Credential(&'a str),
    /// The Gateway of this namespace and name.
    Gateway(&'a str, &'a str),
    /// All Gateways.
    Gateways,
    /// The routes of an object as a whole.
    Whole(&'a ObjectKey),
    /// The objects that claim a host in the mesh.
    MeshHost(&'a str),
    /// The objects with routes that delegate to an object.
    Roots(&'a ObjectKey),
    /// The Ingresses with rules for a host.
    IngressHost(&'a str),
    /// The objects that route a host at a gateway.
    GatewayHost(&'a crate::GatewayRef, &'a str),
    /// The routes of the Gateway API that are attached to a listener, by the model's gateway.
    AttachedTo(&'a crate::GatewayRef),
}

/// The hash of a fact. If two facts have the same hash, a step may run once too often, which does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(u64);

impl Fact<'_> {
    fn key(&self) -> Key {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        Key(hasher.finish())
    }
}

/// The hash of a label in a namespace, under which indexes keep objects that have or select it.
pub(super) fn label_key(namespace: &str, name: &str, value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name, value).hash(&mut hasher);
    hasher.finish()
}

/// The label under which a selector is indexed: its first. Everything that it selects has this label.
pub(super) fn first_label(selector: &Labels) -> (&str, &str) {
    selector.iter().next().map_or(("", ""), |(name, value)| (name, value))
}

/// A step's view of everything built so far; it records all questions.
pub(super) struct Cx<'t> {
    tables: &'t Tables,
    reads: RefCell<Vec<Key>>,
}

impl<'t> Cx<'t> {
    pub(super) fn new(tables: &'t Tables) -> Self {
        Self { tables, reads: RefCell::default() }
    }

    /// Records a question and returns the tables to answer it.
    pub(super) fn read(&self, fact: Fact<'_>) -> &'t Tables {
        self.reads.borrow_mut().push(fact.key());
        self.tables
    }

    /// Returns the tables, for reads that are not recorded.
    pub(super) fn tables(&self) -> &'t Tables {
        self.tables
    }

    /// The mesh settings. When they change, all steps run again.
    pub(super) fn mesh(&self) -> &'t crate::MeshConfig {
        &self.tables.mesh
    }

    /// The questions asked.
    pub(super) fn into_reads(self) -> Vec<Key> {
        let mut reads = self.reads.into_inner();
        reads.sort_unstable();
        reads.dedup();
        reads
    }
}

/// All steps, what each has read, and which are due.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    steps: Vec<Option<CompletedStep>>,
    free: Vec<u32>,
    numbers: HashMap<Step, u32>,
    /// For each key the numbers of the steps that read it, ascending.
    readers: HashMap<Key, Vec<u32>>,
    due: BTreeSet<Step>,
    running: Option<Step>,
}

#[derive(Debug)]
struct CompletedStep {
    step: Step,
    reads: Box<[Key]>,
}

impl Tracker {
    /// Schedules a step.
    pub(super) fn want(&mut self, step: Step) {
        debug_assert!(self.running.as_ref().is_none_or(|running| running.stage() < step.stage()), "{step:?} is late");
        self.due.insert(step);
    }

    /// The answer to a question is another one now.
    pub(super) fn changed(&mut self, fact: Fact<'_>) {
        let readers = self.readers.get(&fact.key()).into_iter().flatten();
        for step in readers.filter_map(|number| self.steps.get(*number as usize)?.as_ref()).map(|done| &done.step) {
            debug_assert!(
                self.running.as_ref().is_none_or(|running| running.stage() < step.stage()),
                "{step:?} has read what {:?} decides",
                self.running
            );
            self.due.insert(step.clone());
        }
    }

    /// Schedules all steps.
    pub(super) fn all_changed(&mut self) {
        let running = self.running.as_ref().map(Step::stage);
        let later =
            self.steps.iter().flatten().map(|done| &done.step).filter(|s| running.is_none_or(|r| r < s.stage()));
        self.due.extend(later.cloned());
    }

    /// The next step to run; a step comes after all those whose results it may read.
    pub(super) fn next(&mut self) -> Option<Step> {
        self.running = self.due.pop_first();
        self.running.clone()
    }

    /// Records that a step has run, and what it has read.
    pub(super) fn done(&mut self, step: Step, reads: Vec<Key>) {
        let number = match self.numbers.get(&step) {
            Some(number) => *number,
            None => self.add(step),
        };
        let Some(Some(done)) = self.steps.get_mut(number as usize) else { return };
        if *done.reads == *reads {
            return;
        }
        let old = std::mem::replace(&mut done.reads, reads.into_boxed_slice());
        let new = done.reads.clone();
        for key in old.iter().filter(|key| new.binary_search(key).is_err()) {
            self.drop_reader(*key, number);
        }
        for key in new.iter().filter(|key| old.binary_search(key).is_err()) {
            let readers = self.readers.entry(*key).or_default();
            if let Err(at) = readers.binary_search(&number) {
                readers.insert(at, number);
            }
        }
    }

    /// Removes a step whose subject no longer exists.
    pub(super) fn forget(&mut self, step: &Step) {
        let Some(number) = self.numbers.remove(step) else { return };
        let Some(done) = self.steps.get_mut(number as usize).and_then(Option::take) else { return };
        for key in done.reads {
            self.drop_reader(key, number);
        }
        self.free.push(number);
    }

    fn add(&mut self, step: Step) -> u32 {
        let done = CompletedStep { step: step.clone(), reads: Box::default() };
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.steps.push(None);
                u32::try_from(self.steps.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(slot) = self.steps.get_mut(number as usize) {
            *slot = Some(done);
        }
        self.numbers.insert(step, number);
        number
    }

    fn drop_reader(&mut self, key: Key, number: u32) {
        let Some(readers) = self.readers.get_mut(&key) else { return };
        if let Ok(at) = readers.binary_search(&number) {
            readers.remove(at);
        }
        if readers.is_empty() {
            self.readers.remove(&key);
        }
    }
}
