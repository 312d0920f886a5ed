//! Annotations of Pods about their proxy that neither capture nor configuration depend on: statistics and logs.

use std::collections::BTreeMap;

use evenkeel_base::suggest::one_of;
use evenkeel_base::{Span, Spanned};
use serde_json::{Value, json};

use super::listed;
use crate::decode::{Context, RegexText};
use crate::istio::agent_checks::{self, is_stat_tag, problem_of_port};

/// The statistics that a Pod's proxy reports in addition to Istio's own set.
const STATS_PREFIXES: &str = "sidecar.istio.io/statsInclusionPrefixes";
const STATS_SUFFIXES: &str = "sidecar.istio.io/statsInclusionSuffixes";
const STATS_REGEXPS: &str = "sidecar.istio.io/statsInclusionRegexps";
/// Tags that are taken out of the names of statistics.
const EXTRA_STAT_TAGS: &str = "sidecar.istio.io/extraStatTags";
/// Buckets of histograms.
const HISTOGRAM_BUCKETS: &str = "sidecar.istio.io/statsHistogramBuckets";
/// Annotations of Pods that the agent of their proxy reads, as Istio's does (`ISTIO_METAJSON_ANNOTATIONS`).
pub const AGENT_ANNOTATIONS: [&str; 5] =
    [STATS_PREFIXES, STATS_SUFFIXES, STATS_REGEXPS, EXTRA_STAT_TAGS, HISTOGRAM_BUCKETS];

/// Log levels of a Pod's proxy, of an Envoy's components, and of the agent.
const LOG_LEVEL: &str = "sidecar.istio.io/logLevel";
const COMPONENT_LOG_LEVEL: &str = "sidecar.istio.io/componentLogLevel";
const AGENT_LOG_LEVEL: &str = "sidecar.istio.io/agentLogLevel";
/// Levels, under Envoy's names and Istio's.
const LEVELS: [&str; 10] = ["trace", "debug", "info", "warning", "warn", "error", "critical", "fatal", "none", "off"];

/// Whether the agent shows the program's metrics beside the proxy's.
const MERGE_METRICS: &str = "prometheus.istio.io/merge-metrics";
/// The pages with metrics of several programs of a Pod.
const SCRAPE_TARGETS: &str = "prometheus.istio.io/scrape-targets";
/// The path of a page whose path is not given.
const METRICS_PATH: &str = "/metrics";
/// The port of the agent's page.
const STATUS_PORT: &str = "status.sidecar.istio.io/port";
/// The annotations with the location of a program's metrics, and the names under which Istio's injector passes them to the
/// agent. They are Prometheus' annotations, and not the mesh's.
const SCRAPE: [(&str, &str); 3] =
    [("scrape", "prometheus.io/scrape"), ("path", "prometheus.io/path"), ("port", "prometheus.io/port")];

/// Returns the location of a program's metrics in the format that the agent reads (`ISTIO_PROMETHEUS_ANNOTATIONS`); `None` if
/// the agent should not show them. `by_default`: the mesh's `enablePrometheusMerge`.
pub fn program_metrics(annotations: &BTreeMap<String, Spanned<String>>, by_default: bool) -> Option<String> {
    let said = annotations.get(MERGE_METRICS).and_then(|text| super::parse_bool(text));
    let values = SCRAPE.iter().filter_map(|(name, annotation)| Some((*name, annotations.get(*annotation)?.as_str())));
    let mut values: BTreeMap<&str, Value> = values.map(|(name, value)| (name, json!(value))).collect();
    let json = |ScrapeTarget { port, path }: ScrapeTarget| json!({ "port": port, "path": path });
    let targets: Vec<Value> = scrape_targets(annotations).into_iter().filter_map(Result::ok).map(json).collect();
    if !targets.is_empty() {
        values.insert("targets", json!(targets));
    }
    (said.unwrap_or(by_default) && !values.is_empty()).then(|| json!(values).to_string())
}

/// A page with metrics of a program, as Istio's injector passes it to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScrapeTarget {
    port: String,
    path: String,
}

