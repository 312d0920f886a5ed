//! The decoder's position in the document, and its findings.

use std::fmt::{self, Write};

use evenkeel_base::limits::MAX_FINDINGS_PER_FILE;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::{Entry, Mapping, Node, Value};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Span};

use super::{Decode, Field, Schema, Status};

/// The decoder's position in the document, and its findings.
#[derive(Debug, Default)]
pub struct Context {
    path: Vec<Segment>,
    diagnostics: Diagnostics,
    /// The owner of the API, for messages: `Istio` or `Kubernetes`.
    owner: &'static str,
    /// Whether an error was found, even if it was dropped because of the limit.
    refused: bool,
    /// Set if unknown fields are ignored with a warning: the fields for which they are errors nevertheless.
    lenient: Option<&'static [&'static str]>,
}

#[derive(Debug)]
enum Segment {
    Field(Box<str>),
    Key(Box<str>),
    Index(usize),
}

impl Context {
    /// Creates a context for a document of an API that `owner` (`Istio`, `Kubernetes`) defines.
    pub fn new(owner: &'static str) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Unknown fields get a warning and are left out, as newer versions of an API add fields. They remain errors inside
    /// `guards`, and if they look like a misspelling of one of these: without such a field the rest would allow more.
    pub fn lenient(self, guards: &'static [&'static str]) -> Self {
        Self { lenient: Some(guards), ..self }
    }

    /// The findings.
    pub fn into_diagnostics(self) -> Diagnostics {
        self.diagnostics
    }

    /// Whether there is an error, which refuses the document.
    pub fn has_errors(&self) -> bool {
        self.refused
    }

    /// Reports an error, which refuses the document; the message is preceded by the path.
    pub fn error(&mut self, code: &'static str, span: &Span, message: impl fmt::Display, help: impl Into<String>) {
        self.report(Severity::Error, code, span, message, help);
    }

    /// Reports something that will not do what it seems to say; the message is preceded by the path.
    pub fn warning(&mut self, code: &'static str, span: &Span, message: impl fmt::Display, help: impl Into<String>) {
        self.report(Severity::Warning, code, span, message, help);
    }

    /// Reports something that is good to know; the message is preceded by the path.
    pub fn note(&mut self, code: &'static str, span: &Span, message: impl fmt::Display, help: impl Into<String>) {
        self.report(Severity::Info, code, span, message, help);
    }

    fn report(
        &mut self,
        severity: Severity,
        code: &'static str,
        span: &Span,
        message: impl fmt::Display,
        help: impl Into<String>,
    ) {
        let path = self.path();
        let message = if path.is_empty() { message.to_string() } else { format!("`{path}`: {message}") };
        self.push(Diagnostic::new(severity, code, span.clone(), message).with_help(help));
    }

