//! Metrics as OpenTelemetry's protocol has them (`opentelemetry.proto.metrics.v1`).

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_runtime_config::stats_sinks::OtlpMetrics;
use evenkeel_stats::{TaggedSample, Value};
use evenkeel_xds::pb::opentelemetry::proto::common::v1::any_value::Value as Any;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::{AnyValue, KeyValue};

use super::change::Change;
use super::metrics::tag_name;

/// `AggregationTemporality`.
const DELTA: i32 = 1;
const CUMULATIVE: i32 = 2;

/// `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

/// `ExportMetricsServiceResponse`: what was refused of a request that was accepted otherwise.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Exported {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_data_points: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

/// A metric with all its series.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Number>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Number>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Distribution>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

/// `NumberDataPoint`.
#[derive(Clone, PartialEq, prost::Message)]
struct Number {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(sfixed64, optional, tag = "6")]
    as_int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

/// `HistogramDataPoint`.
#[derive(Clone, PartialEq, prost::Message)]
struct Distribution {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
}

/// When the values of a flush were counted, since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    /// Since when totals count: the start of the process.
    pub(super) start: Duration,
    /// The flush before.
    pub(super) last: Duration,
    /// Now.
    pub(super) now: Duration,
}

/// A series, and what has changed.
struct Measured<'s> {
    sample: &'s TaggedSample,
    change: &'s Change,
}

/// The metrics of a flush, in the order in which their first series came.
#[derive(Debug, Default)]
pub(super) struct Batch {
    metrics: Vec<Metric>,
    places: HashMap<String, usize>,
}

impl Batch {
    /// Adds a series.
    pub(super) fn add(&mut self, config: &OtlpMetrics, sample: &TaggedSample, change: &Change, at: Moments) {
        let name = if config.tag_extracted_names { &sample.name } else { &sample.full_name };
        let name = if config.prefix.is_empty() { name.clone() } else { format!("{}.{name}", config.prefix) };
        let attributes = if config.tags_as_attributes {
            sample.labels.iter().map(|(name, value)| attribute(&tag_name(name), value)).collect()
        } else {
            Vec::new()
        };
        let place = *self.places.entry(name.clone()).or_insert_with(|| {
            self.metrics.push(Metric { unit: unit(&name).to_owned(), name, data: None });
            self.metrics.len() - 1
        });
        if let Some(metric) = self.metrics.get_mut(place) {
            metric.add(config, &Measured { sample, change }, attributes, at);
        }
    }

    /// The requests that export it: with so many data points each, and the attributes of this proxy. Each with its number of metrics.
    pub(super) fn requests(self, config: &OtlpMetrics, most: usize) -> Vec<(Export, usize)> {
        let attributes: Vec<_> = config.resource.iter().map(|(name, value)| attribute(name, value)).collect();
        let request = |metrics: Vec<Metric>| {
            let count = metrics.len();
            let resource = Some(Resource { attributes: attributes.clone() });
            let scope_metrics = vec![ScopeMetrics { metrics }];
            (Export { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }, count)
        };
        let (mut requests, mut part, mut points) = (Vec::new(), Vec::<Metric>::new(), 0_usize);
        for metric in self.metrics.into_iter().flat_map(|metric| metric.pieces(most)) {
            if !part.is_empty() && points + metric.points() > most {
                requests.push(request(std::mem::take(&mut part)));
                points = 0;
            }
            points += metric.points();
            part.push(metric);
        }
        if !part.is_empty() {
            requests.push(request(part));
        }
        requests
    }
}

impl Metric {
    fn points(&self) -> usize {
        match &self.data {
            None => 0,
            Some(Data::Gauge(gauge)) => gauge.data_points.len(),
            Some(Data::Sum(sum)) => sum.data_points.len(),
            Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        }
    }

    /// The same, with at most so many data points each.
    fn pieces(mut self, most: usize) -> Vec<Self> {
        let mut all = Vec::new();
        while most > 0 && self.points() > most {
            let rest = self.split_off(most);
            all.push(std::mem::replace(&mut self, rest));
        }
        all.push(self);
        all
    }

    fn split_off(&mut self, at: usize) -> Self {
        let data = self.data.as_mut().map(|data| match data {
            Data::Gauge(gauge) => Data::Gauge(Gauge { data_points: gauge.data_points.split_off(at) }),
            Data::Sum(sum) => Data::Sum(Sum {
                data_points: sum.data_points.split_off(at),
                aggregation_temporality: sum.aggregation_temporality,
                is_monotonic: sum.is_monotonic,
            }),
            Data::Histogram(histogram) => Data::Histogram(Histogram {
                data_points: histogram.data_points.split_off(at),
                aggregation_temporality: histogram.aggregation_temporality,
            }),
        });
        Self { name: self.name.clone(), unit: self.unit.clone(), data }
    }

