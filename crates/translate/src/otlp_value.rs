//! OpenTelemetry's values of JSON, whose texts may have operators of access logs.

use serde_json::Value as Json;

use crate::pb::otlp::any_value::Value;
use crate::pb::otlp::{AnyValue, ArrayValue, KeyValue, KeyValueList};

pub(crate) fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}

/// The fields of a JSON object; `None`: it has none.
pub(crate) fn fields(json: &str) -> Option<KeyValueList> {
    let fields: serde_json::Map<String, Json> = serde_json::from_str(json).ok()?;
    (!fields.is_empty()).then(|| list(&fields))
}

fn list(fields: &serde_json::Map<String, Json>) -> KeyValueList {
    let field =
        |(key, json): (&String, &Json)| KeyValue { key: key.clone(), value: Some(value(json)), ..KeyValue::default() };
    let mut values: Vec<KeyValue> = fields.iter().map(field).collect();
    // The same however the user has ordered them.
    values.sort_by(|a, b| a.key.cmp(&b.key));
    KeyValueList { values }
}

/// Numbers and truth values become text, the only constants that proxies log. The parser limits the depth.
fn value(json: &Json) -> AnyValue {
    match json {
        Json::String(string) => text(string),
        Json::Null | Json::Bool(_) | Json::Number(_) => text(&json.to_string()),
        Json::Array(items) => {
            let values = items.iter().map(value).collect();
            AnyValue { value: Some(Value::ArrayValue(ArrayValue { values })) }
        }
        Json::Object(fields) => AnyValue { value: Some(Value::KvlistValue(list(fields))) },
    }
}
