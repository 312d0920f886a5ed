//! Reads files into objects.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use evenkeel_base::limits::{MAX_DIAGNOSTICS_PER_FILE, MAX_FINDINGS_PER_FILE};
use evenkeel_base::yaml::{Mapping, Node, Parsed, Value};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, SourceId, Span};

use crate::annotations;
use crate::applied_from::relocated;
use crate::decode::{Context, Decode};
use crate::foreign::{self, foreign_file};
use crate::istio::MeshConfig;
use crate::kustomize;
use crate::local::{is_local_file, read_local};
use crate::refused;
use crate::resource::{Named, named, substitute};
use crate::unread::unread;
use crate::{Guarded, Kind, Object, ObjectKey, ObjectMeta, Refusal};

/// The namespace of objects that do not name one.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

/// Reads all documents of files given as (path, text). A document with an error does not affect others. It gives no
/// object, or if it is a security object, a stand-in that closes what it might protect ([`Object::refused`]);
/// [`Diagnostics::has_errors_in`] tells which files have such documents. Documents are not compared with each other;
/// the model does that.
pub fn load(files: &[(Arc<str>, Arc<str>)]) -> (Vec<Object>, Diagnostics) {
    let mut objects = Vec::new();
    let mut diagnostics = Diagnostics::new();
    for (path, text) in files {
        if is_local_file(path) {
            diagnostics.extend(limited(read_local(path, text).1, path));
            continue;
        }
        let Parsed { documents, broken, diagnostics: mut found } = foreign::parse(path, text);
        let lines: Vec<&str> = text.lines().collect();
        let of_file = objects.len();
        let mistakes: Vec<Refusal> = found.iter().map(Refusal::of).collect();
        for (part, mistake) in broken.into_iter().zip(mistakes) {
            let known = objects.len();
            let span = Span::at(path.clone(), part.start, 1);
            let text = lines_of(&lines, part.start, part.end.saturating_sub(1)).join("\n");
            objects.extend(refused::of_text(&text, &span, &Arc::new(mistake)));
            let written = written(&lines, part.start, part.end);
            objects.iter_mut().skip(known).for_each(|object| object.text = written);
        }
        if let Some(foreign) = foreign_file(path, text, &documents, &found, objects.len() > of_file) {
            let found = found.into_iter().filter(|finding| finding.severity != Severity::Error);
            let kustomizations = documents.iter().filter(|document| kustomize::is_kustomization(document));
            diagnostics.extend(found.chain([foreign]).chain(kustomizations.map(kustomize::finding)));
            continue;
        }
        for document in documents {
            let (start, end) = (document.span.line, document.span.end_line);
            let known = objects.len();
            read_document(document, &mut objects, &mut found);
            let written = written(&lines, start, end);
            objects.iter_mut().skip(known).for_each(|object| object.text = written);
        }
        if let Some(template) = foreign::template(path, text, &found) {
            // What stands in for a security object stays: nothing is opened by a template.
            let closing: Vec<Object> = objects.drain(of_file..).filter(|object| object.refused.is_some()).collect();
            objects.extend(closing);
            found = std::iter::once(template).collect();
        }
        diagnostics.extend(limited(found, path));
    }
    diagnostics.sort();
    (objects, diagnostics)
}

/// The hash of a document's lines and position, without comments and empty lines at its end.
fn written(lines: &[&str], start: u32, end: u32) -> u64 {
    let mut document = lines_of(lines, start, end);
    while let Some((_, rest)) = document.split_last().filter(|(last, _)| is_blank(last)) {
        document = rest;
    }
    let mut hasher = DefaultHasher::new();
    (start, document).hash(&mut hasher);
    hasher.finish()
}

/// Lines counted from 1, both ends included.
fn lines_of<'l, 't>(lines: &'l [&'t str], start: u32, end: u32) -> &'l [&'t str] {
    let (start, end) = (start.saturating_sub(1) as usize, (end as usize).min(lines.len()));
    lines.get(start.min(end)..end).unwrap_or_default()
}

