//! Which objects are for this control plane, where a cluster has several: those with the label `istio.io/rev` are for the revision
//! that it names, or for the one that a tag of that name points to. All others are for every control plane.
//!
//! A tag is a MutatingWebhookConfiguration, or a Service of the root namespace, with the labels `istio.io/tag` (its name) and
//! `istio.io/rev` (the revision that it points to).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use evenkeel_api::ObjectKey;
use evenkeel_control::source::feed::ObjectFeed;
use serde_json::Value;

/// The label of the revision that an object is for.
pub(crate) const REVISION: &str = "istio.io/rev";
/// The label of a tag.
pub(crate) const TAG: &str = "istio.io/tag";
/// The revision without a name.
pub const DEFAULT: &str = "default";

/// The tags of a control plane's revision, and the objects that name a revision.
#[derive(Debug, Default)]
pub struct Revisions {
    /// The revision; `None`: all objects are for it.
    own: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The tags that point to the revision, by what declares them.
    tags: BTreeMap<Declaration, String>,
    /// The objects that name a revision or tag.
    labelled: BTreeMap<ObjectKey, Labelled>,
}

/// What declares a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Declaration {
    /// A MutatingWebhookConfiguration of this name.
    Webhook(String),
    /// A Service of this name in the root namespace.
    Service(String),
}

#[derive(Debug)]
struct Labelled {
    label: String,
    object: Value,
    created: i64,
    is_read: bool,
}

impl Revisions {
    /// The revision of a control plane; empty: it reads everything.
    pub fn new(revision: &str) -> Self {
        Self { own: (!revision.is_empty()).then(|| revision.to_owned()), state: Mutex::default() }
    }

    /// Whether anything depends on revisions.
    pub fn selects(&self) -> bool {
        self.own.is_some()
    }

    /// Puts an object into the feed if it is for this revision. Returns it if it names no revision.
    pub fn put(&self, key: &ObjectKey, object: Value, created: i64, feed: &ObjectFeed) -> Option<Value> {
        let Some(own) = self.own.as_ref().filter(|_| is_of_revisions(key.kind.group())) else {
            return Some(object);
        };
        let mut state = self.lock();
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(REVISION)).and_then(Value::as_str);
        let Some(label) = label.map(str::to_owned) else {
            state.labelled.remove(key);
            return Some(object);
        };
        let is_read = is_own(own, &state.tags, &label);
        if is_read {
            feed.put(object.clone(), created);
        } else {
            feed.remove(key);
        }
        state.labelled.insert(key.clone(), Labelled { label, object, created, is_read });
        None
    }

    /// Forgets an object.
    pub fn remove(&self, key: &ObjectKey) {
        if self.selects() {
            self.lock().labelled.remove(key);
        }
    }

    /// Takes over the labels of what may declare a tag; `None`: it is gone.
    pub fn declare(&self, declaration: Declaration, labels: Option<&BTreeMap<String, String>>, feed: &ObjectFeed) {
        let Some(own) = &self.own else { return };
        let tag = labels.filter(|labels| labels.get(REVISION) == Some(own)).and_then(|labels| labels.get(TAG)).cloned();
        let mut state = self.lock();
        let before = match tag.clone() {
            Some(tag) => state.tags.insert(declaration, tag),
            None => state.tags.remove(&declaration),
        };
        if before != tag {
            state.renew(own, feed);
        }
    }

    /// Forgets the MutatingWebhookConfigurations that are not among these.
    pub fn retain_webhooks(&self, names: &BTreeSet<String>, feed: &ObjectFeed) {
        let webhooks: Vec<Declaration> = self.lock().tags.keys().cloned().collect();
        let is_gone = |one: &Declaration| matches!(one, Declaration::Webhook(name) if !names.contains(name));
        webhooks.into_iter().filter(is_gone).for_each(|gone| self.declare(gone, None, feed));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts and removes objects as the tags are now.
    fn renew(&mut self, own: &str, feed: &ObjectFeed) {
        let tags = self.tags.values().cloned().collect::<Vec<_>>();
        tracing::info!(revision = own, tags = tags.join(", "), "tags of this revision");
        for (key, labelled) in &mut self.labelled {
            let is_read = is_own(own, &self.tags, &labelled.label);
            match (labelled.is_read, is_read) {
                (false, true) => feed.put(labelled.object.clone(), labelled.created),
                (true, false) => feed.remove(key),
                _ => {}
            }
            labelled.is_read = is_read;
        }
    }
}

/// Whether objects of a group may be for one revision: Istio's own, and those of the Gateway API, which istiod reads by revision, too.
fn is_of_revisions(group: &str) -> bool {
    group.ends_with("istio.io") || group == "gateway.networking.k8s.io"
}

/// Whether a label names this revision, or a tag of it. The tag `default` is also that of a label without a value.
fn is_own(own: &str, tags: &BTreeMap<Declaration, String>, label: &str) -> bool {
    let label = if label.is_empty() { DEFAULT } else { label };
    label == own || tags.values().any(|tag| tag == label)
}

/// The name of the ConfigMap with the settings of a revision.
pub fn settings_name(revision: &str) -> String {
    match revision {
        "" | DEFAULT => "istio".to_owned(),
        revision => format!("istio-{revision}"),
    }
}
