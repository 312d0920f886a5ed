//! Reads messages from YAML or JSON text and reports all mistakes, each with its position and what was expected.
//!
//! It accepts what Envoy's reader accepts (protobuf's JSON in its lenient form, after yaml-cpp): names of enum values in any case, well-known
//! types as objects, one value where a list belongs, lists in lists, numbers in quotes, YAML 1.1's booleans.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use evenkeel_base::yaml::{self, Mapping, Node, Scalar, ScalarType};
use evenkeel_base::{Diagnostic, Diagnostics, Span, suggest};
use prost::Message;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

use crate::fields::MAX_DEPTH;
use crate::schema::Schema;
use crate::type_url;

/// The result of reading a text.
#[derive(Debug)]
pub struct Read<M> {
    /// The message with everything that could be read; `None` if the text has no message at all.
    pub message: Option<M>,
    /// Its bytes, including fields that are in this program's schema but not in `M`.
    pub encoded: Vec<u8>,
    /// The tree it was read from, for positions of fields found wrong later.
    pub tree: Option<Node>,
    /// The findings. Any error means that `message` lacks something.
    pub diagnostics: Diagnostics,
}

/// Reads one message from YAML or JSON text; `file` names it in diagnostics.
pub fn read_text<M: prost::Name + Default>(schema: &Schema, file: &str, text: &str) -> Read<M> {
    let file: Arc<str> = file.into();
    let (mut documents, mut diagnostics) = yaml::parse_as_envoy(&file, text);
    let Some(descriptor) = schema.message(&M::full_name()) else {
        let message = format!("{} is not in this program's schema", M::full_name());
        diagnostics.push(Diagnostic::error("xds.unknown-type", Span::whole_file(file), message));
        return Read { message: None, encoded: Vec::new(), tree: None, diagnostics };
    };
    if documents.len() > 1 {
        let span = documents[1].span.clone();
        diagnostics.push(Diagnostic::error(
            "xds.many-documents",
            span,
            "expected one document, found a second one here",
        ));
    }
    if documents.is_empty() {
        if !diagnostics.has_errors() {
            let message = format!("expected a {}, the file is empty", descriptor.name());
            diagnostics.push(Diagnostic::error("xds.empty", Span::whole_file(file), message));
        }
        return Read { message: None, encoded: Vec::new(), tree: None, diagnostics };
    }
    let tree = documents.swap_remove(0);
    let (dynamic, found) = read_message(schema, &descriptor, &tree);
    diagnostics.extend(found);
    // The dynamic message was built against the same definitions, so its bytes decode.
    let encoded = dynamic.map(|dynamic| dynamic.encode_to_vec());
    let message = encoded.as_deref().and_then(|encoded| M::decode(encoded).ok());
    Read { message, encoded: encoded.unwrap_or_default(), tree: Some(tree), diagnostics }
}

/// Reads a message from a tree.
pub fn read_message(
    schema: &Schema,
    descriptor: &MessageDescriptor,
    node: &Node,
) -> (Option<DynamicMessage>, Diagnostics) {
    let mut reader = Reader { schema, path: String::new(), diagnostics: Diagnostics::new() };
    let message = reader.message(descriptor, node, 0);
    (message, reader.diagnostics)
}

struct Reader<'a> {
    schema: &'a Schema,
    /// The path from the top of the file to the current position.
    path: String,
    diagnostics: Diagnostics,
}

