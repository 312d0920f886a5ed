//! Builds the [`Snapshot`] from users' objects, and finds the mistakes that only show when objects are seen together.
//!
//! The work is split into small steps, each about one object, host or service. `step.rs` is the table of steps, the
//! other files implement them. A step asks for what it needs, `tracking.rs` records these questions, and the result
//! goes into a table. When an object changes, the steps that asked about it run again; if the result of one of them
//! changes, so do the steps that asked about that result. Everything else stays as it is, including its pointers.

mod backend_tls;
mod closed_services;
mod credentials;
mod delegates;
mod destination_rules;
mod discovery;
mod endpoints;
mod gateway_api;
mod gateway_secrets;
mod gateways;
mod http_fields;
mod ingresses;
mod mesh;
mod objects;
mod policies;
mod proxy_rules;
mod refused;
mod route_sets;
mod routes;
mod rule_secrets;
mod run;
mod selections;
mod services;
mod settings;
mod sidecars;
mod statuses;
mod step;
mod telemetries;
mod telemetry;
mod tokens;
mod tracking;
mod trusted_roots;
mod unsupported;
mod virtual_services;
mod waypoints;
mod workload_groups;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Object, ObjectKey};
use evenkeel_base::{Diagnostic, Diagnostics, ObjectRef, SourceId};

use self::discovery::Discovery;
use self::run::StepOutcome;
use self::step::{Step, Tables};
use self::tracking::Tracker;
pub use self::unsupported::NOT_ENFORCED;
use crate::address_book::Allotment;
use crate::{AddressBook, GatewayApiStatus, Labels, List, MeshConfig, Snapshot, Source, SourceEvent, Status};

/// Builds the snapshot of all objects, which are in the order of precedence: where two conflict, the earlier one wins.
/// `mesh` has the settings that a ConfigMap `istio` does not override; `book` has the addresses assigned so far, and is
/// updated.
///
/// An error means that one object, or part of it, is left out; everything else is in the snapshot.
pub fn build<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    mesh: &MeshConfig,
    book: &mut AddressBook,
) -> (Snapshot, Diagnostics) {
    let mut builder = Builder::new(mesh.clone(), std::mem::take(book)).checked(false);
    let objects = objects.into_iter().cloned().map(Arc::new).collect();
    let built = builder.apply_files([(Path::new("").into(), objects)]);
    *book = builder.tables.addresses.into_book();
    drop(builder.built);
    let diagnostics = Arc::unwrap_or_clone(built.diagnostics);
    (Arc::unwrap_or_clone(built.snapshot), diagnostics)
}

/// Builds a sequence of snapshots, each from what changed since the previous one.
#[derive(Debug)]
pub struct Builder {
    defaults: MeshConfig,
    tables: Tables,
    tracker: Tracker,
    findings: BTreeMap<Step, Vec<Diagnostic>>,
    findings_changed: bool,
    built: Built,
    checked: bool,
}

/// Maximum number of objects with which a checked builder also rebuilds everything after each change.
const MAX_CHECKED_OBJECTS: usize = 1_000;

/// A snapshot, and the findings about the objects it was built from.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// The snapshot; the same allocation as before if nothing in it changed.
    pub snapshot: Arc<Snapshot>,
    /// The findings; the same allocation as before if they have not changed.
    pub diagnostics: Arc<Diagnostics>,
    /// The statuses that are others than before.
    pub statuses: Arc<[(ObjectRef, Arc<Status>)]>,
}

impl Built {
    /// Writes the statuses that have changed to the sources of their objects.
    pub fn write_statuses(&self, sources: &mut [&mut dyn Source]) {
        for source in sources {
            let id = source.id().clone();
            let Some(sink) = source.status_sink() else { continue };
            let own = self.statuses.iter().filter(|(object, _)| object.source == id);
            own.for_each(|(object, status)| sink.write(object, status));
        }
    }
}

impl Builder {
    /// Makes a builder without objects. `mesh` has the settings that a ConfigMap `istio` does not override; `book` has
    /// the addresses assigned so far.
    pub fn new(mesh: MeshConfig, book: AddressBook) -> Self {
        let mut tables = Tables { mesh: mesh.clone(), addresses: Allotment::new(book), ..Tables::default() };
        tables.objects.discover(Discovery::of(&mesh, &Arc::default()), &mut Tracker::default());
        let built =
            Built { snapshot: Arc::new(Snapshot { mesh: mesh.clone(), ..Snapshot::default() }), ..Built::default() };
        Self {
            defaults: mesh,
            tables,
            tracker: Tracker::default(),
            findings: BTreeMap::new(),
            findings_changed: false,
            built,
            checked: cfg!(debug_assertions),
        }
    }

    /// Sets whether to rebuild everything after each change (if there are few objects) and compare. Debug builds do so
    /// by default.
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// Applies the events of sources and builds the next snapshot. Where two objects conflict, the one that is first by
    /// [`Place`](crate::Place) wins.
    pub fn apply(&mut self, events: impl IntoIterator<Item = (SourceId, SourceEvent)>) -> Built {
        let before = self.checked.then(|| self.book().clone());
        for (source, event) in events {
            self.tables.objects.take(&source, event, &mut self.tracker);
        }
        while let Some(step) = self.tracker.next() {
            self.run(step);
        }
        self.publish();
        if let Some(before) = before.filter(|_| self.tables.objects.len() <= MAX_CHECKED_OBJECTS) {
            self.compare_with_new(before);
        }
        self.built.clone()
    }

    /// The number of objects.
    pub fn objects(&self) -> usize {
        self.tables.objects.len()
    }

