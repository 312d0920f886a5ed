//! Scalars, lists and maps.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::re2::Regex;
use evenkeel_base::yaml::{Entry, Node, Scalar, ScalarType, Value};
use evenkeel_base::{cidr, duration};

use super::{Context, Decode, Schema};

/// Text, or an error.
fn text<'n>(node: &'n Node, cx: &mut Context, schema: &Schema) -> Option<&'n str> {
    let text = node.as_str();
    if text.is_none() {
        cx.wrong_type(node, schema);
    }
    text
}

/// Text that `parse` accepts, or an error in its words.
pub(crate) fn parsed<T, E: fmt::Display>(
    node: &Node,
    cx: &mut Context,
    code: &'static str,
    what: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<T> {
    let text = text(node, cx, &Schema::String(what))?;
    match parse(text) {
        Ok(value) => Some(value),
        Err(error) => {
            cx.error(code, &node.span, error, format!("expected {what}"));
            None
        }
    }
}

/// A whole number within bounds, or an error.
fn integer(node: &Node, cx: &mut Context, min: i64, max: i64) -> Option<i64> {
    let schema = Schema::Integer { min, max };
    let Value::Scalar(Scalar { ty: ScalarType::Int(value), .. }) = node.value else {
        cx.wrong_type(node, &schema);
        return None;
    };
    match i64::try_from(value) {
        Ok(value) if (min..=max).contains(&value) => Some(value),
        _ => {
            cx.error(
                "out-of-range",
                &node.span,
                format!("{value} is out of range"),
                format!("expected {}", schema.describe()),
            );
            None
        }
    }
}

impl Decode for String {
    fn schema() -> Schema {
        Schema::String("a string")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        text(node, cx, &Self::schema()).map(str::to_owned)
    }
}

impl Decode for bool {
    fn schema() -> Schema {
        Schema::Boolean
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match &node.value {
            Value::Scalar(Scalar { ty: ScalarType::Bool(value), .. }) => Some(*value),
            _ => {
                cx.wrong_type(node, &Self::schema());
                None
            }
        }
    }

    fn absent() -> Option<Self> {
        Some(false)
    }
}

impl Decode for u32 {
    fn schema() -> Schema {
        Schema::Integer { min: 0, max: i64::from(i32::MAX) }
    }

    /// Protobuf's int32 and uint32, without negative numbers, which have no meaning in any field.
    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        u32::try_from(integer(node, cx, 0, i64::from(i32::MAX))?).ok()
    }
}

impl Decode for Duration {
    fn schema() -> Schema {
        Schema::String("a duration such as `500ms`, `1.5s` or `1h30m`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-duration", "a duration such as `500ms`, `1.5s` or `1h30m`", duration::parse)
    }
}

impl Decode for IpNet {
    fn schema() -> Schema {
        Schema::String("an address or CIDR range such as `10.1.0.0/16`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-cidr", "an address or CIDR range such as `10.1.0.0/16`", cidr::parse)
    }
}

impl Decode for IpAddr {
    fn schema() -> Schema {
        Schema::String("an IP address")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-address", "an IP address such as `10.96.0.12`", |text| {
            text.parse().map_err(|_| format!("`{text}` is not an IP address"))
        })
    }
}

impl Decode for Hostname {
    fn schema() -> Schema {
        Schema::String("a host name")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-host", "a host name such as `reviews` or `*.example.com`", Hostname::parse)
    }
}

