//! Values of expressions, and why there is none.

use std::cmp::Ordering;
use std::sync::Arc;

use thiserror::Error;

/// Most steps of one evaluation. One takes some 100 ns, so an evaluation ends within milliseconds.
pub const MAX_STEPS: usize = 20_000;

/// A value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    /// In nanoseconds.
    Duration(i64),
    /// In nanoseconds since 1970.
    Time(i64),
    List(Arc<Vec<Value>>),
    /// Keys and values.
    Map(Arc<Vec<(Value, Value)>>),
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// Something is not there.
    #[error("there is no `{0}`")]
    Missing(Box<str>),
    /// An operation has no meaning for these values.
    #[error("`{operation}` has no meaning for {types}")]
    Types {
        /// The operation.
        operation: &'static str,
        /// The types of the values.
        types: Box<str>,
    },
    /// A number leaves its range, or is divided by zero.
    #[error("a number leaves its range in `{0}`")]
    Range(&'static str),
    /// A text cannot be converted.
    #[error("the text is no value of the type that `{0}` makes")]
    Conversion(&'static str),
    /// It takes too many steps.
    #[error("it takes more than {MAX_STEPS} steps")]
    Steps,
}

impl Value {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// Bytes that are a text as a rule.
    pub fn lossy(bytes: &[u8]) -> Self {
        Self::Text(String::from_utf8_lossy(bytes).into())
    }

    /// A map from texts.
    pub fn map<'k>(entries: impl IntoIterator<Item = (&'k str, Self)>) -> Self {
        Self::Map(Arc::new(entries.into_iter().map(|(name, value)| (Self::text(name), value)).collect()))
    }

    /// A list.
    pub fn list(values: impl IntoIterator<Item = Self>) -> Self {
        Self::List(Arc::new(values.into_iter().collect()))
    }

    /// The value as labels and tags have it: a text as it is, other values as `string()` writes them.
    pub fn to_text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Double(value) => value.to_string(),
            Self::Text(text) => text.to_string(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Duration(nanos) => seconds(*nanos),
            Self::Time(nanos) => nanos.div_euclid(1_000_000_000).to_string(),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(Self::to_text).collect();
                format!("[{}]", values.join(", "))
            }
            Self::Map(entries) => {
                let entries: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{}: {}", key.to_text(), value.to_text())).collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    /// The name of its type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Duration(_) => "duration",
            Self::Time(_) => "timestamp",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }

    /// The value under a key of a map, or in a place of a list.
    pub(crate) fn at(&self, key: &Self) -> Result<Self, Failure> {
        let missing = || Failure::Missing(key.to_text().into());
        match (self, key) {
            (Self::Map(entries), key) => {
                entries.iter().find(|(known, _)| known.equals(key)).map(|(_, value)| value.clone()).ok_or_else(missing)
            }
            (Self::List(values), Self::Int(place)) => {
                usize::try_from(*place).ok().and_then(|place| values.get(place).cloned()).ok_or_else(missing)
            }
            (Self::List(values), Self::Uint(place)) => {
                usize::try_from(*place).ok().and_then(|place| values.get(place).cloned()).ok_or_else(missing)
            }
            _ => Err(Failure::types("[]", &[self, key])),
        }
    }

    /// Equality, across the types of numbers.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(these), Self::List(those)) => {
                these.len() == those.len() && these.iter().zip(those.iter()).all(|(one, other)| one.equals(other))
            }
            (Self::Map(these), Self::Map(those)) => {
                let has = |(key, value): &(Self, Self)| {
                    those.iter().any(|(known, other)| known.equals(key) && other.equals(value))
                };
                these.len() == those.len() && these.iter().all(has)
            }
            _ if self.is_number() && other.is_number() => self.ordering(other) == Some(Ordering::Equal),
            _ => self == other,
        }
    }

    /// The order of two values; `None`: they have none.
    pub(crate) fn ordering(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
            (Value::Uint(left), Value::Uint(right)) => Some(left.cmp(right)),
            (Value::Int(left), Value::Uint(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
            (Value::Uint(left), Value::Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
            (Value::Double(left), right) => left.partial_cmp(&right.number()?),
            (left, Value::Double(right)) => left.number()?.partial_cmp(right),
            (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
            (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            (Value::Duration(left), Value::Duration(right)) | (Value::Time(left), Value::Time(right)) => {
                Some(left.cmp(right))
            }
            _ => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Uint(value) => Some(*value as f64),
            Self::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Uint(_) | Self::Double(_))
    }

    /// How many steps a copy or a comparison of it may take.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len() / 64,
            Self::Bytes(bytes) => bytes.len() / 64,
            Self::List(values) => values.len(),
            Self::Map(entries) => entries.len(),
            _ => 0,
        }
    }
}

impl Failure {
    pub(crate) fn types(operation: &'static str, values: &[&Value]) -> Self {
        let types: Vec<&str> = values.iter().map(|value| value.type_name()).collect();
        Self::Types { operation, types: types.join(" and ").into() }
    }
}

/// `1.5s`
fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (whole, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    let fraction = format!("{rest:09}");
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}s")
}