    /// Applies the new objects of changed files (none: the file is gone) and builds the next snapshot.
    pub fn apply_files(&mut self, changed: impl IntoIterator<Item = (Arc<Path>, Vec<Arc<Object>>)>) -> Built {
        let files = SourceId::files();
        let event = |(path, objects)| (files.clone(), SourceEvent::of_file(path, objects));
        self.apply(changed.into_iter().map(event))
    }

    /// All current objects of all sources as events, from which another builder can be made.
    pub fn events(&self) -> Vec<(SourceId, SourceEvent)> {
        self.tables.objects.events()
    }

    /// Rebuilds everything to free memory, because tables that held much more keep their size and what is left in them
    /// stays where it was allocated. `events` has all objects, equal to the present ones. The new snapshot equals the
    /// previous one and shares nothing with it.
    pub fn rebuild(&mut self, events: impl IntoIterator<Item = (SourceId, SourceEvent)>) -> Built {
        let (fresh, built) = self.rebuilt(self.book().clone(), events);
        *self = fresh.checked(self.checked);
        built
    }

    /// Makes a new builder with the same content.
    fn rebuilt(&self, book: AddressBook, events: impl IntoIterator<Item = (SourceId, SourceEvent)>) -> (Self, Built) {
        let mut fresh = Self::new(self.defaults.clone(), book).checked(false);
        let built = fresh.apply(events);
        (fresh, built)
    }

    /// Panics unless a full rebuild gives the same result.
    fn compare_with_new(&self, book: AddressBook) {
        let (fresh, built) = self.rebuilt(book, self.events());
        assert!(built.snapshot == self.built.snapshot, "{}", first_difference(&built.snapshot, &self.built.snapshot));
        assert_eq!(built.diagnostics.to_string(), self.built.diagnostics.to_string());
        assert_eq!(fresh.book(), self.book());
        assert!(fresh.gateway_api_statuses().eq(self.gateway_api_statuses()), "statuses of the Gateway API's kinds");
    }

    /// The statuses of the objects of the Gateway API that are served here, in the order of their keys.
    pub fn gateway_api_statuses(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<GatewayApiStatus>)> {
        self.tables.gateway_api_statuses.iter()
    }

    /// The addresses given so far.
    pub fn book(&self) -> &AddressBook {
        self.tables.addresses.book()
    }

    fn run(&mut self, step: Step) {
        let StepOutcome { reads, found } = run::run(&step, &mut self.tables, &mut self.tracker, &self.defaults);
        self.note(&step, found);
        match reads {
            Some(reads) => self.tracker.done(step, reads),
            None => self.tracker.forget(&step),
        }
    }

    fn note(&mut self, step: &Step, found: Diagnostics) {
        let before = self.findings.get(step).map_or(&[][..], Vec::as_slice);
        if before.iter().eq(&found) {
            return;
        }
        self.findings_changed = true;
        let found: Vec<Diagnostic> = found.into_iter().collect();
        self.tables.objects.statuses.found(step, before, &found);
        if found.is_empty() {
            self.findings.remove(step);
        } else {
            self.findings.insert(step.clone(), found);
        }
    }

    /// Makes the next snapshot from what the steps have changed.
    fn publish(&mut self) {
        let Self { tables, built, .. } = self;
        let mut next = (*built.snapshot).clone();
        if tables.publish(&mut next) {
            built.snapshot = Arc::new(next);
        }
        if std::mem::take(&mut self.findings_changed) {
            let mut diagnostics: Diagnostics = self.findings.values().flatten().cloned().collect();
            diagnostics.sort();
            built.diagnostics = Arc::new(diagnostics);
        }
        let mut statuses = std::mem::take(&mut tables.objects.statuses);
        let mut touched = tables.services.take_readdressed();
        touched.append(&mut tables.gateway_api_statuses.take_changed());
        let touched = touched.iter().filter_map(|id| tables.objects.in_force(id));
        touched.for_each(|(_, object)| statuses.touch(object));
        let addresses = |object: &ObjectRef| tables.services.allotted(object);
        let gateway_api = |object: &ObjectRef| tables.gateway_api_statuses.of(object);
        built.statuses = statuses.changed(&self.findings, addresses, gateway_api);
        tables.objects.statuses = statuses;
    }
}

/// The first line in which two snapshots differ when written out.
fn first_difference(new: &Snapshot, incremental: &Snapshot) -> String {
    let (new, incremental) = (format!("{new:#?}"), format!("{incremental:#?}"));
    let (mut a, mut b) = (new.lines(), incremental.lines());
    loop {
        match (a.next(), b.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => return format!("built anew: {}; built from changes: {}", a.unwrap_or("-"), b.unwrap_or("-")),
        }
    }
}

/// Replaces a list if it has changed; returns whether it has.
fn renew<T>(list: &mut List<T>, changed: Option<impl Iterator<Item = Arc<T>>>) -> bool {
    let Some(changed) = changed else { return false };
    let changed: List<T> = changed.collect();
    let differs = changed.len() != list.len() || list.iter().zip(&changed).any(|(a, b)| !Arc::ptr_eq(a, b));
    if differs {
        *list = changed;
    }
    differs
}

fn set<K: Ord + Clone, T>(index: &mut imbl::OrdMap<K, List<T>>, key: K, list: List<T>) {
    if list.is_empty() {
        index.remove(&key);
    } else {
        index.insert(key, list);
    }
}

/// Returns the old value if the new one is equal, so that its pointer does not change.
fn reuse_if_equal<T: PartialEq>(old: Option<&Arc<T>>, new: T) -> Arc<T> {
    match old {
        Some(old) if **old == new => old.clone(),
        _ => Arc::new(new),
    }
}

/// `app: web, version: v1`
fn labels_text(labels: &Labels) -> String {
    labels.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
}

/// Shared text.
fn shared(text: &str) -> Arc<str> {
    text.into()
}

#[cfg(test)]
pub(crate) mod example;