impl Reader<'_> {
    fn message(&mut self, descriptor: &MessageDescriptor, node: &Node, depth: usize) -> Option<DynamicMessage> {
        if depth >= MAX_DEPTH {
            return self.error("xds.depth", &node.span, format!("nested deeper than {MAX_DEPTH} messages"));
        }
        match descriptor.full_name() {
            "google.protobuf.Any" => return self.any(descriptor, node, depth),
            "google.protobuf.Empty" => {}
            name if name.starts_with("google.protobuf.") => {
                if let Some(message) = self.wrapped(descriptor, node, depth) {
                    return message;
                }
            }
            _ => {}
        }
        let Some(mapping) = node.as_mapping() else {
            return self.wrong_type(&format!("a mapping ({})", descriptor.name()), node);
        };
        let mut message = DynamicMessage::new(descriptor.clone());
        self.fill(&mut message, descriptor, mapping, &[], depth);
        Some(message)
    }

    fn fill(
        &mut self,
        message: &mut DynamicMessage,
        descriptor: &MessageDescriptor,
        mapping: &Mapping,
        skip: &[&str],
        depth: usize,
    ) {
        for entry in mapping.iter().filter(|entry| !skip.contains(&&*entry.key)) {
            let end = self.push(&entry.key);
            match field_by_any_name(descriptor, &entry.key) {
                None => self.unknown_field(descriptor, &entry.key, &entry.key_span),
                Some(field) if entry.value.is_null() && !takes_null(&field) => {}
                Some(field) => {
                    self.check_oneof(message, &field, &entry.key_span);
                    if let Some(value) = self.field(&field, &entry.value, depth) {
                        message.set_field(&field, value);
                    }
                }
            }
            self.path.truncate(end);
        }
    }

    fn check_oneof(&mut self, message: &DynamicMessage, field: &FieldDescriptor, span: &Span) {
        let Some(oneof) = field.containing_oneof() else { return };
        let set = oneof.fields().find(|other| other.number() != field.number() && message.has_field(other));
        if let Some(other) = set {
            let text = format!("{}: {} is already set, and only one of the two is allowed", self.path, other.name());
            self.diagnostics.push(Diagnostic::error("xds.oneof", span.clone(), text));
        }
    }

    fn unknown_field(&mut self, descriptor: &MessageDescriptor, key: &str, span: &Span) {
        let names: Vec<String> = descriptor.fields().map(|field| field.name().to_owned()).collect();
        let text = format!("{}: {} has no field {key:?}", self.path, descriptor.full_name());
        let mut diagnostic = Diagnostic::error("xds.unknown-field", span.clone(), text);
        if let Some(name) = suggest::closest(key, names.iter().map(String::as_str)) {
            diagnostic = diagnostic.with_help(format!("did you mean `{name}`?"));
        }
        self.diagnostics.push(diagnostic);
    }

    fn field(&mut self, field: &FieldDescriptor, node: &Node, depth: usize) -> Option<Value> {
        if field.is_map() {
            return self.map(field, node, depth);
        }
        if !field.is_list() {
            return self.single(&field.kind(), node, depth);
        }
        let mut values = Vec::new();
        match node.as_sequence() {
            Some(items) => self.items(&field.kind(), items, depth, &mut values),
            None => values.extend(self.single(&field.kind(), node, depth)),
        }
        Some(Value::List(values))
    }

    /// The values of a list; a list within it counts as its values, unless a value can be a list.
    fn items(&mut self, kind: &Kind, items: &[Node], depth: usize, values: &mut Vec<Value>) {
        let may_be_list = matches!(kind, Kind::Message(message) if is_list_like(message));
        for (index, item) in items.iter().enumerate() {
            let end = self.path.len();
            self.path.push_str(&format!("[{index}]"));
            match item.as_sequence() {
                Some(inner) if !may_be_list => self.items(kind, inner, depth, values),
                _ => values.extend(self.single(kind, item, depth)),
            }
            self.path.truncate(end);
        }
    }

    fn map(&mut self, field: &FieldDescriptor, node: &Node, depth: usize) -> Option<Value> {
        let Kind::Message(entry_descriptor) = field.kind() else { return None };
        let Some(mapping) = node.as_mapping() else { return self.wrong_type("a mapping", node) };
        let key_kind = entry_descriptor.map_entry_key_field().kind();
        let value_kind = entry_descriptor.map_entry_value_field().kind();
        let mut values = HashMap::new();
        for entry in mapping.iter() {
            let end = self.push(&entry.key);
            match parse_map_key(&key_kind, &entry.key) {
                Some(key) => {
                    if let Some(value) = self.single(&value_kind, &entry.value, depth) {
                        values.insert(key, value);
                    }
                }
                None => {
                    let text = format!("{}: expected a key of type {key_kind:?}", self.path);
                    self.diagnostics.push(Diagnostic::error("xds.type", entry.key_span.clone(), text));
                }
            }
            self.path.truncate(end);
        }
        Some(Value::Map(values))
    }

    fn single(&mut self, kind: &Kind, node: &Node, depth: usize) -> Option<Value> {
        if let Kind::Message(descriptor) = kind {
            return self.message(descriptor, node, depth + 1).map(Value::Message);
        }
        let yaml::Value::Scalar(scalar) = &node.value else { return self.wrong_type(expected_of(kind), node) };
        let text: &str = &scalar.text;
        let value = match kind {
            Kind::Bool => yaml_bool(text, scalar.quoted).map(Value::Bool),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => whole(scalar).map(Value::I32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => whole(scalar).map(Value::I64),
            Kind::Uint32 | Kind::Fixed32 => whole(scalar).map(Value::U32),
            Kind::Uint64 | Kind::Fixed64 => whole(scalar).map(Value::U64),
            Kind::Float => text.parse().ok().map(Value::F32),
            Kind::Double => text.parse().ok().map(Value::F64),
            // Envoy turns whole numbers and booleans into values of their own type, and leaves other numbers as text.
            Kind::String if matches!(scalar.ty, ScalarType::Str | ScalarType::Float(_)) => {
                Some(Value::String(text.to_owned()))
            }
            Kind::String => None,
            Kind::Bytes => decode_base64(text).map(|bytes| Value::Bytes(bytes.into())),
            Kind::Enum(descriptor) => return self.enumeration(descriptor, text, &node.span),
            Kind::Message(_) => None,
        };
        if value.is_none() {
            return self.wrong_type(expected_of(kind), node);
        }
        value
    }

    fn enumeration(&mut self, descriptor: &EnumDescriptor, text: &str, span: &Span) -> Option<Value> {
        let same_name = |value: &EnumValueDescriptor| value.name().eq_ignore_ascii_case(text);
        if let Some(value) = descriptor.get_value_by_name(text).or_else(|| descriptor.values().find(same_name)) {
            return Some(Value::EnumNumber(value.number()));
        }
        if let Some(number) = integer(text).filter(|&number| descriptor.get_value(number).is_some()) {
            return Some(Value::EnumNumber(number));
        }
        let names: Vec<String> = descriptor.values().map(|value| value.name().to_owned()).collect();
        let message = format!("{}: expected one of {}, found {text:?}", self.path, names.join(", "));
        let mut diagnostic = Diagnostic::error("xds.enum", span.clone(), message);
        if let Some(name) = suggest::closest(text, names.iter().map(String::as_str)) {
            diagnostic = diagnostic.with_help(format!("did you mean `{name}`?"));
        }
        self.diagnostics.push(diagnostic);
        None
    }

    fn any(&mut self, descriptor: &MessageDescriptor, node: &Node, depth: usize) -> Option<DynamicMessage> {
        if node.is_null() {
            return Some(DynamicMessage::new(descriptor.clone()));
        }
        let Some(mapping) = node.as_mapping() else { return self.wrong_type("a mapping with \"@type\"", node) };
        if mapping.0.is_empty() {
            return Some(DynamicMessage::new(descriptor.clone()));
        }
        let Some(url) = mapping.get("@type").and_then(Node::as_str) else {
            let text = format!("{}: expected \"@type\", the type URL of the message", self.path);
            return self.error("xds.any", &node.span, text);
        };
        let name = type_url::message_name(url);
        let Some(inner) = self.schema.message(name) else {
            let span = mapping.get("@type").map_or(&node.span, |at| &at.span);
            let text = format!("{}.@type: {name} is not supported", self.path);
            return self.error("xds.unknown-type", span, text);
        };
        let payload = if inner.full_name().starts_with("google.protobuf.") {
            let value = mapping.get("value").cloned().unwrap_or_else(|| node.clone());
            self.message(&inner, &value, depth + 1)?
        } else {
            let mut payload = DynamicMessage::new(inner.clone());
            self.fill(&mut payload, &inner, mapping, &["@type"], depth + 1);
            payload
        };
        let mut any = DynamicMessage::new(descriptor.clone());
        any.set_field_by_name("type_url", Value::String(url.to_owned()));
        any.set_field_by_name("value", Value::Bytes(payload.encode_to_vec().into()));
        Some(any)
    }

    /// A well-known type; `None` if it is written as the object that it is in the `.proto` file (`{seconds: 5}`, `{value: true}`).
    fn wrapped(&mut self, descriptor: &MessageDescriptor, node: &Node, depth: usize) -> Option<Option<DynamicMessage>> {
        if matches!(descriptor.name(), "Struct" | "Value" | "ListValue") {
            return Some(self.well_known(descriptor, node));
        }
        if node.as_mapping().is_some() {
            return None;
        }
        let Some(value) = wrapped_field(descriptor) else { return Some(self.well_known(descriptor, node)) };
        let Some(inner) = self.single(&value.kind(), node, depth) else { return Some(None) };
        let mut message = DynamicMessage::new(descriptor.clone());
        message.set_field(&value, inner);
        Some(Some(message))
    }

    /// Durations, timestamps and `Struct`, whose JSON form the library knows.
    fn well_known(&mut self, descriptor: &MessageDescriptor, node: &Node) -> Option<DynamicMessage> {
        let read = match node.as_str().filter(|text| descriptor.name() == "Duration" && is_too_fine(text)) {
            Some(_) => Err("it has more than nine digits after the point".to_owned()),
            None => DynamicMessage::deserialize(descriptor.clone(), node.to_json()).map_err(|error| error.to_string()),
        };
        match read {
            Ok(message) => Some(message),
            Err(error) => {
                let expected = match descriptor.name() {
                    "Duration" => "a duration such as 0.25s or 5s".to_owned(),
                    "BoolValue" => "true or false".to_owned(),
                    "Timestamp" => "a time such as 2026-01-31T12:00:00Z".to_owned(),
                    other => format!("a {other}"),
                };
                let text = format!("{}: expected {expected}, found {}: {error}", self.path, describe(node));
                self.error("xds.type", &node.span, text)
            }
        }
    }

    fn wrong_type<T>(&mut self, expected: &str, node: &Node) -> Option<T> {
        let place = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
        self.error("xds.type", &node.span, format!("{place}expected {expected}, found {}", describe(node)))
    }

    fn error<T>(&mut self, code: &'static str, span: &Span, message: String) -> Option<T> {
        self.diagnostics.push(Diagnostic::error(code, span.clone(), message));
        None
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

/// Whether a duration is given more exactly than in nanoseconds, which the library cuts off.
fn is_too_fine(duration: &str) -> bool {
    duration.split_once('.').is_some_and(|(_, fraction)| fraction.trim_end_matches('s').len() > 9)
}

/// The field of a wrapper (`google.protobuf.UInt32Value` and its kin).
fn wrapped_field(descriptor: &MessageDescriptor) -> Option<FieldDescriptor> {
    let is_wrapper = descriptor.full_name() != "google.protobuf.Value" && descriptor.name().ends_with("Value");
    descriptor.get_field_by_name("value").filter(|_| is_wrapper)
}

/// Whether null is a value of a field; for others it is none.
fn takes_null(field: &FieldDescriptor) -> bool {
    let is_value = matches!(field.kind(), Kind::Message(message) if message.full_name() == "google.protobuf.Value");
    is_value && !field.is_list() && !field.is_map()
}

/// Whether the JSON form of a message can be a list.
fn is_list_like(message: &MessageDescriptor) -> bool {
    matches!(message.full_name(), "google.protobuf.Value" | "google.protobuf.ListValue")
}

fn describe(node: &Node) -> String {
    match node.as_str() {
        Some(text) if text.len() <= 60 => format!("{text:?}"),
        _ => node.type_name().to_owned(),
    }
}

/// Protobuf JSON accepts both spellings of a field's name.
fn field_by_any_name(descriptor: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name))
}

