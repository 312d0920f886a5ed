//! What a source has taken over.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::Diagnostic;
use evenkeel_model::SourceEvent;

use super::EntryName;
use crate::metrics::Event;
use crate::noticed::Noticed;

/// What a source has taken over.
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
    /// Whether an entry was read or deleted.
    pub entries_changed: bool,
    /// Entries with another content, and deleted ones.
    pub read: Vec<EntryName>,
    /// Whether some file's content is unknown, because it was written and deleted before it was read.
    pub missed: bool,
    /// New findings, to be reported once.
    pub news: Vec<Diagnostic>,
    /// When the first of the changes was noticed.
    pub noticed: Option<Noticed>,
}

impl Refresh {
    /// Records that a file's objects have changed.
    pub(super) fn objects_of(&mut self, file: &Arc<Path>, old: &[Arc<Object>], new: &[Arc<Object>]) {
        self.entry(SourceEvent::of_file(file.clone(), new.to_vec()), old, new);
    }

    /// Records that an entry's objects have changed, which `event` says.
    pub(super) fn entry(&mut self, event: SourceEvent, old: &[Arc<Object>], new: &[Arc<Object>]) {
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
        self.told.push(event);
    }

    /// Adds what was taken over later, or by another source.
    pub fn join(&mut self, later: Self) {
        let Self { told, objects_changed, objects, events, entries_changed, read, missed, news, noticed } = later;
        self.told.extend(told);
        self.objects.extend(objects);
        events.into_iter().for_each(|(key, count)| *self.events.entry(key).or_default() += count);
        self.read.extend(read);
        self.news.extend(news);
        // What was removed meanwhile is covered by the later reading.
        self.missed = missed;
        self.objects_changed |= objects_changed;
        self.entries_changed |= entries_changed;
        self.noticed = self.noticed.into_iter().chain(noticed).min_by_key(|noticed| noticed.instant);
    }

    fn note(&mut self, object: &Arc<Object>, event: Event) {
        self.objects.push(object.clone());
        *self.events.entry((object.kind(), event)).or_default() += 1;
    }
}
