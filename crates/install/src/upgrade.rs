//! What an upgrade changes: the values that an installation has recorded, fields that would differ, and objects of the old release that
//! the new one does not have.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use crate::MANAGER;
use crate::tags::{REVISION_LABEL, TAG_LABEL};

/// The key of the record: the values as YAML.
const KEY: &str = "values.yaml";
/// Fields that the API server writes, not a release.
const OF_SERVER: [&str; 6] = [
    "managedFields",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "uid",
    "deprecated.daemonset.template.generation",
];
/// Kinds that outlive a release.
const OUTLIVES: [&str; 2] = ["CustomResourceDefinition", "Namespace"];

/// The name of the ConfigMap with a revision's values.
pub fn record_name(revision: &str) -> String {
    if revision.is_empty() { "evenkeel-values".to_owned() } else { format!("evenkeel-values-{revision}") }
}

/// The ConfigMap that records with which values a revision is installed, so that an upgrade takes the same. `revision`: empty for the
/// default one.
pub fn record(namespace: &str, revision: &str, changes: &Value) -> Value {
    let label = if revision.is_empty() { "default" } else { revision };
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": record_name(revision),
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/part-of": "istio",
                "app.kubernetes.io/managed-by": MANAGER,
                REVISION_LABEL: label,
            },
        },
        // JSON is YAML, and has one form for each value: the same values are the same text.
        "data": {KEY: format!("{changes:#}\n")},
    })
}

/// The values in such a ConfigMap, as YAML.
pub fn recorded(record: &Value) -> Option<&str> {
    record["data"][KEY].as_str()
}

/// Values without those that a further revision must not take from another: its tags would move at once.
pub fn for_another_revision(mut changes: Value) -> Value {
    if let Some(fields) = changes.as_object_mut() {
        fields.remove("revisionTags");
    }
    changes
}

/// What has to be merged into `base` to get `wanted`: null removes a value, and lists are whole.
pub(crate) fn changes(base: &Value, wanted: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (base, wanted) else { return wanted.clone() };
    let removed = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = new.iter().filter_map(|(name, value)| match old.get(name) {
        Some(before) if before == value => None,
        Some(before) => Some((name.clone(), changes(before, value))),
        None => Some((name.clone(), value.clone())),
    });
    Value::Object(removed.chain(changed).collect::<Map<_, _>>())
}

/// Whether two objects are the same one.
pub fn is_same(a: &Value, b: &Value) -> bool {
    let group = |object: &Value| {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        version.split_once('/').map_or("", |(group, _)| group).to_owned()
    };
    let namespace = |object: &Value| object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    a["kind"] == b["kind"]
        && a["metadata"]["name"] == b["metadata"]["name"]
        && group(a) == group(b)
        && namespace(a) == namespace(b)
}

/// Objects of the old release that the new one does not have. `existing`: all with the labels of the release. State of the control
/// plane has the labels, too, but not this program's field manager; revision tags belong to `evenkeel tag`.
pub fn obsolete(existing: &[Value], rendered: &[Value]) -> Vec<Value> {
    let is_applied = |object: &Value| {
        let mut entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        entries.any(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply")
    };
    let outlives = |object: &Value| OUTLIVES.iter().any(|kind| object["kind"] == *kind);
    let is_tag = |object: &Value| !object["metadata"]["labels"][TAG_LABEL].is_null();
    let is_there = |object: &Value| rendered.iter().any(|own| is_same(own, object));
    let is_obsolete = |object: &&Value| is_applied(object) && !outlives(object) && !is_tag(object) && !is_there(object);
    existing.iter().filter(is_obsolete).cloned().collect()
}

/// The paths of fields that differ between two states of an object, without its status and what the API server writes itself.
pub fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    compare("", before, after, &mut paths);
    paths
}

