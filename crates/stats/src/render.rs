//! Text forms of samples.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::histogram::{BUCKET_BOUNDS, HistogramSnapshot};
use crate::registry::{Sample, Value};

/// Envoy's `/stats`.
pub(crate) fn text(mut samples: Vec<Sample>) -> String {
    samples.sort_by(|a, b| {
        (matches!(a.value, Value::Histogram(_)), &a.name).cmp(&(matches!(b.value, Value::Histogram(_)), &b.name))
    });
    let mut out = String::new();
    for sample in samples {
        // Writing to a String cannot fail.
        let _ = match sample.value {
            Value::Counter(value) => writeln!(out, "{}: {value}", sample.name),
            Value::Gauge(value) => writeln!(out, "{}: {value}", sample.name),
            Value::Histogram(value) => writeln!(out, "{}: {}", sample.name, value.summary()),
        };
    }
    out
}

/// Prometheus text, one `# TYPE` line per family.
pub(crate) fn prometheus(samples: Vec<Sample>) -> String {
    let mut families: BTreeMap<&str, (&'static str, Vec<&Sample>)> = BTreeMap::new();
    for sample in &samples {
        let kind = match sample.value {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
        };
        let family = families.entry(&sample.family).or_insert((kind, Vec::new()));
        // One family has one type; a second type under the same name would make the whole page unreadable.
        if family.0 == kind {
            family.1.push(sample);
        }
    }
    let mut out = String::new();
    for (name, (kind, samples)) in families {
        let _ = writeln!(out, "# TYPE {name} {kind}");
        for sample in samples {
            let labels = labels(&sample.tags);
            let _ = match &sample.value {
                Value::Counter(value) => writeln!(out, "{name}{} {value}", braced(&labels)),
                Value::Gauge(value) => writeln!(out, "{name}{} {value}", braced(&labels)),
                Value::Histogram(value) => {
                    histogram(&mut out, name, &labels, value);
                    Ok(())
                }
            };
        }
    }
    out
}

fn histogram(out: &mut String, name: &str, labels: &str, value: &HistogramSnapshot) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut cumulative = 0;
    for (at, count) in value.buckets.iter().enumerate() {
        cumulative += count;
        let bound = BUCKET_BOUNDS.get(at).map_or_else(|| "+Inf".to_owned(), f64::to_string);
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {cumulative}");
    }
    let _ = writeln!(out, "{name}_sum{} {}", braced(labels), value.sum);
    let _ = writeln!(out, "{name}_count{} {cumulative}", braced(labels));
}

fn labels(tags: &[(&'static str, String)]) -> String {
    let pairs: Vec<_> = tags
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        })
        .collect();
    pairs.join(",")
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}
