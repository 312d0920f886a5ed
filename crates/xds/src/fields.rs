//! Finds which fields of a message are set, and their paths, so that unsupported fields are reported instead of
//! ignored.

use std::fmt::{self, Write as _};

use prost_reflect::{DynamicMessage, MapKey, ReflectMessage, Value};

use crate::schema::Schema;
use crate::typed_struct::{self, is_typed_struct};
use crate::{Any, type_url};

/// Deepest nesting of messages that a walk follows (route match trees of real meshes stay below 20).
pub const MAX_DEPTH: usize = 100;

/// A field that is set, but that the reader of the message does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedField {
    /// From the resource down: `filter_chains[0].filters[1].typed_config.tracing`.
    pub path: String,
    /// Full name of the message the field belongs to.
    pub message: String,
    /// Name of the field in the `.proto` file; `#7` for a field number the schema does not know; empty when the
    /// whole message is what is not supported (an extension type).
    pub field: String,
}

impl fmt::Display for UnsupportedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}: {} is not supported", self.path, self.message)
        } else {
            write!(f, "{}: not supported", self.path)
        }
    }
}

/// What a walk visits, depth first.
#[derive(Clone, Copy, Debug)]
pub enum Visit<'a> {
    /// A field that is set.
    Field {
        /// Full name of the message.
        message: &'a str,
        /// The field's name.
        field: &'a str,
    },
    /// A field number the schema does not know.
    UnknownField {
        /// Full name of the message.
        message: &'a str,
        /// The number on the wire.
        number: u32,
    },
    /// An extension: the message inside a nested `Any`.
    Extension {
        /// Full name of the message.
        message: &'a str,
    },
    /// An `Any` whose type the schema does not know, or whose bytes do not decode.
    OpaqueAny {
        /// Its type URL.
        type_url: &'a str,
    },
    /// A `TypedStruct`, untyped values under a type URL, that is no message of the schema.
    TypedStruct {
        /// The type URL inside.
        type_url: &'a str,
    },
}

/// Whether the walk enters the field it has just visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descend {
    /// Visit what is below.
    Yes,
    /// Skip it.
    No,
}

/// Names every set field of `any` for which `supported(message, field)` is false. `supported(message, "")` is asked
/// once for each extension found in an `Any`: false means the whole type is not supported.
/// Fields below an unsupported field are not visited.
pub fn check_supported(schema: &Schema, any: &Any, supported: &dyn Fn(&str, &str) -> bool) -> Vec<UnsupportedField> {
    let mut found = Vec::new();
    walk_any(schema, any, &mut |path, visit| {
        let (message, field) = match visit {
            Visit::Field { message, field } => {
                if supported(message, field) {
                    return Descend::Yes;
                }
                (message.to_owned(), field.to_owned())
            }
            Visit::Extension { message } => {
                if supported(message, "") {
                    return Descend::Yes;
                }
                (message.to_owned(), String::new())
            }
            Visit::UnknownField { message, number } => (message.to_owned(), format!("#{number}")),
            Visit::OpaqueAny { type_url } => (type_url::message_name(type_url).to_owned(), String::new()),
            Visit::TypedStruct { type_url } => {
                let message = type_url::message_name(type_url);
                if supported(message, "") {
                    return Descend::No;
                }
                (message.to_owned(), String::new())
            }
        };
        found.push(UnsupportedField { path: path.to_owned(), message, field });
        Descend::No
    });
    found
}

/// Visits every set field of the message in `any`, and of those in it.
pub fn walk_any(schema: &Schema, any: &Any, visit: &mut dyn FnMut(&str, Visit<'_>) -> Descend) {
    Walk { schema, path: String::new(), visit }.any(&any.type_url, &any.value, 0);
}

/// Visits every set field of a message, and of those in it.
pub fn walk(schema: &Schema, message: &DynamicMessage, visit: &mut dyn FnMut(&str, Visit<'_>) -> Descend) {
    Walk { schema, path: String::new(), visit }.message(message, 0);
}

struct Walk<'a> {
    schema: &'a Schema,
    path: String,
    visit: &'a mut dyn FnMut(&str, Visit<'_>) -> Descend,
}

impl Walk<'_> {
    fn any(&mut self, url: &str, value: &[u8], depth: usize) {
        let decoded = self
            .schema
            .message(type_url::message_name(url))
            .and_then(|descriptor| DynamicMessage::decode(descriptor, value).ok());
        match decoded {
            None => {
                (self.visit)(&self.path, Visit::OpaqueAny { type_url: url });
            }
            Some(message) if is_typed_struct(message.descriptor().full_name()) => {
                if let Some(inside) = typed_struct::inside(self.schema, &message) {
                    return self.extension(&inside, depth);
                }
                let inner = message.get_field_by_name("type_url");
                let inner = inner.as_deref().and_then(Value::as_str).unwrap_or_default();
                (self.visit)(&self.path, Visit::TypedStruct { type_url: inner });
            }
            Some(message) => self.extension(&message, depth),
        }
    }

    fn extension(&mut self, message: &DynamicMessage, depth: usize) {
        let descriptor = message.descriptor();
        let visit = Visit::Extension { message: descriptor.full_name() };
        if depth == 0 || (self.visit)(&self.path, visit) == Descend::Yes {
            self.message(message, depth);
        }
    }

    fn message(&mut self, message: &DynamicMessage, depth: usize) {
        let descriptor = message.descriptor();
        match descriptor.full_name() {
            "google.protobuf.Any" => return self.nested_any(message, depth),
            // These are leaves: a single value, whatever its wire format.
            name if name.starts_with("google.protobuf.") => return,
            _ => {}
        }
        if depth >= MAX_DEPTH {
            (self.visit)(&self.path, Visit::OpaqueAny { type_url: descriptor.full_name() });
            return;
        }
        for (field, value) in message.fields() {
            let end = self.push(field.name());
            if (self.visit)(&self.path, Visit::Field { message: descriptor.full_name(), field: field.name() })
                == Descend::Yes
            {
                self.value(value, depth + 1);
            }
            self.path.truncate(end);
        }
        for unknown in message.unknown_fields() {
            let number = unknown.number();
            let end = self.push(&format!("#{number}"));
            (self.visit)(&self.path, Visit::UnknownField { message: descriptor.full_name(), number });
            self.path.truncate(end);
        }
    }

    fn nested_any(&mut self, message: &DynamicMessage, depth: usize) {
        let url = message.get_field_by_name("type_url");
        let value = message.get_field_by_name("value");
        let url = url.as_deref().and_then(Value::as_str).unwrap_or_default();
        let value = value.as_deref().and_then(Value::as_bytes).map(|bytes| &**bytes).unwrap_or_default();
        self.any(url, value, depth + 1);
    }

    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Message(message) => self.message(message, depth),
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    let end = self.path.len();
                    _ = write!(self.path, "[{index}]");
                    self.value(item, depth);
                    self.path.truncate(end);
                }
            }
            Value::Map(entries) => {
                let mut entries: Vec<_> = entries.iter().map(|(key, value)| (map_key(key), value)).collect();
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                for (key, value) in entries {
                    let end = self.path.len();
                    _ = write!(self.path, "[{key:?}]");
                    self.value(value, depth);
                    self.path.truncate(end);
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, name: &str) -> usize {
        let end = self.path.len();
        if end > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        end
    }
}

pub(crate) fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(value) => value.clone(),
    }
}