fn is_blank(line: &str) -> bool {
    let text = line.trim_start();
    text.is_empty() || text.starts_with('#')
}

/// The finding for a file that cannot be read, with the operating system's reason.
pub fn unreadable(path: &str, reason: impl fmt::Display) -> Diagnostic {
    Diagnostic::error("unreadable-file", Span::whole_file(path), format!("cannot read the file: {reason}"))
        .with_help("check that it exists, may be read, and is UTF-8 text")
}

/// Stand-ins for the objects of a file that cannot be read. `text` is what can be read of it, `finding` says why the
/// rest cannot.
pub fn unreadable_objects(path: &Arc<str>, text: Option<&str>, finding: &Diagnostic) -> Vec<Object> {
    let refusal = Refusal::of(finding);
    match text {
        Some(text) => refused::of_text(text, &Span::whole_file(path.clone()), &Arc::new(refusal)),
        None => refused::everything(path, refusal),
    }
}

/// The newest version of a kind.
fn version_of(kind: &str) -> Option<String> {
    Kind::ALL.iter().find(|known| known.as_str() == kind)?.api_versions().next()
}

/// Limits the findings of one file, so that they do not bury those of others. Errors are kept first, then the others in
/// order.
fn limited(found: Diagnostics, path: &str) -> impl IntoIterator<Item = Diagnostic> {
    let total = found.len();
    let mut kept: Vec<Diagnostic> = found.into_iter().collect();
    if total > MAX_DIAGNOSTICS_PER_FILE {
        kept.sort_by_key(|d| std::cmp::Reverse(d.severity));
        kept.truncate(MAX_DIAGNOSTICS_PER_FILE);
        let message = format!("{} more findings in this file", total - MAX_DIAGNOSTICS_PER_FILE);
        kept.push(Diagnostic::new(Severity::Warning, "too-many-findings", Span::whole_file(path), message));
    }
    kept
}

/// Reads a document, or makes its stand-in if it is refused.
pub(crate) fn read_document(document: Node, objects: &mut Vec<Object>, diagnostics: &mut Diagnostics) {
    let document = relocated(document);
    if diagnostics.len() >= MAX_FINDINGS_PER_FILE {
        // One such error is enough to refuse the file.
        if diagnostics.iter().next_back().is_none_or(|last| last.code != "file-not-read") {
            let message = "too many findings: the file is not read from this document on";
            let finding = Diagnostic::error("file-not-read", document.span.clone(), message);
            diagnostics.push(finding.with_help("correct the earlier findings first"));
        }
        let last = diagnostics.iter().next_back().map(Refusal::of);
        objects.extend(last.into_iter().flat_map(|last| refused::stand_ins(&document, &Arc::new(last))));
        return;
    }
    let before = diagnostics.len();
    // Reading consumes the document.
    let copy = refused::may_guard(&document).then(|| document.clone());
    read_sound(document, objects, diagnostics);
    let mistake = diagnostics.iter().skip(before).find(|finding| finding.severity == Severity::Error);
    if let (Some(copy), Some(mistake)) = (copy, mistake) {
        objects.extend(refused::stand_ins(&copy, &Arc::new(Refusal::of(mistake))));
    }
}