    /// A series of another kind than the first under the same name is left out: a metric has one kind.
    fn add(&mut self, config: &OtlpMetrics, of: &Measured<'_>, attributes: Vec<KeyValue>, at: Moments) {
        let Measured { sample, change } = *of;
        let temporality = |deltas: bool| if deltas { DELTA } else { CUMULATIVE };
        let start = |deltas: bool| nanos(if deltas { at.last } else { at.start });
        let number = |value: i64, start_time_unix_nano: u64| Number {
            start_time_unix_nano,
            time_unix_nano: nanos(at.now),
            as_int: Some(value),
            attributes: attributes.clone(),
        };
        match change {
            Change::Counter { value, delta } => {
                let deltas = config.counters_as_deltas;
                let empty = Sum { aggregation_temporality: temporality(deltas), is_monotonic: true, ..Sum::default() };
                if let Data::Sum(sum) = self.data.get_or_insert(Data::Sum(empty)) {
                    let value = i64::try_from(if deltas { *delta } else { *value }).unwrap_or(i64::MAX);
                    sum.data_points.push(number(value, start(deltas)));
                }
            }
            Change::Gauge(value) => {
                if let Data::Gauge(gauge) = self.data.get_or_insert_with(|| Data::Gauge(Gauge::default())) {
                    gauge.data_points.push(number(*value, 0));
                }
            }
            Change::Histogram(interval) => {
                let deltas = config.histograms_as_deltas;
                let (buckets, sum) = match &sample.value {
                    Value::Histogram(total) if !deltas => (&total.buckets, total.sum),
                    _ => (&interval.buckets, interval.sum),
                };
                let empty = Histogram { aggregation_temporality: temporality(deltas), ..Histogram::default() };
                if let Data::Histogram(histogram) = self.data.get_or_insert(Data::Histogram(empty)) {
                    histogram.data_points.push(Distribution {
                        start_time_unix_nano: start(deltas),
                        time_unix_nano: nanos(at.now),
                        count: buckets.iter().sum(),
                        sum: Some(sum),
                        bucket_counts: buckets.clone(),
                        explicit_bounds: interval.bounds.to_vec(),
                        attributes,
                    });
                }
            }
        }
    }
}

/// The unit (UCUM), if the name tells it.
fn unit(name: &str) -> &'static str {
    match name {
        name if name.ends_with("_milliseconds") || name.ends_with("_ms") => "ms",
        name if name.ends_with("_bytes") || name.ends_with("_bytes_total") => "By",
        _ => "",
    }
}

