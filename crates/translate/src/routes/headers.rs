//! Changes to headers.

use evenkeel_format::operator_at;
use evenkeel_model::HeaderOperations;

use crate::pb::core::header_value_option::HeaderAppendAction;
use crate::pb::core::{HeaderValue, HeaderValueOption};

/// Headers to set and to add; those to set first, so that an addition to the same header stays.
pub fn to_add(operations: &HeaderOperations) -> Vec<HeaderValueOption> {
    let set = operations.set.iter().filter(|(name, _)| !is_host(name));
    let set = set.map(|(name, value)| option(name, value, HeaderAppendAction::OverwriteIfExistsOrAdd));
    let add = operations.add.iter();
    set.chain(add.map(|(name, value)| option(name, value, HeaderAppendAction::AppendIfExistsOrAdd))).collect()
}

/// Headers to remove.
pub fn to_remove(operations: &HeaderOperations) -> Vec<String> {
    operations.remove.iter().map(ToString::to_string).collect()
}

/// The new authority, if `host` is set like a header; Envoy accepts it only as a rewrite.
pub fn authority(operations: &HeaderOperations) -> Option<String> {
    operations.set.iter().find(|(name, _)| is_host(name)).map(|(_, value)| value.to_string())
}

fn is_host(name: &str) -> bool {
    name.eq_ignore_ascii_case("host") || name == ":authority"
}

fn option(name: &str, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value: escape(value), ..Default::default() }),
        append_action: action as i32,
        ..Default::default()
    }
}

/// Envoy reads header values as formats and refuses a route configuration with a stray `%`. Operators (`%START_TIME%`,
/// `%REQ(a)%`) and `%%` stay; any other `%` is doubled, also that of an operator which proxies do not have.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('%') {
        escaped.push_str(before);
        let operator = if after.starts_with('%') { Some(1) } else { operator_at(after).and_then(Result::ok) };
        let (unchanged, tail) = after.split_at(operator.unwrap_or_default());
        escaped.push_str(if unchanged.is_empty() { "%%" } else { "%" });
        escaped.push_str(unchanged);
        rest = tail;
    }
    escaped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stray_percent_signs_are_escaped() {
        let check = |value: &str, expected: &str| assert_eq!(escape(value), expected, "{value}");
        check("plain", "plain");
        check("100%", "100%%");
        check("100%%", "100%%");
        check("%START_TIME%", "%START_TIME%");
        check("a %REQ(x-a?:path):20% b", "a %REQ(x-a?:path):20% b");
        check("50% of %PROTOCOL%", "50%% of %PROTOCOL%");
        check("%20", "%%20");
        check("%not%", "%%not%%");
        check("%REQ(", "%%REQ(");
        check("%NOPE% %PROTOCOL%", "%%NOPE%% %PROTOCOL%");
        check("%CEL(size('a)b'))%", "%CEL(size('a)b'))%");
        check("ü%", "ü%%");
    }
}
