//! Objects that were applied to a running mesh and take precedence over those in its files.
//!
//! Such an object is stored like any other, with an annotation that marks it. It takes precedence over objects of the
//! same name in files. If it is marked as deleted, no object of that name is in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_base::yaml::{self, Node};

use crate::load::DEFAULT_NAMESPACE;
use crate::resource::{Named, named};
use crate::{Kind, Object};

/// Annotation of an applied object: a digest of the object that it replaced; empty if there was none.
pub const APPLIED_ANNOTATION: &str = "local.evenkeel.dev/applied-over";
/// Annotation (`"true"`) of an applied object that records a deletion.
pub const DELETED_ANNOTATION: &str = "local.evenkeel.dev/deleted";

impl Object {
    /// Whether it was applied to a running mesh.
    pub fn is_applied(&self) -> bool {
        self.annotations.contains_key(APPLIED_ANNOTATION)
    }

    /// Whether it records the deletion of the object.
    pub fn is_deletion(&self) -> bool {
        self.is_applied() && self.annotations.get(DELETED_ANNOTATION).is_some_and(|value| value.value == "true")
    }
}

/// Keeps one object of each name: an applied one if there is one, otherwise the first. Deleted ones are left out.
pub fn in_force(objects: Vec<Object>) -> Vec<Object> {
    let (applied, written): (Vec<Object>, Vec<Object>) = objects.into_iter().partition(Object::is_applied);
    let mut names = BTreeSet::new();
    let mut first = |object: &Object| names.insert(object.key());
    let mut all: Vec<Object> = applied.into_iter().chain(written).filter(|object| first(object)).collect();
    all.retain(|object| !object.is_deletion());
    all
}

/// An object of a supported kind, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace, if it has one.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: Arc<str>,
    /// The whole object.
    pub json: serde_json::Value,
    /// It, with the positions at which it is written.
    pub node: Node,
}

impl Document {
    /// Its namespace; empty for kinds without.
    pub fn namespace(&self) -> Arc<str> {
        match (&self.namespace, self.kind.is_namespaced()) {
            (_, false) => "".into(),
            (Some(namespace), true) => namespace.clone(),
            (None, true) => DEFAULT_NAMESPACE.into(),
        }
    }

    /// The name that `kubectl` prints: `virtualservice.networking.istio.io/ratings`, `service/details`.
    pub fn resource_name(&self) -> String {
        let kind = self.kind.as_str().to_lowercase();
        match self.kind.group() {
            "" => format!("{kind}/{}", self.name),
            group => format!("{kind}.{group}/{}", self.name),
        }
    }
}

/// The objects of a text as they are written. Anything that is not an object of a supported kind is left out.
/// [`load`](crate::load) reports their mistakes.
pub fn documents(path: &Arc<str>, text: &str) -> Vec<Document> {
    let (documents, _) = yaml::parse(path, text);
    let items = |list: &Node| list.get("items").and_then(Node::as_sequence).map(<[Node]>::to_vec).unwrap_or_default();
    let is_list = |node: &Node| node.get("kind").and_then(Node::as_str) == Some("List");
    let all = documents.into_iter().flat_map(|node| if is_list(&node) { items(&node) } else { vec![node] });
    all.filter_map(|node| document(&node)).collect()
}

fn document(node: &Node) -> Option<Document> {
    let text = |name: &str| node.get(name).and_then(Node::as_str);
    let Named::Supported(kind) = named(text("apiVersion")?, text("kind")?) else { return None };
    let said = |name: &str| node.get("metadata")?.get(name)?.as_str().map(Arc::from);
    Some(Document { kind, namespace: said("namespace"), name: said("name")?, json: node.to_json(), node: node.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_comes_first_and_what_was_deleted_is_gone() {
        let object = |file: &str, name: &str, annotations: &str| {
            let text = format!(
                "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n"
            );
            let (objects, found) = crate::load(&[(file.into(), text.into())]);
            assert!(found.is_empty(), "{found}");
            objects
        };
        let applied = format!("{APPLIED_ANNOTATION}: x");
        let deleted = format!("{applied}, {DELETED_ANNOTATION}: \"true\"");
        let all = [
            object("a.yaml", "kept", ""),
            object("a.yaml", "changed", ""),
            object("a.yaml", "gone", ""),
            object("z.yaml", "changed", &applied),
            object("z.yaml", "gone", &deleted),
        ];
        let left = in_force(all.concat());
        let names: Vec<String> = left.iter().map(|object| format!("{} {}", object.name, object.origin.file)).collect();
        assert_eq!(names, ["changed z.yaml", "kept a.yaml"]);
    }

    #[test]
    fn documents_are_named_as_kubectl_does() {
        let text = "apiVersion: v1\nkind: List\nitems:\n  - {apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}}\n\
                    ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: ratings}\n---\n\
                    apiVersion: example.com/v1\nkind: Other\nmetadata: {name: c}\n";
        let found = documents(&"a.yaml".into(), text);
        let names: Vec<String> = found.iter().map(|d| format!("{} {}", d.resource_name(), d.namespace())).collect();
        assert_eq!(names, ["service/a b", "virtualservice.networking.istio.io/ratings default"]);
    }
}
