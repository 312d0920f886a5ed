//! `stats_config` of the proxy's bootstrap: which statistics it reports (`proxyStatsMatcher` of ProxyConfig, and the Pod's
//! annotations), which tags are taken out of their names (`extraStatTags`), and which buckets histograms have.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::options::Options;

/// Prefixes of the statistics that Istio's proxies always report, and of Evenkeel's own. The agent needs the open
/// connections, as Istio's does, to know when a proxy is drained.
const PREFIXES: [&str; 9] = [
    "reporter=",
    "cluster_manager",
    "listener_manager",
    "server",
    "cluster.xds-grpc",
    "wasm",
    "component",
    "istio",
    "evenkeel",
];
const SUFFIXES: [&str; 5] = ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied", "downstream_cx_active"];
const REGEXPS: [&str; 1] = [r"vhost\..*\.route\..*"];

/// Placeholder for the workload's address, as in Istio.
const POD_IP: &str = "{pod_ip}";

/// Returns `stats_config` of the bootstrap; `None` without settings for statistics.
pub(crate) fn stats_config(options: &Options) -> Option<Value> {
    let mut config = Map::new();
    if let Some(matcher) = matcher(options) {
        config.insert("stats_matcher".to_owned(), matcher);
    }
    let tags: Vec<Value> = extra_tags(options).iter().map(|tag| tag_of_name(tag)).collect();
    if !tags.is_empty() {
        config.insert("stats_tags".to_owned(), tags.into());
    }
    let buckets = histogram_buckets(options);
    if !buckets.is_empty() {
        config.insert("histogram_bucket_settings".to_owned(), buckets.into());
    }
    (!config.is_empty()).then_some(Value::Object(config))
}

/// The tags of ProxyConfig and of the annotation, each once.
fn extra_tags(options: &Options) -> Vec<String> {
    let of_config = options.proxy_config.get("extraStatTags").and_then(Value::as_array);
    let of_config = of_config.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let annotation = options.annotations().remove("sidecar.istio.io/extraStatTags").unwrap_or_default();
    let mut tags = Vec::new();
    for tag in of_config.chain(annotation.split(',').map(str::to_owned)) {
        let tag = tag.trim();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // Other characters could change the expression, and Prometheus has no such labels.
        if !tag.is_empty() && tag.chars().all(is_part) && !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    tags
}

/// A tag in the form in which Istio's filters write it into names: `TAG=.=VALUE;.;`.
fn tag_of_name(tag: &str) -> Value {
    json!({ "tag_name": tag, "regex": format!(r"({tag}=\.=(.*?);\.;)") })
}

/// Buckets by prefix of histograms' names, as the annotation has them: `{"PREFIX": [BOUND, …], …}`. What makes no sense is
/// left out; the control plane's findings name it.
fn histogram_buckets(options: &Options) -> Vec<Value> {
    let annotation = options.annotations().remove("sidecar.istio.io/statsHistogramBuckets").unwrap_or_default();
    // In the order of the prefixes, as in Istio's agent: the first that matches applies.
    let by_prefix: BTreeMap<String, Vec<f64>> = serde_json::from_str(&annotation).unwrap_or_default();
    let settings = by_prefix.into_iter().filter_map(|(prefix, mut bounds)| {
        bounds.retain(|bound| bound.is_finite() && *bound > 0.0);
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        (!prefix.is_empty() && !bounds.is_empty()).then(|| json!({ "match": { "prefix": prefix }, "buckets": bounds }))
    });
    settings.collect()
}

/// Returns which statistics are reported; `None` without settings, so that all are.
fn matcher(options: &Options) -> Option<Value> {
    let annotations = options.annotations();
    let of_config = options.proxy_config.get("proxyStatsMatcher").filter(|matcher| matcher.is_object());
    let mut patterns = Vec::new();
    let mut is_given = of_config.is_some();
    let required: [(&str, &[&str]); 3] = [("Prefixes", &PREFIXES), ("Suffixes", &SUFFIXES), ("Regexps", &REGEXPS)];
    for (kind, required) in required {
        let annotation = annotations.get(&format!("sidecar.istio.io/statsInclusion{kind}"));
        let annotation = annotation.filter(|text| !text.is_empty());
        let annotation = annotation.map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>());
        is_given |= annotation.is_some();
        let listed = || of_config?.get(format!("inclusion{kind}"))?.as_array();
        let listed = || listed().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        // As in Istio, an annotation replaces the list of its kind.
        let given = annotation.unwrap_or_else(listed);
        let given = given.into_iter().map(|text| text.replace(POD_IP, &options.ip.to_string()));
        let all = given.filter(|text| !text.is_empty()).chain(required.iter().map(|text| (*text).to_owned()));
        patterns.extend(all.map(|text| match kind {
            "Prefixes" => json!({ "prefix": text }),
            "Suffixes" => json!({ "suffix": text }),
            _ => json!({ "safe_regex": { "regex": text } }),
        }));
    }
    is_given.then(|| json!({ "inclusion_list": { "patterns": patterns } }))
}
