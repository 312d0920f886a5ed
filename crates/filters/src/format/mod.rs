//! Formats data about a request or a connection with Envoy's format strings, for access logs, header values of routes and
//! filters, and bodies of local replies.
//!
//! A [`Record`] has the data; [`operators`] computes the value of each operator, and [`sink`] writes it. Text, JSON and
//! header values share one table of operators, so that an operator means the same everywhere.

mod operators;
mod record;
mod sink;
#[cfg(test)]
mod tests;
mod time;

use evenkeel_runtime_config::access_log::{JsonFormat, LogFormat};
use evenkeel_runtime_config::substitution_format::{Format, FormatPart};

pub use record::{HeadLookup, NoHead, Record, ResponseView, Trailers, UpstreamPeer};

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
        match part {
            FormatPart::Literal(text) => write_short(text.as_bytes(), out),
            FormatPart::Operator { operator, max_length } => {
                let start = out.len();
                value(operator, record, &mut Text(out, absent));
                if let Some(limit) = max_length {
                    out.truncate(start + limit.min(&(out.len() - start)));
                }
            }
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
    if let [FormatPart::Operator { operator, max_length: None }] = whole.parts.as_slice() {
        return value(operator, record, &mut Json(out));
    }
    let mut text = Vec::new();
    format(whole, record, &mut text);
    json_string(&text, out);
}

fn is_absent(node: &JsonFormat, record: &Record<'_>) -> bool {
    match node {
        JsonFormat::Value(format) => match format.parts.as_slice() {
            [FormatPart::Operator { operator, .. }] => {
                let mut presence = Presence(true);
                value(operator, record, &mut presence);
                !presence.0
            }
            _ => false,
        },
        _ => false,
    }
}
