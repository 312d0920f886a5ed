//! What a Pod says itself about an injected container, over what the template says.
//!
//! A container of the Pod with the name of an injected one changes that one, as Kubernetes merges a patch into an object:
//! objects by field, named lists by name, everything else is replaced. What the Pod said is kept in the annotation
//! `proxy.istio.io/overrides`, because after the first injection its containers are the merged ones.

use serde_json::{Map, Value};

/// Annotation with the Pod's own containers of injected names: `{"containers": […], "initContainers": […]}`.
pub(crate) const OVERRIDES_ANNOTATION: &str = "proxy.istio.io/overrides";
/// The image that leaves the choice to the injector.
const IMAGE_AUTO: &str = "auto";
/// The pull policy of images without a tag.
const PULL_ALWAYS: &str = "Always";
/// Lists of containers whose elements have a name, and the field with it.
const NAMED_LISTS: [(&str, &str); 4] =
    [("env", "name"), ("ports", "containerPort"), ("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")];

/// A container of the template with what the Pod's own container of its name says.
pub(crate) fn over(template: Value, own: &Value) -> Value {
    let mut own = own.clone();
    if let Some(fields) = own.as_object_mut()
        && fields.get("image").and_then(Value::as_str) == Some(IMAGE_AUTO)
    {
        fields.remove("image");
        // Kubernetes sets this one for images without a tag, before the Pod comes to the injector.
        if fields.get("imagePullPolicy").and_then(Value::as_str) == Some(PULL_ALWAYS) {
            fields.remove("imagePullPolicy");
        }
    }
    merge(template, own)
}

fn merge(base: Value, patch: Value) -> Value {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => Value::Object(merge_fields(base, patch)),
        (_, patch) => patch,
    }
}

fn merge_fields(mut base: Map<String, Value>, patch: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in patch {
        let key = NAMED_LISTS.iter().find(|(list, _)| **list == name).map(|(_, key)| *key);
        let merged = match (base.remove(&name), value, key) {
            (Some(Value::Array(elements)), Value::Array(own), Some(key)) => {
                Value::Array(merge_named(elements, own, key))
            }
            // `null` removes a field.
            (_, Value::Null, _) => continue,
            (Some(old), value, _) => merge(old, value),
            (None, value, _) => value,
        };
        base.insert(name, merged);
    }
    base
}

fn merge_named(mut elements: Vec<Value>, own: Vec<Value>, key: &str) -> Vec<Value> {
    for patch in own {
        let name = patch.get(key).cloned();
        match elements.iter_mut().find(|element| name.is_some() && element.get(key) == name.as_ref()) {
            // A variable has either a value or a source.
            Some(element) if key == "name" => *element = patch,
            Some(element) => *element = merge(element.take(), patch),
            None => elements.push(patch),
        }
    }
    elements
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_merged_as_kubernetes_does() {
        let check = |template: Value, own: Value, expected: Value| assert_eq!(over(template, &own), expected);
        check(json!({"image": "a", "args": ["x"]}), json!({"image": "auto"}), json!({"image": "a", "args": ["x"]}));
        let (template, of_template) = (json!({"image": "a", "imagePullPolicy": "Never"}), json!("Never"));
        let with = |image: &str, policy: &str| {
            over(template.clone(), &json!({"image": image, "imagePullPolicy": policy}))["imagePullPolicy"].clone()
        };
        assert_eq!(with("auto", "Always"), of_template, "Kubernetes has set it");
        assert_eq!(with("auto", "IfNotPresent"), json!("IfNotPresent"));
        assert_eq!(with("b", "Always"), json!("Always"));
        check(
            json!({"image": "a", "args": ["x"]}),
            json!({"image": "b", "args": []}),
            json!({"image": "b", "args": []}),
        );
        check(
            json!({"resources": {"requests": {"cpu": "1", "memory": "2"}}}),
            json!({"resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}}),
            json!({"resources": {"requests": {"cpu": "3", "memory": "2"}, "limits": {"cpu": "4"}}}),
        );
        check(
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}),
            json!({"env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]}),
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]}),
        );
        check(
            json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}),
            json!({"volumeMounts": [{"name": "b", "mountPath": "/b"}]}),
            json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]}),
        );
        check(json!({"readinessProbe": {"periodSeconds": 1}}), json!({"readinessProbe": null}), json!({}));
    }
}
