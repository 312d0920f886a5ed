//! Pages for Prometheus in its protobuf format, the only one with native histograms: messages `io.prometheus.client.MetricFamily`, each
//! after its length.

use std::sync::Arc;

use prost::Message;

use crate::exemplar::SampledValue;
use crate::exposition::{Family, Kind, families_of};
use crate::histogram::HistogramSnapshot;
use crate::native::{SCHEMA, ZERO_THRESHOLD};
use crate::sample::{Reading, Value};
use crate::scope::ScopeCore;
use crate::tags::{Tagging, parsed};

/// The page's `Content-Type`.
pub const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    /// 0: counter, 1: gauge, 4: histogram. The first is written, too.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Whether a request's `Accept` header prefers this format to the texts.
pub fn prefers_protobuf(accept: Option<&str>) -> bool {
    let (mut protobuf, mut text) = (0.0, 0.0);
    for range in accept.unwrap_or_default().split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut is_known) = (1.0, true);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match &*name.trim().to_ascii_lowercase() {
                "q" => quality = value.parse().unwrap_or(0.0),
                "proto" => is_known &= value == "io.prometheus.client.MetricFamily",
                "encoding" => is_known &= value == "delimited",
                _ => {}
            }
        }
        match &*kind {
            "application/vnd.google.protobuf" if is_known => protobuf = f64::max(protobuf, quality),
            "application/openmetrics-text" | "text/plain" => text = f64::max(text, quality),
            _ => {}
        }
    }
    protobuf > 0.0 && protobuf >= text
}

/// Writes the page.
pub(crate) fn write(
    scopes: &[Arc<ScopeCore>],
    reading: &Reading<'_>,
    tagging: Option<&Tagging>,
    wanted: Option<&dyn Fn(&str) -> bool>,
) -> Vec<u8> {
    let mut page = Vec::new();
    families_of(scopes, reading, tagging, |name, family| {
        let family = message(name, family, reading, wanted);
        if !family.metric.is_empty() {
            // A Vec has room for everything.
            let _ = family.encode_length_delimited(&mut page);
        }
    });
    page
}

fn message(
    name: &str,
    family: &Family<'_>,
    reading: &Reading<'_>,
    wanted: Option<&dyn Fn(&str) -> bool>,
) -> MetricFamily {
    let mut metrics = Vec::new();
    for part in &family.parts {
        for scope in part.scopes {
            let Some(value) = part.cell.value(scope, reading) else { continue };
            let labels = part.labels.of(scope);
            if wanted.is_some_and(|wanted| !wanted(&format!("{name}{{{labels}}}"))) {
                continue;
            }
            let per_unit = part.cell.metric(scope).map_or(1, |metric| metric.per_unit);
            metrics.push(metric(&labels, &value, per_unit));
        }
    }
    let kind = match family.kind {
        Kind::Counter => 0,
        Kind::Gauge => 1,
        Kind::Histogram => 4,
    };
    MetricFamily { name: name.to_owned(), help: family.help.to_owned(), kind: Some(kind), metric: metrics }
}

fn metric(labels: &str, value: &Value, per_unit: u32) -> Metric {
    let label = parsed(labels).into_iter().map(|(name, value)| Label { name, value }).collect();
    let mut metric = Metric { label, ..Metric::default() };
    match value {
        Value::Counter(value) => metric.counter = Some(Number { value: Some(*value as f64 / f64::from(per_unit)) }),
        Value::Gauge(value) => metric.gauge = Some(Number { value: Some(*value as f64) }),
        Value::Histogram(value) => metric.histogram = Some(histogram(value)),
    }
    metric
}

fn histogram(value: &HistogramSnapshot) -> Histogram {
    let native = value.native.clone().unwrap_or_default();
    let (spans, deltas) = native.spans();
    // Prometheus checks that the native buckets have all values. Values that come meanwhile may be in only one kind of buckets.
    let count = native.count();
    let mut cumulative = 0_u64;
    let bucket = value.buckets.iter().enumerate().map(|(at, counted)| {
        cumulative = cumulative.wrapping_add(*counted);
        Bucket {
            cumulative_count: Some(cumulative.min(count)),
            upper_bound: Some(value.bounds.get(at).copied().unwrap_or(f64::INFINITY)),
            exemplar: value.exemplars.get(at).copied().flatten().as_ref().map(exemplar),
        }
    });
    let bucket = bucket.collect();
    let span = |span: crate::native::Span| BucketSpan { offset: Some(span.offset), length: Some(span.length) };
    Histogram {
        sample_count: Some(count),
        sample_sum: Some(value.sum),
        bucket,
        schema: Some(SCHEMA),
        zero_threshold: Some(ZERO_THRESHOLD),
        zero_count: Some(native.zero),
        positive_span: spans.into_iter().map(span).collect(),
        positive_delta: deltas,
    }
}

