//! Formats data about a request or a connection with Envoy's format strings, for access logs, header values of routes and
//! filters, and bodies of local replies.
//!
//! A [`Record`] has the data; [`operators`] computes the value of each operator, and [`sink`] writes it. Text, JSON and
//! header values share one table of operators, so that an operator means the same everywhere.

mod certificates;
mod expressions;
mod operators;
mod record;
mod sink;
#[cfg(test)]
mod tests;
mod time;
mod tries;

use evenkeel_runtime_config::access_log::{JsonFormat, LogFormat};
use evenkeel_runtime_config::substitution_format::{Format, FormatPart, Operator};

pub use record::{HeadLookup, NoHead, Record, ResponseView, TraceIds, Trailers, UpstreamPeer};

use operators::value;
use sink::{Json, Presence, Text, json_string, write_short};

/// Appends one log line.
pub fn format_line(line: &LogFormat, record: &Record<'_>, out: &mut Vec<u8>) {
    match line {
        LogFormat::Text(text) => format(text, record, out),
        LogFormat::Json { root, omit_empty } => {
            json(root, record, *omit_empty, out);
            out.push(b'\n');
        }
    }
}

/// Appends the text form. An absent value becomes `-`.
pub fn format(format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    format_or(b"-", format, record, out);
}

/// The value of a header. Absent values are left out.
pub fn header_value(format: &Format, record: &Record<'_>) -> Vec<u8> {
    let mut value = Vec::new();
    format_or(b"", format, record, &mut value);
    value
}

fn format_or(absent: &'static [u8], format: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    for part in &format.parts {
        write_part(part, absent, record, out);
    }
}

/// A value is cut at the operator's length. The first part of several with a value is cut at its own before.
#[inline]
fn write_part(part: &FormatPart, absent: &'static [u8], record: &Record<'_>, out: &mut Vec<u8>) {
    match part {
        FormatPart::Literal(text) => write_short(text.as_bytes(), out),
        FormatPart::Operator { operator, max_length } => {
            let start = out.len();
            match operator {
                Operator::Coalesce(parts) => match present(parts, record) {
                    Some(part) => write_single(part, absent, record, out),
                    None => write_short(absent, out),
                },
                operator => value(operator, record, &mut Text(out, absent)),
            }
            if let Some(limit) = max_length {
                out.truncate(start + limit.min(&(out.len() - start)));
            }
        }
    }
}

/// A part of several, which are not nested.
fn write_single(part: &FormatPart, absent: &'static [u8], record: &Record<'_>, out: &mut Vec<u8>) {
    match part {
        FormatPart::Literal(text) => write_short(text.as_bytes(), out),
        FormatPart::Operator { operator, max_length } => {
            let start = out.len();
            value(operator, record, &mut Text(out, absent));
            out.truncate(start + max_length.unwrap_or(usize::MAX).min(out.len() - start));
        }
    }
}

fn json(node: &JsonFormat, record: &Record<'_>, omit_empty: bool, out: &mut Vec<u8>) {
    match node {
        JsonFormat::Object(entries) => {
            out.push(b'{');
            let mut first = true;
            for (key, entry) in entries {
                if omit_empty && is_absent(entry, record) {
                    continue;
                }
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                json_string(key.as_bytes(), out);
                out.push(b':');
                json(entry, record, omit_empty, out);
            }
            out.push(b'}');
        }
        JsonFormat::List(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json(item, record, omit_empty, out);
            }
            out.push(b']');
        }
        JsonFormat::Value(format) => json_value(format, record, out),
    }
}

/// A lone operator keeps its type; anything else is a string.
fn json_value(whole: &Format, record: &Record<'_>, out: &mut Vec<u8>) {
    match whole.parts.as_slice() {
        [FormatPart::Operator { operator: Operator::Coalesce(parts), max_length: None }] => {
            match present(parts, record) {
                Some(FormatPart::Operator { operator, max_length: None }) => {
                    return value(operator, record, &mut Json(out));
                }
                None => return out.extend_from_slice(b"null"),
                Some(_) => {}
            }
        }
        [FormatPart::Operator { operator, max_length: None }] => return value(operator, record, &mut Json(out)),
        _ => {}
    }
    let mut text = Vec::new();
    format(whole, record, &mut text);
    json_string(&text, out);
}

fn is_absent(node: &JsonFormat, record: &Record<'_>) -> bool {
    match node {
        JsonFormat::Value(format) => match format.parts.as_slice() {
            [FormatPart::Operator { operator: Operator::Coalesce(parts), .. }] => present(parts, record).is_none(),
            [part @ FormatPart::Operator { .. }] => !is_present(part, record),
            _ => false,
        },
        _ => false,
    }
}

/// The first part with a value.
fn present<'p>(parts: &'p [FormatPart], record: &Record<'_>) -> Option<&'p FormatPart> {
    parts.iter().find(|part| is_present(part, record))
}

fn is_present(part: &FormatPart, record: &Record<'_>) -> bool {
    match part {
        FormatPart::Literal(text) => !text.is_empty(),
        FormatPart::Operator { operator, .. } => {
            let mut presence = Presence(true);
            value(operator, record, &mut presence);
            presence.0
        }
    }
}
