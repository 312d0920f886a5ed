//! Load reports in responses (ORCA, `xds.data.orca.v3.OrcaLoadReport`), in the formats that Envoy 1.40 reads.
//!
//! A report is the value of `endpoint-load-metrics-bin` (Base64), or of `endpoint-load-metrics` with the prefix `BIN`, `TEXT`
//! (`NAME=VALUE`, separated by commas) or `JSON`. A report that is malformed in any part is ignored as a whole.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use evenkeel_http::Headers;
use evenkeel_runtime_config::cluster::{Metric, MetricMap, Utilization};
use prost::Message;
use serde::{Deserialize, Deserializer};

const BINARY_HEADER: &[u8] = b"endpoint-load-metrics-bin";
const HEADER: &[u8] = b"endpoint-load-metrics";

/// gRPC libraries send Base64 without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A host's report of its load.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LoadReport {
    #[prost(double, tag = "1")]
    #[serde(alias = "cpu_utilization", deserialize_with = "number")]
    pub cpu_utilization: f64,
    #[prost(double, tag = "2")]
    #[serde(alias = "mem_utilization", deserialize_with = "number")]
    pub mem_utilization: f64,
    /// Replaced by `rps_fractional`.
    #[prost(uint64, tag = "3")]
    #[serde(deserialize_with = "whole")]
    pub rps: u64,
    #[prost(btree_map = "string, double", tag = "4")]
    #[serde(alias = "request_cost", deserialize_with = "numbers")]
    pub request_cost: BTreeMap<String, f64>,
    #[prost(btree_map = "string, double", tag = "5")]
    #[serde(deserialize_with = "numbers")]
    pub utilization: BTreeMap<String, f64>,
    #[prost(double, tag = "6")]
    #[serde(alias = "rps_fractional", deserialize_with = "number")]
    pub rps_fractional: f64,
    #[prost(double, tag = "7")]
    #[serde(deserialize_with = "number")]
    pub eps: f64,
    #[prost(btree_map = "string, double", tag = "8")]
    #[serde(alias = "named_metrics", deserialize_with = "numbers")]
    pub named_metrics: BTreeMap<String, f64>,
    #[prost(double, tag = "9")]
    #[serde(alias = "application_utilization", deserialize_with = "number")]
    pub application_utilization: f64,
}

impl LoadReport {
    /// The report in a response's headers or trailers, if there is a valid one.
    pub fn of(fields: &Headers) -> Option<Self> {
        if let Some(value) = fields.find(BINARY_HEADER) {
            return Self::of_base64(value);
        }
        let value = fields.find(HEADER)?;
        if let Some(binary) = value.strip_prefix(b"BIN ") {
            return Self::of_base64(binary);
        }
        if let Some(text) = value.strip_prefix(b"TEXT ") {
            return Self::of_text(std::str::from_utf8(text).ok()?);
        }
        serde_json::from_slice(value.strip_prefix(b"JSON ")?).ok()
    }

    fn of_base64(value: &[u8]) -> Option<Self> {
        let bytes = BASE64.decode(value).ok().filter(|bytes| !bytes.is_empty())?;
        Self::decode(&*bytes).ok()
    }

    fn of_text(text: &str) -> Option<Self> {
        let mut report = Self::default();
        let mut seen = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once(['=', ':'])?;
            let (name, value) = (name.trim(), value.trim().parse::<f64>().ok()?);
            if seen.contains(&name) || !value.is_finite() || value < 0.0 {
                return None;
            }
            seen.push(name);
            match name {
                "cpu_utilization" => report.cpu_utilization = value,
                "mem_utilization" => report.mem_utilization = value,
                "application_utilization" => report.application_utilization = value,
                "eps" => report.eps = value,
                "rps_fractional" => report.rps_fractional = value,
                name => {
                    let (map, key) = name.split_once('.').filter(|(_, key)| !key.is_empty())?;
                    let map = match map {
                        "named_metrics" => &mut report.named_metrics,
                        "utilization" => &mut report.utilization,
                        _ => return None,
                    };
                    map.insert(key.to_owned(), value);
                }
            }
        }
        Some(report)
    }

    /// The weight that follows from it: requests a second for each unit of utilization. `None` if it says too little.
    pub fn weight(&self, settings: &Utilization) -> Option<u32> {
        let rate = self.rps_fractional;
        if rate.is_nan() || rate <= 0.0 {
            return None;
        }
        let used = self.utilization(&settings.metrics) + settings.error_penalty * self.eps / rate;
        // The conversion saturates.
        (used > 0.0).then(|| (rate / used) as u32)
    }

    fn utilization(&self, metrics: &[Metric]) -> f64 {
        let named = metrics.iter().fold(0.0, |most: f64, metric| most.max(self.metric(metric)));
        let candidates = [named, self.application_utilization];
        candidates.into_iter().find(|used| *used > 0.0).unwrap_or(self.cpu_utilization)
    }

    fn metric(&self, metric: &Metric) -> f64 {
        match metric {
            Metric::CpuUtilization => self.cpu_utilization,
            Metric::MemUtilization => self.mem_utilization,
            Metric::ApplicationUtilization => self.application_utilization,
            Metric::ErrorsPerSecond => self.eps,
            Metric::RequestsPerSecond => self.rps_fractional,
            Metric::Entry(map, key) => {
                let map = match map {
                    MetricMap::Named => &self.named_metrics,
                    MetricMap::Utilization => &self.utilization,
                    MetricMap::RequestCost => &self.request_cost,
                };
                match key {
                    Some(key) => map.get(&**key).copied().unwrap_or_default(),
                    None => map.values().fold(0.0, |most: f64, value| most.max(*value)),
                }
            }
        }
    }
}

