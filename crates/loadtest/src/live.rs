//! What a run shows while it goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::histogram::Recorder;
use crate::tally::Tally;

/// Where workers report how far they are.
#[derive(Debug)]
pub struct Progress {
    /// Whether somebody looks at it.
    is_shown: bool,
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
    pub fn new(is_shown: bool) -> Self {
        Self { is_shown, workers: Mutex::default() }
    }

    /// Replaces what the worker with this first connection has reported before.
    pub fn report(&self, worker: usize, tally: &Tally, calls: impl Iterator<Item = u64>) {
        if !self.is_shown {
            return;
        }
        let (durations, failed) = (tally.durations.clone(), tally.error_durations.count());
        let snapshot = Snapshot { durations, failed, calls: calls.collect() };
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, snapshot);
    }

    /// A line about all workers: rate, errors, percentiles, and how evenly connections are used. `None` before the first report.
    pub fn line(&self, elapsed: Duration) -> Option<String> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut durations: Option<Recorder> = None;
        for snapshot in workers.values() {
            match &mut durations {
                Some(durations) => durations.add(&snapshot.durations),
                None => durations = Some(snapshot.durations.clone()),
            }
        }
        let durations = durations.filter(|durations| durations.count() > 0)?;
        let failed: u64 = workers.values().map(|snapshot| snapshot.failed).sum();
        let calls = || workers.values().flat_map(|snapshot| snapshot.calls.iter());
        let rate = durations.count() as f64 / elapsed.as_secs_f64();
        let mut line =
            format!("{:.0}s: {} calls, {rate:.1} qps, {failed} errors", elapsed.as_secs_f64(), durations.count());
        for percentile in [50.0, 99.0, 99.9] {
            _ = write!(line, ", p{percentile} {:.3} ms", durations.percentile(percentile) * 1e3);
        }
        let (least, most) = (calls().min().unwrap_or(&0), calls().max().unwrap_or(&0));
        _ = write!(line, ", {least} to {most} calls per connection");
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Code, Fault};

    #[test]
    fn the_line_is_about_all_workers() {
        let progress = Progress::new(true);
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
