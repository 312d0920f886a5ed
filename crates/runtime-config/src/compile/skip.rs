//! `ExtensionWithMatcher`.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_xds::pb::envoy::extensions::common::matching::v3 as matching;
use evenkeel_xds::pb::envoy::r#type::matcher::v3 as envoy;
use evenkeel_xds::pb::google::protobuf::Any;
use evenkeel_xds::pb::xds::core::v3::TypedExtensionConfig;
use evenkeel_xds::pb::xds::r#type::matcher::v3 as xds;

use super::matcher::string;
use super::{Cx, type_name};
use crate::hcm::HttpFilterConfig;
use crate::http_filters::http_filter;
use crate::route_filters::PerRoute;
use crate::skip::{Kind, Matcher, OnMatch, Predicate, SkipMatcher};
use crate::string_match::StringMatcher;

pub(super) const WITH_MATCHER: &str = "envoy.extensions.common.matching.v3.ExtensionWithMatcher";
pub(super) const PER_ROUTE: &str = "envoy.extensions.common.matching.v3.ExtensionWithMatcherPerRoute";
const SKIP: &str = "envoy.extensions.filters.common.matcher.action.v3.SkipFilter";
const HEADER: &str = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput";

/// A filter, and the matcher of requests that skip it.
pub(super) fn with_matcher(cx: &mut Cx<'_>, any: &Any) -> Option<(HttpFilterConfig, Arc<SkipMatcher>)> {
    let config: matching::ExtensionWithMatcher = cx.unpack(any)?;
    let skip = skip_matcher(cx, config.xds_matcher.as_ref());
    let extension = cx.required("extension_config", config.extension_config.as_ref())?;
    let filter = cx.at("extension_config", |cx| {
        let any = cx.required("typed_config", extension.typed_config.as_ref())?;
        cx.at("typed_config", |cx| http_filter(cx, any, false))
    })??;
    Some((filter, Arc::new(skip?)))
}

/// A route's matcher of requests that skip the filter.
pub(super) fn per_route(cx: &mut Cx<'_>, any: &Any) -> Option<Arc<dyn PerRoute>> {
    let config: matching::ExtensionWithMatcherPerRoute = cx.unpack(any)?;
    skip_matcher(cx, config.xds_matcher.as_ref()).map(|matcher| Arc::new(matcher) as Arc<dyn PerRoute>)
}

fn skip_matcher(cx: &mut Cx<'_>, config: Option<&xds::Matcher>) -> Option<SkipMatcher> {
    let config = cx.required("xds_matcher", config)?;
    cx.at("xds_matcher", |cx| matcher(cx, config)).map(SkipMatcher)
}

/// Recursion depth is bounded by the decoder of the containing message.
fn matcher(cx: &mut Cx<'_>, config: &xds::Matcher) -> Option<Matcher> {
    use xds::matcher::MatcherType;
    let kind = match &config.matcher_type {
        None => Some(Kind::None),
        Some(MatcherType::MatcherList(list)) => cx.at("matcher_list", |cx| {
            let matchers = cx.each("matchers", &list.matchers, |cx, entry| {
                let when = cx.required("predicate", entry.predicate.as_ref());
                let when = when.and_then(|when| cx.at("predicate", |cx| predicate(cx, when)));
                let then = cx.required("on_match", entry.on_match.as_ref())?;
                when.zip(cx.at("on_match", |cx| on_match(cx, then)))
            });
            (matchers.len() == list.matchers.len()).then_some(Kind::List(matchers))
        }),
        Some(MatcherType::MatcherTree(tree)) => cx.at("matcher_tree", |cx| matcher_tree(cx, tree)),
    };
    let otherwise = match &config.on_no_match {
        None => None,
        Some(then) => Some(cx.at("on_no_match", |cx| on_match(cx, then))?),
    };
    Some(Matcher { kind: kind?, otherwise })
}

fn matcher_tree(cx: &mut Cx<'_>, tree: &xds::matcher::MatcherTree) -> Option<Kind> {
    use xds::matcher::matcher_tree::TreeType;
    let header = input(cx, tree.input.as_ref())?;
    match &tree.tree_type {
        Some(TreeType::ExactMatchMap(values)) => {
            let entries = match_map(cx, "exact_match_map", &values.map)?;
            Some(Kind::Exact(header, entries.into_iter().collect()))
        }
        Some(TreeType::PrefixMatchMap(prefixes)) => {
            let mut entries = match_map(cx, "prefix_match_map", &prefixes.map)?;
            entries.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            Some(Kind::Prefix(header, entries))
        }
        _ => cx.fail("one of exact_match_map, prefix_match_map is required"),
    }
}

