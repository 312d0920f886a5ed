//! Functions of the standard library.

use crate::time::{self, Part};
use crate::value::{Failure, Value};

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    LowerAscii,
    UpperAscii,
    String,
    Int,
    Uint,
    Double,
    Bool,
    Bytes,
    Duration,
    Timestamp,
    Part(Part),
    Dyn,
}

/// Functions by name, with the number of their arguments, the target included.
const TABLE: [(&str, Function, usize); 25] = [
    ("size", Function::Size, 1),
    ("contains", Function::Contains, 2),
    ("startsWith", Function::StartsWith, 2),
    ("endsWith", Function::EndsWith, 2),
    ("lowerAscii", Function::LowerAscii, 1),
    ("upperAscii", Function::UpperAscii, 1),
    ("string", Function::String, 1),
    ("int", Function::Int, 1),
    ("uint", Function::Uint, 1),
    ("double", Function::Double, 1),
    ("bool", Function::Bool, 1),
    ("bytes", Function::Bytes, 1),
    ("duration", Function::Duration, 1),
    ("timestamp", Function::Timestamp, 1),
    ("getFullYear", Function::Part(Part::FullYear), 1),
    ("getMonth", Function::Part(Part::Month), 1),
    ("getDayOfMonth", Function::Part(Part::DayOfMonth), 1),
    ("getDate", Function::Part(Part::Date), 1),
    ("getDayOfWeek", Function::Part(Part::DayOfWeek), 1),
    ("getDayOfYear", Function::Part(Part::DayOfYear), 1),
    ("getHours", Function::Part(Part::Hours), 1),
    ("getMinutes", Function::Part(Part::Minutes), 1),
    ("getSeconds", Function::Part(Part::Seconds), 1),
    ("getMilliseconds", Function::Part(Part::Milliseconds), 1),
    ("dyn", Function::Dyn, 1),
];

/// The names of all functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, ..)| *name)
}

impl Function {
    /// The function of this name with this number of arguments.
    pub(crate) fn named(name: &str, arguments: usize) -> Option<Self> {
        TABLE.iter().find(|(known, _, count)| *known == name && *count == arguments).map(|(_, it, _)| *it)
    }

