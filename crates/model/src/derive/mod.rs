//! From a user's objects to the [`Snapshot`], with what only shows when they are seen together.
//!
//! The work is cut into small steps (`step.rs` is the table of them, the other files do them), each about one object, host or
//! service. A step asks for what it needs (`tracking.rs` writes the questions down), and what it makes goes into a table. When an
//! object changes, the steps that asked about it are due; when one of these makes something else than before, those that
//! asked about that are due too; everything else stays as it is, its pointers included.

mod destination_rules;
mod endpoints;
mod gateways;
mod mesh;
mod objects;
mod policies;
mod refused;
mod route_sets;
mod routes;
mod run;
mod services;
mod sidecars;
mod statuses;
mod step;
mod tracking;
mod virtual_services;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, ObjectRef, SourceId};

use self::run::StepOutcome;
use self::step::{Step, Tables};
use self::tracking::Tracker;
use crate::address_book::Allotment;
use crate::{AddressBook, Labels, List, MeshConfig, Snapshot, Source, SourceEvent, Status};

pub(crate) use self::route_sets::Rank;

/// Builds the snapshot of all objects, in the order of precedence: where two claim the same, the earlier one wins. `mesh` holds
/// the settings that a ConfigMap `istio` does not override; `book` the addresses given so far, and afterwards those given now.
///
/// An error here means that one object, or part of it, is left out; everything else is in the snapshot.
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

/// Builds one snapshot after the other, each from what changed since the one before.
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

/// Up to how many objects a checked builder builds everything anew after each change, in objects.
const MAX_CHECKED_OBJECTS: usize = 1_000;

/// A snapshot, and what is to be said of the objects it was built from.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// The same as before, if nothing in it changed.
    pub snapshot: Arc<Snapshot>,
    /// The same as before, if there is nothing else to say.
    pub diagnostics: Arc<Diagnostics>,
    /// The statuses that are others than before.
    pub statuses: Arc<[(ObjectRef, Arc<Status>)]>,
}

impl Built {
    /// Writes the statuses that are others than before to the sources they belong to.
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
    /// No objects yet. `mesh` holds the settings that a ConfigMap `istio` does not override; `book` the addresses given
    /// so far.
    pub fn new(mesh: MeshConfig, book: AddressBook) -> Self {
        let tables = Tables { mesh: mesh.clone(), addresses: Allotment::new(book), ..Tables::default() };
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

    /// Whether to build everything anew after each change (of few objects) and compare. Debug builds do, unless told
    /// otherwise.
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// Takes what sources tell, and builds the next snapshot. Where two claim the same, the one counts that is first by
    /// [`Place`](crate::Place).
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

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.tables.objects.len()
    }

    /// Takes the objects that changed files have now (none: the file is gone), and builds the next snapshot.
    pub fn apply_files(&mut self, changed: impl IntoIterator<Item = (Arc<Path>, Vec<Arc<Object>>)>) -> Built {
        let files = SourceId::files();
        let event = |(path, objects)| (files.clone(), SourceEvent::of_file(path, objects));
        self.apply(changed.into_iter().map(event))
    }

    /// All that the sources have told and that is there: what makes another builder the same.
    pub fn told(&self) -> Vec<(SourceId, SourceEvent)> {
        self.tables.objects.told()
    }

    /// Builds everything anew: tables that held much more stay as large as they were, and what is left of it lies where
    /// it lay. `told` is all there is, with objects equal to those there were. The snapshot is equal to the one before, and
    /// shares nothing with it.
    pub fn rebuild(&mut self, told: impl IntoIterator<Item = (SourceId, SourceEvent)>) -> Built {
        let (fresh, built) = self.fresh(self.book().clone(), told);
        *self = fresh.checked(self.checked);
        built
    }

    /// A new builder of all this.
    fn fresh(&self, book: AddressBook, told: impl IntoIterator<Item = (SourceId, SourceEvent)>) -> (Self, Built) {
        let mut fresh = Self::new(self.defaults.clone(), book).checked(false);
        let built = fresh.apply(told);
        (fresh, built)
    }

    /// Panics unless building everything anew gives the same.
    fn compare_with_new(&self, book: AddressBook) {
        let (fresh, built) = self.fresh(book, self.told());
        assert!(built.snapshot == self.built.snapshot, "{}", first_difference(&built.snapshot, &self.built.snapshot));
        assert_eq!(built.diagnostics.to_string(), self.built.diagnostics.to_string());
        assert_eq!(fresh.book(), self.book());
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
        match found.is_empty() {
            true => drop(self.findings.remove(step)),
            false => drop(self.findings.insert(step.clone(), found)),
        }
    }

    /// Makes what the steps have changed the next snapshot.
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
        built.statuses = tables.objects.statuses.changed(&self.findings);
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

/// Takes over a list if it is another; whether it is.
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
    match list.is_empty() {
        true => drop(index.remove(&key)),
        false => drop(index.insert(key, list)),
    }
}

/// The old value if the new one is equal, so that nobody takes it for another.
fn kept<T: PartialEq>(old: Option<&Arc<T>>, new: T) -> Arc<T> {
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
