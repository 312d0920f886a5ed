//! Values between JSON and the template language.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// As the template language has it.
pub(super) fn to_template(value: &Value) -> gtmpl::Value {
    match value {
        Value::Null => gtmpl::Value::Nil,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(entries) => gtmpl::Value::Array(entries.iter().map(to_template).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), to_template(value)));
            gtmpl::Value::Map(fields.collect::<HashMap<_, _>>())
        }
    }
}

/// As JSON has it; names of fields are in order.
pub(super) fn from_template(value: &gtmpl::Value) -> Value {
    match value {
        gtmpl::Value::NoValue | gtmpl::Value::Nil | gtmpl::Value::Function(_) => Value::Null,
        gtmpl::Value::Bool(value) => Value::Bool(*value),
        gtmpl::Value::String(text) => Value::String(text.clone()),
        gtmpl::Value::Array(entries) => entries.iter().map(from_template).collect(),
        gtmpl::Value::Object(fields) | gtmpl::Value::Map(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), from_template(value))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect::<Map<_, _>>())
        }
        gtmpl::Value::Number(number) => {
            let whole = number.as_i64().map(Number::from);
            whole.or_else(|| number.as_f64().and_then(Number::from_f64)).map_or(Value::Null, Value::Number)
        }
    }
}