    fn name(self) -> &'static str {
        TABLE.iter().find(|(_, it, _)| *it == self).map_or("", |(name, ..)| name)
    }

    pub(crate) fn apply(self, arguments: &[Value]) -> Result<Value, Failure> {
        match arguments {
            [value] => self.of_one(value),
            [Value::Text(text), Value::Text(part)] => match self {
                Self::Contains => Ok(Value::Bool(text.contains(&**part))),
                Self::StartsWith => Ok(Value::Bool(text.starts_with(&**part))),
                Self::EndsWith => Ok(Value::Bool(text.ends_with(&**part))),
                _ => Err(self.wrong(arguments)),
            },
            _ => Err(self.wrong(arguments)),
        }
    }

    fn wrong(self, arguments: &[Value]) -> Failure {
        Failure::types(self.name(), &arguments.iter().collect::<Vec<_>>())
    }

    fn of_one(self, value: &Value) -> Result<Value, Failure> {
        match (self, value) {
            (Self::Dyn, value) => Ok(value.clone()),
            (Self::Size, value) => size(value).map(Value::Int).ok_or_else(|| self.wrong(std::slice::from_ref(value))),
            (Self::LowerAscii, Value::Text(text)) => Ok(Value::Text(text.to_ascii_lowercase().into())),
            (Self::UpperAscii, Value::Text(text)) => Ok(Value::Text(text.to_ascii_uppercase().into())),
            (Self::String, value) if !matches!(value, Value::List(_) | Value::Map(_) | Value::Null) => {
                Ok(Value::Text(value.to_text().into()))
            }
            (Self::Bytes, Value::Text(text)) => Ok(Value::Bytes(text.as_bytes().into())),
            (Self::Bytes, Value::Bytes(_)) | (Self::Bool, Value::Bool(_)) | (Self::Duration, Value::Duration(_)) => {
                Ok(value.clone())
            }
            (Self::Bool, Value::Text(text)) => self.parsed(text).map(Value::Bool),
            (Self::Duration, Value::Text(text)) => duration(text).map(Value::Duration),
            (Self::Timestamp, Value::Time(_)) => Ok(value.clone()),
            (Self::Timestamp, Value::Text(text)) => time::timestamp(text).map(Value::Time),
            (Self::Timestamp, Value::Int(seconds)) => {
                seconds.checked_mul(1_000_000_000).map(Value::Time).ok_or(Failure::Range(self.name()))
            }
            (Self::Part(part), Value::Time(nanos)) => Ok(Value::Int(time::part(part, *nanos))),
            (Self::Part(Part::Hours), Value::Duration(nanos)) => Ok(Value::Int(nanos / 3_600_000_000_000)),
            (Self::Part(Part::Minutes), Value::Duration(nanos)) => Ok(Value::Int(nanos / 60_000_000_000)),
            (Self::Part(Part::Seconds), Value::Duration(nanos)) => Ok(Value::Int(nanos / 1_000_000_000)),
            (Self::Part(Part::Milliseconds), Value::Duration(nanos)) => Ok(Value::Int(nanos / 1_000_000)),
            (Self::Int | Self::Uint | Self::Double, value) => self.number(value),
            _ => Err(self.wrong(std::slice::from_ref(value))),
        }
    }

    fn parsed<T: std::str::FromStr>(self, text: &str) -> Result<T, Failure> {
        text.parse().map_err(|_| Failure::Conversion(self.name()))
    }

    fn number(self, value: &Value) -> Result<Value, Failure> {
        let range = || Failure::Range(self.name());
        match (self, value) {
            (Self::Int, Value::Int(_)) | (Self::Uint, Value::Uint(_)) | (Self::Double, Value::Double(_)) => {
                Ok(value.clone())
            }
            (Self::Int, Value::Uint(value)) => i64::try_from(*value).map(Value::Int).map_err(|_| range()),
            (Self::Uint, Value::Int(value)) => u64::try_from(*value).map(Value::Uint).map_err(|_| range()),
            (Self::Int, Value::Double(value)) if value.abs() < 9.2e18 => Ok(Value::Int(*value as i64)),
            (Self::Uint, Value::Double(value)) if (0.0..1.8e19).contains(value) => Ok(Value::Uint(*value as u64)),
            (Self::Int | Self::Uint, Value::Double(_)) => Err(range()),
            (Self::Double, Value::Int(value)) => Ok(Value::Double(*value as f64)),
            (Self::Double, Value::Uint(value)) => Ok(Value::Double(*value as f64)),
            (Self::Int, Value::Time(nanos)) => Ok(Value::Int(nanos.div_euclid(1_000_000_000))),
            (Self::Int, Value::Text(text)) => self.parsed(text).map(Value::Int),
            (Self::Uint, Value::Text(text)) => self.parsed(text).map(Value::Uint),
            (Self::Double, Value::Text(text)) => self.parsed(text).map(Value::Double),
            _ => Err(self.wrong(std::slice::from_ref(value))),
        }
    }
}

fn size(value: &Value) -> Option<i64> {
    let size = match value {
        Value::Text(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(values) => values.len(),
        Value::Map(entries) => entries.len(),
        _ => return None,
    };
    i64::try_from(size).ok()
}

/// `1h30m`, `1.5s`, `10ms`
fn duration(text: &str) -> Result<i64, Failure> {
    let wrong = || Failure::Conversion("duration");
    let (sign, mut rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut nanos = 0f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, behind) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        const UNITS: [(&str, f64); 6] = [("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("h", 3.6e12), ("m", 6e10), ("s", 1e9)];
        let unit = UNITS.iter().find_map(|(unit, nanos)| Some((behind.strip_prefix(unit)?, nanos)));
        let (behind, unit) = unit.ok_or_else(wrong)?;
        nanos += number * unit;
        rest = behind;
    }
    // Far below the limits of the type.
    if nanos < 9e18 { Ok(sign * nanos as i64) } else { Err(Failure::Range("duration")) }
}
