//! `envoy.config.metrics.v3.StatsConfig`: which statistics a proxy reports.

use evenkeel_xds::pb::envoy::config::metrics::v3 as metrics;
use evenkeel_xds::pb::envoy::config::metrics::v3::stats_matcher::StatsMatcher as Kind;
use evenkeel_xds::pb::envoy::r#type::matcher::v3::ListStringMatcher;

use crate::compile::{Cx, matcher};
use crate::string_match::StringMatcher;

/// `stats_config.stats_matcher`.
#[derive(Debug, Clone, Default)]
pub enum StatsMatcher {
    /// All are reported.
    #[default]
    All,
    /// None is (`reject_all`).
    None,
    /// Those that one of the patterns matches (`inclusion_list`).
    Only(Box<[StringMatcher]>),
    /// Those that none of the patterns matches (`exclusion_list`).
    AllBut(Box<[StringMatcher]>),
}

impl StatsMatcher {
    /// Whether the statistic with this name, as in `/stats`, is reported.
    pub fn reports(&self, name: &str) -> bool {
        let any = |patterns: &[StringMatcher]| patterns.iter().any(|pattern| pattern.matches(name.as_bytes()));
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(patterns) => any(patterns),
            Self::AllBut(patterns) => !any(patterns),
        }
    }
}

/// `stats_config` of a bootstrap.
pub(crate) fn compile(cx: &mut Cx<'_>, config: Option<&metrics::StatsConfig>) -> Option<StatsMatcher> {
    let Some(matcher) = config.and_then(|config| config.stats_matcher.as_ref()) else { return Some(StatsMatcher::All) };
    cx.at("stats_config.stats_matcher", |cx| {
        Some(match &matcher.stats_matcher {
            None => return cx.fail("one of reject_all, exclusion_list, inclusion_list is required"),
            Some(Kind::RejectAll(true)) => StatsMatcher::None,
            Some(Kind::RejectAll(false)) => StatsMatcher::All,
            Some(Kind::InclusionList(list)) => StatsMatcher::Only(patterns(cx, "inclusion_list", list)?),
            Some(Kind::ExclusionList(list)) => StatsMatcher::AllBut(patterns(cx, "exclusion_list", list)?),
        })
    })
}

fn patterns(cx: &mut Cx<'_>, field: &str, list: &ListStringMatcher) -> Option<Box<[StringMatcher]>> {
    cx.at(field, |cx| {
        if list.patterns.is_empty() {
            return cx.fail_at("patterns", "at least one is required");
        }
        let compile = |(index, pattern)| matcher::string(cx, &format!("patterns[{index}]"), pattern);
        list.patterns.iter().enumerate().map(compile).collect()
    })
}
