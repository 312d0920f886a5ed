//! String, header and query matchers.

use evenkeel_base::re2::Regex;
use evenkeel_xds::pb::envoy::config::route::v3 as route;
use evenkeel_xds::pb::envoy::r#type::matcher::v3 as matcher;

use super::Cx;
use crate::dynamic_metadata::{MetadataMatcher, ValueMatcher};
use crate::matching::{HeaderMatcher, HeaderValueMatcher, QueryParameterMatcher};
use crate::string_match::StringMatcher;

/// `StringMatcher`.
pub(crate) fn string(cx: &mut Cx<'_>, field: &str, m: &matcher::StringMatcher) -> Option<StringMatcher> {
    cx.at(field, |cx| string_here(cx, m))
}

/// `StringMatcher` at the current path.
pub(crate) fn string_here(cx: &mut Cx<'_>, m: &matcher::StringMatcher) -> Option<StringMatcher> {
    use matcher::string_matcher::MatchPattern;
    let ignore_case = m.ignore_case;
    let bytes = |text: &str| -> Box<[u8]> {
        if ignore_case { text.to_ascii_lowercase().into_bytes().into() } else { text.as_bytes().into() }
    };
    Some(match &m.match_pattern {
        Some(MatchPattern::Exact(text)) => StringMatcher::Exact { value: bytes(text), ignore_case },
        Some(MatchPattern::Prefix(text)) => {
            StringMatcher::Prefix { value: bytes(cx.non_empty("prefix", text)?), ignore_case }
        }
        Some(MatchPattern::Suffix(text)) => {
            StringMatcher::Suffix { value: bytes(cx.non_empty("suffix", text)?), ignore_case }
        }
        Some(MatchPattern::Contains(text)) => {
            StringMatcher::Contains { value: bytes(cx.non_empty("contains", text)?), ignore_case }
        }
        // ignore_case does not apply to patterns, as in Envoy.
        Some(MatchPattern::SafeRegex(pattern)) => StringMatcher::Regex(regex(cx, "safe_regex", pattern)?),
        _ => return cx.fail("one of exact, prefix, suffix, contains, safe_regex is required"),
    })
}

/// `RegexMatcher` over a whole value.
pub(crate) fn regex(cx: &mut Cx<'_>, field: &str, m: &matcher::RegexMatcher) -> Option<Regex> {
    cx.at(field, |cx| {
        let pattern = cx.non_empty("regex", &m.regex)?;
        cx.check("regex", Regex::whole(pattern))
    })
}

/// `RegexMatchAndSubstitute`.
pub(crate) fn substitution(
    cx: &mut Cx<'_>,
    field: &str,
    m: &matcher::RegexMatchAndSubstitute,
) -> Option<(Regex, Box<str>)> {
    cx.at(field, |cx| {
        let pattern = cx.required("pattern", m.pattern.as_ref())?;
        let pattern = cx.at("pattern", |cx| {
            let text = cx.non_empty("regex", &pattern.regex)?;
            cx.check("regex", Regex::anywhere(text))
        })?;
        cx.check("substitution", pattern.check_rewrite(&m.substitution))?;
        Some((pattern, m.substitution.as_str().into()))
    })
}

/// `HeaderMatcher`.
pub(crate) fn header(cx: &mut Cx<'_>, m: &route::HeaderMatcher) -> Option<HeaderMatcher> {
    let name = match cx.non_empty("name", &m.name)?.to_ascii_lowercase() {
        // Envoy treats both as the same header, whatever the protocol calls it.
        name if name == "host" => ":authority".into(),
        name => name.into(),
    };
    let value = header_value(cx, m)?;
    Some(HeaderMatcher { name, value, invert: m.invert_match, treat_missing_as_empty: m.treat_missing_header_as_empty })
}

