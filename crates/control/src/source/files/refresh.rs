//! What a look at files found.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_base::Diagnostic;

use crate::metrics::Event;

/// What a look at files found.
#[derive(Debug, Default)]
pub struct Refresh {
    /// Files of which some object appeared, changed or vanished, with the objects they have now.
    pub changed: Vec<(Arc<Path>, Vec<Arc<Object>>)>,
    /// Those objects.
    pub objects: Vec<Arc<Object>>,
    /// What became of them, by kind.
    pub events: BTreeMap<(Kind, Event), u64>,
    /// Some file was read, or vanished.
    pub files_changed: bool,
    /// Files that have another text, or vanished.
    pub read: Vec<Arc<Path>>,
    /// Findings that were not there before, to be told once.
    pub news: Vec<Diagnostic>,
}

impl Refresh {
    /// Whether some object appeared, changed or vanished.
    pub fn objects_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The objects of a file are others now.
    pub(super) fn objects_of(&mut self, file: &Arc<Path>, old: &[Arc<Object>], new: &[Arc<Object>]) {
        let name = |object: &Arc<Object>| (object.kind(), object.namespace.clone(), object.name.clone());
        let (before, now): (HashSet<_>, HashSet<_>) = (old.iter().map(name).collect(), new.iter().map(name).collect());
        let kept: HashSet<_> = old.iter().map(Arc::as_ptr).collect();
        for object in new.iter().filter(|object| !kept.contains(&Arc::as_ptr(object))) {
            let event = if before.contains(&name(object)) { Event::Update } else { Event::Add };
            self.note(object, event);
        }
        for object in old.iter().filter(|object| !now.contains(&name(object))) {
            self.note(object, Event::Delete);
        }
        self.changed.push((file.clone(), new.to_vec()));
    }

    fn note(&mut self, object: &Arc<Object>, event: Event) {
        self.objects.push(object.clone());
        *self.events.entry((object.kind(), event)).or_default() += 1;
    }
}
