//! Edits of a message's headers.

use evenkeel_http::{Headers, RequestHead};
use evenkeel_runtime_config::access_log::{Format, FormatPart, Operator};
use evenkeel_runtime_config::header_edits::{AppendAction, HeaderAddition, HeaderMutation};

/// What format strings refer to.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen<'m> {
    pub(super) request: Option<&'m RequestHead>,
    /// Status and headers of the response.
    pub(super) response: Option<(u16, &'m Headers)>,
}

/// Adds one header with this value.
pub fn add_header(headers: &mut Headers, addition: &HeaderAddition, value: &[u8]) {
    if value.is_empty() && !addition.keep_empty_value {
        return;
    }
    let name = addition.name.to_ascii_lowercase();
    let name = name.as_bytes();
    let exists = headers.find(name).is_some();
    match addition.action {
        AppendAction::AppendIfExistsOrAdd => headers.append(name, value),
        AppendAction::AddIfAbsent if !exists => headers.append(name, value),
        AppendAction::OverwriteIfExistsOrAdd => headers.set_name(name, value),
        AppendAction::OverwriteIfExists if exists => headers.set_name(name, value),
        AppendAction::AddIfAbsent | AppendAction::OverwriteIfExists => {}
    }
}

/// Applies one edit; `value` is the value to add, if any.
pub(super) fn apply(headers: &mut Headers, mutation: &HeaderMutation, value: &[u8]) {
    match mutation {
        HeaderMutation::Remove(name) => headers.remove_name(name.as_bytes()),
        HeaderMutation::RemoveMatching(names) => headers.remove_where(|_, name| names.matches(name)),
        HeaderMutation::Add(addition) => add_header(headers, addition, value),
    }
}

/// The value to add.
pub(super) fn value(mutation: &HeaderMutation, seen: Seen<'_>) -> Vec<u8> {
    let mut value = Vec::new();
    if let HeaderMutation::Add(addition) = mutation {
        format(&addition.value, seen, &mut value);
    }
    value
}

/// The value that a header is given, as far as the request tells it.
pub(crate) fn value_for(addition: &HeaderAddition, request: &RequestHead) -> Vec<u8> {
    let mut value = Vec::new();
    format(&addition.value, Seen { request: Some(request), response: None }, &mut value);
    value
}

pub(super) fn format(format: &Format, seen: Seen<'_>, out: &mut Vec<u8>) {
    for part in &format.parts {
        let (operator, max_length) = match part {
            FormatPart::Literal(text) => {
                out.extend_from_slice(text.as_bytes());
                continue;
            }
            FormatPart::Operator { operator, max_length } => (operator, max_length),
        };
        let start = out.len();
        match operator {
            Operator::Req(name, other) => [Some(name), other.as_ref()]
                .into_iter()
                .flatten()
                .any(|name| seen.request.is_some_and(|head| request_field(head, name, out))),
            Operator::Resp(name, other) => [Some(name), other.as_ref()]
                .into_iter()
                .flatten()
                .any(|name| seen.response.is_some_and(|head| response_field(head, name, out))),
            // The compiler accepts no others.
            _ => false,
        };
        if let Some(limit) = max_length {
            out.truncate(start + limit.min(&(out.len() - start)));
        }
    }
}

fn request_field(head: &RequestHead, name: &str, out: &mut Vec<u8>) -> bool {
    let value = match name {
        ":method" => Some(head.method()),
        ":path" => Some(head.path()),
        ":authority" | "host" => Some(head.authority()),
        name => head.headers.find(name.as_bytes()),
    };
    value.filter(|value| !value.is_empty()).inspect(|value| out.extend_from_slice(value)).is_some()
}

fn response_field((status, headers): (u16, &Headers), name: &str, out: &mut Vec<u8>) -> bool {
    if name == ":status" {
        out.extend_from_slice(status.to_string().as_bytes());
        return true;
    }
    headers.find(name.as_bytes()).inspect(|value| out.extend_from_slice(value)).is_some()
}
