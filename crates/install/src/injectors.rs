//! Which injector the API server calls for a Pod, by the selectors of the MutatingWebhookConfigurations, and why the others not.

use serde::Serialize;
use serde_json::Value;

use crate::tags::{REVISION_LABEL, TAG_LABEL};

/// A Pod that would be created.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its namespace, an object.
    pub namespace: &'a Value,
    /// The labels of the Pod, a mapping.
    pub labels: &'a Value,
}

/// What a webhook does for a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The MutatingWebhookConfiguration.
    pub configuration: String,
    /// The webhook in it.
    pub webhook: String,
    /// The revision whose control plane is called.
    pub revision: String,
    /// Whether it is called.
    pub injects: bool,
    /// The labels that decide.
    pub reason: String,
}

/// Asks each webhook of the injectors.
pub fn decisions(injectors: &[Value], candidate: Candidate<'_>) -> Vec<Decision> {
    let of = |configuration: &Value| {
        let webhooks = configuration["webhooks"].as_array().cloned().unwrap_or_default();
        let revision = configuration["metadata"]["labels"][REVISION_LABEL].as_str().unwrap_or_default().to_owned();
        let name = configuration["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let decide = move |webhook: &Value| {
            let mismatch = mismatch(&webhook["namespaceSelector"], namespace_labels(candidate.namespace), "namespace")
                .or_else(|| mismatch(&webhook["objectSelector"], candidate.labels, "Pod"));
            Decision {
                configuration: name.clone(),
                webhook: webhook["name"].as_str().unwrap_or_default().to_owned(),
                revision: revision.clone(),
                injects: mismatch.is_none(),
                reason: mismatch.unwrap_or_else(|| "all its selectors match".to_owned()),
            }
        };
        webhooks.iter().map(decide).collect::<Vec<_>>()
    };
    injectors.iter().flat_map(of).collect()
}

fn namespace_labels(namespace: &Value) -> &Value {
    &namespace["metadata"]["labels"]
}

/// The first rule of a selector that labels do not fulfil, in words.
fn mismatch(selector: &Value, labels: &Value, whose: &str) -> Option<String> {
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        if labels[key] != *value {
            return Some(format!("the {whose} has not the label {key}={}", value.as_str().unwrap_or_default()));
        }
    }
    let rules = selector["matchExpressions"].as_array().into_iter().flatten();
    rules.filter(|rule| !holds(rule, labels)).map(|rule| unfulfilled(rule, labels, whose)).next()
}

fn holds(rule: &Value, labels: &Value) -> bool {
    let found = rule["key"].as_str().map_or(&Value::Null, |key| &labels[key]);
    let listed = rule["values"].as_array().is_some_and(|values| values.contains(found));
    match rule["operator"].as_str().unwrap_or_default() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => !found.is_null(),
        "DoesNotExist" => found.is_null(),
        _ => false,
    }
}

fn unfulfilled(rule: &Value, labels: &Value, whose: &str) -> String {
    let key = rule["key"].as_str().unwrap_or_default();
    let values =
        rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    match (labels[key].as_str(), rule["operator"].as_str().unwrap_or_default()) {
        (None, "In") => format!("the {whose} has not the label {key}: {values}"),
        (None, operator) => format!("the {whose} has no label {key} ({operator})"),
        (Some(found), "In") => format!("the {whose} has {key}: {found}, not {values}"),
        (Some(found), _) => format!("the {whose} has {key}: {found}"),
    }
}

/// An injector as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Injector {
    /// The MutatingWebhookConfiguration.
    pub name: String,
    /// Its revision.
    pub revision: String,
    /// The tag that it stands for; empty: none.
    pub tag: String,
    /// Namespaces whose Pods it injects if they do not say otherwise.
    pub namespaces: Vec<String>,
}