fn read_sound(document: Node, objects: &mut Vec<Object>, diagnostics: &mut Diagnostics) {
    let (kind_node, version_node) = (document.get("kind"), document.get("apiVersion"));
    if document.as_mapping().is_none() {
        let message = format!("expected a Kubernetes object, found {}", document.type_name());
        let help = "an object has `apiVersion`, `kind`, `metadata` and usually `spec`";
        diagnostics.push(Diagnostic::error("not-an-object", document.span, message).with_help(help));
        return;
    }
    let (Some(kind), Some(api_version)) = (kind_node.and_then(Node::as_str), version_node.and_then(Node::as_str))
    else {
        let version = kind_node.and_then(Node::as_str).and_then(version_of);
        let version = version.unwrap_or_else(|| "v1".to_owned());
        for (name, node, example) in [("kind", kind_node, "Service"), ("apiVersion", version_node, &*version)] {
            if node.and_then(Node::as_str).is_none() {
                let span = node.map_or(&document.span, |n| &n.span).clone();
                let message = format!("`{name}`: this field is required");
                diagnostics.push(
                    Diagnostic::error("missing-field", span, message).with_help(format!("e.g. `{name}: {example}`")),
                );
            }
        }
        return;
    };
    if kustomize::is_kustomization(&document) {
        diagnostics.push(kustomize::finding(&document));
        return;
    }
    if kind == "List" && api_version == "v1" {
        return read_list(document, objects, diagnostics);
    }
    let kind_span = kind_node.map_or(&document.span, |n| &n.span).clone();
    let version_span = version_node.map_or(&document.span, |n| &n.span).clone();
    let stand_ins = refused::unsupported(&document, api_version, kind);
    if let Some(stand_in) = stand_ins.first() {
        diagnostics.push(unsupported(stand_in, api_version, kind_span));
        objects.extend(stand_ins);
        return;
    }
    match named(api_version, kind) {
        Named::Supported(kind) => {
            let mut cx = Context::new(kind.owner());
            let (key, object) = read_object(kind, document, kind_span, &mut cx);
            let mesh = object.as_ref().and_then(MeshConfig::read).map(|(_, found)| found).unwrap_or_default();
            let refused = cx.has_errors() || mesh.has_errors();
            let unread = object.as_ref().and_then(unread);
            objects.extend(object.filter(|_| !refused));
            let found = cx.into_diagnostics().into_iter().chain(mesh).chain(unread);
            let reference = key.map(|key| Arc::new(key.at(&SourceId::files())));
            diagnostics.extend(found.map(|finding| Diagnostic { object: reference.clone(), ..finding }));
        }
        Named::Later => {
            if kind == "CustomResourceDefinition" {
                diagnostics.extend(crate::definition::gaps(&document));
            }
            let message =
                format!("the kind {kind} ({api_version}) is known, but not supported yet; this document is ignored");
            diagnostics.push(
                Diagnostic::warning("unsupported-kind", kind_span, message).with_help(substitute(api_version, kind)),
            );
        }
        Named::Foreign(help) if refused::guards(&document) => {
            let message = format!("there is no kind `{kind}` in `{api_version}`");
            diagnostics.push(Diagnostic::error("unknown-kind", kind_span, message).with_help(help));
        }
        Named::Foreign(help) => {
            let message = format!("the kind {kind} ({api_version}) is not known; this document is ignored");
            diagnostics.push(Diagnostic::warning("foreign-kind", kind_span, message).with_help(help));
        }
        Named::Unknown(help) => {
            let message = format!("there is no kind `{kind}` in `{api_version}`");
            diagnostics.push(Diagnostic::error("unknown-kind", kind_span, message).with_help(help));
        }
        Named::OtherVersion(help) => {
            let message = format!("`{api_version}` is not a supported version of {kind}");
            diagnostics.push(Diagnostic::error("unknown-version", version_span, message).with_help(help));
        }
    }
}

/// The finding about an object that protects something, and is not supported. Whether something else is closed for it is
/// known only together with the mesh's options, and reported there.
fn unsupported(stand_in: &Object, api_version: &str, kind_span: Span) -> Diagnostic {
    let is_of_network = stand_in.unsupported().is_some_and(|found| found.guarded == Guarded::Network);
    let (enforced, help) = if is_of_network {
        (
            "the mesh does not enforce it",
            "the network of a cluster enforces it; `evenkeel up` starts only with `--leave-out-refused`",
        )
    } else {
        (
            "what it would have judged is refused instead",
            "remove it if nothing needs it; `--leave-out-refused` runs without it, and lets these calls pass",
        )
    };
    let message = format!("{stand_in} ({api_version}) is known, but not supported: {enforced}");
    Diagnostic::warning("unsupported-kind", kind_span, message).with_help(help).about(stand_in.reference())
}

