//! The values of `%CEL%` and `%TYPED_CEL%`.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use evenkeel_cel::Value;
use evenkeel_runtime_config::substitution_format::Operator;
use serde_json::Value as Json;

use super::record::Record;
use super::sink::Sink;
use super::time;
use crate::cel::evaluate_for;
use crate::info::Form;

/// Gives the value of an expression to `sink`; one that has none is absent. `typed`: numbers, lists… keep their types in JSON.
pub(super) fn value(operator: &Operator, record: &Record<'_>, sink: &mut impl Sink) {
    let Operator::Cel { expression, node, typed } = operator else { return sink.absent() };
    match evaluate_for(expression, node, record) {
        Err(_) => sink.absent(),
        Ok(Value::Text(text)) => sink.bytes(text.as_bytes()),
        Ok(value) if *typed && sink.form() == Form::TypedJson => sink.json(&json(&value).to_string()),
        Ok(Value::Bytes(bytes)) => sink.bytes(&bytes),
        Ok(value) => sink.bytes(text(&value).as_bytes()),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Time(nanos) => moment(*nanos),
        Value::Duration(nanos) => span(*nanos),
        Value::List(_) | Value::Map(_) => json(value).to_string(),
        value => value.to_text(),
    }
}

/// Recursion depth is bounded by the expression's, and by that of metadata.
fn json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Double(value) if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 => (*value as i64).into(),
        Value::Double(value) => (*value).into(),
        Value::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes).into(),
        Value::List(values) => values.iter().map(json).collect(),
        Value::Map(entries) => Json::Object(entries.iter().map(|(key, value)| (key.to_text(), json(value))).collect()),
        Value::Duration(_) => value.to_text().into(),
        Value::Text(_) | Value::Time(_) => text(value).into(),
    }
}

/// `1h30m`, `1.5s`, `20ms`, as Envoy writes durations.
fn span(nanos: i64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let in_units = |unit: u64, name: &str| {
        let digits = unit.ilog10() as usize;
        let fraction = format!("{:0digits$}", nanos % unit);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() || digits == 0 { "" } else { "." };
        let fraction = if digits == 0 { "" } else { fraction };
        format!("{sign}{}{point}{fraction}{name}", nanos / unit)
    };
    match nanos {
        0 => "0".to_owned(),
        1..1_000 => in_units(1, "ns"),
        1_000..1_000_000 => in_units(1_000, "us"),
        1_000_000..SECOND => in_units(1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (nanos / (3600 * SECOND), nanos / (60 * SECOND) % 60);
            let seconds = nanos % (60 * SECOND);
            let part = |number: u64, name: &str| if number == 0 { String::new() } else { format!("{number}{name}") };
            let rest = if seconds == 0 { String::new() } else { span(i64::try_from(seconds).unwrap_or_default()) };
            // A rest below a second is still one of seconds.
            let rest = if seconds > 0 && seconds < SECOND { fraction_of_second(seconds) } else { rest };
            match (hours, minutes) {
                (0, 0) => in_units(SECOND, "s"),
                _ => format!("{sign}{}{}{rest}", part(hours, "h"), part(minutes, "m")),
            }
        }
    }
}

/// `0.5s`
fn fraction_of_second(nanos: u64) -> String {
    let digits = format!("{nanos:09}");
    format!("0.{}s", digits.trim_end_matches('0'))
}

/// `2023-08-26T19:39:00+00:00`, with a fraction if there is one.
fn moment(nanos: i64) -> String {
    let Ok(since) = u64::try_from(nanos) else { return String::new() };
    let at = UNIX_EPOCH + Duration::from_nanos(since);
    let mut out = Vec::new();
    time::write_custom(at, "%Y-%m-%dT%H:%M:%S", &mut out);
    let fraction = format!("{:09}", since % 1_000_000_000);
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        out.push(b'.');
        out.extend_from_slice(fraction.as_bytes());
    }
    out.extend_from_slice(b"+00:00");
    String::from_utf8_lossy(&out).into_owned()
}
