//! Objects of a source without files, each with its last valid content.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::{Object, ObjectKey, load_object};
use evenkeel_base::{Diagnostics, ObjectRef, SourceId};
use evenkeel_model::{Address, Entry, EntryChange, LastGood, SourceEvent};
use serde_json::Value;

use super::endpoints::only_endpoints_differ;
use super::json_text::JsonText;
use super::{Content, EntryName, PastContent, Refresh, Refused};
use crate::metrics::Event;

/// An object as a source has it.
#[derive(Debug, Clone, PartialEq)]
pub struct PastObject {
    /// When it was created, in seconds since 1970; 0 if that is unknown.
    pub created: i64,
    /// The object.
    pub json: JsonText,
}

/// The objects of a source by their keys.
#[derive(Debug)]
pub struct Objects {
    id: SourceId,
    entries: BTreeMap<ObjectKey, HeldObject>,
}

/// One object.
#[derive(Debug)]
struct HeldObject {
    /// What is in force.
    held: LastGood,
    /// Findings about the present content.
    findings: Diagnostics,
    present: PastObject,
    /// The content in force, if the present one has errors.
    good: Option<PastObject>,
}

/// What a put has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// Nothing.
    Nothing,
    /// Endpoints at most.
    Endpoints,
    /// Anything else.
    Other,
}

impl Objects {
    /// A source without objects.
    pub fn new(id: SourceId) -> Self {
        Self { id, entries: BTreeMap::new() }
    }

    /// Its name and rank.
    pub fn id(&self) -> &SourceId {
        &self.id
    }

    /// Adds or replaces an object, which was `created` at this time (0: unknown). JSON of an unknown kind is no object and is left out.
    pub fn put(&mut self, json: &Value, created: i64, result: &mut Refresh) -> Changes {
        let Some(key) = ObjectKey::of_json(json) else { return Changes::Nothing };
        let object = PastObject { created, json: JsonText::new(json) };
        let known = self.entries.get(&key);
        if known.is_some_and(|known| known.present == object) {
            *result.events.entry((key.kind, Event::UpdateSame)).or_default() += 1;
            return Changes::Nothing;
        }
        let (objects, findings) = load_object(&self.id, json);
        let old = known.map_or(&[][..], |known| known.held.objects());
        let only_endpoints = !findings.has_errors() && only_endpoints_differ(old, &objects);
        let is_changed = match self.entries.get_mut(&key) {
            Some(held) => held.take(&key, object, (objects, findings), result),
            None => {
                let (held, fresh) = (LastGood::default(), Diagnostics::new());
                let held = HeldObject { held, findings: fresh, present: object.clone(), good: None };
                let held = self.entries.entry(key.clone()).or_insert(held);
                held.take(&key, object, (objects, findings), result)
            }
        };
        if is_changed {
            result.read.push(EntryName::Object(key.at(&self.id)))
        } else {
            return Changes::Nothing;
        }
        result.entries_changed = true;
        if only_endpoints { Changes::Endpoints } else { Changes::Other }
    }

    /// Removes an object.
    pub fn remove(&mut self, key: &ObjectKey, result: &mut Refresh) -> Changes {
        let Some(gone) = self.entries.remove(key) else { return Changes::Nothing };
        result.entries_changed = true;
        result.read.push(EntryName::Object(key.at(&self.id)));
        if !gone.held.objects().is_empty() {
            result.entry(SourceEvent::of_object(key.clone(), 0, Vec::new()), gone.held.objects(), &[]);
        }
        if only_endpoints_differ(gone.held.objects(), &[]) { Changes::Endpoints } else { Changes::Other }
    }

    /// Returns the present content of an object.
    pub fn get(&self, key: &ObjectKey) -> Option<&PastObject> {
        self.entries.get(key).map(|entry| &entry.present)
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.entries.keys()
    }

    /// Returns the findings about the present contents.
    pub fn findings(&self) -> Diagnostics {
        self.entries.values().flat_map(|entry| entry.findings.iter().cloned()).collect()
    }

