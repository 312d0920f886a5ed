//! The objects of kinds as they are written, each with the status that the control plane would write.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use evenkeel_api::{APPLIED_ANNOTATION, Document, Kind, Object, ObjectKey, documents};
use evenkeel_k8s::status::gateway_api::{Stamp, after_apply};
use evenkeel_model::Builder;
use serde_json::{Value, json};

use crate::manifests::Manifests;

/// Which objects are wanted.
pub struct Selector<'a> {
    /// Of these kinds, in this order.
    pub kinds: &'a [Kind],
    /// With these names; none: all.
    pub names: &'a [String],
    /// In this namespace; `None`: in all. Objects without a namespace are always wanted.
    pub namespace: Option<&'a str>,
}

impl Selector<'_> {
    fn wants(&self, object: &Object) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| **name == *object.name);
        let is_here = |namespace: &str| object.namespace.is_empty() || *object.namespace == *namespace;
        is_named && self.kinds.contains(&object.kind()) && self.namespace.is_none_or(is_here)
    }
}

/// Returns the documents of the objects, in the order of the kinds, then of namespaces and names.
pub fn select(manifests: Manifests, selector: &Selector<'_>) -> Vec<Document> {
    let mut written = written(&manifests.texts);
    let mut keys: Vec<ObjectKey> =
        manifests.objects.iter().filter(|object| selector.wants(object)).map(Object::key).collect();
    let rank = |key: &ObjectKey| selector.kinds.iter().position(|kind| *kind == key.kind);
    keys.sort_by(|one, other| rank(one).cmp(&rank(other)).then_with(|| one.cmp(other)));
    keys.dedup();

    let mut builder = Builder::new(manifests.mesh, manifests.addresses).checked(false);
    let objects = manifests.objects.into_iter().map(Arc::new).collect();
    builder.apply_files([(Path::new("").into(), objects)]);
    let statuses: HashMap<_, _> = builder.gateway_api_statuses().collect();

    let document = |key: ObjectKey| {
        let mut document = written.remove(&key)?;
        if key.kind.is_namespaced() {
            document.json["metadata"]["namespace"] = json!(&*key.namespace);
        }
        if let Some(status) = statuses.get(&key) {
            let generation = document.json.pointer("/metadata/generation").and_then(Value::as_i64);
            let stamp = Stamp { generation, now: None };
            document.json["status"] = after_apply(document.json.get("status"), status, stamp);
        }
        document.namespace = Some(key.namespace);
        Some(document)
    };
    keys.into_iter().filter_map(document).collect()
}

/// The documents of the texts. Of two of one object the applied one is in force, and otherwise the first.
fn written(texts: &BTreeMap<Arc<str>, Arc<str>>) -> BTreeMap<ObjectKey, Document> {
    let mut all: BTreeMap<ObjectKey, Document> = BTreeMap::new();
    for document in texts.iter().flat_map(|(path, text)| documents(path, text)) {
        let key = ObjectKey { kind: document.kind, namespace: document.namespace(), name: document.name.clone() };
        let is_applied = !document.json["metadata"]["annotations"][APPLIED_ANNOTATION].is_null();
        if is_applied || !all.contains_key(&key) {
            all.insert(key, document);
        }
    }
    all
}
