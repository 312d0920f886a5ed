//! A source whose objects are put by a task: the control plane's own ones, or one that watches an API server.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_api::{Kind, ObjectKey};
use evenkeel_base::{Diagnostics, ObjectRef, SourceId};
use evenkeel_model::{Source, SourceEvent, StatusSink};
use serde_json::Value;
use tokio::sync::Notify;

use super::debounce::Change;
use super::objects::{Changes, Objects, PastObject};
use super::{Content, EntryName, Extent, LiveSource, PastContent, PastContents, Refresh, Refused, SourceFuture};
use crate::memory;
use crate::metrics::Event;
use crate::noticed::Noticed;

/// Maximum number of changes that wait for the configuration; when there are more, it takes over all objects instead.
const MAX_WAITING_CHANGES: usize = 4096;

/// Puts objects into a source. Clones put into the same source.
#[derive(Debug, Clone)]
pub struct ObjectFeed(Arc<Shared>);

/// The source of an [`ObjectFeed`].
pub struct ObjectSource {
    shared: Arc<Shared>,
    id: SourceId,
    sink: Option<Box<dyn StatusSink + Send>>,
    /// Events that the model has not received yet.
    told: Vec<SourceEvent>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the source when there is a change.
    wake: Notify,
}

#[derive(Debug)]
struct State {
    objects: Objects,
    /// Restored objects that have not been put since.
    unconfirmed: HashSet<ObjectKey>,
    /// The number of changes so far.
    revision: u64,
    endpoints: Pending,
    others: Pending,
    /// Changes that changed nothing.
    unchanged: BTreeMap<(Kind, Event), u64>,
    /// Findings about the source as a whole.
    notes: Diagnostics,
}

/// Changes that the configuration has not taken over.
#[derive(Debug, Default)]
struct Pending {
    refresh: Refresh,
    /// Whether the configuration does not know of the last ones yet.
    is_news: bool,
}

