//! The changes of the configuration in the order in which they came: which files, and what was in them before and after.
//!
//! Control planes that share a directory each record every change, and a control plane that starts finds files that changed
//! while none ran. Each change is told once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_store::Store;

use super::log::{Change, Checkpoint, Record, Writer};
use super::object::{ObjectContent, ObjectId};

/// A change.
#[derive(Debug, Clone)]
pub struct Entry<'s> {
    /// When it was noticed, in µs since 1970.
    pub at: u64,
    /// The control plane that tells of it.
    pub writer: &'s Writer,
    /// The generation that it made, or the previous one if proxies see no difference.
    pub generation: u64,
    /// Why it is not a change that a control plane has seen happen.
    pub found: Option<&'static str>,
    /// The objects that changed, with their places.
    pub causes: &'s [String],
    /// The files and objects that changed.
    pub entries: Vec<EntryChange>,
}

/// What the log has a content of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Logged {
    /// A file.
    File(PathBuf),
    /// An object of a source without files; its text is JSON.
    Object(ObjectId),
}

/// A file or an object, and its text before and after; `None`: there was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChange {
    /// What it is.
    pub entry: Logged,
    /// Its text before.
    pub old: Option<Arc<str>>,
    /// Its text after.
    pub new: Option<Arc<str>>,
}

/// What was found when a control plane started.
const AT_START: &str = "found when the control plane started";
/// What was found when a segment began.
const UNWRITTEN: &str = "found when the history could be written again";

/// The sources of the control plane itself, which are also the folders of the store in which they are kept.
const OWN_SOURCES: [&str; 2] = [crate::jwks::FOLDER, crate::registration::FOLDER];

type Texts = BTreeMap<Logged, Arc<str>>;

/// What one control plane has told so far.
#[derive(Default)]
struct View {
    texts: Texts,
    /// How often it has seen each change; those from before its start count as seen.
    seen: HashMap<u64, u64>,
}

#[derive(Default)]
struct Merged<'s> {
    texts: Texts,
    /// How often each change was told.
    told: HashMap<u64, u64>,
    views: Vec<(&'s Writer, View)>,
    entries: Vec<Entry<'s>>,
}

/// Returns all changes, oldest first.
pub fn timeline(segments: &[Vec<Record>]) -> Vec<Entry<'_>> {
    let mut all: Vec<(u64, &Writer, &Record)> = Vec::new();
    for records in segments {
        let Some(Record::Checkpoint(first)) = records.first() else { continue };
        for record in records {
            match record {
                Record::Checkpoint(checkpoint) => all.push((checkpoint.at, &first.writer, record)),
                Record::Change(change) => all.push((change.at, &first.writer, record)),
                Record::Run { .. } | Record::Moved { .. } => {}
            }
        }
    }
    // Stable: records of one control plane at the same time keep their order.
    all.sort_by_key(|(at, ..)| *at);
    let mut merged = Merged::default();
    for (_, writer, record) in all {
        match record {
            Record::Checkpoint(checkpoint) => merged.begin(writer, checkpoint),
            Record::Change(change) => merged.change(writer, change),
            Record::Run { .. } | Record::Moved { .. } => {}
        }
    }
    merged.entries
}

impl<'s> Merged<'s> {
    /// A segment begins with everything.
    fn begin(&mut self, writer: &'s Writer, checkpoint: &'s Checkpoint) {
        let files =
            checkpoint.files.iter().map(|(path, text)| (Logged::File(path.clone()), text.present.as_str().into()));
        let objects = checkpoint.objects.iter().map(|own| (Logged::Object(own.id.clone()), text_of(&own.present)));
        let texts: Texts = files.chain(objects).collect();
        let known = self.views.iter().position(|(own, _)| *own == writer);
        let (before, found) = match known.and_then(|at| self.views.get(at)) {
            Some((_, view)) => (&view.texts, UNWRITTEN),
            None => (&self.texts, AT_START),
        };
        // Nothing is before the first one.
        let is_first = self.views.is_empty();
        let entries = if is_first { Vec::new() } else { between(before, &texts) };
        let view = match known.and_then(|at| self.views.get_mut(at)) {
            Some((_, view)) => view,
            None => {
                let (told, own) = (self.told.clone(), View::default());
                self.views.push((writer, own));
                let Some((_, view)) = self.views.last_mut() else { return };
                view.seen = told;
                view
            }
        };
        view.texts.clone_from(&texts);
        if is_first {
            self.texts = texts;
        }
        let entry = Entry {
            at: checkpoint.at,
            writer,
            generation: checkpoint.generation,
            found: Some(found),
            causes: &[],
            entries,
        };
        self.tell(entry);
    }

