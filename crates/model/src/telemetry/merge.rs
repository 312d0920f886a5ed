//! What applies to a workload of all that is said of its telemetry, from the mesh's settings to its own Telemetry objects
//! (`pilot/pkg/model/telemetry.go` of Istio).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AccessLogTarget, Collector, LogRule, Provider, Side, TagValue, Telemetry, TelemetrySettings, TracingRule};

/// How the requests of a workload are traced.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tracer {
    /// Where spans go; `None`: there are none.
    pub collector: Option<Arc<Collector>>,
    /// The share of sampled requests, in percent; `None`: that of the proxy's settings.
    pub sampling: Option<f64>,
    /// Further tags; none: those of the proxy's settings.
    pub tags: Vec<(String, TagValue)>,
    /// Whether spans have Istio's tags of the workload; `None`: as the proxy's settings say.
    pub istio_tags: Option<bool>,
}

/// A log to which a workload writes.
#[derive(Debug, Clone, PartialEq)]
pub struct LogChoice {
    /// The name of its provider.
    pub provider: Arc<str>,
    /// The log.
    pub target: Arc<AccessLogTarget>,
    /// The expression (CEL) that is true for what is written; `None`: everything.
    pub filter: Option<Arc<str>>,
}

fn is_for(of_rule: Option<Side>, side: Side) -> bool {
    of_rule.is_none_or(|own| own == side)
}

impl TelemetrySettings {
    /// The collector of this name.
    fn collector(&self, name: &str) -> Option<&Arc<Collector>> {
        match self.providers.get(name)? {
            Provider::Tracer(collector) => Some(collector),
            _ => None,
        }
    }

    /// Returns how one side of a workload traces. `telemetries` are those for the workload, the outermost first. `None`: neither
    /// they nor the mesh's settings say anything, so the proxy's own settings decide.
    pub fn tracer(&self, telemetries: &[&Arc<Telemetry>], side: Side) -> Option<Tracer> {
        let default = self.defaults.tracing.iter().find_map(|name| self.collector(name));
        let mut rules = telemetries.iter().flat_map(|telemetry| &telemetry.tracing).peekable();
        if default.is_none() && rules.peek().is_none() {
            return None;
        }
        let mut tracer = Tracer { collector: default.cloned(), ..Tracer::default() };
        let mut disabled = false;
        for rule in rules.filter(|rule| is_for(rule.side, side)) {
            let TracingRule { side: _, provider, disabled: said, sampling, tags, istio_tags } = rule;
            if let Some(name) = provider {
                tracer.collector = self.collector(name).cloned();
            }
            disabled = said.unwrap_or(disabled);
            tracer.sampling = sampling.or(tracer.sampling);
            tracer.istio_tags = istio_tags.or(tracer.istio_tags);
            if !tags.is_empty() {
                tracer.tags.clone_from(tags);
            }
        }
        tracer.collector = tracer.collector.filter(|_| !disabled);
        Some(tracer)
    }

    /// Returns the logs of one side of a workload; the names of `defaults` count where nothing else is said. `None`: neither they
    /// nor Telemetry objects name any, so `accessLogFile` decides.
    pub fn logs(&self, telemetries: &[&Arc<Telemetry>], side: Side) -> Option<Vec<LogChoice>> {
        let layers: Vec<&[LogRule]> =
            telemetries.iter().map(|telemetry| &*telemetry.logs).filter(|logs| !logs.is_empty()).collect();
        let defaults = &self.defaults.access_logging;
        let is_log = |name: &Arc<str>| matches!(self.providers.get(name), Some(Provider::Log(_)));
        if layers.is_empty() && !defaults.iter().any(is_log) {
            return None;
        }
        let all = || defaults.iter().map(|name| Enabled { name: name.clone(), filter: None }).collect();
        let enabled = if layers.is_empty() { all() } else { enabled(defaults, &layers, side) };
        let choice = |Enabled { name, filter }: Enabled| match self.providers.get(&name)? {
            Provider::Log(target) => Some(LogChoice { target: target.clone(), provider: name, filter }),
            _ => None,
        };
        Some(enabled.into_iter().filter_map(choice).collect())
    }
}

/// A log that gets entries.
struct Enabled {
    name: Arc<str>,
    filter: Option<Arc<str>>,
}

/// The logs that several layers leave, the outermost first.
fn enabled(defaults: &[Arc<str>], layers: &[&[LogRule]], side: Side) -> Vec<Enabled> {
    let of_side = |layer: &&[LogRule]| -> Vec<Arc<str>> {
        let rules = layer.iter().filter(|rule| is_for(rule.side, side));
        rules.flat_map(|rule| rule.providers.iter().cloned()).collect()
    };
    // The innermost layer that names logs determines which there are; rules of others about these still count.
    let in_scope = layers.iter().rev().map(of_side).find(|names| !names.is_empty());
    let in_scope = in_scope.unwrap_or_else(|| defaults.to_vec());
    let mut written: BTreeMap<&Arc<str>, &LogRule> = BTreeMap::new();
    let mut inherited = defaults;
    for rule in layers.iter().copied().flatten() {
        inherited = if rule.providers.is_empty() { inherited } else { &rule.providers };
        if is_for(rule.side, side) {
            written.extend(inherited.iter().filter(|name| in_scope.contains(name)).map(|name| (name, rule)));
        }
    }
    let enabled = written.into_iter().filter(|(_, rule)| !rule.disabled);
    enabled.map(|(name, rule)| Enabled { name: name.clone(), filter: rule.filter.clone() }).collect()
}