impl ScrapeTarget {
    /// Reads `PORT:PATH`, or why it cannot be read.
    fn read(text: &str) -> Result<Self, String> {
        let (port, path) = text.split_once(':').unwrap_or((text, ""));
        let number = port.trim().parse::<u16>().ok().filter(|number| *number != 0);
        let number = number.ok_or_else(|| format!("`{text}` has no port"))?;
        let path = Some(path.trim()).filter(|path| !path.is_empty()).unwrap_or(METRICS_PATH);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { port: number.to_string(), path })
    }
}

/// The pages that an annotation lists as `PORT:PATH`, in its order.
fn scrape_targets(annotations: &BTreeMap<String, Spanned<String>>) -> Vec<Result<ScrapeTarget, String>> {
    annotations.get(SCRAPE_TARGETS).map(|text| listed(text).map(ScrapeTarget::read).collect()).unwrap_or_default()
}

/// The port of the agent's page that a Pod's annotation names, if it can be there; 0: none.
pub fn status_port(annotations: &BTreeMap<String, Spanned<String>>) -> Option<u16> {
    let text = annotations.get(STATUS_PORT)?;
    problem_of_status_port(text).is_none().then(|| text.trim().parse().ok())?
}

fn problem_of_status_port(text: &str) -> Option<String> {
    match text.trim().parse::<u32>() {
        Ok(0) => None,
        Ok(port) => problem_of_port(port, agent_checks::STATUS_PORT),
        Err(_) => Some(format!("`{text}` is no port")),
    }
}

/// The log levels of a Pod's proxy, under Envoy's names. What the decoder has found wrong is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLevels {
    /// The proxy's.
    pub proxy: Option<String>,
    /// Log levels of Envoy's components, in the format of its flag `--component-log-level`.
    pub components: Option<String>,
    /// The agent's.
    pub agent: Option<String>,
}

impl LogLevels {
    /// Reads the annotations of a Pod.
    pub fn of(annotations: &BTreeMap<String, Spanned<String>>) -> Self {
        let text = |name: &str| annotations.get(name).map(|value| value.as_str());
        Self {
            proxy: text(LOG_LEVEL).and_then(level),
            components: text(COMPONENT_LOG_LEVEL).and_then(components),
            agent: text(AGENT_LOG_LEVEL).and_then(agent_level),
        }
    }
}

/// A level under Envoy's name for it.
fn level(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    LEVELS.contains(&text.as_str()).then(|| match text.as_str() {
        "warn" => "warning".to_owned(),
        // Istio's names.
        "fatal" => "critical".to_owned(),
        "none" => "off".to_owned(),
        _ => text,
    })
}

/// `COMPONENT:LEVEL,…`, with the levels under Envoy's names.
fn components(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let is_name = |name: &str| name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_part);
    let each = listed(text).map(|entry| {
        let (name, text) = entry.split_once(':')?;
        is_name(name).then_some(())?;
        Some(format!("{name}:{}", level(text)?))
    });
    let all = each.collect::<Option<Vec<_>>>()?;
    (!all.is_empty()).then(|| all.join(","))
}

/// `LEVEL` or `default:LEVEL` among levels of components.
fn agent_level(text: &str) -> Option<String> {
    listed(text).find_map(|entry| match entry.split_once(':') {
        None => level(entry),
        Some(("default" | "all", text)) => level(text),
        Some(_) => None,
    })
}

/// Returns which part of `{"PREFIX": [BOUND, …], …}` is ignored, and why.
fn problem_of_buckets(text: &str) -> Option<String> {
    let by_prefix: BTreeMap<String, Vec<f64>> = match serde_json::from_str(text) {
        Ok(by_prefix) => by_prefix,
        Err(error) => return Some(format!("expected bounds by prefixes as JSON: {error}; all is left out")),
    };
    by_prefix.iter().find_map(|(prefix, bounds)| {
        if prefix.is_empty() || bounds.is_empty() {
            return Some(format!("`{prefix}`: a prefix and at least one bound are needed; it is left out"));
        }
        let bad = bounds.iter().find(|bound| !(bound.is_finite() && **bound > 0.0))?;
        Some(format!("`{prefix}`: the bound {bad} is not greater than 0; it is left out"))
    })
}

