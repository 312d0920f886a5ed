//! The tree.

use crate::Span;

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written. For a mapping or sequence: its first entry.
    pub span: Span,
}

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text, number, boolean or nothing.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// Names with values.
    Mapping(Mapping),
}

/// A scalar as written and as YAML's core schema reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// The text, unescaped and without quotes.
    pub text: Box<str>,
    /// Whether it was quoted or a block (`|`, `>`): then it is a string, whatever it looks like.
    pub quoted: bool,
    /// Its type.
    pub ty: ScalarType,
}

/// The types of YAML 1.2's core schema (section 10.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarType {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number, also `0x` and `0o`.
    Int(i128),
    /// A number with a fraction or exponent, `.inf`, `.nan`.
    Float(f64),
    /// Text.
    Str,
}

/// Entries in the order written; names are unique.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mapping(pub Vec<Entry>);

/// One name with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name; a key that is a number or boolean keeps its text.
    pub key: Box<str>,
    /// Where the name was written.
    pub key_span: Span,
    /// The value.
    pub value: Node,
}

impl Mapping {
    /// The value under a name.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The entry of a name.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| &*entry.key == key)
    }

    /// All entries in the order written.
    pub fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Mapping {
    type Item = &'a Entry;
    type IntoIter = std::slice::Iter<'a, Entry>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Node {
    /// The mapping, if it is one.
    pub fn as_mapping(&self) -> Option<&Mapping> {
        match &self.value {
            Value::Mapping(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// The list, if it is one.
    pub fn as_sequence(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Sequence(items) => Some(items),
            _ => None,
        }
    }

    /// The text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(Scalar { text, ty: ScalarType::Str, .. }) => Some(text),
            _ => None,
        }
    }

    /// Whether it is `null` or nothing.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(Scalar { ty: ScalarType::Null, .. }))
    }

    /// The value under a name, if this is a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.as_mapping()?.get(key)
    }

    /// Returns its type for messages: `a string`, `a list`, ….
    pub fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Sequence(_) => "a list",
            Value::Mapping(_) => "a mapping",
            Value::Scalar(scalar) => match scalar.ty {
                ScalarType::Null => "nothing",
                ScalarType::Bool(_) => "a boolean",
                ScalarType::Int(_) => "a whole number",
                ScalarType::Float(_) => "a number",
                ScalarType::Str => "a string",
            },
        }
    }

    /// Returns the value as JSON. Numbers JSON cannot hold (`.inf`, `.nan`) become the strings protobuf's JSON form uses.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::{Number, Value as Json};
        match &self.value {
            Value::Sequence(items) => Json::Array(items.iter().map(Node::to_json).collect()),
            Value::Mapping(mapping) => {
                Json::Object(mapping.iter().map(|e| (e.key.to_string(), e.value.to_json())).collect())
            }
            Value::Scalar(scalar) => match scalar.ty {
                ScalarType::Null => Json::Null,
                ScalarType::Bool(value) => Json::Bool(value),
                ScalarType::Str => Json::String(scalar.text.to_string()),
                ScalarType::Int(value) => {
                    Number::from_i128(value).map_or_else(|| Json::String(scalar.text.to_string()), Json::Number)
                }
                ScalarType::Float(value) => match Number::from_f64(value) {
                    Some(number) => Json::Number(number),
                    None if value.is_nan() => Json::String("NaN".into()),
                    None if value > 0.0 => Json::String("Infinity".into()),
                    None => Json::String("-Infinity".into()),
                },
            },
        }
    }

    /// Makes a tree from JSON that was not read from a file: all of its nodes have the position `span`.
    pub fn from_json(json: &serde_json::Value, span: &Span) -> Self {
        use serde_json::Value as Json;
        let scalar = |text: String, quoted: bool, ty| Value::Scalar(Scalar { text: text.into(), quoted, ty });
        let value = match json {
            Json::Null => scalar("null".to_owned(), false, ScalarType::Null),
            Json::Bool(value) => scalar(value.to_string(), false, ScalarType::Bool(*value)),
            Json::String(text) => scalar(text.clone(), true, ScalarType::Str),
            Json::Number(number) => {
                let whole = number.as_i128().map(ScalarType::Int);
                let ty = whole.or_else(|| number.as_f64().map(ScalarType::Float)).unwrap_or(ScalarType::Str);
                scalar(number.to_string(), false, ty)
            }
            Json::Array(items) => Value::Sequence(items.iter().map(|item| Self::from_json(item, span)).collect()),
            Json::Object(entries) => {
                let entry = |(key, value): (&String, &Json)| Entry {
                    key: key.as_str().into(),
                    key_span: span.clone(),
                    value: Self::from_json(value, span),
                };
                Value::Mapping(Mapping(entries.iter().map(entry).collect()))
            }
        };
        Self { value, span: span.clone() }
    }

    /// The node at a path such as `static_resources.listeners[0].name`. A step that is not found as written is looked
    /// up in the other of protobuf's two spellings (`static_resources`, `staticResources`).
    pub fn at_path(&self, path: &str) -> Option<&Node> {
        path_steps(path).try_fold(self, Node::step)
    }

    /// The span of the node at a path, or of its nearest ancestor that exists. For the entry of a mapping this is
    /// the name's, which is what a message about a field should point at.
    pub fn span_of_path(&self, path: &str) -> &Span {
        let mut node = self;
        let mut span = &self.span;
        for step in path_steps(path) {
            let Some(next) = node.step(step) else { break };
            span = match (&node.value, step) {
                (Value::Mapping(mapping), Step::Name(name)) => {
                    mapping.iter().find(|e| same_field(&e.key, name)).map_or(&next.span, |e| &e.key_span)
                }
                _ => &next.span,
            };
            node = next;
        }
        span
    }

    /// Changes every span of the tree.
    pub(super) fn visit_spans(&mut self, change: &impl Fn(&mut Span)) {
        change(&mut self.span);
        match &mut self.value {
            Value::Scalar(_) => {}
            Value::Sequence(items) => items.iter_mut().for_each(|item| item.visit_spans(change)),
            Value::Mapping(mapping) => mapping.0.iter_mut().for_each(|entry| {
                change(&mut entry.key_span);
                entry.value.visit_spans(change);
            }),
        }
    }

    fn step(&self, step: Step<'_>) -> Option<&Node> {
        match (&self.value, step) {
            (Value::Mapping(mapping), Step::Name(name)) => {
                mapping.get(name).or_else(|| mapping.iter().find(|e| same_field(&e.key, name)).map(|e| &e.value))
            }
            (Value::Sequence(items), Step::Index(index)) => items.get(index),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// Splits `a.b[0].c`; an index that is not a number becomes a step that matches nothing.
fn path_steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| match part.strip_suffix(']') {
        Some(index) => index.parse().map_or(Step::Name(part), Step::Index),
        None => Step::Name(part),
    })
}

/// Whether two names are the same field in protobuf's spellings.
fn same_field(a: &str, b: &str) -> bool {
    let letters = |s: &str| s.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    a == b || letters(a) == letters(b)
}
