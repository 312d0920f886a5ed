//! Changes to headers, as filters.

use evenkeel_base::Span;
use evenkeel_model::{HeaderOperations, Headers};
use serde_json::{Map, Value, json};

use super::writer::Writer;

/// The most entries of a list of a filter.
const MAX_ENTRIES: usize = 16;

/// The filters for changes to headers.
pub(super) fn filters(writer: &mut Writer<'_>, headers: &Headers, span: &Span) -> Vec<Value> {
    let directions = [
        ("RequestHeaderModifier", "requestHeaderModifier", "headers.request", &headers.request),
        ("ResponseHeaderModifier", "responseHeaderModifier", "headers.response", &headers.response),
    ];
    let mut all = Vec::new();
    for (kind, field, path, operations) in directions {
        if operations.is_empty() {
            continue;
        }
        check(writer, operations, path, span);
        let mut filter = Map::new();
        filter.insert("type".to_owned(), kind.into());
        filter.insert(field.to_owned(), modifier(operations));
        all.push(Value::Object(filter));
    }
    all
}

fn modifier(operations: &HeaderOperations) -> Value {
    let pairs = |all: &[(std::sync::Arc<str>, std::sync::Arc<str>)]| -> Vec<Value> {
        all.iter().map(|(name, value)| json!({"name": &**name, "value": &**value})).collect()
    };
    let mut modifier = Map::new();
    if !operations.set.is_empty() {
        modifier.insert("set".to_owned(), pairs(&operations.set).into());
    }
    if !operations.add.is_empty() {
        modifier.insert("add".to_owned(), pairs(&operations.add).into());
    }
    if !operations.remove.is_empty() {
        modifier.insert("remove".to_owned(), operations.remove.iter().map(|name| Value::from(&**name)).collect());
    }
    Value::Object(modifier)
}

fn check(writer: &mut Writer<'_>, operations: &HeaderOperations, path: &str, span: &Span) {
    let names = operations.set.iter().chain(&operations.add).map(|(name, _)| name).chain(&operations.remove);
    for name in names.filter(|name| name.starts_with(':')) {
        let help = "change the host by `urlRewrite.hostname`";
        writer.refuse(span, format!("`{path}`: the Gateway API cannot change `{name}`"), help);
    }
    let longest = operations.set.len().max(operations.add.len()).max(operations.remove.len());
    if longest > MAX_ENTRIES {
        let help = "remove some, or set them in the program";
        writer.refuse(span, format!("`{path}`: a filter has at most {MAX_ENTRIES} entries of a kind"), help);
    }
}