/// `kind: List`: its items are documents.
fn read_list(document: Node, objects: &mut Vec<Object>, diagnostics: &mut Diagnostics) {
    let Value::Mapping(mapping) = document.value else { return };
    for entry in mapping.0 {
        match (&*entry.key, entry.value) {
            ("apiVersion" | "kind" | "metadata", _) => {}
            ("items", Node { value: Value::Sequence(items), .. }) => {
                for item in items {
                    let nested = item.get("kind").and_then(Node::as_str) == Some("List");
                    if nested {
                        // Tools write one level; more would allow unlimited recursion.
                        let message = "a List inside a List is not supported";
                        let finding = Diagnostic::error("nested-list", item.span.clone(), message);
                        objects.extend(refused::stand_ins(&item, &Arc::new(Refusal::of(&finding))));
                        diagnostics.push(finding.with_help("move its items to the outer List"));
                    } else {
                        read_document(item, objects, diagnostics)
                    }
                }
            }
            ("items", other) if other.is_null() => {}
            ("items", other) => {
                let message = format!("`items`: expected a list, found {}", other.type_name());
                let finding = Diagnostic::error("wrong-type", other.span.clone(), message);
                objects.extend(refused::stand_ins(&other, &Arc::new(Refusal::of(&finding))));
                diagnostics.push(finding.with_help("start each object with `- `"));
            }
            (other, value) => {
                let message = format!("`{other}`: there is no such field");
                let finding = Diagnostic::error("unknown-field", entry.key_span, message);
                objects.extend(refused::stand_ins(&value, &Arc::new(Refusal::of(&finding))));
                diagnostics.push(finding.with_help("the only field here is `items`"));
            }
        }
    }
}

/// Reads an object and its key. The key may be known even if the rest cannot be read.
fn read_object(kind: Kind, document: Node, kind_span: Span, cx: &mut Context) -> (Option<ObjectKey>, Option<Object>) {
    let Node { value: Value::Mapping(Mapping(mut entries)), span } = document else { return (None, None) };
    let metadata = entries.iter().position(|e| &*e.key == "metadata").map(|i| entries.remove(i));
    entries.retain(|e| !matches!(&*e.key, "apiVersion" | "kind"));
    let body = Node { value: Value::Mapping(Mapping(entries)), span };
    let meta = match &metadata {
        Some(entry) => cx.at_field("metadata", |cx| read_meta(kind, &entry.value, cx)),
        None => {
            cx.error("missing-field", &kind_span, "`metadata`: this field is required", "add `metadata: {name: …}`");
            None
        }
    };
    let resource = kind.decode(&body, cx);
    let Some((name, origin, meta)) = meta else { return (None, None) };
    let namespace: Arc<str> = match (&meta.namespace, kind.is_namespaced()) {
        (_, false) => "".into(),
        (Some(namespace), true) => namespace.0.clone(),
        (None, true) => DEFAULT_NAMESPACE.into(),
    };
    let key = ObjectKey { kind, namespace: namespace.clone(), name: name.clone() };
    let object = resource.map(|resource| Object {
        name,
        namespace,
        labels: meta.labels,
        annotations: meta.annotations,
        owners: meta.owner_references,
        ends: meta.deletion_timestamp.is_some(),
        resource,
        origin,
        source: SourceId::files(),
        generation: None,
        text: 0,
        refused: None,
    });
    (Some(key), object)
}

fn read_meta(kind: Kind, node: &Node, cx: &mut Context) -> Option<(Arc<str>, Span, ObjectMeta)> {
    let meta = ObjectMeta::decode(node, cx)?;
    annotations::check(kind.variant(), node, cx);
    if let (Some(_), false) = (&meta.namespace, kind.is_namespaced()) {
        let message = format!("a {kind} does not belong to a namespace");
        cx.at_field("namespace", |cx| cx.error("bad-value", node.span_of_path("namespace"), message, "remove it"));
    }
    match &meta.name {
        Some(name) => Some((name.0.clone(), name.span.clone(), meta)),
        None => {
            cx.at_field("name", |cx| {
                cx.error("missing-field", &node.span, "this field is required", "give the object a name")
            });
            None
        }
    }
}
