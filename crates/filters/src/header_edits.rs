//! Edits of headers, for routes, filters, local replies, mirrors and callouts alike.

use evenkeel_http::Headers;
use evenkeel_runtime_config::header_edits::{AppendAction, HeaderAddition};

/// Adds one header with this value, as its [`AppendAction`] demands (`HeaderValueOption.append_action`). An empty value adds nothing
/// unless the addition keeps it (`keep_empty_value`).
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
