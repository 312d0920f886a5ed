//! Secrets: texts and bytes for programs.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Decode, Schema};

object! {
    /// Named bytes for programs: as variables, or as files.
    pub struct Secret {
        /// The bytes, in base64.
        data: BTreeMap<String, Bytes> = "data",
        /// The same as text; takes precedence over `data`.
        string_data: BTreeMap<String, Text> = "stringData",
    }
    inert: ["type", "immutable"];
}

/// Bytes, written in base64 (RFC 4648 section 4).
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// A text that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub String);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Decode for Text {
    fn schema() -> Schema {
        String::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        String::decode(node, cx).map(Self)
    }
}

impl Decode for Bytes {
    fn schema() -> Schema {
        Schema::String("bytes in base64")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Some(text) = node.as_str().or(node.is_null().then_some("")) else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        // Lines may be folded.
        let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        match STANDARD.decode(plain) {
            Ok(bytes) => Some(Self(bytes)),
            Err(error) => {
                let help = "write plain text under `stringData`, or encode it: `base64 -w0`";
                cx.error("bad-value", &node.span, format!("not base64: {error}"), help);
                None
            }
        }
    }
}
