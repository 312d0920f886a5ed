//! Objects as JSON.

use serde_json::Value;

/// A text in an object; empty if it is not there.
pub fn text_of<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
