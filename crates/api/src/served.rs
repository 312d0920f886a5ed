//! Objects of an API server: JSON, without lines.

use std::sync::Arc;

use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostics, Severity, SourceId, Span};
use serde_json::Value;

use crate::load::{DEFAULT_NAMESPACE, read_document};
use crate::resource::kind_named;
use crate::{Object, ObjectKey, refused};

/// Reads an object from an API server. As with [`load`](crate::load), an object with an error gives nothing, or a
/// stand-in if it is a security object. Findings name the object by its reference.
pub fn load_object(source: &SourceId, json: &Value) -> (Vec<Object>, Diagnostics) {
    let place = Span::of_object(reference(source, json));
    let (mut objects, mut found) = (Vec::new(), Diagnostics::new());
    read_document(Node::from_json(json, &place), &mut objects, &mut found);
    let generation = json.pointer("/metadata/generation").and_then(Value::as_i64);
    for object in &mut objects {
        object.source = source.clone();
        object.generation = generation;
        object.origin = place.clone();
    }
    // Notes about fields without effect on one machine are dropped: in a cluster these fields have an effect.
    let found = found.into_iter().filter(|finding| finding.severity > Severity::Info).map(|mut finding| {
        if let Some(object) = &mut finding.object {
            Arc::make_mut(object).source = source.clone();
        }
        finding
    });
    (objects, found.collect())
}

impl ObjectKey {
    /// The key of an object from an API server, or of the stand-in that closes for it; `None` if its kind is not known.
    pub fn of_json(json: &Value) -> Option<Self> {
        let text = |pointer: &str| json.pointer(pointer)?.as_str().filter(|text| !text.is_empty());
        let version = text("/apiVersion")?;
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let Some(kind) = kind_named(group, text("/kind")?) else {
            return refused::stand_in_key(group, text("/kind")?, text("/metadata/namespace"), text("/metadata/name")?);
        };
        let namespace =
            if kind.is_namespaced() { text("/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE) } else { "" };
        Some(Self { kind, namespace: namespace.into(), name: text("/metadata/name")?.into() })
    }
}

/// The [`ObjectRef`](evenkeel_base::ObjectRef) of JSON that may not be a valid object.
fn reference(source: &SourceId, json: &Value) -> String {
    let text = |pointer: &str| json.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (version, kind) = (text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or("?"));
    let group = version.split_once('/').map(|(group, _)| group);
    let is_namespaced = kind_named(group.unwrap_or_default(), kind).is_none_or(|kind| kind.is_namespaced());
    let namespace = is_namespaced.then(|| text("/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE));
    let kind = group.map_or_else(|| kind.to_owned(), |group| format!("{kind}.{group}"));
    let parts = [Some(source.name()), Some(&kind), namespace, Some(text("/metadata/name").unwrap_or("?"))];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Rank;
    use serde_json::json;

    use super::*;

    fn load(json: &Value) -> (Vec<Object>, String) {
        let (objects, found) = load_object(&SourceId::new("kubernetes", Rank(200)), json);
        (objects, found.to_string())
    }

    #[test]
    fn what_an_api_server_gives_is_named_by_its_reference() {
        let mut route = json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {"name": "a", "namespace": "shop", "generation": 3, "resourceVersion": "7", "uid": "x"},
            "spec": {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]},
        });
        let (objects, found) = load(&route);
        assert_eq!(found, "", "what means something in a cluster has its effect there");
        let [object] = &objects[..] else { panic!("{objects:?}") };
        assert_eq!(object.reference().to_string(), object.origin.to_string());
        assert_eq!(ObjectKey::of_json(&route), Some(object.key()));
        assert_eq!(object.generation, Some(3));
        // A change of what the API server itself counts is no change.
        route["metadata"]["resourceVersion"] = json!("8");
        assert!(load(&route).0[0].same_as_written(object));
        route["spec"]["hosts"] = json!(["b"]);
        assert!(!load(&route).0[0].same_as_written(object));
        route["spec"]["hosts"] = json!(7);
        let (objects, found) = load(&route);
        assert!(objects.is_empty() && found.contains("shop/a: error[wrong-type]: `spec.hosts`"), "{found}");
    }

    #[test]
    fn what_is_refused_closes_what_it_would_have_judged() {
        let policy = json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "AuthorizationPolicy",
            "metadata": {"name": "a", "namespace": "shop"},
            "spek": {},
        });
        let (objects, found) = load(&policy);
        let [object] = &objects[..] else { panic!("{objects:?}") };
        assert!(object.refused.is_some() && found.contains("error[unknown-field]"), "{found}");
        assert_eq!(object.origin.to_string(), "kubernetes/AuthorizationPolicy.security.istio.io/shop/a");
        assert_eq!(object.source.name(), "kubernetes");
    }

    #[test]
    fn what_closes_for_a_kind_that_is_not_supported_has_a_key() {
        let plugin = json!({
            "apiVersion": "extensions.istio.io/v1alpha1",
            "kind": "WasmPlugin",
            "metadata": {"name": "a", "namespace": "shop"},
            "spec": {"phase": "AUTHZ"},
        });
        let (objects, found) = load(&plugin);
        let [object] = &objects[..] else { panic!("{objects:?}") };
        assert_eq!(ObjectKey::of_json(&plugin), Some(object.key()));
        assert_eq!(object.origin.to_string(), "kubernetes/WasmPlugin.extensions.istio.io/shop/a");
        assert!(found.contains("unsupported-kind"), "{found}");
        assert_eq!(ObjectKey::of_json(&json!({"apiVersion": "a.b/v1", "kind": "X", "metadata": {"name": "a"}})), None);
    }

    #[test]
    fn what_is_no_object_is_told_and_nothing_more() {
        for json in [json!(null), json!([]), json!({"kind": "List", "apiVersion": "v1", "items": [1]}), json!("x")] {
            let (objects, found) = load(&json);
            assert!(objects.is_empty() && found.contains("kubernetes/"), "{json}: {found}");
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        assert_eq!(load(&namespace).0[0].origin.to_string(), "kubernetes/Namespace/shop");
    }
}
