//! Edits of headers, as routes and filters configure them.

use crate::string_match::StringMatcher;

/// `HeaderMutation`.
#[derive(Debug)]
pub enum HeaderMutation {
    /// Removes this header (lower case).
    Remove(Box<str>),
    /// Removes headers whose names match.
    RemoveMatching(StringMatcher),
    /// Adds one, or replaces it.
    Add(HeaderAddition),
}

/// Header edits of one level (table, virtual host, route, weighted cluster).
#[derive(Debug, Default)]
pub struct HeaderEdits {
    /// Removed from requests (lower case).
    pub request_remove: Vec<Box<str>>,
    /// Added to requests.
    pub request_add: Vec<HeaderAddition>,
    /// Removed from responses (lower case).
    pub response_remove: Vec<Box<str>>,
    /// Added to responses.
    pub response_add: Vec<HeaderAddition>,
}

impl HeaderEdits {
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.request_remove.is_empty()
            && self.request_add.is_empty()
            && self.response_remove.is_empty()
            && self.response_add.is_empty()
    }
}

/// `HeaderValueOption`.
#[derive(Debug)]
pub struct HeaderAddition {
    /// Header name as sent.
    pub name: Box<str>,
    /// Value: a template over the access log's operators (`%DOWNSTREAM_REMOTE_ADDRESS%`…).
    pub value: crate::substitution_format::Format,
    /// How to treat existing values.
    pub action: AppendAction,
    /// Keep the header if its value is empty.
    pub keep_empty_value: bool,
}

/// `HeaderValueOption.HeaderAppendAction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AppendAction {
    /// Append the value to existing ones.
    #[default]
    AppendIfExistsOrAdd,
    /// Add only if there is none.
    AddIfAbsent,
    /// Replace, or add.
    OverwriteIfExistsOrAdd,
    /// Replace only.
    OverwriteIfExists,
}
