//! Metrics as `io.prometheus.client.MetricFamily`, as Envoy fills it: a family for each metric.

use std::time::Duration;

use evenkeel_runtime_config::stats_sinks::MetricsService;
use evenkeel_stats::TaggedSample;
use evenkeel_xds::pb::io::prometheus::client as prometheus;
use evenkeel_xds::pb::io::prometheus::client::{Bucket, Metric, MetricFamily, MetricType, Quantile};

use super::change::{Change, Interval};

/// Quantiles of summaries; Envoy has the same.
const QUANTILES: [f64; 10] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0];

/// Appends the families of a metric. `now`: since 1970.
pub(super) fn add(
    config: &MetricsService,
    sample: &TaggedSample,
    change: &Change,
    now: Duration,
    families: &mut Vec<MetricFamily>,
) {
    let mut push = |kind: MetricType, metric: Metric| families.push(family(config, sample, now, kind, metric));
    match change {
        Change::Counter { value, delta } => {
            let value = if config.counters_as_deltas { *delta } else { *value };
            let counter = prometheus::Counter { value: Some(value as f64), ..Default::default() };
            push(MetricType::Counter, Metric { counter: Some(counter), ..Metric::default() });
        }
        Change::Gauge(value) => {
            let gauge = prometheus::Gauge { value: Some(*value as f64) };
            push(MetricType::Gauge, Metric { gauge: Some(gauge), ..Metric::default() });
        }
        Change::Histogram(interval) => {
            if config.summaries {
                push(MetricType::Summary, Metric { summary: Some(summary(interval)), ..Metric::default() });
            }
            if config.histograms {
                push(MetricType::Histogram, Metric { histogram: Some(histogram(interval)), ..Metric::default() });
            }
        }
    }
}

fn family(
    config: &MetricsService,
    sample: &TaggedSample,
    now: Duration,
    kind: MetricType,
    mut metric: Metric,
) -> MetricFamily {
    metric.timestamp_ms = Some(i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
    let name = if config.tags_as_labels {
        metric.label = sample.labels.iter().map(|(name, value)| label(name, value)).collect();
        &sample.name
    } else {
        &sample.full_name
    };
    MetricFamily { name: Some(name.clone()), r#type: Some(kind.into()), metric: vec![metric], ..Default::default() }
}

/// Envoy's own tags have a point after `envoy`, which Prometheus does not allow in labels.
pub(super) fn tag_name(label: &str) -> String {
    label.strip_prefix("envoy_").map_or_else(|| label.to_owned(), |name| format!("envoy.{name}"))
}

fn label(name: &str, value: &str) -> prometheus::LabelPair {
    prometheus::LabelPair { name: Some(tag_name(name)), value: Some(value.to_owned()) }
}

fn histogram(interval: &Interval) -> prometheus::Histogram {
    let mut cumulative = 0;
    // Envoy leaves the last, infinite bound out.
    let bucket = |(bound, count): (&f64, &u64)| {
        cumulative += count;
        Bucket { upper_bound: Some(*bound), cumulative_count: Some(cumulative), ..Bucket::default() }
    };
    prometheus::Histogram {
        sample_count: Some(interval.count()),
        sample_sum: Some(interval.sum),
        bucket: interval.bounds.iter().zip(&interval.buckets).map(bucket).collect(),
        ..prometheus::Histogram::default()
    }
}

fn summary(interval: &Interval) -> prometheus::Summary {
    let quantile = |quantile| Quantile { quantile: Some(quantile), value: Some(interval.quantile(quantile)) };
    prometheus::Summary {
        sample_count: Some(interval.count()),
        sample_sum: Some(interval.sum),
        quantile: QUANTILES.into_iter().map(quantile).collect(),
        ..prometheus::Summary::default()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::Environment;
    use evenkeel_runtime_config::bootstrap::Bootstrap;
    use evenkeel_runtime_config::stats_sinks::StatsSink;
    use evenkeel_stats::Value;
    use evenkeel_xds::Schema;
    use evenkeel_xds::json::{read_text, to_json};
    use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;
    use serde_json::{Value as Json, json};
    use std::sync::Arc;

    use super::*;

    fn service(config: &str) -> Arc<MetricsService> {
        let text = format!(
            "static_resources: {{ clusters: [ {{ name: m, type: STATIC, load_assignment: {{ cluster_name: m }} }} ] }}\n\
             stats_sinks: [ {{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig, \
             transport_api_version: V3, grpc_service: {{ envoy_grpc: {{ cluster_name: m }} }}, {config} }} }} ]"
        );
        let read = read_text::<pb::Bootstrap>(&Schema::acquire(), "test.yaml", &text);
        let bootstrap = Bootstrap::new(&read.message.expect("a bootstrap"), &Environment::process()).expect("valid");
        match &*bootstrap.stats_sinks.sinks {
            [StatsSink::MetricsService(service)] => Arc::clone(service),
            sinks => panic!("{sinks:?}"),
        }
    }

    /// The families of a metric with one tag, as JSON.
    fn families(config: &str, change: &Change) -> Json {
        let sample = TaggedSample {
            full_name: "cluster.a.n".to_owned(),
            name: "cluster.n".to_owned(),
            labels: vec![("envoy_cluster_name".to_owned(), "a".to_owned())],
            value: Value::Counter(0),
        };
        let mut families = Vec::new();
        add(&service(config), &sample, change, Duration::from_millis(7), &mut families);
        families.iter().map(|family| to_json(&Schema::acquire(), family)).collect()
    }

    #[test]
    fn metrics_become_families() {
        let time = json!("7");
        let counter = Change::Counter { value: 9, delta: 4 };
        let interval = Change::Histogram(Interval { bounds: &[1.0, 5.0], buckets: vec![1, 2, 1], sum: 20.0 });
        let histogram = json!({
            "name": "cluster.a.n", "type": "HISTOGRAM",
            "metric": [{ "timestamp_ms": time, "histogram": {
                "sample_count": "4", "sample_sum": 20.0,
                "bucket": [
                    { "cumulative_count": "1", "upper_bound": 1.0 }, { "cumulative_count": "3", "upper_bound": 5.0 },
                ],
            } }],
        });
        for (config, change, expected) in [
            (
                "",
                &counter,
                json!([{ "name": "cluster.a.n", "type": "COUNTER", "metric": [{ "timestamp_ms": time, "counter": { "value": 9.0 } }] }]),
            ),
            (
                "report_counters_as_deltas: true, emit_tags_as_labels: true",
                &counter,
                json!([{ "name": "cluster.n", "type": "COUNTER", "metric": [{
                    "label": [{ "name": "envoy.cluster_name", "value": "a" }], "timestamp_ms": time, "counter": { "value": 4.0 },
                }] }]),
            ),
            (
                "",
                &Change::Gauge(-3),
                json!([{ "name": "cluster.a.n", "type": "GAUGE", "metric": [{ "timestamp_ms": time, "gauge": { "value": -3.0 } }] }]),
            ),
            ("histogram_emit_mode: HISTOGRAM", &interval, json!([histogram])),
        ] {
            assert_eq!(families(config, change), expected, "{config}");
        }
        let both = families("", &interval);
        assert_eq!((&both[0]["type"], &both[1]), (&json!("SUMMARY"), &histogram));
        let summary = &both[0]["metric"][0]["summary"];
        assert_eq!(
            (&summary["sample_count"], &summary["quantile"][2]),
            (&json!("4"), &json!({ "quantile": 0.5, "value": 3.0 }))
        );
    }
}
