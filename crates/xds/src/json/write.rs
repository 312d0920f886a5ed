//! Converts messages to JSON.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost_reflect::{DynamicMessage, Kind, ReflectMessage, SerializeOptions, Value};
use serde_json::{Map, Number, Value as Json};

use crate::fields::{MAX_DEPTH, map_key};
use crate::schema::Schema;
use crate::{Any, type_url};

/// The JSON form of a typed message. A type the schema does not know gives `{"@type": …, "value": base64}`.
pub fn to_json<M: prost::Name>(schema: &Schema, message: &M) -> Json {
    let mut json = any_to_json(schema, &crate::pack(message));
    if schema.message(&M::full_name()).is_some()
        && let Json::Object(fields) = &mut json
    {
        fields.shift_remove("@type");
    }
    json
}

/// The JSON form of an `Any`, its message expanded beside `@type`; bytes that do not decode as base64 in `value`.
pub fn any_to_json(schema: &Schema, any: &Any) -> Json {
    expand(schema, &any.type_url, &any.value, 0)
}

/// The JSON form of a message known by its descriptor only.
pub fn message_to_json(schema: &Schema, message: &DynamicMessage) -> Json {
    write_message(schema, message, 0)
}

fn expand(schema: &Schema, url: &str, bytes: &[u8], depth: usize) -> Json {
    let decoded = schema
        .message(type_url::message_name(url))
        .and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok())
        .filter(|_| depth < MAX_DEPTH);
    let mut object = Map::new();
    if url.is_empty() && bytes.is_empty() {
        return Json::Object(object);
    }
    object.insert("@type".into(), url.into());
    match decoded {
        Some(message) => match write_message(schema, &message, depth) {
            Json::Object(fields) if !is_well_known(&message) => object.extend(fields),
            value => _ = object.insert("value".into(), value),
        },
        None => _ = object.insert("value".into(), BASE64_STANDARD.encode(bytes).into()),
    }
    Json::Object(object)
}

fn is_well_known(message: &DynamicMessage) -> bool {
    message.descriptor().full_name().starts_with("google.protobuf.")
}

fn write_message(schema: &Schema, message: &DynamicMessage, depth: usize) -> Json {
    let descriptor = message.descriptor();
    match descriptor.full_name() {
        "google.protobuf.Any" => {
            let url = message.get_field_by_name("type_url");
            let value = message.get_field_by_name("value");
            let bytes = value.as_deref().and_then(Value::as_bytes).cloned().unwrap_or_default();
            return expand(schema, url.as_deref().and_then(Value::as_str).unwrap_or_default(), &bytes, depth + 1);
        }
        name if name.starts_with("google.protobuf.") => {
            // Durations, wrappers and Struct have a JSON form of their own; the library writes them.
            let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
            return message
                .serialize_with_options(serde_json::value::Serializer, &options)
                .unwrap_or_else(|error| Json::String(error.to_string()));
        }
        _ => {}
    }
    let fields = message
        .fields()
        .map(|(field, value)| (field.name().to_owned(), write_value(schema, value, &field.kind(), depth)))
        .collect();
    Json::Object(fields)
}

fn write_value(schema: &Schema, value: &Value, kind: &Kind, depth: usize) -> Json {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::I32(value) => (*value).into(),
        Value::I64(value) => (*value).to_string().into(),
        Value::U32(value) => (*value).into(),
        Value::U64(value) => (*value).to_string().into(),
        Value::F32(value) => float(f64::from(*value)),
        Value::F64(value) => float(*value),
        Value::String(value) => value.as_str().into(),
        Value::Bytes(value) => BASE64_STANDARD.encode(value).into(),
        Value::EnumNumber(number) => enum_name(*number, kind),
        Value::Message(message) => write_message(schema, message, depth + 1),
        Value::List(items) => items.iter().map(|item| write_value(schema, item, kind, depth)).collect(),
        Value::Map(entries) => {
            let value_kind = match kind {
                Kind::Message(entry) => entry.map_entry_value_field().kind(),
                other => other.clone(),
            };
            let mut fields: Vec<(String, Json)> = entries
                .iter()
                .map(|(key, value)| (map_key(key), write_value(schema, value, &value_kind, depth)))
                .collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Json::Object(fields.into_iter().collect())
        }
    }
}

fn float(value: f64) -> Json {
    match Number::from_f64(value) {
        Some(number) => Json::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

fn enum_name(number: i32, kind: &Kind) -> Json {
    match kind {
        Kind::Enum(descriptor) => match descriptor.get_value(number) {
            Some(value) => value.name().into(),
            None => number.into(),
        },
        _ => number.into(),
    }
}