fn match_map(
    cx: &mut Cx<'_>,
    field: &str,
    map: &HashMap<String, xds::matcher::OnMatch>,
) -> Option<Vec<(Box<[u8]>, OnMatch)>> {
    // Sorted, so that problems are reported in a fixed order.
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_by_key(|(value, _)| *value);
    let entries: Vec<_> = cx.at(&format!("{field}.map"), |cx| {
        let compiled = sorted.into_iter().filter_map(|(value, then)| {
            let then = cx.element(format_args!("{value:?}"), |cx| on_match(cx, then))?;
            Some((value.as_bytes().into(), then))
        });
        compiled.collect()
    });
    (entries.len() == map.len()).then_some(entries)
}

fn on_match(cx: &mut Cx<'_>, config: &xds::matcher::OnMatch) -> Option<OnMatch> {
    use xds::matcher::on_match::OnMatch as Wire;
    match &config.on_match {
        Some(Wire::Matcher(nested)) => {
            cx.at("matcher", |cx| matcher(cx, nested)).map(|matcher| OnMatch::Matcher(Box::new(matcher)))
        }
        Some(Wire::Action(action)) => match action.typed_config.as_ref().map(|any| type_name(&any.type_url)) {
            Some(SKIP) => Some(OnMatch::Skip),
            _ => cx.fail_at("action.typed_config", format!("only {SKIP} is supported")),
        },
        None => cx.fail("one of matcher, action is required"),
    }
}

fn predicate(cx: &mut Cx<'_>, config: &xds::matcher::matcher_list::Predicate) -> Option<Predicate> {
    use xds::matcher::matcher_list::predicate::{MatchType, PredicateList, single_predicate};
    let several = |cx: &mut Cx<'_>, field: &str, list: &PredicateList| {
        if list.predicate.len() < 2 {
            return cx.fail_at(field, "must have two predicates at least");
        }
        let compiled = cx.at(field, |cx| cx.each("predicate", &list.predicate, predicate));
        (compiled.len() == list.predicate.len()).then_some(compiled)
    };
    match &config.match_type {
        Some(MatchType::SinglePredicate(single)) => cx.at("single_predicate", |cx| {
            let header = input(cx, single.input.as_ref());
            match &single.matcher {
                Some(single_predicate::Matcher::ValueMatch(value)) => {
                    header.zip(value_match(cx, value)).map(|(header, value)| Predicate::Header(header, value))
                }
                _ => cx.fail("value_match is required"),
            }
        }),
        Some(MatchType::OrMatcher(list)) => several(cx, "or_matcher", list).map(Predicate::Or),
        Some(MatchType::AndMatcher(list)) => several(cx, "and_matcher", list).map(Predicate::And),
        Some(MatchType::NotMatcher(not)) => {
            cx.at("not_matcher", |cx| predicate(cx, not)).map(|not| Predicate::Not(Box::new(not)))
        }
        None => cx.fail("one of single_predicate, or_matcher, and_matcher, not_matcher is required"),
    }
}

/// The name of the header to match.
fn input(cx: &mut Cx<'_>, input: Option<&TypedExtensionConfig>) -> Option<Box<str>> {
    let input = cx.required("input", input)?;
    cx.at("input.typed_config", |cx| match &input.typed_config {
        Some(any) if type_name(&any.type_url) == HEADER => {
            let input: envoy::HttpRequestHeaderMatchInput = cx.unpack(any)?;
            Some(cx.non_empty("header_name", &input.header_name)?.to_ascii_lowercase().into())
        }
        _ => cx.fail(format!("only {HEADER} is supported")),
    })
}

/// Like Envoy's own `StringMatcher`, in another package.
fn value_match(cx: &mut Cx<'_>, config: &xds::StringMatcher) -> Option<StringMatcher> {
    use envoy::string_matcher::MatchPattern as Same;
    use xds::string_matcher::MatchPattern;
    let pattern = match &config.match_pattern {
        Some(MatchPattern::Exact(text)) => Some(Same::Exact(text.clone())),
        Some(MatchPattern::Prefix(text)) => Some(Same::Prefix(text.clone())),
        Some(MatchPattern::Suffix(text)) => Some(Same::Suffix(text.clone())),
        Some(MatchPattern::Contains(text)) => Some(Same::Contains(text.clone())),
        Some(MatchPattern::SafeRegex(regex)) => {
            let regex = envoy::RegexMatcher { regex: regex.regex.clone(), ..envoy::RegexMatcher::default() };
            Some(Same::SafeRegex(regex))
        }
        _ => None,
    };
    let same = envoy::StringMatcher { ignore_case: config.ignore_case, match_pattern: pattern };
    string(cx, "value_match", &same)
}
