//! The result of reading files.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::Diagnostic;
use evenkeel_model::SourceEvent;

use crate::metrics::Event;

/// The result of reading files.
#[derive(Debug, Default)]
pub struct Refresh {
    /// Events that the model has not received yet.
    pub(super) told: Vec<SourceEvent>,
    /// Whether an object was added, changed or deleted.
    pub objects_changed: bool,
    /// The objects that were.
    pub objects: Vec<Arc<Object>>,
    /// Their number by kind and event.
    pub events: BTreeMap<(Kind, Event), u64>,
    /// Whether a file was read or deleted.
    pub files_changed: bool,
    /// Files with another text, and deleted files.
    pub read: Vec<Arc<Path>>,
    /// Whether some file's content is unknown, because it was written and deleted before it was read.
    pub missed: bool,
    /// New findings, to be reported once.
    pub news: Vec<Diagnostic>,
}

impl Refresh {
    /// Records that a file's objects have changed.
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

    /// Adds the result of a later reading.
    pub fn join(&mut self, later: Self) {
        let Self { told, objects_changed, objects, events, files_changed, read, missed, news } = later;
        self.told.extend(told);
        self.objects.extend(objects);
        events.into_iter().for_each(|(key, count)| *self.events.entry(key).or_default() += count);
        self.read.extend(read);
        self.news.extend(news);
        // What was removed meanwhile is covered by the later reading.
        self.missed = missed;
        self.objects_changed |= objects_changed;
        self.files_changed |= files_changed;
    }

    fn note(&mut self, object: &Arc<Object>, event: Event) {
        self.objects.push(object.clone());
        *self.events.entry((object.kind(), event)).or_default() += 1;
    }
}
