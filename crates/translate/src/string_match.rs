//! Matchers of strings, made of the values that policies and tokens are compared with.

use evenkeel_model::StringMatch;

use crate::pb::matcher::StringMatcher;
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::proto::{regex, string_matcher};

/// The matcher of a value in a policy.
pub fn string(value: &StringMatch) -> StringMatcher {
    match value {
        StringMatch::Exact(text) => string_matcher(MatchPattern::Exact(text.to_string())),
        StringMatch::Prefix(text) => string_matcher(MatchPattern::Prefix(text.to_string())),
        StringMatch::Suffix(text) => string_matcher(MatchPattern::Suffix(text.to_string())),
        StringMatch::Regex(text) => regex_matcher(text),
        StringMatch::Present => regex_matcher(".+"),
    }
}

/// The matcher of a regular expression.
pub fn regex_matcher(pattern: &str) -> StringMatcher {
    string_matcher(MatchPattern::SafeRegex(regex(pattern)))
}
