//! Conditions on what filters have found out, in istiod's layout (`pilot/pkg/security/authz/model`): claims of tokens,
//! which `envoy.filters.http.jwt_authn` leaves under `payload`, and metadata of any other filter.

use std::sync::Arc;

use evenkeel_model::StringMatch;

use crate::jwt::{FILTER, PAYLOAD};
use crate::pb::config::rbac::Principal;
use crate::pb::config::rbac::principal::{self, Identifier};
use crate::pb::matcher::metadata_matcher::{PathSegment, path_segment::Segment};
use crate::pb::matcher::string_matcher::MatchPattern as Text;
use crate::pb::matcher::value_matcher::MatchPattern;
use crate::pb::matcher::{ListMatcher, MetadataMatcher, OrMatcher, StringMatcher, ValueMatcher, list_matcher};
use crate::proto::{regex, string_matcher};
use crate::string_match::string;

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

/// What a claim is compared with.
pub(crate) enum ClaimValue {
    /// Any value of any type.
    Present,
    /// A text, or a list that has such a text.
    Text(StringMatcher),
}

/// A claim, by its keys from the outermost object in (Istio's `MetadataMatcherForJWTClaims`): the only matcher of claims, for policies and
/// routes.
pub(crate) fn claim<'k>(keys: impl IntoIterator<Item = &'k str>, value: ClaimValue) -> MetadataMatcher {
    let path: Vec<&str> = std::iter::once(PAYLOAD).chain(keys).collect();
    let value = match value {
        ClaimValue::Present => MatchPattern::PresentMatch(true),
        ClaimValue::Text(text) => {
            let text = of_string(text);
            MatchPattern::OrMatch(OrMatcher { value_matchers: vec![one_of(text.clone()), text] })
        }
    };
    metadata(FILTER, &path, pattern(value))
}

/// A claim in a policy, where `*` is any text.
pub(crate) fn claim_of_policy(path: &[Arc<str>], value: &StringMatch) -> MetadataMatcher {
    claim(path.iter().map(|key| &**key), ClaimValue::Text(string(value)))
}

/// Prefix of a claim's name in a route's condition on headers.
const CLAIMS: &str = "@request.auth.claims";

/// The keys of a claim in a route's condition on headers (`@request.auth.claims.a.b`, `@request.auth.claims[a][b]`); `None`: it is the name
/// of a header.
pub(crate) fn claim_keys(name: &str) -> Option<Vec<&str>> {
    let rest = name.strip_prefix(CLAIMS)?;
    Some(match rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.split("][").collect(),
        None => rest.trim_start_matches('.').split('.').collect(),
    })
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
