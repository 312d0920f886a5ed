//! Where the user wrote an applied object: findings and answers name that file, not the one in which the object is stored.
//!
//! The stored object has the positions of all its fields in an annotation. It is read like any other file, and then its
//! fields get these positions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_base::yaml::{Mapping, Node, Value};
use evenkeel_base::{APPLIED_FROM, Span};
use serde_json::{Map, json};

/// Annotation of an applied object: the file that it was applied from, and where its fields are in there.
pub const APPLIED_FROM_ANNOTATION: &str = "local.evenkeel.dev/applied-from";
/// The name of a file that was read from standard input.
pub const STANDARD_INPUT: &str = "standard input";

/// First line and column, and those after the last character.
type Position = [u32; 4];
/// By path: `/spec/hosts/0`; that of the name of a field ends in `~k`.
type Positions = BTreeMap<String, Position>;

/// The annotation's value for an object as it was read.
pub fn applied_from(object: &Node) -> String {
    let file = match &*object.span.file {
        STANDARD_INPUT => STANDARD_INPUT.to_owned(),
        // Who reads the position later may do so from another directory.
        given => {
            std::path::absolute(Path::new(given)).map_or_else(|_| given.to_owned(), |path| path.display().to_string())
        }
    };
    let mut at = Positions::new();
    note(object, &mut String::new(), &mut at);
    let at: Map<String, serde_json::Value> = at.into_iter().map(|(path, position)| (path, json!(position))).collect();
    json!({ "file": file, "at": at }).to_string()
}

/// The object with the positions of its annotation, if it has one.
pub fn relocated(mut object: Node) -> Node {
    let value = object.at_path("metadata.annotations").and_then(|all| all.get(APPLIED_FROM_ANNOTATION)?.as_str());
    let Some((file, at)) = value.and_then(read) else { return object };
    let places = Places { file: format!("{APPLIED_FROM}{file}").into(), at };
    places.give(&mut object, &mut String::new(), &Span::whole_file(places.file.clone()));
    object
}

/// The file, and the positions in it; `None` if somebody else has written the annotation.
fn read(annotation: &str) -> Option<(String, Positions)> {
    let value: serde_json::Value = serde_json::from_str(annotation).ok()?;
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
    let position = |value: &serde_json::Value| -> Option<Position> {
        value.as_array()?.iter().map(number).collect::<Option<Vec<u32>>>()?.try_into().ok()
    };
    let at = value["at"].as_object()?.iter().map(|(path, value)| Some((path.clone(), position(value)?)));
    Some((value["file"].as_str()?.to_owned(), at.collect::<Option<_>>()?))
}

fn note(node: &Node, path: &mut String, at: &mut Positions) {
    let position = |span: &Span| [span.line, span.column, span.end_line, span.end_column];
    at.insert(path.clone(), position(&node.span));
    each(node, path, |path, key, child| {
        if let Some(key) = key {
            at.insert(name_of(path), position(key));
        }
        note(child, path, at);
    });
}

/// Calls `visit` with each child, its path and the position of its name.
fn each(node: &Node, path: &mut String, mut visit: impl FnMut(&mut String, Option<&Span>, &Node)) {
    let length = path.len();
    let mut visit_at = |path: &mut String, step: &str, key: Option<&Span>, child: &Node| {
        path.push_str(step);
        visit(path, key, child);
        path.truncate(length);
    };
    match &node.value {
        Value::Scalar(_) => {}
        Value::Sequence(items) => {
            items.iter().enumerate().for_each(|(index, item)| visit_at(path, &format!("/{index}"), None, item));
        }
        Value::Mapping(Mapping(entries)) => {
            entries.iter().for_each(|entry| visit_at(path, &step(&entry.key), Some(&entry.key_span), &entry.value));
        }
    }
}

fn step(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn name_of(path: &str) -> String {
    format!("{path}~k")
}

/// Positions in a file.
struct Places {
    file: Arc<str>,
    at: Positions,
}

impl Places {
    /// Gives a node its position; what was not written there (the namespace of a flag) has that of `around`.
    fn give(&self, node: &mut Node, path: &mut String, around: &Span) {
        node.span = self.span(path).unwrap_or_else(|| around.clone());
        let length = path.len();
        match &mut node.value {
            Value::Scalar(_) => {}
            Value::Sequence(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    path.push_str(&format!("/{index}"));
                    self.give(item, path, &node.span);
                    path.truncate(length);
                }
            }
            Value::Mapping(Mapping(entries)) => {
                for entry in entries {
                    path.push_str(&step(&entry.key));
                    entry.key_span = self.span(&name_of(path)).unwrap_or_else(|| node.span.clone());
                    self.give(&mut entry.value, path, &node.span);
                    path.truncate(length);
                }
            }
        }
    }

    fn span(&self, path: &str) -> Option<Span> {
        let [line, column, end_line, end_column] = *self.at.get(path)?;
        Some(Span { file: self.file.clone(), line, column, end_line, end_column })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_object_is_where_the_user_wrote_it() {
        let check = |file: &str, expected: &str| {
            let text = "# first\nkind: ServiceAccount\napiVersion: v1\nmetadata:\n  name: a\n  labels: {a/b: c, d~e: f}\nsecrets: [{name: x}, {name: y}]\n";
            let (documents, _) = evenkeel_base::yaml::parse(&file.into(), text);
            let written = documents.first().expect("one");
            let mut json = written.to_json();
            json["metadata"]["namespace"] = "shop".into();
            json["metadata"]["annotations"] = serde_json::json!({ APPLIED_FROM_ANNOTATION: applied_from(written) });
            let (stored, _) = evenkeel_base::yaml::parse(&"/state/a.json".into(), &json.to_string());
            let found = relocated(stored.into_iter().next().expect("one"));
            let places = ["metadata.name", "metadata.labels.d~e", "secrets[1].name", "metadata.namespace"];
            let places = places.map(|path| found.span_of_path(path).to_string());
            assert_eq!(places, ["5:3", "6:20", "7:23", "5:3"].map(|place| format!("{expected}:{place}")), "{file}");
            assert_eq!(found.at_path("metadata.name").expect("it is there").span.end_column, 10);
        };
        check("/shop/a.yaml", "applied from /shop/a.yaml");
        check("standard input", "applied from standard input");
        let here = std::env::current_dir().expect("there is one");
        check("a.yaml", &format!("applied from {}/a.yaml", here.display()));
    }

    #[test]
    fn what_is_no_annotation_changes_nothing() {
        let check = |annotation: &str| {
            let text = format!("metadata: {{annotations: {{{APPLIED_FROM_ANNOTATION}: {annotation}}}}}\n");
            let (documents, _) = evenkeel_base::yaml::parse(&"a.yaml".into(), &text);
            let node = documents.into_iter().next().expect("one");
            assert_eq!(relocated(node.clone()), node, "{annotation}");
        };
        check("x");
        check("'{}'");
        check("'{\"file\": \"a\", \"at\": {\"\": [1]}}'");
        check("[1]");
    }
}