    /// Adds a finding as it is, unless there are too many already.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.refused |= diagnostic.severity == Severity::Error;
        if self.diagnostics.len() < MAX_FINDINGS_PER_FILE {
            self.diagnostics.push(diagnostic);
        }
    }

    /// The path of the current value, e.g. `spec.http[0].match[1].headers["x-user"]`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for segment in &self.path {
            let dot = if path.is_empty() { "" } else { "." };
            // Writing to a String cannot fail.
            let _ = match segment {
                Segment::Field(name) => write!(path, "{dot}{name}"),
                Segment::Key(name) => write!(path, "[{name:?}]"),
                Segment::Index(index) => write!(path, "[{index}]"),
            };
        }
        path
    }

    /// Runs `inner` one step deeper, at a named field.
    pub fn at_field<T>(&mut self, name: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        self.at(Segment::Field(name.into()), inner)
    }

    /// Runs `inner` one step deeper, at a name the user chose.
    pub fn at_key<T>(&mut self, name: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        self.at(Segment::Key(name.into()), inner)
    }

    /// Runs `inner` one step deeper, at an entry of a list.
    pub fn at_index<T>(&mut self, index: usize, inner: impl FnOnce(&mut Self) -> T) -> T {
        self.at(Segment::Index(index), inner)
    }

    fn at<T>(&mut self, segment: Segment, inner: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(segment);
        let value = inner(self);
        self.path.pop();
        value
    }

    /// Reports that a value is of another type than it must be.
    pub fn wrong_type(&mut self, node: &Node, schema: &Schema) {
        let message = format!("expected {}, found {}", schema.describe(), node.type_name());
        let help = match (schema, &node.value) {
            // Where any text is allowed, quotes turn the scalar into text.
            (Schema::String("a string"), Value::Scalar(scalar)) => format!("put it in quotes: \"{}\"", scalar.text),
            (Schema::List(_), _) => "start each entry on its own line with `- `".to_owned(),
            (Schema::Boolean, _) => "write true or false without quotes".to_owned(),
            (Schema::Integer { .. }, Value::Scalar(scalar)) if scalar.quoted && scalar.text.parse::<i64>().is_ok() => {
                format!("write it without quotes: {}", scalar.text)
            }
            (Schema::Integer { .. }, _) => "write the number in digits".to_owned(),
            _ => format!("write {}", schema.describe()),
        };
        self.error("wrong-type", &node.span, message, help);
    }

    /// Returns the mapping of a struct, after comparing its fields with the table.
    pub fn mapping<'n>(&mut self, node: &'n Node, fields: &'static [Field]) -> Option<&'n Mapping> {
        let Some(mapping) = node.as_mapping() else {
            self.wrong_type(node, &Schema::Object(fields));
            return None;
        };
        for entry in mapping {
            match fields.iter().find(|f| f.name == &*entry.key) {
                None => self.unknown_field(entry, fields),
                // An empty value has no meaning, so nothing is lost.
                Some(_) if entry.value.is_null() => {}
                Some(field) if field.status == Status::Later && says_nothing(entry) => {
                    self.note_status(entry, Status::Inert, "");
                }
                Some(field) => self.note_status(entry, field.status, field.note),
            }
        }
        Some(mapping)
    }

    fn unknown_field(&mut self, entry: &Entry, fields: &[Field]) {
        let known = || fields.iter().map(|f| f.name);
        let works = fields.iter().filter(|f| f.status == Status::Works).map(|f| f.name);
        let help = match closest(&entry.key, known()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("fields here: {}", one_of(works)),
        };
        let is_left_out = self.leaves_out(&entry.key);
        self.at_field(&entry.key, |cx| {
            if is_left_out {
                let message = "there is no such field in this version; ignored";
                cx.warning("unknown-field", &entry.key_span, message, help);
            } else {
                cx.error("unknown-field", &entry.key_span, "there is no such field", help)
            }
        });
    }

    /// Whether an unknown field at this place is left out with a warning.
    fn leaves_out(&self, field: &str) -> bool {
        let Some(guards) = self.lenient else { return false };
        let is_guard = |segment: &Segment| matches!(segment, Segment::Field(name) if guards.contains(&&**name));
        closest(field, guards.iter().copied()).is_none() && !self.path.iter().any(is_guard)
    }

    /// `note` is the reason of the field's table.
    fn note_status(&mut self, entry: &Entry, status: Status, note: &str) {
        let owner = self.owner;
        self.at_field(&entry.key, |cx| match status {
            Status::Works => {}
            Status::Later => {
                let message = match note {
                    "" => format!("known to {owner}, not supported yet; ignored"),
                    note => format!("known to {owner}, not supported; ignored: {note}"),
                };
                cx.warning("unsupported-field", &entry.key_span, message, "the rest of this document applies");
            }
            Status::Refused => {
                let message =
                    format!("known to {owner}, not supported yet; ignoring it would change the meaning of the rest");
                let help = "remove the field if the rest is correct without it";
                cx.error("unsupported-field", &entry.key_span, message, help);
            }
            Status::Removed => {
                let message = format!("has no effect here, and none in {owner} either");
                cx.warning("no-effect", &entry.key_span, message, note);
            }
            // It would be said of every manifest.
            Status::Inert if note.is_empty() && OF_IMAGES.contains(&&*entry.key) => {}
            Status::Inert => {
                let (message, help) = match note {
                    "" => (format!("known to {owner}, has no effect on one machine"), "it takes effect in a cluster"),
                    note => (format!("known to {owner}, has no effect here: {note}"), "it can stay"),
                };
                cx.note("no-effect", &entry.key_span, message, help);
            }
        });
    }

    /// The value of one field of a mapping.
    pub fn field<T: Decode>(&mut self, node: &Node, mapping: &Mapping, name: &str) -> Option<T> {
        let value = mapping.get(name).filter(|value| !value.is_null());
        self.at_field(name, |cx| match value {
            Some(value) => T::decode(value, cx),
            None => T::absent().or_else(|| {
                let expected = T::schema().describe();
                cx.error("missing-field", &node.span, "this field is required", format!("expected {expected}"));
                None
            }),
        })
    }
}

/// Fields of every container: the image, and how to run it. Whoever runs the manifest without a cluster knows that no
/// image is run.
const OF_IMAGES: [&str; 4] = ["image", "imagePullPolicy", "command", "args"];

/// Defaults that Kubernetes writes into unsupported fields, as `kubectl get -o yaml` shows them.
const DEFAULTS: [(&str, &str); 3] =
    [("internalTrafficPolicy", "Cluster"), ("scheme", "HTTP"), ("sessionAffinity", "None")];

/// Whether a field has no effect: it is empty, or has its default value.
fn says_nothing(entry: &Entry) -> bool {
    if entry.value.as_sequence().is_some_and(<[Node]>::is_empty) {
        return true;
    }
    entry.value.as_str().is_some_and(|value| DEFAULTS.contains(&(&*entry.key, value)))
}
