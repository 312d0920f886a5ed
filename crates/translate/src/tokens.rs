//! Conditions on what filters have found out, in istiod's layout (`pilot/pkg/security/authz/model`): claims of tokens,
//! which `envoy.filters.http.jwt_authn` leaves under `payload`, and metadata of any other filter.

use std::sync::Arc;

use evenkeel_model::StringMatch;

use crate::pb::config::rbac::Principal;
use crate::pb::config::rbac::principal::{self, Identifier};
use crate::pb::matcher::metadata_matcher::{PathSegment, path_segment::Segment};
use crate::pb::matcher::string_matcher::MatchPattern as Text;
use crate::pb::matcher::value_matcher::MatchPattern;
use crate::pb::matcher::{ListMatcher, MetadataMatcher, OrMatcher, StringMatcher, ValueMatcher, list_matcher};
use crate::proto::{regex, string_matcher};
use crate::string_match::string;

const FILTER: &str = "envoy.filters.http.jwt_authn";
/// The key under which the filter leaves the claims of a token.
const PAYLOAD: &str = "payload";

/// The subject of a token: `ISSUER/SUBJECT`, where the last slash counts, since issuers are URLs.
#[allow(deprecated)] // Metadata of any source is what istiod sends.
pub(crate) fn principal(value: &StringMatch) -> Identifier {
    let any = || string_matcher(Text::SafeRegex(regex(".+")));
    let exact = |text: &str| string_matcher(Text::Exact(text.to_owned()));
    let (issuer, subject) = match value {
        StringMatch::Present => (any(), any()),
        StringMatch::Exact(text) => match text.rsplit_once('/') {
            Some((issuer, subject)) => (exact(issuer), exact(subject)),
            None => (exact(text), exact("")),
        },
        // `*SUFFIX`: the beginning of the issuer is open, or of the subject if there is no slash.
        StringMatch::Suffix(text) => match text.rsplit_once('/') {
            Some(("", subject)) => (any(), exact(subject)),
            Some((issuer, subject)) => (string_matcher(Text::Suffix(issuer.to_owned())), exact(subject)),
            None => (any(), string_matcher(Text::Suffix(text.to_string()))),
        },
        // `PREFIX*`: the end of the subject is open, or of the issuer if there is no slash.
        StringMatch::Prefix(text) => match text.rsplit_once('/') {
            Some((issuer, "")) => (exact(issuer), any()),
            Some((issuer, subject)) => (exact(issuer), string_matcher(Text::Prefix(subject.to_owned()))),
            None => (string_matcher(Text::Prefix(text.to_string())), any()),
        },
        StringMatch::Regex(_) => (string(value), any()),
    };
    let claim = |name: &str, value: StringMatcher| {
        let matcher = metadata(FILTER, &[PAYLOAD, name], of_string(value));
        Principal { identifier: Some(Identifier::Metadata(matcher)) }
    };
    let ids = vec![claim("iss", issuer), claim("sub", subject)];
    Identifier::AndIds(principal::Set { ids })
}

/// A claim, which may be a text or a list of texts.
pub(crate) fn claim(path: &[Arc<str>], value: &StringMatch) -> MetadataMatcher {
    let keys: Vec<&str> = std::iter::once(PAYLOAD).chain(path.iter().map(|key| &**key)).collect();
    let text = || of_string(string(value));
    let either = OrMatcher { value_matchers: vec![one_of(text()), text()] };
    metadata(FILTER, &keys, pattern(MatchPattern::OrMatch(either)))
}

/// Metadata of a filter: a text, or with the value in brackets a list that has it.
pub(crate) fn of_filter(filter: &str, key: &str, value: &StringMatch) -> MetadataMatcher {
    let in_brackets = match value {
        StringMatch::Exact(text) => text.strip_prefix('[').and_then(|text| text.strip_suffix(']')),
        _ => None,
    };
    let wanted = match in_brackets {
        Some(element) => one_of(of_string(string(&StringMatch::from_policy_value(element)))),
        None => of_string(string(value)),
    };
    metadata(filter, &[key], wanted)
}

fn metadata(filter: &str, path: &[&str], value: ValueMatcher) -> MetadataMatcher {
    let segment = |key: &&str| PathSegment { segment: Some(Segment::Key((*key).to_owned())) };
    let path = path.iter().map(segment).collect();
    MetadataMatcher { filter: filter.to_owned(), path, value: Some(value), invert: false }
}

fn one_of(value: ValueMatcher) -> ValueMatcher {
    let list = ListMatcher { match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(value))) };
    pattern(MatchPattern::ListMatch(Box::new(list)))
}

fn of_string(value: StringMatcher) -> ValueMatcher {
    pattern(MatchPattern::StringMatch(value))
}

fn pattern(pattern: MatchPattern) -> ValueMatcher {
    ValueMatcher { match_pattern: Some(pattern) }
}