/// Lists injectors.
pub fn list(injectors: &[Value], namespaces: &[Value]) -> Vec<Injector> {
    let text =
        |object: &Value, label: &str| object["metadata"]["labels"][label].as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let users = |injector: &Value| {
        let injects = |namespace: &&Value| {
            let candidate = Candidate { namespace, labels: &Value::Null };
            decisions(std::slice::from_ref(injector), candidate).iter().any(|decision| decision.injects)
        };
        namespaces.iter().filter(injects).map(name).collect()
    };
    let row = |injector: &Value| Injector {
        name: name(injector),
        revision: text(injector, REVISION_LABEL),
        tag: text(injector, TAG_LABEL),
        namespaces: users(injector),
    };
    injectors.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{MANAGER, Release, Values};

    fn injectors() -> Vec<Value> {
        let mut all = Vec::new();
        for settings in ["revision=", "revision=canary,revisionTags={prod}"] {
            let mut values = Values::default();
            values.set(settings).expect("settings");
            let namespace = "istio-system".to_owned();
            let release = Release { namespace, manager: MANAGER.to_owned(), is_first: true, values };
            let objects = release.render().expect("objects").objects;
            all.extend(objects.into_iter().filter(|object| object["kind"] == "MutatingWebhookConfiguration"));
        }
        all
    }

    #[test]
    fn labels_choose_the_injector_as_in_istio() {
        let check = |namespace: Value, pod: Value, expected: &[&str]| {
            let namespace = json!({"metadata": {"name": "shop", "labels": namespace}});
            let all = decisions(&injectors(), Candidate { namespace: &namespace, labels: &pod });
            let called: Vec<_> =
                all.iter().filter(|decision| decision.injects).map(|d| d.configuration.as_str()).collect();
            assert_eq!(called, expected, "{namespace} {pod}: {all:#?}");
        };
        let (default, canary) = ("istio-sidecar-injector", "istio-sidecar-injector-canary");
        check(json!({}), json!({}), &[]);
        check(json!({"istio-injection": "enabled"}), json!({}), &[default]);
        check(json!({"istio-injection": "enabled"}), json!({"sidecar.istio.io/inject": "false"}), &[]);
        check(json!({"istio-injection": "disabled"}), json!({"sidecar.istio.io/inject": "true"}), &[]);
        check(json!({}), json!({"sidecar.istio.io/inject": "true"}), &[default]);
        check(json!({"istio.io/rev": "canary"}), json!({}), &[canary]);
        check(json!({"istio.io/rev": "prod"}), json!({}), &["istio-revision-tag-prod"]);
        check(json!({}), json!({"istio.io/rev": "canary"}), &[canary]);
        check(json!({"istio-injection": "enabled", "istio.io/rev": "canary"}), json!({}), &[default]);
        check(json!({"istio.io/rev": "gone"}), json!({}), &[]);
        check(json!({"istio-injection": "enabled", "kubernetes.io/metadata.name": "kube-system"}), json!({}), &[]);
    }

    #[test]
    fn the_deciding_label_is_named() {
        let check = |namespace: Value, pod: Value, expected: &str| {
            let namespace = json!({"metadata": {"labels": namespace}});
            let all = decisions(&injectors(), Candidate { namespace: &namespace, labels: &pod });
            assert!(all.iter().any(|decision| decision.reason == expected), "{all:#?}");
        };
        check(json!({}), json!({}), "the namespace has not the label istio-injection: enabled");
        check(
            json!({"istio-injection": "disabled"}),
            json!({}),
            "the namespace has istio-injection: disabled, not enabled",
        );
        check(
            json!({"istio-injection": "enabled"}),
            json!({"sidecar.istio.io/inject": "false"}),
            "the Pod has sidecar.istio.io/inject: false",
        );
    }

    #[test]
    fn injectors_are_listed_with_their_namespaces() {
        let namespace = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let namespaces =
            [namespace("a", json!({"istio-injection": "enabled"})), namespace("b", json!({"istio.io/rev": "prod"}))];
        let found: Vec<_> = list(&injectors(), &namespaces).into_iter().map(|row| (row.tag, row.namespaces)).collect();
        let none = Vec::<String>::new;
        let row = |tag: &str, namespaces: Vec<String>| (tag.to_owned(), namespaces);
        assert_eq!(found, [row("", vec!["a".to_owned()]), row("", none()), row("prod", vec!["b".to_owned()])]);
    }
}
