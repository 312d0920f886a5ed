//! The measured quantities: their keys in results, heads of columns, digits.

use std::collections::BTreeMap;

/// Percentiles of the latency.
pub const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 99.0, 99.9];

/// Values by the key of their metric.
pub type Values = BTreeMap<String, f64>;

/// One measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its key in a result.
    pub key: &'static str,
    /// The head of its column, with the unit.
    pub head: &'static str,
    /// Digits after the point.
    pub digits: usize,
}

const fn metric(key: &'static str, head: &'static str, digits: usize) -> Metric {
    Metric { key, head, digits }
}

/// All quantities, in the order of columns.
pub const METRICS: &[Metric] = &[
    metric("requests_per_s", "requests/s", 0),
    metric("hot_requests_per_s", "requests/s of the HTTP/2 connection", 0),
    metric("mean_ms", "mean ms", 3),
    metric("stddev_ms", "deviation ms", 3),
    metric("min_ms", "min ms", 3),
    metric("max_ms", "max ms", 2),
    metric("p50_ms", "p50 ms", 3),
    metric("p75_ms", "p75 ms", 3),
    metric("p90_ms", "p90 ms", 3),
    metric("p99_ms", "p99 ms", 3),
    metric("p99.9_ms", "p99.9 ms", 3),
    metric("cpu_us", "CPU µs/request", 1),
    metric("cpu_us_client", "… client's sidecar", 1),
    metric("cpu_us_server", "… server's sidecars", 1),
    metric("connections_max_mean_client", "connections max ÷ mean, outbound", 2),
    metric("connections_max_mean_server", "… inbound", 2),
    metric("requests_max_mean_client", "requests max ÷ mean, outbound", 2),
    metric("requests_max_mean_server", "… inbound", 2),
    metric("busy_max_mean_client", "busy time max ÷ mean, outbound", 2),
    metric("busy_max_mean_server", "… inbound", 2),
    metric("connections_most_client", "connections of the busiest worker, outbound", 0),
    metric("connections_most_server", "… inbound", 0),
];

/// The quantity with this key.
pub fn by_key(key: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.key == key)
}

/// The key of a percentile of the latency.
pub fn percentile_key(percentile: f64) -> String {
    format!("p{percentile}_ms")
}

/// Sets a finite value.
pub fn set(values: &mut Values, key: &str, value: f64) {
    if value.is_finite() {
        values.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_percentile_has_a_column() {
        for percentile in PERCENTILES {
            assert!(by_key(&percentile_key(percentile)).is_some(), "{percentile}");
        }
    }
}
