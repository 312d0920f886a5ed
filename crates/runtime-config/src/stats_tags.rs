//! `envoy.config.metrics.v3.TagSpecifier`: labels of statistics that are taken out of their names.

use std::ops::Range;

use evenkeel_xds::pb::envoy::config::metrics::v3 as metrics;
use evenkeel_xds::pb::envoy::config::metrics::v3::tag_specifier::TagValue as Kind;

use crate::compile::Cx;
use evenkeel_base::re2::Regex;

/// `stats_config.stats_tags` and `use_all_default_tags`.
#[derive(Debug, Clone, Default)]
pub struct StatsTags {
    /// The built-in tags that are taken out; `None`: all.
    pub defaults: Option<Vec<&'static str>>,
    /// Configured tags.
    pub tags: Vec<StatsTag>,
}

/// One tag.
#[derive(Debug, Clone)]
pub struct StatsTag {
    /// The name as configured.
    pub name: String,
    /// Its value.
    pub value: TagValue,
}

/// The value of a tag.
#[derive(Debug, Clone)]
pub enum TagValue {
    /// A fixed value for all statistics.
    Fixed(String),
    /// The match of an expression.
    Captured(TagRegex),
}

/// An expression: its first group is removed from the name, the second one is the value, or the first if it is the only one.
#[derive(Debug, Clone)]
pub struct TagRegex {
    regex: Regex,
    /// The word that matching names begin with, if the expression begins with `^WORD\.`.
    pub token: Option<String>,
}

impl TagRegex {
    fn new(pattern: &str) -> Result<Self, String> {
        let regex = Regex::anywhere(pattern)?;
        if regex.captures_len() < 2 {
            return Err("the expression needs a group, `(…)`, around what it takes out of names".to_owned());
        }
        Ok(Self { regex, token: first_token(pattern).map(str::to_owned) })
    }

    /// Returns the part that is removed from a name, and the part with the value.
    pub fn find(&self, name: &str) -> Option<(Range<usize>, Range<usize>)> {
        let found = self.regex.find_groups(name.as_bytes())?;
        // A group that took no part in the match is empty, as in C++.
        let group = |at| found.get(at).cloned().flatten().unwrap_or(name.len()..name.len());
        let removed = group(1);
        let value = if self.regex.captures_len() > 2 { group(2) } else { removed.clone() };
        Some((removed, value))
    }
}

/// The word of `^WORD\.` and `^WORD$`, by which Envoy groups expressions.
fn first_token(pattern: &str) -> Option<&str> {
    let rest = pattern.strip_prefix('^')?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|end| *end > 0)?;
    let (token, after) = rest.split_at(end);
    (after.starts_with("\\.") || after == "$").then_some(token)
}

/// Envoy's built-in tags.
const DEFAULT_TAGS: [&str; 29] = [
    "envoy.cluster_name",
    "envoy.listener_address",
    "envoy.http_conn_manager_prefix",
    "envoy.http_user_agent",
    "envoy.ssl_cipher",
    "envoy.ssl_cipher_suite",
    "envoy.clientssl_prefix",
    "envoy.mongo_prefix",
    "envoy.mongo_cmd",
    "envoy.mongo_collection",
    "envoy.mongo_callsite",
    "envoy.ratelimit_prefix",
    "envoy.local_http_ratelimit_prefix",
    "envoy.local_network_ratelimit_prefix",
    "envoy.local_listener_ratelimit_prefix",
    "envoy.dns_filter_prefix",
    "envoy.connection_limit_prefix",
    "envoy.rbac_prefix",
    "envoy.rbac_http_prefix",
    "envoy.tcp_prefix",
    "envoy.udp_prefix",
    "envoy.fault_downstream_cluster",
    "envoy.dynamo_operation",
    "envoy.virtual_host",
    "envoy.virtual_cluster",
    "envoy.route",
    "envoy.response_code",
    "envoy.response_code_class",
    "envoy.worker_id",
];

/// `stats_config` of a bootstrap.
pub(crate) fn compile(cx: &mut Cx<'_>, config: Option<&metrics::StatsConfig>) -> Option<StatsTags> {
    let Some(config) = config else { return Some(StatsTags::default()) };
    let all = config.use_all_default_tags.as_ref().is_none_or(|all| all.value);
    let (mut defaults, mut tags) = (Vec::new(), Vec::new());
    for (index, tag) in config.stats_tags.iter().enumerate() {
        let value = cx.at(&format!("stats_config.stats_tags[{index}]"), |cx| {
            let name = cx.non_empty("tag_name", &tag.tag_name)?;
            match &tag.tag_value {
                Some(Kind::FixedValue(value)) => Some(Some(TagValue::Fixed(value.clone()))),
                Some(Kind::Regex(pattern)) if !pattern.is_empty() => {
                    Some(Some(TagValue::Captured(cx.check("regex", TagRegex::new(pattern))?)))
                }
                _ => match DEFAULT_TAGS.iter().find(|known| **known == name) {
                    Some(known) => {
                        defaults.push(*known);
                        Some(None)
                    }
                    None => cx.fail_at("regex", "is required: no tag of Envoy's own has this name"),
                },
            }
        });
        if let Some(value) = value? {
            tags.push(StatsTag { name: tag.tag_name.clone(), value });
        }
    }
    Some(StatsTags { defaults: (!all).then_some(defaults), tags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_say_what_is_removed_and_what_is_the_value() {
        let check = |pattern: &str, name: &str, expected: Option<(&str, &str)>| {
            let found = TagRegex::new(pattern).expect("an expression").find(name);
            let texts = found.map(|(removed, value)| (&name[removed], &name[value]));
            assert_eq!(texts, expected, "{pattern} {name}");
        };
        check(r"^cluster\.((.+?)\.)", "cluster.a.b", Some(("a.", "a")));
        check(r"(\.v\d)", "cluster.a.v1.x", Some((".v1", ".v1")));
        check(r"(tag=(.*?);\.)", "cluster.a", None);
        check(r"(a)|b(c)", "bc", Some(("", "c")));
        check(r"(a)|b(c)", "a", Some(("a", "")));
    }

    #[test]
    fn expressions_are_grouped_by_the_first_word_of_names() {
        let check = |pattern: &str, expected: Option<&str>| assert_eq!(first_token(pattern), expected, "{pattern}");
        check(r"^cluster\.(x)", Some("cluster"));
        check(r"^http1\.(x)", Some("http1"));
        check("^server$", Some("server"));
        check(r"cluster\.(x)", None);
        check("^cluster(x)", None);
        check(r"^\.(x)", None);
        check("^cluster", None);
    }
}