impl ObjectFeed {
    /// Makes a feed and its source.
    pub fn new(id: SourceId) -> (Self, ObjectSource) {
        let objects = Objects::new(id.clone());
        let (endpoints, others) = (Pending::default(), Pending::default());
        let (unconfirmed, unchanged) = (HashSet::new(), BTreeMap::new());
        let notes = Diagnostics::new();
        let state = State { objects, unconfirmed, revision: 0, endpoints, others, unchanged, notes };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Notify::new() });
        (Self(shared.clone()), ObjectSource { shared, id, sink: None, told: Vec::new() })
    }

    /// Adds or replaces an object, which was `created` at this time in seconds since 1970 (0 if that is unknown).
    pub fn put(&self, json: Value, created: i64) {
        self.0.change(|state, result| {
            state.confirm(&json);
            state.objects.put(&json, created, result)
        });
    }

    /// Replaces the findings about the source as a whole: what it cannot read now, and why.
    pub fn set_notes(&self, notes: Diagnostics) {
        let mut state = self.0.lock();
        if state.notes != notes {
            state.notes = notes;
            // No entry has changed, but who shows the findings must learn of it, also while nothing else happens.
            state.others.refresh.entries_changed = true;
            state.others.is_news = true;
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Returns an object.
    pub fn get(&self, key: &ObjectKey) -> Option<PastObject> {
        self.0.lock().objects.get(key).cloned()
    }

    /// Puts objects that an earlier process has had ([`Self::all`]), but for those that are there already. They are in force until
    /// [`Self::confirm`].
    pub fn restore(&self, objects: Vec<PastObject>) {
        for object in objects {
            let json = object.json.value();
            let Some(key) = ObjectKey::of_json(&json) else { continue };
            self.0.change(|state, result| {
                if state.objects.get(&key).is_some() && !state.unconfirmed.contains(&key) {
                    return Changes::Nothing;
                }
                state.unconfirmed.insert(key);
                state.objects.put(&json, object.created, result)
            });
        }
    }

    /// Removes the restored objects that have not been put since: the task has put everything that there is.
    pub fn confirm(&self) {
        let unconfirmed = self.0.lock().unconfirmed.clone();
        for key in &unconfirmed {
            // It may have been put meanwhile.
            self.0.change(|state, result| {
                if state.unconfirmed.remove(key) { state.objects.remove(key, result) } else { Changes::Nothing }
            });
        }
    }

    /// Returns all objects. Where the present content has errors, the one in force comes before it.
    pub fn all(&self) -> Vec<PastObject> {
        let contents = self.0.lock().objects.contents();
        let objects = contents.into_iter().flat_map(|(_, content)| content.good.into_iter().chain([content.present]));
        let objects = objects.filter_map(|content| match content {
            Content::Object(object) => Some(object),
            Content::Text(_) => None,
        });
        objects.collect()
    }

    /// Returns a number that differs whenever [`Self::all`] does.
    pub fn revision(&self) -> u64 {
        self.0.lock().revision
    }

    /// Removes an object.
    pub fn remove(&self, key: &ObjectKey) {
        self.0.change(|state, result| {
            state.unconfirmed.remove(key);
            state.objects.remove(key, result)
        });
    }

    /// Replaces all objects, each with its time of creation: the task may have missed changes. Objects that are the same stay
    /// as they are.
    pub fn replace_all(&self, all: Vec<(Value, i64)>) {
        let listed: HashSet<ObjectKey> = all.iter().filter_map(|(json, _)| ObjectKey::of_json(json)).collect();
        let known: Vec<ObjectKey> = self.0.lock().objects.keys().cloned().collect();
        known.iter().filter(|key| !listed.contains(key)).for_each(|key| self.remove(key));
        all.into_iter().for_each(|(json, created)| self.put(json, created));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change, and wakes the source if it changes anything.
    fn change(&self, change: impl FnOnce(&mut State, &mut Refresh) -> Changes) {
        let _apart = memory::apart();
        let mut state = self.lock();
        let mut refresh = Refresh { noticed: Some(Noticed::now()), ..Refresh::default() };
        let changes = change(&mut state, &mut refresh);
        state.revision += u64::from(changes != Changes::Nothing);
        let pending = match changes {
            Changes::Nothing => {
                refresh.events.into_iter().for_each(|(key, count)| *state.unchanged.entry(key).or_default() += count);
                return;
            }
            Changes::Endpoints => &mut state.endpoints,
            Changes::Other => &mut state.others,
        };
        pending.refresh.join(refresh);
        pending.is_news = true;
        // Counted are the events since the last time that all objects were taken: each of the following changes would take all again.
        if pending.refresh.told.len() > MAX_WAITING_CHANGES {
            state.merge();
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Returns the next news.
    fn news(&self) -> Option<Change> {
        let mut state = self.lock();
        if std::mem::take(&mut state.endpoints.is_news) {
            return Some(Change::Endpoints);
        }
        std::mem::take(&mut state.others.is_news).then_some(Change::Complete)
    }
}

impl State {
    /// Notes that an object has been put. Nearly always there is nothing to note.
    fn confirm(&mut self, json: &Value) {
        if !self.unconfirmed.is_empty()
            && let Some(key) = ObjectKey::of_json(json)
        {
            self.unconfirmed.remove(&key);
        }
    }

    /// Replaces the waiting changes by all objects.
    fn merge(&mut self) {
        let endpoints = std::mem::take(&mut self.endpoints);
        let Pending { refresh, is_news } = &mut self.others;
        refresh.join(endpoints.refresh);
        refresh.told = vec![self.objects.snapshot()];
        refresh.read.sort();
        refresh.read.dedup();
        refresh.objects.truncate(MAX_WAITING_CHANGES);
        refresh.news.truncate(MAX_WAITING_CHANGES);
        *is_news = true;
    }

    fn take(&mut self, extent: Extent) -> Refresh {
        let mut refresh = std::mem::take(&mut self.endpoints.refresh);
        if extent != Extent::Endpoints {
            refresh.join(std::mem::take(&mut self.others.refresh));
        }
        refresh
    }
}

impl ObjectSource {
    /// Writes statuses of its objects to this sink.
    #[must_use]
    pub fn with_statuses(self, sink: Box<dyn StatusSink + Send>) -> Self {
        Self { sink: Some(sink), ..self }
    }

    fn take(&mut self, extent: Extent) -> Refresh {
        let mut refresh = self.shared.lock().take(extent);
        self.told.append(&mut refresh.told);
        refresh
    }
}

impl std::fmt::Debug for ObjectSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectSource").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Source for ObjectSource {
    fn id(&self) -> &SourceId {
        &self.id
    }

    fn events(&mut self) -> Vec<SourceEvent> {
        std::mem::take(&mut self.told)
    }

    fn findings(&self) -> Diagnostics {
        let state = self.shared.lock();
        let mut findings = state.objects.findings();
        findings.extend(state.notes.clone());
        findings
    }

    fn status_sink(&mut self) -> Option<&mut dyn StatusSink> {
        self.sink.as_mut().map(|sink| &mut **sink as &mut dyn StatusSink)
    }
}

impl LiveSource for ObjectSource {
    fn first(&mut self) -> Refresh {
        self.take(Extent::All)
    }

    fn changed(&mut self) -> SourceFuture<'_, Option<Change>> {
        Box::pin(async {
            loop {
                if let Some(change) = self.shared.news() {
                    return Some(change);
                }
                self.shared.wake.notified().await;
            }
        })
    }

    fn refresh(&mut self, extent: Extent) -> SourceFuture<'_, Refresh> {
        Box::pin(std::future::ready(self.take(extent)))
    }

    fn renew(&mut self) -> SourceEvent {
        // What has not been taken over yet is part of the result; it is recorded later all the same.
        let mut state = self.shared.lock();
        state.endpoints.refresh.told.clear();
        state.others.refresh.told.clear();
        self.told.clear();
        state.objects.renew()
    }

    fn unchanged(&mut self) -> BTreeMap<(Kind, Event), u64> {
        std::mem::take(&mut self.shared.lock().unchanged)
    }

    fn refused(&self) -> Vec<Refused> {
        self.shared.lock().objects.refused()
    }

    fn content(&self, entry: &EntryName) -> Option<Content> {
        match entry {
            EntryName::Object(object) if object.source == self.id => self.shared.lock().objects.content(object),
            EntryName::Object(_) | EntryName::File(_) => None,
        }
    }

    fn contents(&self) -> Vec<(EntryName, PastContent)> {
        self.shared.lock().objects.contents()
    }

    fn recall(&mut self, past: &mut dyn PastContents, result: &mut Refresh) {
        let never = self.refused().into_iter().filter(|refused| refused.never_accepted);
        let never: Vec<EntryName> = never.map(|refused| refused.entry).collect();
        if never.is_empty() {
            return;
        }
        let is_wanted = |object: &ObjectRef| never.contains(&EntryName::Object(object.clone()));
        let contents = past.objects(&is_wanted);
        let mut state = self.shared.lock();
        for contents in contents.values() {
            _ = contents.iter().rev().any(|content| state.objects.recall(content, result));
        }
        drop(state);
        self.told.append(&mut result.told);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Rank;
    use evenkeel_model::{AddressBook, Builder, MeshConfig};
    use serde_json::json;

    use super::*;

    fn service(name: &str, port: usize) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"ports": [{"name": "http", "port": port}]},
        })
    }

    /// A process that starts without its server begins with what the last one has had.
    #[test]
    fn restored_objects_stay_until_the_source_has_everything() {
        let source = || ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
        let (before, _source) = source();
        before.put(service("a", 80), 7);
        before.put(service("gone", 80), 8);
        let good = service("b", 80);
        before.put(good.clone(), 9);
        before.put(service("b", 99999), 9);
        let (after, mut source) = source();
        // The server has come back meanwhile: what it says goes before what was kept.
        before.put(service("new", 80), 10);
        after.put(service("new", 81), 10);
        after.restore(before.all());
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
        let mut hosts = |source: &mut ObjectSource| {
            source.first();
            let snapshot = builder.apply(source.tell()).snapshot;
            let ports = |service: &Arc<evenkeel_model::Service>| format!("{} {}", service.name, service.ports.len());
            snapshot.services.iter().map(ports).collect::<Vec<_>>()
        };
        assert_eq!(hosts(&mut source), ["a 1", "b 1", "gone 1", "new 1"]);
        let revision = after.revision();
        after.put(service("a", 80), 7);
        assert_eq!(after.revision(), revision, "it is the same");
        after.put(good, 9);
        after.confirm();
        assert_eq!(hosts(&mut source), ["a 1", "b 1", "new 1"]);
        assert_ne!(after.revision(), revision);
        after.confirm();
        assert_eq!(hosts(&mut source).len(), 3);
        assert!(after.all().iter().any(|object| object.json.value()["spec"]["ports"][0]["port"] == 81));
    }

    /// The start beside a server with many objects: taking all of them again for each would take minutes.
    #[test]
    fn all_objects_are_taken_once_for_many_changes() {
        let (feed, _source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
        for number in 0..MAX_WAITING_CHANGES + 100 {
            feed.put(service(&format!("s{number}"), 80), 0);
        }
        assert_eq!(feed.0.lock().others.refresh.told.len(), 100, "all, and those that came later");
    }

    #[test]
    fn changes_that_nobody_takes_over_do_not_pile_up() {
        let (feed, mut source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
        let mut services = |source: &mut ObjectSource| {
            let count = source.first().read.len();
            let snapshot = builder.apply(source.tell()).snapshot;
            let ports = snapshot.services.iter().flat_map(|service| service.ports.iter().map(|port| port.number));
            (count, ports.collect::<Vec<_>>())
        };
        feed.put(service("gone", 80), 0);
        assert_eq!(services(&mut source), (1, vec![80]));
        feed.remove(&ObjectKey::of_json(&service("gone", 80)).expect("a key"));
        for number in 1..=MAX_WAITING_CHANGES + 10 {
            feed.put(service("a", number), 0);
        }
        let last = u16::try_from(MAX_WAITING_CHANGES + 10).expect("a port");
        let (read, ports) = services(&mut source);
        assert_eq!(ports, [last]);
        assert!(read < 20, "{read}");
        // The same once more is no change.
        feed.put(service("a", MAX_WAITING_CHANGES + 10), 0);
        assert_eq!(services(&mut source), (0, vec![last]));
    }
}