    /// Returns the objects of which an older content is in force, or none.
    pub fn refused(&self) -> Vec<Refused> {
        let refused = self.entries.iter().filter(|(_, entry)| entry.findings.has_errors());
        let refused = refused.map(|(key, entry)| Refused {
            entry: EntryName::Object(key.at(&self.id)),
            never_accepted: !entry.held.was_good(),
        });
        refused.collect()
    }

    /// Returns the present content of an object.
    pub fn content(&self, object: &ObjectRef) -> Option<Content> {
        let is_it = |key: &ObjectKey| key.at(&self.id) == *object;
        let (_, entry) = self.entries.iter().find(|(key, _)| *key.name == *object.name && is_it(key))?;
        Some(Content::Object(entry.present.clone()))
    }

    /// Returns the contents of all objects.
    pub fn contents(&self) -> Vec<(EntryName, PastContent)> {
        let content = |(key, entry): (&ObjectKey, &HeldObject)| {
            let good = entry.good.clone().map(Content::Object);
            let content = PastContent { good, present: Content::Object(entry.present.clone()) };
            (EntryName::Object(key.at(&self.id)), content)
        };
        self.entries.iter().map(content).collect()
    }

    /// Puts an older content in force for an object that has errors and was never good. Returns false if that has errors, too.
    pub fn recall(&mut self, object: &PastObject, result: &mut Refresh) -> bool {
        let json = object.json.value();
        let Some(key) = ObjectKey::of_json(&json) else { return false };
        let Some(entry) = self.entries.get_mut(&key) else { return true };
        if entry.held.was_good() {
            return true;
        }
        let (objects, findings) = load_object(&self.id, &json);
        if findings.has_errors() {
            return false;
        }
        if let EntryChange::Changed(old) = entry.held.take(objects, false) {
            result.entry(entry.event(&key), &old, entry.held.objects());
        }
        entry.good = Some(object.clone());
        result.entries_changed = true;
        true
    }

    /// Makes all objects anew, without shared memory.
    pub fn renew(&mut self) -> SourceEvent {
        for entry in self.entries.values_mut() {
            let objects = entry.held.objects().iter().map(|object| Arc::new((**object).clone())).collect();
            entry.held = LastGood::new(objects, entry.held.was_good());
        }
        self.snapshot()
    }

    /// Returns all objects in force.
    pub fn snapshot(&self) -> SourceEvent {
        let entries = self.entries.iter().filter(|(_, entry)| !entry.held.objects().is_empty());
        let entries = entries.map(|(key, entry)| Entry {
            address: Address::Object(Arc::new(key.clone())),
            created: entry.present.created,
            objects: entry.held.objects().to_vec(),
        });
        SourceEvent::Snapshot(entries.collect())
    }
}

impl HeldObject {
    /// Takes a new content. Returns whether that changes anything.
    fn take(
        &mut self,
        key: &ObjectKey,
        object: PastObject,
        (objects, findings): (Vec<Object>, Diagnostics),
        result: &mut Refresh,
    ) -> bool {
        let is_same = findings.to_string() == self.findings.to_string();
        result.news.extend(findings.iter().filter(|new| !self.findings.iter().any(|old| old == *new)).cloned());
        let before = std::mem::replace(&mut self.present, object);
        let was_created = before.created;
        self.findings = findings;
        match self.held.take(objects, self.findings.has_errors()) {
            EntryChange::Refused => _ = self.good.get_or_insert(before),
            EntryChange::Same => {
                self.good = None;
                return !is_same || was_created != self.present.created;
            }
            EntryChange::Changed(old) => {
                self.good = None;
                result.entry(self.event(key), &old, self.held.objects());
            }
        }
        true
    }

    fn event(&self, key: &ObjectKey) -> SourceEvent {
        SourceEvent::of_object(key.clone(), self.present.created, self.held.objects().to_vec())
    }
}
