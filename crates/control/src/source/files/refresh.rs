//! What a look at files found.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::Diagnostic;
use evenkeel_model::SourceEvent;

use crate::metrics::Event;

/// What a look at files found.
#[derive(Debug, Default)]
pub struct Refresh {
    /// What the model has not been told yet.
    pub(super) told: Vec<SourceEvent>,
    /// Some object appeared, changed or vanished.
    pub objects_changed: bool,
    /// Those that did.
    pub objects: Vec<Arc<Object>>,
    /// What became of them, by kind.
    pub events: BTreeMap<(Kind, Event), u64>,
    /// Some file was read, or vanished.
    pub files_changed: bool,
    /// Files that have another text, or vanished.
    pub read: Vec<Arc<Path>>,
    /// What some file said is not known: it was written and removed before it was read.
    pub missed: bool,
    /// Findings that were not there before, to be told once.
    pub news: Vec<Diagnostic>,
}

impl Refresh {
    /// The objects of a file are others now.
    pub(super) fn objects_of(&mut self, file: &Arc<Path>, old: &[Arc<Object>], new: &[Arc<Object>]) {
        let keys = |objects: &[Arc<Object>]| objects.iter().map(|object| object.key()).collect::<HashSet<_>>();
        let (before, now) = (keys(old), keys(new));
        let kept: HashSet<_> = old.iter().map(Arc::as_ptr).collect();
        for object in new.iter().filter(|object| !kept.contains(&Arc::as_ptr(object))) {
            let event = if before.contains(&object.key()) { Event::Update } else { Event::Add };
            self.note(object, event);
        }
        for object in old.iter().filter(|object| !now.contains(&object.key())) {
            self.note(object, Event::Delete);
        }
        self.objects_changed = true;
        self.told.push(SourceEvent::of_file(file.clone(), new.to_vec()));
    }

    /// Adds what a later look found.
    pub fn join(&mut self, later: Self) {
        let Self { told, objects_changed, objects, events, files_changed, read, missed, news } = later;
        self.told.extend(told);
        self.objects.extend(objects);
        events.into_iter().for_each(|(key, count)| *self.events.entry(key).or_default() += count);
        self.read.extend(read);
        self.news.extend(news);
        // What was removed meanwhile is read with the later look.
        self.missed = missed;
        self.objects_changed |= objects_changed;
        self.files_changed |= files_changed;
    }

    fn note(&mut self, object: &Arc<Object>, event: Event) {
        self.objects.push(object.clone());
        *self.events.entry((object.kind(), event)).or_default() += 1;
    }
}