    fn change(&mut self, writer: &'s Writer, change: &'s Change) {
        let Some((_, view)) = self.views.iter().find(|(own, _)| *own == writer) else { return };
        let one =
            |(entry, new): (Logged, Option<Arc<str>>)| EntryChange { old: view.texts.get(&entry).cloned(), entry, new };
        let files = change.files.iter().map(|(path, new)| (Logged::File(path.clone()), new.as_deref().map(Arc::from)));
        let objects = change.objects.iter().map(|own| (Logged::Object(own.id.clone()), own.new.as_ref().map(text_of)));
        let entries = files.chain(objects).map(one).collect();
        let (at, generation, causes) = (change.at, change.generation, change.causes.as_slice());
        self.tell(Entry { at, writer, generation, found: None, causes, entries });
    }

    /// Adds what has not been told by another control plane.
    fn tell(&mut self, mut entry: Entry<'s>) {
        let Some((_, view)) = self.views.iter_mut().find(|(own, _)| *own == entry.writer) else { return };
        let had_entries = !entry.entries.is_empty();
        entry.entries.retain(|file| {
            match &file.new {
                Some(text) => {
                    view.texts.insert(file.entry.clone(), text.clone());
                }
                None => {
                    view.texts.remove(&file.entry);
                }
            }
            let mut hash = DefaultHasher::new();
            (&file.entry, &file.old, &file.new).hash(&mut hash);
            let (seen, told) =
                (view.seen.entry(hash.finish()).or_default(), self.told.entry(hash.finish()).or_default());
            *seen += 1;
            let is_new = *seen > *told;
            *told = (*told).max(*seen);
            if is_new {
                match &file.new {
                    Some(text) => {
                        self.texts.insert(file.entry.clone(), text.clone());
                    }
                    None => {
                        self.texts.remove(&file.entry);
                    }
                }
            }
            is_new
        });
        if !entry.entries.is_empty() || !had_entries && entry.found.is_none() {
            self.entries.push(entry);
        }
    }
}

/// Returns the text of an object, to compare and to show.
fn text_of(content: &ObjectContent) -> Arc<str> {
    format!("{:#}\n", content.object).into()
}

/// The entries in which two states differ.
fn between(old: &Texts, new: &Texts) -> Vec<EntryChange> {
    let mut entries: Vec<&Logged> = old.keys().chain(new.keys()).collect();
    entries.sort_unstable();
    entries.dedup();
    let one = |entry: &Logged| EntryChange {
        entry: entry.clone(),
        old: old.get(entry).cloned(),
        new: new.get(entry).cloned(),
    };
    entries.into_iter().map(one).filter(|entry| entry.old != entry.new).collect()
}

impl EntryChange {
    /// `added`, `changed` or `removed`.
    pub fn what(&self) -> &'static str {
        match (&self.old, &self.new) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        }
    }

    /// Whether people did not write it: the list of running replicas, and what the control plane of this store keeps (fetched
    /// keys, registered workloads).
    pub fn is_observed(&self, store: &Store) -> bool {
        let path = match &self.entry {
            Logged::File(path) => path,
            Logged::Object(id) => return OWN_SOURCES.contains(&&*id.source) || id.kind == "Pod",
        };
        // Before they were sources of their own, they were files.
        let is_own = OWN_SOURCES.iter().any(|source| path.starts_with(store.place(source)));
        let only_pods = |text: &Arc<str>| {
            let path: Arc<str> = path.to_string_lossy().into();
            evenkeel_api::documents(&path, text).iter().all(|own| own.kind == evenkeel_api::Kind::Pod)
        };
        // `up` lists its replicas so. People write Deployments.
        is_own || path.ends_with("runtime/pods.yaml") && self.old.iter().chain(&self.new).all(only_pods)
    }
}
