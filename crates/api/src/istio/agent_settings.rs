//! ProxyConfig: settings that the agent of a proxy reads, and not the control plane.

use serde_json::{Map, Value};

use super::ProxyConfig;
use crate::decode::Context;

/// Runtime keys of Evenkeel's proxy; of those with a star, which stands for a listener's name, the beginning and the end.
const RUNTIME_KEYS: [&str; 6] = [
    "overload.global_downstream_max_connections",
    "overload.premature_reset_total_stream_count",
    "overload.premature_reset_min_stream_lifetime_seconds",
    "envoy.resource_limits.listener.*.connection_limit",
    "evenkeel.resource_limits.listener.*.request_limit",
    "evenkeel.resource_limits.listener.*.memory_limit",
];

/// Whether Evenkeel's proxy has a runtime key. Others are only for Envoy.
pub fn is_runtime_key(key: &str) -> bool {
    RUNTIME_KEYS.iter().any(|known| match known.split_once('*') {
        None => *known == key,
        Some((start, end)) => {
            key.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)).is_some_and(|n| !n.is_empty())
        }
    })
}

/// Whether a text can be the name of a label of statistics.
pub(crate) fn is_stat_tag(tag: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.chars().all(is_part) && tag.starts_with(|c: char| !c.is_ascii_digit())
}

/// Checks them.
pub(super) fn check(config: &ProxyConfig, cx: &mut Context) {
    cx.at_field("extraStatTags", |cx| {
        for tag in config.extra_stat_tags.iter().filter(|tag| !is_stat_tag(tag.trim())) {
            let message = format!("`{}` cannot be the name of a label of statistics; it is left out", tag.value);
            cx.warning("bad-value", &tag.span, message, "letters, digits and underscores are allowed");
        }
    });
    cx.at_field("runtimeValues", |cx| {
        for (key, value) in &config.runtime_values {
            if !is_runtime_key(key) {
                let message = "Evenkeel's proxy has no runtime key of this name; only an Envoy gets it";
                let help = format!("keys with an effect: {}", RUNTIME_KEYS.join(", "));
                cx.at_key(key, |cx| cx.note("no-effect", &value.span, message, help));
            } else if !value.value.is_empty() && value.parse::<u64>().is_err() {
                let message = format!("`{}` is not a whole number; the key is left out", value.value);
                cx.at_key(key, |cx| cx.warning("bad-value", &value.span, message, "write a number such as \"1000\""));
            }
        }
    });
}

impl ProxyConfig {
    /// What the agent reads of it besides the readiness probe, as ProxyConfig's JSON.
    pub fn for_agent(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Value| {
            fields.insert(name.to_owned(), value);
        };
        if let Some(matcher) = &self.proxy_stats_matcher {
            add("proxyStatsMatcher", matcher.to_json());
        }
        if !self.extra_stat_tags.is_empty() {
            add("extraStatTags", self.extra_stat_tags.iter().map(|tag| tag.value.as_str()).collect());
        }
        if !self.runtime_values.is_empty() {
            let values = self.runtime_values.iter().map(|(key, value)| (key.clone(), value.value.clone().into()));
            add("runtimeValues", Value::Object(values.collect()));
        }
        if let Some(interval) = self.file_flush_interval {
            add("fileFlushInterval", format!("{}s", interval.as_secs_f64()).into());
        }
        if let Some(size) = self.file_flush_min_size_kb {
            add("fileFlushMinSizeKb", size.into());
        }
        if let Some(name) = &self.service_cluster {
            add("serviceCluster", name.as_str().into());
        }
        if let Some(name) = self.tracing_service_name {
            add("tracingServiceName", name.as_str().into());
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Span;
    use serde_json::json;

    use super::*;

    fn read(json: Value) -> ProxyConfig {
        ProxyConfig::of_metadata(&json)
    }

    #[test]
    fn agents_get_what_is_for_them() {
        let check = |config: Value, expected: Value| {
            let fields = Value::Object(read(config.clone()).for_agent());
            assert_eq!(fields, expected, "{config}");
        };
        check(json!({ "concurrency": 3, "proxyMetadata": { "A": "b" } }), json!({}));
        let all = json!({
            "extraStatTags": ["a", "b"],
            "fileFlushInterval": "0.5s",
            "fileFlushMinSizeKb": 4,
            "proxyStatsMatcher": { "inclusionPrefixes": ["x"], "inclusionSuffixes": [], "inclusionRegexps": [] },
            "runtimeValues": { "a.b": "1" },
            "serviceCluster": "web",
        });
        check(all.clone(), all);
    }

    #[test]
    fn the_settings_of_a_pod_are_over_those_of_the_mesh() {
        let check = |own: Value, mesh: Value, expected: Value| {
            let fields = Value::Object(read(own.clone()).over(read(mesh.clone())).for_agent());
            assert_eq!(fields, expected, "{own} over {mesh}");
        };
        let tags = |tags: &[&str]| json!({ "extraStatTags": tags });
        check(tags(&["a"]), tags(&["b"]), tags(&["a"]));
        check(json!({}), tags(&["b"]), tags(&["b"]));
        // Keys are added.
        let runtime = |values: Value| json!({ "runtimeValues": values });
        let both = runtime(json!({ "a": "1", "b": "3", "c": "4" }));
        check(runtime(json!({ "b": "3", "c": "4" })), runtime(json!({ "a": "1", "b": "2" })), both);
        // Either kind of name replaces the other.
        let canonical = json!({ "tracingServiceName": "CANONICAL_NAME_ONLY" });
        check(canonical.clone(), json!({ "serviceCluster": "web" }), canonical.clone());
        check(json!({ "serviceCluster": "web" }), canonical.clone(), json!({ "serviceCluster": "web" }));
        check(json!({}), canonical.clone(), canonical);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, expected: &[&str]| {
            let text = evenkeel_base::Spanned::new(text.to_owned(), Span::whole_file("a.yaml"));
            let (_, found) = ProxyConfig::of_annotation(&text);
            let codes: Vec<String> =
                found.iter().map(|finding| format!("{} {}", finding.severity, finding.code)).collect();
            assert_eq!(codes, expected, "{}: {found}", text.value);
        };
        check("{extraStatTags: [request_path, _a1]}", &[]);
        check("{extraStatTags: ['a b', 1a]}", &["warning bad-value", "warning bad-value"]);
        check("{runtimeValues: {overload.global_downstream_max_connections: '100'}}", &[]);
        check("{runtimeValues: {envoy.resource_limits.listener.virtualInbound.connection_limit: '1'}}", &[]);
        check("{runtimeValues: {overload.global_downstream_max_connections: many}}", &["warning bad-value"]);
        check("{runtimeValues: {envoy.reloadable_features.x: 'false'}}", &["info no-effect"]);
        check("{runtimeValues: {envoy.resource_limits.listener.connection_limit: '1'}}", &["info no-effect"]);
        check("{tracingServiceName: BY_CHANCE}", &["error bad-value"]);
        check("{fileFlushInterval: soon}", &["error bad-duration"]);
    }
}
