//! The positions of objects' fields in the user's files.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_api::{APPLIED_FROM_ANNOTATION, relocated};
use evenkeel_base::yaml::{self, Node};
use evenkeel_base::{APPLIED_FROM, Span};
use serde::{Serialize, Serializer};

use crate::stand_ins;

/// A place in the user's files, and the object that is written there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// The object, as `KIND NAMESPACE/NAME`.
    pub object: String,
    /// Its file; `null` if it was not read from one. For people an applied object's says so.
    #[serde(serialize_with = "path")]
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
}

/// The file's path alone.
fn path<S: Serializer>(file: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    file.as_deref().map(|file| file.strip_prefix(APPLIED_FROM).unwrap_or(file)).serialize(serializer)
}

impl Source {
    /// An object, or a rule of it, at a position.
    pub fn at(object: impl Into<String>, span: &Span) -> Self {
        let known = span.line > 0 && &*span.file != stand_ins::FILE;
        let position = |n: u32| known.then_some(n);
        Self {
            object: object.into(),
            file: known.then(|| span.file.to_string()),
            line: position(span.line),
            column: position(span.column),
        }
    }

    /// `FILE:LINE`; `None` if it was not read from a file.
    pub fn position(&self) -> Option<String> {
        Some(format!("{}:{}", self.file.as_ref()?, self.line?))
    }
}

/// The files, parsed when a position in them is first needed.
#[derive(Debug, Default)]
pub struct Places {
    texts: BTreeMap<Arc<str>, Arc<str>>,
    parsed: RefCell<HashMap<Arc<str>, Rc<Vec<Node>>>>,
}

impl Places {
    /// Creates the positions of these files.
    pub fn new(texts: BTreeMap<Arc<str>, Arc<str>>) -> Self {
        Self { texts, parsed: RefCell::default() }
    }

    /// The files.
    pub fn texts(&self) -> &BTreeMap<Arc<str>, Arc<str>> {
        &self.texts
    }

    /// The position of a field, or of its nearest ancestor that is written, in the object whose name is at `origin`.
    pub fn field(&self, origin: &Span, path: &str) -> Span {
        let nodes = self.nodes(&origin.file);
        let object = nodes.iter().find_map(|node| object_at(node, origin));
        object.map_or_else(|| origin.clone(), |object| object.span_of_path(path).clone())
    }

    /// The value of a field, if it is written.
    pub fn node(&self, origin: &Span, path: &str) -> Option<Node> {
        let nodes = self.nodes(&origin.file);
        nodes.iter().find_map(|node| object_at(node, origin))?.at_path(path).cloned()
    }

    /// The stored objects that were applied from a file, as if they were still in there.
    fn applied(&self, file: &Arc<str>) -> Vec<Node> {
        let stored = self.texts.iter().filter(|(_, text)| text.contains(APPLIED_FROM_ANNOTATION));
        let nodes = stored.flat_map(|(path, text)| yaml::parse(path, text).0).map(relocated);
        nodes.filter(|node| node.span.file == *file).collect()
    }

    fn nodes(&self, file: &Arc<str>) -> Rc<Vec<Node>> {
        let mut parsed = self.parsed.borrow_mut();
        if let Some(nodes) = parsed.get(file) {
            return Rc::clone(nodes);
        }
        let nodes = if file.starts_with(APPLIED_FROM) {
            self.applied(file)
        } else {
            self.texts.get(file).map(|text| yaml::parse(file, text).0).unwrap_or_default()
        };
        let nodes = Rc::new(nodes);
        parsed.insert(file.clone(), Rc::clone(&nodes));
        nodes
    }
}

/// The object whose name is written at `origin`: the document, or an item of a List.
fn object_at<'n>(document: &'n Node, origin: &Span) -> Option<&'n Node> {
    let is_it = |node: &Node| node.at_path("metadata.name").is_some_and(|name| name.span == *origin);
    if is_it(document) {
        return Some(document);
    }
    document.get("items")?.as_sequence()?.iter().find(|item| is_it(item))
}
