//! Header edits: additions with templates, removals.

use evenkeel_xds::pb::envoy::config::common::mutation_rules::v3 as mutation_rules;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::config::core::v3::http1_protocol_options::HeaderKeyFormat;
use evenkeel_xds::pb::envoy::config::core::v3::http1_protocol_options::header_key_format::HeaderFormat;

use super::{Cx, matcher};
use crate::header_edits::{AppendAction, HeaderAddition, HeaderEdits, HeaderMutation};

/// The four header fields that every level of a route configuration has.
pub(crate) struct HeaderFields<'m> {
    pub request_add: &'m [core::HeaderValueOption],
    pub request_remove: &'m [String],
    pub response_add: &'m [core::HeaderValueOption],
    pub response_remove: &'m [String],
}

/// Collects the four fields of `$message`.
macro_rules! header_fields {
    ($message:expr) => {
        $crate::compile::headers::HeaderFields {
            request_add: &$message.request_headers_to_add,
            request_remove: &$message.request_headers_to_remove,
            response_add: &$message.response_headers_to_add,
            response_remove: &$message.response_headers_to_remove,
        }
    };
}
pub(crate) use header_fields;

pub(crate) fn edits(cx: &mut Cx<'_>, fields: &HeaderFields<'_>) -> HeaderEdits {
    HeaderEdits {
        request_remove: removals(cx, "request_headers_to_remove", fields.request_remove),
        request_add: cx.each("request_headers_to_add", fields.request_add, addition),
        response_remove: removals(cx, "response_headers_to_remove", fields.response_remove),
        response_add: cx.each("response_headers_to_add", fields.response_add, addition),
    }
}

fn removals(cx: &mut Cx<'_>, field: &str, names: &[String]) -> Vec<Box<str>> {
    cx.each(field, names, |cx, name| Some(modifiable(cx, name)?.into()))
}

/// `HeaderMutation`.
pub(crate) fn mutation(cx: &mut Cx<'_>, mutation: &mutation_rules::HeaderMutation) -> Option<HeaderMutation> {
    use mutation_rules::header_mutation::Action;
    match &mutation.action {
        Some(Action::Remove(name)) => {
            cx.at("remove", |cx| modifiable(cx, name)).map(|name| HeaderMutation::Remove(name.into()))
        }
        Some(Action::Append(option)) => cx.at("append", |cx| addition(cx, option)).map(HeaderMutation::Add),
        Some(Action::RemoveOnMatch(remove)) => cx.at("remove_on_match", |cx| {
            let names = cx.required("key_matcher", remove.key_matcher.as_ref())?;
            matcher::string(cx, "key_matcher", names).map(HeaderMutation::RemoveMatching)
        }),
        None => cx.fail("one of remove, append, remove_on_match is required"),
    }
}

/// A header to add.
pub(crate) fn addition(cx: &mut Cx<'_>, option: &core::HeaderValueOption) -> Option<HeaderAddition> {
    let header = cx.required("header", option.header.as_ref())?;
    cx.at("header", |cx| {
        let name = cx.at("key", |cx| modifiable(cx, &header.key).map(|_| header.key.clone()))?;
        if header.value.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return cx.fail_at("value", "must not contain CR, LF or NUL");
        }
        let value = cx.format("value", &header.value)?;
        Some((name, value))
    })
    .zip(append_action(cx, option))
    .map(|((name, value), action)| HeaderAddition {
        name: name.into(),
        value,
        action,
        keep_empty_value: option.keep_empty_value,
    })
}

#[allow(deprecated)] // `append` is what older control planes send.
fn append_action(cx: &mut Cx<'_>, option: &core::HeaderValueOption) -> Option<AppendAction> {
    use core::header_value_option::HeaderAppendAction;
    if let Some(append) = &option.append {
        if option.append_action != 0 {
            return cx.fail_at("append", "cannot stand beside append_action");
        }
        return Some(if append.value {
            AppendAction::AppendIfExistsOrAdd
        } else {
            AppendAction::OverwriteIfExistsOrAdd
        });
    }
    match HeaderAppendAction::try_from(option.append_action) {
        Ok(HeaderAppendAction::AppendIfExistsOrAdd) => Some(AppendAction::AppendIfExistsOrAdd),
        Ok(HeaderAppendAction::AddIfAbsent) => Some(AppendAction::AddIfAbsent),
        Ok(HeaderAppendAction::OverwriteIfExistsOrAdd) => Some(AppendAction::OverwriteIfExistsOrAdd),
        Ok(HeaderAppendAction::OverwriteIfExists) => Some(AppendAction::OverwriteIfExists),
        Err(_) => cx.fail_at("append_action", format!("unknown value {}", option.append_action)),
    }
}

/// Checks that edits may modify a header. Path and host have rewrites of their own, with which edits would interfere.
fn modifiable(cx: &mut Cx<'_>, name: &str) -> Option<String> {
    let name = header_name(cx, name)?;
    if name.starts_with(':') || name == "host" {
        return cx
            .fail(format!("{name:?} cannot be edited; use prefix_rewrite, regex_rewrite or host_rewrite_literal"));
    }
    Some(name)
}

/// A field name by RFC 9110 (or a pseudo header), in lower case.
fn header_name(cx: &mut Cx<'_>, name: &str) -> Option<String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let bare = name.strip_prefix(':').unwrap_or(name);
    if bare.is_empty() || !bare.bytes().all(token) {
        return cx.fail(format!("{name:?} is no header name"));
    }
    Some(name.to_ascii_lowercase())
}

const PRESERVE_CASE: &str = "envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig";

/// `header_key_format`: how names of headers are spelled over HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFormat {
    /// In lower case.
    Lower,
    /// As `Proper-Case`.
    Proper,
    /// As they arrived.
    Preserved,
}

/// `HeaderKeyFormat`.
pub(crate) fn key_format(cx: &mut Cx<'_>, format: Option<&HeaderKeyFormat>) -> KeyFormat {
    let Some(format) = format else { return KeyFormat::Lower };
    let format = cx.at("header_key_format", |cx| match &format.header_format {
        Some(HeaderFormat::ProperCaseWords(_)) => Some(KeyFormat::Proper),
        Some(HeaderFormat::StatefulFormatter(extension)) => {
            let name = extension.typed_config.as_ref().map(|any| super::type_name(&any.type_url));
            if name == Some(PRESERVE_CASE) {
                Some(KeyFormat::Preserved)
            } else {
                cx.fail_at("stateful_formatter.typed_config", format!("must hold {PRESERVE_CASE}"))
            }
        }
        None => cx.fail("one of proper_case_words, stateful_formatter is required"),
    });
    format.unwrap_or(KeyFormat::Lower)
}