/// A number of JSON, which may be written as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(f64),
    Text(String),
}

impl Number {
    fn read<E: serde::de::Error>(self) -> Result<f64, E> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Text(text) => text.parse().map_err(E::custom),
        }
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Number::deserialize(deserializer)?.read()
}

fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(number(deserializer)? as u64)
}

fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let read = BTreeMap::<String, Number>::deserialize(deserializer)?;
    read.into_iter().map(|(name, number)| Ok((name, number.read()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(error_penalty: f64, metrics: &[Metric]) -> Utilization {
        let second = Duration::from_secs(1);
        Utilization { blackout: second, expiration: second, update: second, error_penalty, metrics: metrics.to_vec() }
    }

    fn report(name: &str, value: &str) -> Option<LoadReport> {
        let mut headers = Headers::default();
        headers.append(name.as_bytes(), value.as_bytes());
        LoadReport::of(&headers)
    }

    #[test]
    fn reports_are_read_in_every_format() {
        let binary = |report: &LoadReport| BASE64.encode(report.encode_to_vec());
        let expected = LoadReport {
            cpu_utilization: 0.5,
            rps_fractional: 100.0,
            eps: 2.0,
            named_metrics: [("rif".to_owned(), 4.0)].into(),
            ..LoadReport::default()
        };
        let encoded = binary(&expected);
        for (name, value) in [
            ("endpoint-load-metrics-bin", encoded.clone()),
            ("endpoint-load-metrics-bin", encoded.trim_end_matches('=').to_owned()),
            ("endpoint-load-metrics", format!("BIN {encoded}")),
            ("endpoint-load-metrics", "TEXT cpu_utilization=0.5, rps_fractional=1e2,eps:2,named_metrics.rif=4".into()),
            (
                "endpoint-load-metrics",
                r#"JSON {"cpu_utilization": 0.5, "rpsFractional": "100", "eps": 2, "namedMetrics": {"rif": 4}}"#.into(),
            ),
        ] {
            assert_eq!(report(name, &value).as_ref(), Some(&expected), "{name}: {value}");
        }
    }

    #[test]
    fn malformed_reports_are_ignored() {
        for value in [
            "",
            "cpu_utilization=0.5",
            "XML <a/>",
            "BIN",
            "BIN ",
            "BIN %%%",
            "BIN //////8=",
            "TEXT cpu_utilization",
            "TEXT cpu_utilization=",
            "TEXT =1",
            "TEXT cpu_utilization=much",
            "TEXT cpu_utilization=NaN",
            "TEXT cpu_utilization=inf",
            "TEXT cpu_utilization=-1",
            "TEXT cpu_utilization=1,cpu_utilization=1",
            "TEXT named_metrics.=1",
            "TEXT load=1",
            "JSON",
            "JSON {",
            r#"JSON {"load": 1}"#,
            r#"JSON {"eps": true}"#,
        ] {
            assert_eq!(report("endpoint-load-metrics", value), None, "{value:?}");
        }
    }

    #[test]
    fn weights_follow_the_formula() {
        let check = |text: &str, settings: &Utilization, expected: Option<u32>| {
            let report = report("endpoint-load-metrics", &format!("TEXT {text}")).expect("a report");
            assert_eq!(report.weight(settings), expected, "{text}");
        };
        let plain = settings(0.0, &[]);
        check("rps_fractional=1000,application_utilization=0.5,eps=100", &plain, Some(2000));
        check("rps_fractional=1000,application_utilization=0.5,eps=100", &settings(2.0, &[]), Some(1428));
        check("rps_fractional=1000,cpu_utilization=0.8,application_utilization=0.5", &plain, Some(2000));
        check("rps_fractional=1000,cpu_utilization=0.8", &plain, Some(1250));
        check("rps_fractional=1000,eps=500", &settings(1.0, &[]), Some(2000));
        check("rps_fractional=1000", &plain, None);
        check("cpu_utilization=0.8", &plain, None);
        check("rps_fractional=1e300,cpu_utilization=0.1", &plain, Some(u32::MAX));
        let foo = Metric::Entry(MetricMap::Named, Some("foo".into()));
        let text =
            "rps_fractional=100,application_utilization=0.5,named_metrics.foo=0.25,named_metrics.bar=1,utilization.x=2";
        check(text, &settings(0.0, std::slice::from_ref(&foo)), Some(400));
        check(text, &settings(0.0, &[foo, Metric::Entry(MetricMap::Named, None)]), Some(100));
        check(text, &settings(0.0, &[Metric::Entry(MetricMap::Utilization, None)]), Some(50));
        check(text, &settings(0.0, &[Metric::Entry(MetricMap::RequestCost, None)]), Some(200));
        check(text, &settings(0.0, &[Metric::MemUtilization]), Some(200));
    }
}