fn expected_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Bool => "true or false",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "a 32-bit integer",
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "a 64-bit integer",
        Kind::Uint32 | Kind::Fixed32 => "a 32-bit unsigned integer",
        Kind::Uint64 | Kind::Fixed64 => "a 64-bit unsigned integer",
        Kind::Float | Kind::Double => "a number",
        Kind::String => "a string",
        Kind::Bytes => "bytes in base64",
        Kind::Enum(_) => "the name of an enum value",
        Kind::Message(_) => "a mapping",
    }
}

/// An integer; without quotes what it is in YAML, where `0644` is octal.
fn whole<T: TryFrom<i128>>(scalar: &Scalar) -> Option<T> {
    match scalar.ty {
        ScalarType::Int(value) if !scalar.quoted => T::try_from(value).ok(),
        _ => integer(&scalar.text),
    }
}

/// Integers may be quoted and, as in protobuf JSON, be written `1e3` or `5.0` as long as they are whole.
fn integer<T: TryFrom<i128>>(text: &str) -> Option<T> {
    let hexadecimal = || i128::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let value = match text.parse::<i128>().ok().or_else(hexadecimal) {
        Some(value) => value,
        None => {
            let float: f64 = text.parse().ok()?;
            // 2^53: above it a double cannot represent every integer.
            (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i128)?
        }
    };
    T::try_from(value).ok()
}

/// `true` and `false`, in quotes or not, and without quotes what yaml-cpp reads as a boolean, too: `yes`, `on`, `Y` (YAML 1.1).
fn yaml_bool(text: &str, quoted: bool) -> Option<bool> {
    let lower = text.to_ascii_lowercase();
    // In one case, or with a capital at the start.
    let is_uniform = text == lower || text == text.to_ascii_uppercase() || text.get(1..) == lower.get(1..);
    match &*lower {
        _ if quoted || !is_uniform => parse_bool(text),
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Both alphabets, with and without padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    BASE64_STANDARD_NO_PAD.decode(text).or_else(|_| BASE64_URL_SAFE_NO_PAD.decode(text)).ok()
}

fn parse_map_key(kind: &Kind, text: &str) -> Option<MapKey> {
    match kind {
        Kind::String => Some(MapKey::String(text.to_owned())),
        Kind::Bool => parse_bool(text).map(MapKey::Bool),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(text).map(MapKey::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(text).map(MapKey::I64),
        Kind::Uint32 | Kind::Fixed32 => integer(text).map(MapKey::U32),
        Kind::Uint64 | Kind::Fixed64 => integer(text).map(MapKey::U64),
        _ => None,
    }
}
