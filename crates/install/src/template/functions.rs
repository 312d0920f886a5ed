//! The functions of Helm's templates that the chart uses, with Helm's order of arguments: what a pipe hands over comes last.

use std::collections::HashMap;

use gtmpl::{Func, FuncError, Value};

use super::json::{from_template, to_template};

/// All functions, by name.
pub(super) const ALL: &[(&str, Func)] = &[
    ("default", default),
    ("dict", dict),
    ("fail", fail),
    ("has", has),
    ("keys", keys),
    ("merge", merge),
    ("quote", quote),
    ("sortAlpha", sort_alpha),
    ("toJson", to_json),
    ("toString", to_string),
];

fn wrong(text: impl Into<String>) -> FuncError {
    FuncError::Generic(text.into())
}

fn last(arguments: &[Value]) -> Result<&Value, FuncError> {
    arguments.last().ok_or_else(|| wrong("a function needs a value"))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::NoValue | Value::Nil => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) | Value::Map(fields) => fields.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Function(_) => false,
    }
}

fn text(value: &Value) -> String {
    match from_template(value) {
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn map(value: &Value) -> Result<HashMap<String, Value>, FuncError> {
    match value {
        Value::Object(fields) | Value::Map(fields) => Ok(fields.clone()),
        Value::NoValue | Value::Nil => Ok(HashMap::new()),
        other => Err(wrong(format!("expected a mapping, not {other}"))),
    }
}

fn list(value: &Value) -> Result<Vec<Value>, FuncError> {
    match value {
        Value::Array(entries) => Ok(entries.clone()),
        Value::NoValue | Value::Nil => Ok(Vec::new()),
        other => Err(wrong(format!("expected a list, not {other}"))),
    }
}

/// `default FALLBACK VALUE`.
fn default(arguments: &[Value]) -> Result<Value, FuncError> {
    match arguments {
        [fallback, value] if is_empty(value) => Ok(fallback.clone()),
        [_, value] => Ok(value.clone()),
        // The value is absent.
        [fallback] => Ok(fallback.clone()),
        _ => Err(wrong("default: expected a fallback and a value")),
    }
}

/// `dict NAME VALUE NAME VALUE…`.
fn dict(arguments: &[Value]) -> Result<Value, FuncError> {
    let pairs = arguments.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(wrong("dict: expected a value for each name"));
    }
    Ok(Value::Map(pairs.filter_map(|pair| Some((text(pair.first()?), pair.get(1)?.clone()))).collect()))
}

fn fail(arguments: &[Value]) -> Result<Value, FuncError> {
    Err(wrong(text(last(arguments)?)))
}

/// `has VALUE LIST`.
fn has(arguments: &[Value]) -> Result<Value, FuncError> {
    let [wanted, entries] = arguments else { return Err(wrong("has: expected a value and a list")) };
    let wanted = from_template(wanted);
    Ok(list(entries)?.iter().any(|entry| from_template(entry) == wanted).into())
}

fn keys(arguments: &[Value]) -> Result<Value, FuncError> {
    let names = map(last(arguments)?)?.into_keys();
    Ok(Value::Array(names.map(Value::from).collect()))
}

/// `merge INTO FROM…`: what is there already stays.
fn merge(arguments: &[Value]) -> Result<Value, FuncError> {
    let mut merged = HashMap::new();
    for argument in arguments {
        for (name, value) in map(argument)? {
            merged.entry(name).or_insert(value);
        }
    }
    Ok(Value::Map(merged))
}

fn quote(arguments: &[Value]) -> Result<Value, FuncError> {
    Ok(Value::from(serde_json::Value::from(text(last(arguments)?)).to_string()))
}

fn sort_alpha(arguments: &[Value]) -> Result<Value, FuncError> {
    let mut sorted: Vec<String> = list(last(arguments)?)?.iter().map(text).collect();
    sorted.sort_unstable();
    Ok(to_template(&sorted.into()))
}

fn to_json(arguments: &[Value]) -> Result<Value, FuncError> {
    Ok(Value::from(from_template(last(arguments)?).to_string()))
}

fn to_string(arguments: &[Value]) -> Result<Value, FuncError> {
    Ok(Value::from(text(last(arguments)?)))
}
