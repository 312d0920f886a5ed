//! The load on a cell, and the values that one run of it gives.

use std::time::Duration;

use evenkeel_loadtest::results::RunResult;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::manifests::{CLIENT, PORT, service};
use crate::metric::{self, PERCENTILES, Values, percentile_key};
use crate::processes::Usage;
use crate::setup::{Setup, Sidecars};
use crate::testbed::{COMMAND_LIMIT, Place, Testbed};
use crate::workers;

/// How long a call may take. Thousands of connections that open at once are slow, and no failure.
const TIMEOUT: &str = "60s";

/// What the caller sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// `GET` or `POST`.
    pub method: String,
    /// Bytes of the response's body, and of a POST's.
    pub bytes: u32,
    /// Connections, with one call at a time on each.
    pub connections: u32,
    /// Calls a second of all connections; `None`: as many as possible.
    pub rate: Option<u32>,
    /// A further HTTP/2 connection with so many calls at a time; 0: none.
    pub hot_streams: u32,
    /// The service of the chain that is called, from 1.
    pub entry: usize,
}

impl Load {
    /// As many calls as possible on so many connections.
    pub fn saturating(connections: u32) -> Self {
        Self { method: "GET".to_owned(), bytes: 1024, connections, rate: None, hot_streams: 0, entry: 1 }
    }

    /// Batches of calls, one call on each connection, every so many milliseconds.
    pub fn batches(method: &str, calls: u32, pause_ms: u32) -> Self {
        let rate = Some(calls * 1000 / pause_ms);
        Self { method: method.to_owned(), rate, ..Self::saturating(calls) }
    }

    /// Arguments of `evenkeel load`.
    fn arguments(&self, seconds: f64) -> Vec<String> {
        let rate = self.rate.map_or_else(|| "0".to_owned(), |rate| rate.to_string());
        let percentiles = PERCENTILES.map(|percentile| percentile.to_string()).join(",");
        let url = format!("http://{}:{PORT}/?size={}", service(self.entry), self.bytes);
        let (connections, time) = (self.connections.to_string(), format!("{seconds}s"));
        let mut all = vec!["load", "-c", &connections, "-qps", &rate, "-t", &time, "-p", &percentiles];
        // The calls that open the connections do not count; all others have to succeed.
        all.extend(["-allow-initial-errors", "-timeout", TIMEOUT, "-json", "-"]);
        if self.rate.is_some() {
            // Whoever pauses between batches does not catch up.
            all.push("-nocatchup");
        }
        let bytes = self.bytes.to_string();
        if self.method == "POST" {
            all.extend(["-payload-size", &bytes]);
        }
        all.push(&url);
        all.into_iter().map(str::to_owned).collect()
    }

    /// Arguments for the hot HTTP/2 connection.
    fn hot_arguments(&self, seconds: f64) -> Vec<String> {
        let url = format!("http://{}:{PORT}/?size={}", service(self.entry), self.bytes);
        let (streams, time) = (self.hot_streams.to_string(), format!("{seconds}s"));
        let all = [
            "load", "-h2", "-c", "1", "-s", &streams, "-qps", "0", "-t", &time, "-timeout", TIMEOUT, "-json", "-", &url,
        ];
        all.into_iter().map(str::to_owned).collect()
    }
}

/// One run of a load on a setup.
pub struct Turn<'a> {
    /// The mesh.
    pub testbed: &'a Testbed<'a>,
    /// The namespace's setup.
    pub setup: &'a Setup,
    /// The load.
    pub load: &'a Load,
    /// Its duration.
    pub seconds: f64,
}