fn compare(path: &str, before: &Value, after: &Value, paths: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if OF_SERVER.contains(&name.as_str()) || place == "status" {
                    continue;
                }
                let [old, new] = [old, new].map(|fields| fields.get(name).unwrap_or(&Value::Null));
                compare(&place, old, new, paths);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{path}[{index}]"), old, new, paths);
            }
        }
        (before, after) if before == after => {}
        _ => paths.push(path.to_owned()),
    }
}

/// Whether one version is older than another, as far as both are versions: the state of a newer one may not be understood.
pub fn is_older(version: &str, than: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u32>> {
        let plain = text.trim_start_matches('v').split(['-', '+']).next()?;
        plain.split('.').map(|part| part.parse().ok()).collect()
    };
    match (numbers(version), numbers(than)) {
        (Some(own), Some(other)) => own.iter().take(2).cmp(other.iter().take(2)) == Ordering::Less,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_recorded_as_what_differs() {
        let check = |base: Value, wanted: Value, expected: Value| assert_eq!(changes(&base, &wanted), expected);
        let base = json!({"a": 1, "b": {"c": [1], "d": 2}});
        check(base.clone(), base.clone(), json!({}));
        check(base.clone(), json!({"a": 2, "b": {"c": [1], "d": 2}}), json!({"a": 2}));
        check(base.clone(), json!({"a": 1, "b": {"c": [1, 2], "d": 2}}), json!({"b": {"c": [1, 2]}}));
        check(base.clone(), json!({"a": 1, "b": {"c": [1]}, "e": {}}), json!({"b": {"d": null}, "e": {}}));
        let another = for_another_revision(json!({"revisionTags": ["prod"], "global": {"hub": "h"}}));
        assert_eq!(another, json!({"global": {"hub": "h"}}));
        let found = record("istio-system", "", &json!({"a": 1}));
        assert_eq!(recorded(&found), Some("{\n  \"a\": 1\n}\n"));
    }

    #[test]
    fn what_only_the_old_release_has_is_obsolete() {
        let object = |kind: &str, name: &str, manager: &str, tag: Option<&str>| {
            json!({"apiVersion": "v1", "kind": kind, "metadata": {
                "name": name, "namespace": "istio-system", "labels": {TAG_LABEL: tag},
                "managedFields": [{"manager": manager, "operation": "Apply"}],
            }})
        };
        let existing = [
            object("Service", "istiod", MANAGER, None),
            object("Service", "old", MANAGER, None),
            object("Secret", "state", "evenkeel-store", None),
            object("MutatingWebhookConfiguration", "tag", MANAGER, Some("prod")),
            object("CustomResourceDefinition", "crd", MANAGER, None),
        ];
        let found = obsolete(&existing, &existing[..1]);
        assert_eq!(found, vec![existing[1].clone()]);
    }

    #[test]
    fn differences_are_named_by_their_paths() {
        let check = |before: Value, after: Value, expected: &[&str]| {
            assert_eq!(differences(&before, &after), expected);
        };
        let before = json!({"metadata": {"uid": "1", "generation": 1}, "spec": {"a": [{"b": 1}], "c": 1}, "status": 1});
        check(before.clone(), before.clone(), &[]);
        let after = json!({"metadata": {"uid": "2", "generation": 2}, "spec": {"a": [{"b": 2}], "d": 1}});
        check(before.clone(), after, &["spec.a[0].b", "spec.c", "spec.d"]);
        check(before, json!({"metadata": {}, "spec": {"a": [], "c": 1}}), &["spec.a"]);
    }

    #[test]
    fn older_versions_are_recognized() {
        let check =
            |own: &str, other: &str, expected: bool| assert_eq!(is_older(own, other), expected, "{own} {other}");
        check("0.1.0", "0.2.0", true);
        check("0.9.0", "0.10.0", true);
        check("v0.1.0-rc.1", "1.0.0", true);
        check("0.1.0", "0.1.9", false);
        check("1.0.0", "0.2.0", false);
        check("latest", "0.2.0", false);
        check("0.1.0", "", false);
    }
}