impl<T: Decode> Decode for Option<T> {
    fn schema() -> Schema {
        T::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        T::decode(node, cx).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Decode> Decode for Box<T> {
    fn schema() -> Schema {
        T::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        T::decode(node, cx).map(Box::new)
    }

    fn absent() -> Option<Self> {
        T::absent().map(Box::new)
    }
}

impl<T: Decode> Decode for Spanned<T> {
    fn schema() -> Schema {
        T::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        T::decode(node, cx).map(|value| Spanned::new(value, node.span.clone()))
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn schema() -> Schema {
        Schema::List(Box::new(T::schema()))
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Some(items) = node.as_sequence() else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        let decoded: Vec<Option<T>> =
            items.iter().enumerate().map(|(i, item)| cx.at_index(i, |cx| T::decode(item, cx))).collect();
        decoded.into_iter().collect()
    }

    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}

/// The key of a map.
pub trait Key: Ord + Sized {
    /// Reads it from a name in YAML.
    fn from_entry(entry: &Entry, cx: &mut Context) -> Option<Self>;
}

impl Key for String {
    fn from_entry(entry: &Entry, _: &mut Context) -> Option<Self> {
        Some(entry.key.to_string())
    }
}

impl Key for Port {
    fn from_entry(entry: &Entry, cx: &mut Context) -> Option<Self> {
        let port = entry.key.parse().ok().filter(|port| *port != 0);
        if port.is_none() {
            let help = "the names of this mapping are port numbers, from 1 to 65535";
            cx.error("bad-port", &entry.key_span, format!("`{}` is not a port", entry.key), help);
        }
        port.map(Port)
    }
}

impl<K: Key, T: Decode> Decode for BTreeMap<K, T> {
    fn schema() -> Schema {
        Schema::Map(Box::new(T::schema()))
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Some(mapping) = node.as_mapping() else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        let mut map = BTreeMap::new();
        let mut complete = true;
        for entry in mapping {
            cx.at_key(&entry.key, |cx| match (K::from_entry(entry, cx), T::decode(&entry.value, cx)) {
                (Some(key), Some(value)) => {
                    map.insert(key, value);
                }
                _ => complete = false,
            });
        }
        complete.then_some(map)
    }

    fn absent() -> Option<Self> {
        Some(BTreeMap::new())
    }
}

/// A port number, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

impl Decode for Port {
    fn schema() -> Schema {
        Schema::Integer { min: 1, max: 65535 }
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        u16::try_from(integer(node, cx, 1, 65535)?).ok().map(Port)
    }
}

/// A port number that may also be written as text, as in any message of Protocol Buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotedPort(pub u16);

impl Decode for QuotedPort {
    fn schema() -> Schema {
        Port::schema()
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let text = match &node.value {
            Value::Scalar(Scalar { ty: ScalarType::Str, text, .. }) => text.parse().ok().filter(|port: &u16| *port > 0),
            _ => None,
        };
        text.map(Self).or_else(|| Port::decode(node, cx).map(|port| Self(port.0)))
    }
}

/// A number or a name, e.g. a Service's `targetPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntOrString {
    /// A port number.
    Port(Port),
    /// A name.
    Name(String),
}

impl Decode for IntOrString {
    fn schema() -> Schema {
        Schema::IntOrString
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match &node.value {
            Value::Scalar(Scalar { ty: ScalarType::Int(_), .. }) => Port::decode(node, cx).map(Self::Port),
            Value::Scalar(Scalar { ty: ScalarType::Str, text, .. }) => Some(Self::Name(text.to_string())),
            _ => {
                cx.wrong_type(node, &Schema::IntOrString);
                None
            }
        }
    }
}

/// A number or text that is kept as text: Kubernetes quantities (`100m`, `1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity(pub String);

impl Decode for Quantity {
    fn schema() -> Schema {
        Schema::IntOrString
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match &node.value {
            Value::Scalar(scalar) => Some(Self(scalar.text.to_string())),
            _ => {
                cx.wrong_type(node, &Schema::IntOrString);
                None
            }
        }
    }
}

/// A value of any form, kept as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Anything(pub serde_json::Value);

impl Decode for Anything {
    fn schema() -> Schema {
        Schema::String("any value")
    }

    fn decode(node: &Node, _: &mut Context) -> Option<Self> {
        Some(Self(node.to_json()))
    }
}

/// A mapping with any fields, kept as JSON: a message of which nothing is read.
#[derive(Debug, Clone, PartialEq)]
pub struct AnyFields(pub serde_json::Value);

impl Decode for AnyFields {
    fn schema() -> Schema {
        Schema::Map(Box::new(Anything::schema()))
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        if node.as_mapping().is_none() {
            cx.wrong_type(node, &Self::schema());
            return None;
        }
        Some(Self(node.to_json()))
    }
}

/// A number, whole or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decimal(pub f64);

impl Decode for Decimal {
    fn schema() -> Schema {
        Schema::Number
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        match node.value {
            Value::Scalar(Scalar { ty: ScalarType::Int(value), .. }) => Some(Self(value as f64)),
            Value::Scalar(Scalar { ty: ScalarType::Float(value), .. }) if value.is_finite() => Some(Self(value)),
            _ => {
                cx.wrong_type(node, &Schema::Number);
                None
            }
        }
    }
}

/// An expression in RE2's syntax that compiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegexText(pub Arc<str>);

impl RegexText {
    /// Parses an expression; the error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        Regex::whole(text).map(|_| Self(text.into()))
    }
}

impl Decode for RegexText {
    fn schema() -> Schema {
        Schema::String("a regular expression (RE2 syntax)")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(
            node,
            cx,
            "bad-regex",
            "a regular expression in RE2 syntax, without look-around and back references",
            Self::new,
        )
    }
}

/// The name of a header (RFC 9110 section 5.1), in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderName(pub Arc<str>);

impl HeaderName {
    /// Whether a text is the name of a header.
    pub fn is_valid(text: &str) -> bool {
        Self::parse(text).is_ok()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        // HTTP/2 pseudo headers (`:authority`) may be matched and set, as in Istio.
        let name = text.strip_prefix(':').unwrap_or(text);
        if !name.is_empty() && name.chars().all(token) {
            Ok(Self(text.to_ascii_lowercase().into()))
        } else {
            Err(format!("`{text}` is not the name of a header"))
        }
    }
}

impl Decode for HeaderName {
    fn schema() -> Schema {
        Schema::String("the name of a header")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-header", "the name of a header such as `x-user`", Self::parse)
    }
}

impl Key for HeaderName {
    fn from_entry(entry: &Entry, cx: &mut Context) -> Option<Self> {
        let name = Self::parse(&entry.key);
        if let Err(message) = &name {
            cx.error("bad-header", &entry.key_span, message, "expected letters, digits and dashes, such as `x-user`");
        }
        name.ok()
    }
}

/// A header, in lower case, or a claim of a token (`@request.auth.claims.NAME`) that a route can match besides the path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatchName(pub Arc<str>);

impl MatchName {
    /// Prefix of the names of claims.
    pub const CLAIMS: &'static str = "@request.auth.claims";