impl Turn<'_> {
    /// Runs the load and measures it.
    ///
    /// # Errors
    /// A call failed, or a signal came.
    pub fn run(&self) -> Result<Values, BenchError> {
        let namespace = self.setup.namespace();
        let client = Place { namespace: &namespace, workload: CLIENT };
        let before = [self.usage(true), self.usage(false)];
        let counts = workers::Counts::read(self.testbed, self.setup)?;
        let hot = (self.load.hot_streams > 0)
            .then(|| self.testbed.spawn(&client, &self.load.hot_arguments(self.seconds)))
            .transpose()?;
        let running = self.testbed.spawn(&client, &self.load.arguments(self.seconds))?;
        let limit = Duration::from_secs_f64(self.seconds) + COMMAND_LIMIT;
        let mut values = Values::new();
        let mut result = parse(&running.output(limit)?)?;
        if let Some(hot) = hot {
            let hot = parse(&hot.output(limit)?)?;
            metric::set(&mut values, "hot_requests_per_s", hot.actual_qps);
            result.duration_histogram.count += hot.duration_histogram.count;
        }
        of_result(&result, &mut values);
        let after = [self.usage(true), self.usage(false)];
        let calls = result.duration_histogram.count as f64;
        let used = [after[0].since(&before[0]), after[1].since(&before[1])];
        if self.setup.sidecars.at_client() {
            metric::set(&mut values, "cpu_us_client", micros_each(&used[0], calls));
        }
        if self.setup.sidecars.at_server() {
            metric::set(&mut values, "cpu_us_server", micros_each(&used[1], calls));
        }
        if self.setup.sidecars != Sidecars::None {
            metric::set(&mut values, "cpu_us", micros_each(&used[0], calls) + micros_each(&used[1], calls));
        }
        let later = workers::Counts::read(self.testbed, self.setup)?;
        later.since(&counts).evenness(&used, &mut values);
        Ok(values)
    }

    fn usage(&self, is_caller: bool) -> Usage {
        let mut all = Usage::default();
        for sidecar in self.testbed.sidecars(self.setup, is_caller) {
            all.add(&sidecar.usage());
        }
        all
    }
}

fn micros_each(usage: &Usage, calls: f64) -> f64 {
    usage.total.as_secs_f64() * 1e6 / calls
}

fn parse(output: &str) -> Result<RunResult, BenchError> {
    let result: RunResult = serde_json::from_str(output)
        .map_err(|error| BenchError::Load(format!("the load printed no result ({error}): {output}")))?;
    let failed = result.errors_duration_histogram.count;
    if failed > 0 || result.duration_histogram.count == 0 {
        let count = result.duration_histogram.count;
        let codes = &result.ret_codes;
        return Err(BenchError::Load(format!("{failed} of {count} calls failed; statuses: {codes:?}")));
    }
    Ok(result)
}

/// Rate and latencies, in milliseconds.
fn of_result(result: &RunResult, values: &mut Values) {
    let durations = &result.duration_histogram;
    let mut set = |key: &str, value: f64| metric::set(values, key, value);
    set("requests_per_s", result.actual_qps);
    set("mean_ms", durations.avg * 1e3);
    set("stddev_ms", durations.std_dev * 1e3);
    set("min_ms", durations.min * 1e3);
    set("max_ms", durations.max * 1e3);
    for percentile in &durations.percentiles {
        set(&percentile_key(percentile.percentile), percentile.value * 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_become_flags() {
        let check = |load: &Load, expected: &str| {
            let joined = load.arguments(1.5).join(" ");
            assert!(joined.ends_with(expected), "{joined}");
        };
        check(
            &Load::saturating(32),
            "-c 32 -qps 0 -t 1.5s -p 50,75,90,99,99.9 -allow-initial-errors -timeout 60s -json - http://s1:8080/?size=1024",
        );
        check(
            &Load { entry: 3, ..Load::batches("POST", 10, 10) },
            "-c 10 -qps 1000 -t 1.5s -p 50,75,90,99,99.9 -allow-initial-errors -timeout 60s -json - -nocatchup -payload-size 1024 http://s3:8080/?size=1024",
        );
    }

    #[test]
    fn a_result_with_failures_is_none() {
        let check = |output: &str, expected: &str| {
            let error = parse(output).expect_err("no result").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "no result");
        check("{}", "0 of 0 calls failed");
        let histogram = |count: u32| {
            format!("{{\"Count\":{count},\"Min\":0,\"Max\":0,\"Sum\":0,\"Avg\":0,\"StdDev\":0,\"Data\":null}}")
        };
        let (all, failed) = (histogram(5), histogram(2));
        check(
            &format!("{{\"DurationHistogram\":{all},\"ErrorsDurationHistogram\":{failed},\"RetCodes\":{{\"503\":2}}}}"),
            "2 of 5 calls failed; statuses: {\"503\": 2}",
        );
    }
}