fn attribute(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Any::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn nanos(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use evenkeel_runtime_config::Environment;
    use evenkeel_runtime_config::bootstrap::Bootstrap;
    use evenkeel_runtime_config::stats_sinks::StatsSink;
    use evenkeel_xds::Schema;
    use evenkeel_xds::json::read_text;
    use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

    use super::super::change::Interval;
    use super::*;

    pub(in super::super) fn config(deltas: bool) -> Arc<OtlpMetrics> {
        let text = format!(
            "static_resources: {{ clusters: [ {{ name: c, type: STATIC, load_assignment: {{ cluster_name: c }} }} ] }}\n\
             stats_sinks: [ {{ name: s, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.stat_sinks.open_telemetry.v3.SinkConfig, \
             grpc_service: {{ envoy_grpc: {{ cluster_name: c }} }}, prefix: mesh, report_counters_as_deltas: {deltas}, \
             report_histograms_as_deltas: {deltas} }} }} ]"
        );
        let read = read_text::<pb::Bootstrap>(&Schema::acquire(), "test.yaml", &text);
        let bootstrap = Bootstrap::new(&read.message.expect("a bootstrap"), &Environment::process()).expect("valid");
        match &*bootstrap.stats_sinks.sinks {
            [StatsSink::OpenTelemetry(config)] => Arc::clone(config),
            sinks => panic!("{sinks:?}"),
        }
    }

    fn sample(cluster: &str, value: Value) -> TaggedSample {
        TaggedSample {
            full_name: format!("cluster.{cluster}.n_ms"),
            name: "cluster.n_ms".to_owned(),
            labels: vec![("envoy_cluster_name".to_owned(), cluster.to_owned())],
            value,
        }
    }

    /// The values of all counters, and since when they count.
    pub(in super::super) fn counts(batch: &Batch) -> Vec<(Option<i64>, u64)> {
        let sums = batch.metrics.iter().filter_map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => Some(&sum.data_points),
            _ => None,
        });
        sums.flatten().map(|point| (point.as_int, point.start_time_unix_nano)).collect()
    }

    const AT: Moments =
        Moments { start: Duration::from_nanos(1), last: Duration::from_nanos(2), now: Duration::from_nanos(3) };

    #[test]
    fn series_of_a_name_are_one_metric() {
        let mut batch = Batch::default();
        for (cluster, value) in [("a", 9), ("b", 4)] {
            let sample = sample(cluster, Value::Counter(value));
            batch.add(&config(false), &sample, &Change::Counter { value, delta: 1 }, AT);
        }
        // A metric has one kind.
        batch.add(&config(false), &sample("c", Value::Gauge(1)), &Change::Gauge(1), AT);
        let requests = batch.requests(&config(false), 10);
        let [(Export { resource_metrics }, 1)] = requests.as_slice() else { panic!("{requests:?}") };
        let metric = &resource_metrics[0].scope_metrics[0].metrics[0];
        assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("mesh.cluster.n_ms", "ms"));
        let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
        let points: Vec<_> = sum
            .data_points
            .iter()
            .map(|point| (point.attributes[0].key.as_str(), point.as_int, point.start_time_unix_nano))
            .collect();
        assert_eq!(points, [("envoy.cluster_name", Some(9), 1), ("envoy.cluster_name", Some(4), 1)]);
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
    }

    #[test]
    fn totals_or_increases() {
        for (deltas, value, start) in [(false, 7, 1), (true, 3, 2)] {
            let mut batch = Batch::default();
            let change = Change::Counter { value: 7, delta: 3 };
            batch.add(&config(deltas), &sample("a", Value::Counter(7)), &change, AT);
            let requests = batch.requests(&config(deltas), 10);
            let metric = &requests[0].0.resource_metrics[0].scope_metrics[0].metrics[0];
            let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
            let point = &sum.data_points[0];
            assert_eq!((point.as_int, point.start_time_unix_nano), (Some(value), start));
        }
    }

    #[test]
    fn buckets_are_one_more_than_bounds() {
        let change = Change::Histogram(Interval { bounds: &[1.0], buckets: vec![2, 1], sum: 6.0 });
        let mut batch = Batch::default();
        batch.add(&config(true), &sample("a", Value::Gauge(0)), &change, AT);
        let requests = batch.requests(&config(true), 10);
        let metric = &requests[0].0.resource_metrics[0].scope_metrics[0].metrics[0];
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metric:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum, point.start_time_unix_nano), (3, Some(6.0), 2));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[2, 1][..], &[1.0][..]));
    }

    #[test]
    fn requests_have_so_many_metrics_at_most() {
        let mut batch = Batch::default();
        for number in 0..5 {
            let sample = TaggedSample { name: format!("m{number}"), ..sample("a", Value::Counter(1)) };
            batch.add(&config(false), &sample, &Change::Counter { value: 1, delta: 1 }, AT);
        }
        let counts: Vec<_> = batch.requests(&config(false), 2).iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 2, 1]);
    }

    /// A metric of many series is several of one name, and no series is lost or comes twice.
    #[test]
    fn requests_have_so_many_data_points_at_most() {
        for (series, most, expected) in [
            (&[5][..], 2, &[&[2][..], &[2], &[1]][..]),
            (&[1, 5], 3, &[&[1], &[3], &[2]]),
            (&[2, 1, 3], 3, &[&[2, 1], &[3]]),
            (&[4], 4, &[&[4]]),
            (&[], 4, &[]),
        ] {
            let mut batch = Batch::default();
            for (number, count) in series.iter().enumerate() {
                for place in 0..*count {
                    let sample =
                        TaggedSample { name: format!("m{number}"), ..sample(&place.to_string(), Value::Counter(1)) };
                    batch.add(&config(true), &sample, &Change::Counter { value: 1, delta: 1 }, AT);
                }
            }
            let requests = batch.requests(&config(true), most);
            let metrics = requests.iter().map(|(request, _)| &request.resource_metrics[0].scope_metrics[0].metrics);
            let points: Vec<Vec<usize>> =
                metrics.clone().map(|metrics| metrics.iter().map(Metric::points).collect()).collect();
            assert_eq!(points, expected, "{series:?} {most}");
            let mut seen = Vec::new();
            for metric in metrics.flatten() {
                let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
                assert!(sum.is_monotonic && sum.aggregation_temporality == DELTA, "{metric:?}");
                seen.extend(
                    sum.data_points.iter().map(|point| (metric.name.clone(), format!("{:?}", point.attributes))),
                );
            }
            let all = seen.len();
            seen.sort();
            seen.dedup();
            assert_eq!((all, seen.len()), (series.iter().sum(), series.iter().sum()), "{series:?}");
        }
    }
}
