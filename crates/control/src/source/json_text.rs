//! Objects as JSON text: a tree of values takes some ten times the memory, and is needed only while an object is read.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// A JSON value as text. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// Writes a value without spaces, its fields in their order.
    pub fn new(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    /// Reads the value.
    pub fn value(&self) -> Value {
        // The text was written from a value, or read as one.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

/// The text.
impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_same_after_it_was_text() {
        let check = |json: &str| {
            let value: Value = serde_json::from_str(json).expect("JSON");
            let text = JsonText::new(&value);
            assert_eq!(text.value(), value);
            assert_eq!(serde_json::from_str::<Value>(&text.to_string()).expect("JSON"), value);
            assert_eq!(JsonText::new(&text.value()), text);
        };
        check("null");
        check(r#"{"b": 1, "a": [1.5, -3, 18446744073709551615, "\u0000\"\\é"], "c": {}}"#);
    }
}