    fn parse(text: &str) -> Result<Self, String> {
        let is_claim = text.get(..Self::CLAIMS.len()).is_some_and(|start| start.eq_ignore_ascii_case(Self::CLAIMS));
        if !is_claim {
            return HeaderName::parse(text).map(|name| Self(name.0));
        }
        let rest = text.get(Self::CLAIMS.len()..).unwrap_or_default();
        let known = match rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.split("][").all(|part| !part.is_empty()),
            None => rest.strip_prefix('.').is_some_and(|rest| rest.split('.').all(|part| !part.is_empty())),
        };
        if known {
            Ok(Self(format!("{}{rest}", Self::CLAIMS).into()))
        } else {
            Err(format!("`{text}` does not name a claim"))
        }
    }
}

impl Key for MatchName {
    fn from_entry(entry: &Entry, cx: &mut Context) -> Option<Self> {
        let name = Self::parse(&entry.key);
        if let Err(message) = &name {
            let help = if entry.key.starts_with('@') {
                "write `@request.auth.claims.NAME`, or `@request.auth.claims[OUTER][INNER]` for a claim within another"
            } else {
                "expected letters, digits and dashes, such as `x-user`"
            };
            cx.error("bad-header", &entry.key_span, message, help);
        }
        name.ok()
    }
}

/// A DNS label (RFC 1123): the name of most objects, ports and subsets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub Arc<str>);

impl Decode for Label {
    fn schema() -> Schema {
        Schema::String("a name of lower-case letters, digits and dashes")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-name", "lower-case letters, digits and inner dashes, at most 63 characters", |text| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let fits = (1..=evenkeel_base::limits::MAX_LABEL_CHARS).contains(&text.len());
            if fits && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-') {
                Ok(Self(text.into()))
            } else {
                Err(format!("`{text}` is not a valid name"))
            }
        })
    }
}

impl Deref for Label {
    type Target = Arc<str>;
    fn deref(&self) -> &Arc<str> {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
