//! What a run shows while it goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::histogram::{HistogramData, Ranges, Recorder};
use crate::tally::Tally;

/// Who looks at a run while it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Nobody: workers report nothing.
    Nobody,
    /// A person at the terminal: a line is written twice a second.
    Terminal,
    /// Who asks for it ([`Progress::live`]).
    Reader,
}

/// A run so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Live {
    /// Seconds since the first request was due.
    pub seconds: f64,
    /// Calls a second.
    #[serde(rename = "ActualQPS")]
    pub actual_qps: f64,
    /// Calls that failed.
    pub errors: u64,
    /// The smallest and the largest number of calls of a caller.
    pub calls_per_connection: [u64; 2],
    /// Latencies.
    pub duration_histogram: HistogramData,
}

/// Where workers report how far they are.
#[derive(Debug)]
pub struct Progress {
    audience: Audience,
    workers: Mutex<BTreeMap<usize, Snapshot>>,
}

#[derive(Debug)]
struct Snapshot {
    durations: Recorder,
    failed: u64,
    calls: Vec<u64>,
}

impl Progress {
    /// Nothing is reported yet.
    pub fn new(audience: Audience) -> Self {
        Self { audience, workers: Mutex::default() }
    }

    /// Whether lines are written to the terminal.
    pub fn is_for_terminal(&self) -> bool {
        self.audience == Audience::Terminal
    }

    /// Replaces what the worker with this first connection has reported before.
    pub fn report(&self, worker: usize, tally: &Tally, calls: impl Iterator<Item = u64>) {
        if self.audience == Audience::Nobody {
            return;
        }
        let (durations, failed) = (tally.durations.clone(), tally.error_durations.count());
        let snapshot = Snapshot { durations, failed, calls: calls.collect() };
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, snapshot);
    }

    /// A line about all workers: rate, errors, percentiles, and how evenly connections are used. `None` before the first report.
    pub fn line(&self, elapsed: Duration) -> Option<String> {
        let live = self.live(elapsed, &Ranges { resolution: 1.0, offset: 0.0 }, &[50.0, 99.0, 99.9])?;
        let (seconds, calls) = (live.seconds, live.duration_histogram.count);
        let mut line = format!("{seconds:.0}s: {calls} calls, {:.1} qps, {} errors", live.actual_qps, live.errors);
        for percentile in &live.duration_histogram.percentiles {
            _ = write!(line, ", p{} {:.3} ms", percentile.percentile, percentile.value * 1e3);
        }
        let [least, most] = live.calls_per_connection;
        _ = write!(line, ", {least} to {most} calls per connection");
        Some(line)
    }

    /// All workers so far, with latencies in these ranges. `None` before the first report.
    pub fn live(&self, elapsed: Duration, ranges: &Ranges, percentiles: &[f64]) -> Option<Live> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut durations: Option<Recorder> = None;
        for snapshot in workers.values() {
            match &mut durations {
                Some(durations) => durations.add(&snapshot.durations),
                None => durations = Some(snapshot.durations.clone()),
            }
        }
        let durations = durations.filter(|durations| durations.count() > 0)?;
        let calls = || workers.values().flat_map(|snapshot| snapshot.calls.iter().copied());
        let seconds = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        Some(Live {
            seconds,
            actual_qps: durations.count() as f64 / seconds,
            errors: workers.values().map(|snapshot| snapshot.failed).sum(),
            calls_per_connection: [calls().min().unwrap_or(0), calls().max().unwrap_or(0)],
            duration_histogram: durations.export(ranges, percentiles),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Code, Fault};

    #[test]
    fn the_line_is_about_all_workers() {
        let progress = Progress::new(Audience::Terminal);
        assert_eq!(progress.line(Duration::from_secs(1)), None);
        let mut tally = Tally::default();
        let answer = Answer { call: 0, code: Code::Http(200), header_bytes: 1, total_bytes: 1, closes: false };
        tally.answered(&answer, 2_000_000);
        progress.report(0, &tally, [1, 0].into_iter());
        tally.failed(Fault::Timeout, 2_000_000);
        progress.report(2, &tally, [2].into_iter());
        let line = progress.line(Duration::from_secs(3)).unwrap();
        assert_eq!(
            line,
            "3s: 3 calls, 1.0 qps, 1 errors, p50 2.000 ms, p99 2.000 ms, p99.9 2.000 ms, 0 to 2 calls per connection"
        );
    }
}
