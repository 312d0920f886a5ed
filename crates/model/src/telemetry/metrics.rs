//! What applies to a workload of all that is said of its metrics (`mergeMetrics` of Istio's pilot).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Provider, Side, Telemetry, TelemetrySettings};

/// What a Telemetry object says of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsRule {
    /// Who gets them; none: those of the outer rule.
    pub providers: Vec<Arc<str>>,
    /// Changes of metrics.
    pub overrides: Vec<MetricsOverride>,
    /// How often connections are reported.
    pub interval: Option<Duration>,
}

/// A change of some metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsOverride {
    /// The side that it is for; `None`: both.
    pub side: Option<Side>,
    /// The metrics' names without `istio_`.
    pub metrics: Vec<&'static str>,
    /// Whether it is for all metrics.
    pub is_for_all: bool,
    /// Whether they are not reported; `None`: as said before.
    pub disabled: Option<bool>,
    /// Labels that they do not have.
    pub without: Vec<Arc<str>>,
    /// Labels with the expressions (CEL) of their values.
    pub values: Vec<(Arc<str>, Arc<str>)>,
}

/// How the metrics of one side of a workload differ from Istio's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsChoice {
    /// How often connections are reported.
    pub interval: Option<Duration>,
    /// Changes of metrics, by name.
    pub changes: BTreeMap<&'static str, MetricChange>,
}

/// A change of a metric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricChange {
    /// Whether it is not reported.
    pub disabled: bool,
    /// Labels that it does not have.
    pub without: Vec<Arc<str>>,
    /// Labels with the expressions (CEL) of their values.
    pub values: BTreeMap<Arc<str>, Arc<str>>,
}

impl TelemetrySettings {
    /// Returns the metrics of one side of a workload; `None`: there are none. `telemetries` are those for the workload, the
    /// outermost first.
    pub fn metrics(&self, telemetries: &[&Arc<Telemetry>], side: Side) -> Option<MetricsChoice> {
        let rules = || telemetries.iter().flat_map(|telemetry| &telemetry.metrics);
        let named = rules().rfind(|rule| !rule.providers.is_empty());
        let in_force = named.map_or(&self.defaults.metrics, |rule| &rule.providers);
        let is_prometheus = |name: &&Arc<str>| matches!(self.providers.get(*name), Some(Provider::Metrics));
        // All providers of this kind are the proxy's page, so one of them counts.
        let provider = in_force.iter().find(is_prometheus)?;
        let (mut choice, mut all_disabled) = (MetricsChoice::default(), false);
        let mut inherited = &self.defaults.metrics;
        for rule in rules() {
            inherited = if rule.providers.is_empty() { inherited } else { &rule.providers };
            if !inherited.contains(provider) {
                continue;
            }
            choice.interval = rule.interval.or(choice.interval);
            for change in rule.overrides.iter().filter(|change| change.side.is_none_or(|own| own == side)) {
                all_disabled = change.is_for_all && change.disabled == Some(true);
                if !all_disabled {
                    choice.apply(change);
                }
            }
        }
        (!all_disabled).then_some(choice)
    }
}

impl MetricsChoice {
    fn apply(&mut self, change: &MetricsOverride) {
        for metric in &change.metrics {
            let own = self.changes.entry(metric).or_default();
            own.disabled = change.disabled.unwrap_or(own.disabled);
            own.values.retain(|label, _| !change.without.contains(label));
            own.without.retain(|label| change.values.iter().all(|(set, _)| set != label));
            own.values.extend(change.values.iter().cloned());
            own.without.extend(change.without.iter().cloned());
            own.without.sort_unstable();
            own.without.dedup();
        }
    }
}
