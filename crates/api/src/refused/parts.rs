//! Reads the readable parts of a refused document, and creates the object that takes its place.

use crate::decode::{Context, Decode};
use crate::object::{Object, Refusal};
use crate::resource::Resource;
use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::{Mapping, Node, Scalar, Value};
use evenkeel_base::{SourceId, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The API group of the security kinds.
pub(super) const SECURITY: &str = "security.istio.io";

pub(super) fn made(
    name: Arc<str>,
    namespace: Arc<str>,
    origin: Span,
    resource: Resource,
    refusal: Arc<Refusal>,
) -> Object {
    Object {
        name,
        namespace,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        owners: Vec::new(),
        ends: false,
        resource,
        origin,
        source: SourceId::files(),
        generation: None,
        text: 0,
        refused: Some(refusal),
    }
}

/// A name for an object whose name cannot be read: `policies.yaml:12`.
pub(super) fn name_at(span: &Span) -> Arc<str> {
    let file = span.file.rsplit('/').next().unwrap_or_default();
    format!("{file}:{}", span.line).into()
}

/// Returns the labels that can be read; they select the intended workloads and possibly more.
pub(super) fn selector(document: &Mapping) -> BTreeMap<String, String> {
    labels(document.get("spec").and_then(|spec| spec.get("selector")).and_then(|s| s.get("matchLabels")))
}

pub(super) fn labels(labels: Option<&Node>) -> BTreeMap<String, String> {
    let pair = |(name, value): (&str, &Node)| Some((name.to_owned(), value.as_str()?.to_owned()));
    let entries = labels.and_then(Node::as_mapping).into_iter().flatten();
    entries.filter_map(|entry| pair((&*entry.key, &entry.value))).collect()
}

/// The value of a field, or of a field whose name looks like a misspelling of it.
pub(super) fn near<'n>(mapping: &'n Mapping, name: &str) -> Option<&'n Node> {
    mapping.get(name).or_else(|| {
        let meant = mapping.iter().find(|entry| closest(&entry.key, [name]).is_some());
        meant.map(|entry| &entry.value)
    })
}

/// Returns the text of a scalar, whatever its type.
pub(super) fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(Scalar { text, .. }) if !node.is_null() => Some(text),
        _ => None,
    }
}

/// Decodes a value that has no mistake.
pub(super) fn sound<T: Decode>(node: &Node) -> Option<T> {
    let mut cx = Context::new("Istio");
    T::decode(node, &mut cx).filter(|_| !cx.has_errors())
}