/// Checks the value of one of these annotations; false if it is another one.
pub(super) fn check(name: &str, text: &str, span: &Span, cx: &mut Context) -> bool {
    let levels = || format!("levels are {}", one_of(LEVELS));
    match name {
        STATS_REGEXPS => {
            let invalid =
                text.split(',').filter(|regexp| !regexp.is_empty()).find_map(|regexp| RegexText::new(regexp).err());
            if let Some(problem) = invalid {
                let help = "expressions have RE2's syntax; one that has a comma itself needs `proxyStatsMatcher`";
                cx.error("bad-regex", span, problem, help);
            }
        }
        EXTRA_STAT_TAGS => {
            if let Some(bad) = listed(text).find(|tag| !is_stat_tag(tag)) {
                let message = format!("`{bad}` cannot be the name of a label of statistics; it is left out");
                cx.warning("bad-value", span, message, "letters, digits and underscores are allowed");
            }
        }
        HISTOGRAM_BUCKETS => {
            if let Some(problem) = problem_of_buckets(text) {
                let help = "write bounds by the beginning of a name: '{\"cluster\": [1, 5, 10]}'";
                cx.warning("bad-value", span, problem, help);
            }
        }
        LOG_LEVEL if level(text).is_none() => {
            cx.warning("bad-value", span, format!("`{text}` is no log level; the proxy logs as others do"), levels());
        }
        COMPONENT_LOG_LEVEL if components(text).is_none() => {
            let message = format!("`{text}` is no list of components' log levels; it is left out");
            cx.warning(
                "bad-value",
                span,
                message,
                format!("write a comma-separated list of COMPONENT:LEVEL; {}", levels()),
            );
        }
        AGENT_LOG_LEVEL if agent_level(text).is_none() => {
            let message = format!("`{text}` has no log level of the agent as a whole; it logs as others do");
            cx.warning("bad-value", span, message, format!("write LEVEL or default:LEVEL; {}", levels()));
        }
        MERGE_METRICS if super::parse_bool(text).is_none() => {
            cx.warning("bad-value", span, format!("`{text}` is neither true nor false"), "write \"true\" or \"false\"");
        }
        SCRAPE_TARGETS => {
            for problem in listed(text).filter_map(|target| ScrapeTarget::read(target).err()) {
                let help = "write a comma-separated list of PORT:PATH, such as \"8080:/metrics,9100:/stats\"";
                cx.warning("bad-value", span, format!("{problem}; this page is left out"), help);
            }
        }
        STATUS_PORT => {
            if let Some(problem) = problem_of_status_port(text) {
                let message = format!("{problem}; the agent's page is at `statusPort`");
                cx.warning("port-conflict", span, message, "write another number, or 0 for no page");
            }
        }
        MERGE_METRICS | STATS_PREFIXES | STATS_SUFFIXES | LOG_LEVEL | COMPONENT_LOG_LEVEL | AGENT_LOG_LEVEL => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_envoys() {
        let check = |name: &str, text: &str, expected: [Option<&str>; 3]| {
            let text = Spanned::new(text.to_owned(), Span::whole_file("a.yaml"));
            let levels = LogLevels::of(&BTreeMap::from([(name.to_owned(), text)]));
            let found = [levels.proxy.as_deref(), levels.components.as_deref(), levels.agent.as_deref()];
            assert_eq!(found, expected, "{name}");
        };
        check(LOG_LEVEL, "debug", [Some("debug"), None, None]);
        check(LOG_LEVEL, "Warn", [Some("warning"), None, None]);
        check(LOG_LEVEL, "loud", [None; 3]);
        check(COMPONENT_LOG_LEVEL, "misc:error, http2:warn", [None, Some("misc:error,http2:warning"), None]);
        check(COMPONENT_LOG_LEVEL, "misc:error,http:loud", [None; 3]);
        check(COMPONENT_LOG_LEVEL, "--x:error", [None; 3]);
        check(COMPONENT_LOG_LEVEL, "debug", [None; 3]);
        check(AGENT_LOG_LEVEL, "none", [None, None, Some("off")]);
        check(AGENT_LOG_LEVEL, "ads:debug,default:error", [None, None, Some("error")]);
        check(AGENT_LOG_LEVEL, "ads:debug", [None; 3]);
    }
}