#[allow(deprecated)] // The flat forms are still what many control planes send.
fn header_value(cx: &mut Cx<'_>, m: &route::HeaderMatcher) -> Option<HeaderValueMatcher> {
    use route::header_matcher::HeaderMatchSpecifier as Specifier;
    let bytes = |text: &str| -> Box<[u8]> { text.as_bytes().into() };
    let ignore_case = false;
    Some(HeaderValueMatcher::String(match &m.header_match_specifier {
        None => return Some(HeaderValueMatcher::Present(true)),
        Some(Specifier::PresentMatch(present)) => return Some(HeaderValueMatcher::Present(*present)),
        Some(Specifier::RangeMatch(range)) => {
            return Some(HeaderValueMatcher::Range { start: range.start, end: range.end });
        }
        Some(Specifier::StringMatch(m)) => string(cx, "string_match", m)?,
        Some(Specifier::ExactMatch(text)) => StringMatcher::Exact { value: bytes(text), ignore_case },
        Some(Specifier::PrefixMatch(text)) => StringMatcher::Prefix { value: bytes(text), ignore_case },
        Some(Specifier::SuffixMatch(text)) => StringMatcher::Suffix { value: bytes(text), ignore_case },
        Some(Specifier::ContainsMatch(text)) => StringMatcher::Contains { value: bytes(text), ignore_case },
        Some(Specifier::SafeRegexMatch(pattern)) => StringMatcher::Regex(regex(cx, "safe_regex_match", pattern)?),
    }))
}

/// `QueryParameterMatcher`.
pub(crate) fn query_parameter(cx: &mut Cx<'_>, m: &route::QueryParameterMatcher) -> Option<QueryParameterMatcher> {
    use route::query_parameter_matcher::QueryParameterMatchSpecifier as Specifier;
    let name = cx.non_empty("name", &m.name)?.into();
    let value = match &m.query_parameter_match_specifier {
        Some(Specifier::StringMatch(m)) => Some(string(cx, "string_match", m)?),
        Some(Specifier::PresentMatch(false)) => {
            return cx.fail_at("present_match", "only true is supported");
        }
        Some(Specifier::PresentMatch(true)) | None => None,
    };
    Some(QueryParameterMatcher { name, value })
}

/// `MetadataMatcher`.
pub(crate) fn metadata(cx: &mut Cx<'_>, m: &matcher::MetadataMatcher) -> Option<MetadataMatcher> {
    use matcher::metadata_matcher::path_segment::Segment;
    let filter = cx.non_empty("filter", &m.filter)?.into();
    let path = cx.each("path", &m.path, |cx, segment| match &segment.segment {
        Some(Segment::Key(key)) => cx.non_empty("key", key).map(Into::into),
        None => cx.fail_at("key", "is required"),
    });
    let value = cx.required("value", m.value.as_ref())?;
    let value = cx.at("value", |cx| value_matcher(cx, value))?;
    (path.len() == m.path.len()).then_some(MetadataMatcher { filter, path, value, invert: m.invert })
}

/// Recursion depth is bounded by the decoder of the containing message.
fn value_matcher(cx: &mut Cx<'_>, m: &matcher::ValueMatcher) -> Option<ValueMatcher> {
    use matcher::double_matcher::MatchPattern as Number;
    use matcher::list_matcher::MatchPattern as List;
    use matcher::value_matcher::MatchPattern;
    Some(match &m.match_pattern {
        Some(MatchPattern::NullMatch(_)) => ValueMatcher::Null,
        Some(MatchPattern::DoubleMatch(number)) => match &number.match_pattern {
            Some(Number::Exact(number)) => ValueMatcher::Number(*number),
            Some(Number::Range(range)) => ValueMatcher::Range { start: range.start, end: range.end },
            None => return cx.fail_at("double_match", "one of range, exact is required"),
        },
        Some(MatchPattern::StringMatch(text)) => ValueMatcher::String(string(cx, "string_match", text)?),
        Some(MatchPattern::BoolMatch(wanted)) => ValueMatcher::Bool(*wanted),
        Some(MatchPattern::PresentMatch(present)) => ValueMatcher::Present(*present),
        Some(MatchPattern::ListMatch(list)) => match &list.match_pattern {
            Some(List::OneOf(one)) => {
                ValueMatcher::OneOf(Box::new(cx.at("list_match.one_of", |cx| value_matcher(cx, one))?))
            }
            None => return cx.fail_at("list_match", "one_of is required"),
        },
        Some(MatchPattern::OrMatch(any)) => ValueMatcher::Or(cx.at("or_match", |cx| {
            let matchers = cx.each("value_matchers", &any.value_matchers, value_matcher);
            (matchers.len() == any.value_matchers.len()).then_some(matchers)
        })?),
        None => return cx.fail("a kind of match is required"),
    })
}
