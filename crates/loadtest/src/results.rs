//! The result of a run, with the names of Fortio's JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::histogram::HistogramData;

/// What all kinds of runs have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunResult {
    /// `HTTP`, `GRPC Ping`, `TCP` and so on.
    pub run_type: String,
    /// Description.
    pub labels: String,
    /// When it began, RFC 3339.
    pub start_time: String,
    /// The rate, or `max`.
    #[serde(rename = "RequestedQPS")]
    pub requested_qps: String,
    /// `5s`, `exactly 20 calls`, `until stop`.
    pub requested_duration: String,
    /// Calls a second.
    #[serde(rename = "ActualQPS")]
    pub actual_qps: f64,
    /// Nanoseconds from the start to the last response.
    pub actual_duration: u64,
    /// Number of callers.
    pub num_threads: usize,
    /// This program's version.
    pub version: String,
    /// Latencies.
    pub duration_histogram: HistogramData,
    /// Latencies of calls that failed.
    pub errors_duration_histogram: HistogramData,
    /// The number of calls that was asked for; 0 for none.
    pub exactly: u64,
    /// As the flags say.
    pub jitter: bool,
    /// As the flags say.
    pub uniform: bool,
    /// As the flags say.
    pub no_catch_up: bool,
    /// As the flags say.
    #[serde(rename = "RunID")]
    pub run_id: i64,
    /// Always empty here.
    pub access_logger_info: String,
    /// Names the run: time and labels.
    #[serde(rename = "ID")]
    pub id: String,
    /// How often each code came.
    pub ret_codes: BTreeMap<String, u64>,
    /// What Fortio does not have.
    #[serde(default)]
    pub evenkeel: Additions,
    /// What only runs of this type have.
    #[serde(flatten)]
    pub specific: serde_json::Map<String, Value>,
}

/// What Fortio's results do not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Additions {
    /// From when latencies count: `schedule`, or `sent`.
    pub latency_from: String,
    /// Failures without a status, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Requests left out by `-nocatchup`.
    pub skipped: u64,
    /// Requests that were due and could not be sent in time.
    pub unsent: u64,
    /// The smallest and the largest number of calls of a caller.
    pub calls_per_connection: [u64; 2],
}

/// The longest name of a run.
const MAX_ID_BYTES: usize = 96;

/// The name of a run: time, number, and the letters and digits of its labels, as Fortio's.
pub fn id(time: &str, run: i64, labels: &str) -> String {
    let mut id = time.to_owned();
    if run != 0 {
        id.push_str(&format!("_{run}"));
    }
    if labels.is_empty() {
        return id;
    }
    id.push('_');
    for c in labels.chars() {
        if c.is_ascii_alphanumeric() {
            id.push(c);
        } else if !id.ends_with('_') {
            id.push('_');
        }
    }
    let mut id = id.strip_suffix('_').unwrap_or(&id).to_owned();
    id.truncate(MAX_ID_BYTES);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_fortio() {
        let check = |run: i64, labels: &str, expected: &str| assert_eq!(id("2026-11-30-233038", run, labels), expected);
        check(0, "127.0.0.1:18080/echo?size=100 , vm", "2026-11-30-233038_127_0_0_1_18080_echo_size_100_vm");
        check(7, "a!", "2026-11-30-233038_7_a");
        check(0, "", "2026-11-30-233038");
        assert_eq!(id("2026-11-30-233038", 0, &"x".repeat(200)).len(), 96);
    }
}
