//! Conditions of HTTP routes.

use evenkeel_model::{HeaderMatch, HttpMatch, StringMatch};

use crate::pb::config::route::header_matcher::HeaderMatchSpecifier;
use crate::pb::config::route::query_parameter_matcher::QueryParameterMatchSpecifier;
use crate::pb::config::route::route_match::PathSpecifier;
use crate::pb::config::route::{HeaderMatcher, QueryParameterMatcher, RouteMatch};
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::pb::matcher::{MetadataMatcher, StringMatcher};
use crate::proto::{bool_value, regex, string_matcher};
use crate::tokens::{self, ClaimValue};

/// Every request.
pub fn everything() -> RouteMatch {
    RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".to_owned())), ..Default::default() }
}

/// Whether a condition matches every request.
pub fn is_everything(condition: &RouteMatch) -> bool {
    *condition == everything()
}

/// One condition.
pub fn route_match(condition: &HttpMatch) -> RouteMatch {
    let path = match &condition.uri {
        None | Some(StringMatch::Present) => PathSpecifier::Prefix("/".to_owned()),
        Some(StringMatch::Exact(path)) => PathSpecifier::Path(path.to_string()),
        Some(StringMatch::Prefix(prefix)) if condition.by_parts && prefix.len() > 1 => {
            PathSpecifier::PathSeparatedPrefix(prefix.to_string())
        }
        Some(StringMatch::Prefix(prefix)) => PathSpecifier::Prefix(prefix.to_string()),
        Some(StringMatch::Regex(pattern)) => PathSpecifier::SafeRegex(regex(pattern)),
        Some(StringMatch::Suffix(suffix)) => {
            PathSpecifier::SafeRegex(regex(&format!(".*{}", crate::proto::quote(suffix))))
        }
    };
    let pseudo = [(":method", &condition.method), (":authority", &condition.authority), (":scheme", &condition.scheme)];
    let pseudo = pseudo.into_iter().filter_map(|(name, value)| Some(header(name, value.as_ref()?)));
    let is_header = |matched: &&HeaderMatch| tokens::claim_keys(&matched.name).is_none();
    let wanted = condition.headers.iter().filter(is_header).map(|h| header(&h.name, &h.value));
    let unwanted = condition.without_headers.iter().filter(is_header).map(without_header);
    let wanted_claims = condition.headers.iter().filter_map(|matched| claim(matched, false));
    let unwanted_claims = condition.without_headers.iter().filter_map(|matched| claim(matched, true));
    RouteMatch {
        path_specifier: Some(path),
        case_sensitive: condition.ignore_uri_case.then(|| bool_value(false)),
        headers: pseudo.chain(wanted).chain(unwanted).collect(),
        dynamic_metadata: wanted_claims.chain(unwanted_claims).collect(),
        query_parameters: condition.query_params.iter().map(query_parameter).collect(),
        ..Default::default()
    }
}

fn header(name: &str, value: &StringMatch) -> HeaderMatcher {
    let specifier = match string(value) {
        None => HeaderMatchSpecifier::PresentMatch(true),
        Some(matcher) => HeaderMatchSpecifier::StringMatch(matcher),
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..Default::default() }
}

/// A header that must not match. Envoy ignores an inverted matcher on an absent header unless it is read as empty.
fn without_header(unwanted: &HeaderMatch) -> HeaderMatcher {
    let matcher = header(&unwanted.name, &unwanted.value);
    let by_value = unwanted.value != StringMatch::Present;
    HeaderMatcher { invert_match: true, treat_missing_header_as_empty: by_value, ..matcher }
}

/// A condition on a claim of the request's token; `None`: it is one on a header.
fn claim(matched: &HeaderMatch, invert: bool) -> Option<MetadataMatcher> {
    let value = string(&matched.value).map_or(ClaimValue::Present, ClaimValue::Text);
    Some(MetadataMatcher { invert, ..tokens::claim(tokens::claim_keys(&matched.name)?, value) })
}

fn query_parameter(wanted: &HeaderMatch) -> QueryParameterMatcher {
    let specifier = match string(&wanted.value) {
        None => QueryParameterMatchSpecifier::PresentMatch(true),
        Some(matcher) => QueryParameterMatchSpecifier::StringMatch(matcher),
    };
    QueryParameterMatcher { name: wanted.name.to_string(), query_parameter_match_specifier: Some(specifier) }
}

/// A matcher; `None` if it only tests for presence.
pub fn string(value: &StringMatch) -> Option<StringMatcher> {
    let pattern = match value {
        StringMatch::Present => return None,
        StringMatch::Exact(text) => MatchPattern::Exact(text.to_string()),
        StringMatch::Prefix(text) => MatchPattern::Prefix(text.to_string()),
        StringMatch::Suffix(text) => MatchPattern::Suffix(text.to_string()),
        StringMatch::Regex(pattern) => MatchPattern::SafeRegex(regex(pattern)),
    };
    Some(string_matcher(pattern))
}
