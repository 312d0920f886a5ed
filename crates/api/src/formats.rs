//! Format strings with command operators, where YAML has them. A proxy refuses the whole listener of one that it cannot read, so none
//! that has a mistake goes there, and each mistake is reported.

use evenkeel_base::Span;
use evenkeel_base::yaml::Node;
use evenkeel_format::{Format, FormatError, operator_at};

use crate::decode::Context;

/// Whether proxies can read a format string.
pub fn is_format(text: &str) -> bool {
    parse(text).is_ok()
}

/// Whether proxies can read all texts in a value: the format of a log in JSON.
pub fn are_formats(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => is_format(text),
        serde_json::Value::Array(items) => items.iter().all(are_formats),
        serde_json::Value::Object(fields) => fields.values().all(are_formats),
        _ => true,
    }
}

/// The proxy's environment is not known here.
fn parse(text: &str) -> Result<Format, FormatError> {
    Format::parse(text, &|_| None)
}

/// Reports a format string that proxies cannot read. `effect`: what happens instead.
pub(crate) fn check(text: &str, span: &Span, effect: &str, cx: &mut Context) {
    if let Err(error) = parse(text) {
        let message = format!("{}; {effect}", named(text, &error));
        cx.warning("bad-value", span, message, HELP);
    }
}

/// As [`check`], for all texts in a node.
pub(crate) fn check_all(node: &Node, effect: &str, cx: &mut Context) {
    if let Some(text) = node.as_str() {
        check(text, &node.span, effect, cx);
    }
    for (index, item) in node.as_sequence().unwrap_or_default().iter().enumerate() {
        cx.at_index(index, |cx| check_all(item, effect, cx));
    }
    for entry in node.as_mapping().into_iter().flat_map(|mapping| mapping.iter()) {
        cx.at_key(&entry.key, |cx| check_all(&entry.value, effect, cx));
    }
}

/// As [`check`], for all texts in a JSON text that has the place of a value.
pub(crate) fn check_json(value: &serde_json::Value, span: &Span, effect: &str, cx: &mut Context) {
    match value {
        serde_json::Value::String(text) => check(text, span, effect, cx),
        serde_json::Value::Array(items) => items.iter().for_each(|item| check_json(item, span, effect, cx)),
        serde_json::Value::Object(fields) => fields.values().for_each(|field| check_json(field, span, effect, cx)),
        _ => {}
    }
}

/// Reports operators in a header's value that proxies do not have. They are sent as text, as any other percent sign is.
pub(crate) fn check_header(value: &str, span: &Span, cx: &mut Context) {
    for (at, _) in value.match_indices('%') {
        let after = value.get(at + 1..).unwrap_or_default();
        if let Some(Err(error)) = operator_at(after) {
            let message = format!("{}; it is sent as text", error.what());
            cx.warning("bad-value", span, message, HELP);
        }
    }
}

const HELP: &str =
    "e.g. `%REQ(:METHOD)%`; a percent sign by itself is written `%%`; docs/telemetry.md lists the operators";

/// The mistake, with its place in a text that is more than the operator.
fn named(text: &str, error: &FormatError) -> String {
    match text.get(..error.at()).map(|before| before.chars().count()) {
        Some(characters) if characters > 0 => format!("at character {} of it: {}", characters + 1, error.what()),
        _ => error.what(),
    }
}