fn exemplar(sampled: &SampledValue) -> Exemplar {
    let taken = sampled.exemplar;
    let mut label = vec![("trace_id", format!("{:032x}", u128::from_be_bytes(taken.trace_id)))];
    if taken.span_id != [0; 8] {
        label.push(("span_id", format!("{:016x}", u64::from_be_bytes(taken.span_id))));
    }
    let seconds = i64::try_from(taken.unix_ms / 1000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(taken.unix_ms % 1000 * 1_000_000).unwrap_or(0);
    Exemplar {
        label: label.into_iter().map(|(name, value)| Label { name: name.to_owned(), value }).collect(),
        value: Some(sampled.value),
        timestamp: Some(Timestamp { seconds, nanos }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exemplar as Trace, Registry, ScopeName};

    crate::layout! {
        /// A test scope.
        pub mod edge {
            counters {
                /// Requests.
                requests_total,
            }
            gauges { open }
            histograms { request_ms }
            statuses None
        }
    }

    #[test]
    fn prometheus_says_which_format_it_prefers() {
        let check = |accept: Option<&str>, expected: bool| assert_eq!(prefers_protobuf(accept), expected, "{accept:?}");
        let all = "proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let protobuf = format!("application/vnd.google.protobuf;{all}");
        check(None, false);
        check(Some("*/*"), false);
        check(Some("text/plain"), false);
        check(Some(&protobuf), true);
        check(Some(&format!("{protobuf},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5")), true);
        check(Some(&format!("application/openmetrics-text;version=1.0.0,{protobuf};q=0.4")), false);
        check(Some("application/vnd.google.protobuf;proto=other;encoding=delimited"), false);
        check(Some("application/vnd.google.protobuf;encoding=text"), false);
    }

    /// The page's families, decoded.
    fn families(registry: &Registry) -> Vec<MetricFamily> {
        let page = registry.protobuf(None);
        let (mut rest, mut families) = (&page[..], Vec::new());
        while !rest.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut rest).expect("a family"));
        }
        families
    }

    #[test]
    fn histograms_are_native_and_classic() {
        let registry = Registry::new();
        let name = ScopeName::labelled("shop_", vec![("a", "x\"y".to_owned())]);
        let writer = registry.scope::<edge::Stats>(name).writer();
        // Before anybody asks for native histograms.
        writer.record(edge::Histogram::request_ms, 7);
        let of = |registry: &Registry| {
            let all = families(registry);
            let family = all.iter().find(|family| family.name == "shop_request_ms").expect("the family");
            (family.kind, family.metric[0].clone())
        };
        let (kind, metric) = of(&registry);
        assert_eq!((kind, metric.label[0].name.as_str(), metric.label[0].value.as_str()), (Some(4), "a", "x\"y"));
        let histogram = metric.histogram.expect("a histogram");
        // At the upper bound of its classic bucket, 10.
        assert_eq!((histogram.sample_count, histogram.positive_span[0].offset), (Some(1), Some(27)));
        let exemplar = Trace { trace_id: [0xab; 16], span_id: [1; 8], unix_ms: 1_700_000_000_042 };
        writer.record_traced(edge::Histogram::request_ms, 8, &exemplar);
        writer.record(edge::Histogram::request_ms, 0);
        let histogram = of(&registry).1.histogram.expect("a histogram");
        assert_eq!(
            (histogram.sample_count, histogram.sample_sum, histogram.zero_count),
            (Some(3), Some(15.0), Some(1))
        );
        let span = |offset, length| BucketSpan { offset: Some(offset), length: Some(length) };
        assert_eq!(histogram.positive_span, [span(24, 1), span(2, 1)]);
        assert_eq!(histogram.positive_delta, [1, 0]);
        let le_10 = histogram.bucket.iter().find(|bucket| bucket.upper_bound == Some(10.0)).expect("a bucket");
        assert_eq!(le_10.cumulative_count, Some(3));
        let taken = le_10.exemplar.as_ref().expect("an exemplar");
        assert_eq!((taken.value, taken.label[0].value.as_str()), (Some(8.0), "abababababababababababababababab"));
        // A series that comes later has them from the start.
        let later = registry.scope::<edge::Stats>(ScopeName::labelled("later_", Vec::new())).writer();
        later.record(edge::Histogram::request_ms, 100);
        let all = families(&registry);
        let family = all.iter().find(|family| family.name == "later_request_ms").expect("the family");
        let histogram = family.metric[0].histogram.as_ref().expect("a histogram");
        assert_eq!(histogram.positive_span, [span(54, 1)]);
        let counter = all.iter().find(|family| family.name == "shop_requests_total").expect("the family");
        assert_eq!((counter.kind, counter.help.as_str()), (Some(0), "Requests."));
    }
}
