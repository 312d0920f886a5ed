//! The runs that go on, and the results of the last ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use time::OffsetDateTime;

use super::parameters::RunRequest;
use crate::histogram::Ranges;
use crate::live::{Audience, Live};
use crate::results::RunResult;
use crate::run;
use crate::setup::Setup;
use crate::summary::Report;
use crate::target::Target;

/// Results that are remembered.
const MAX_FINISHED: usize = 20;
/// Maximum number of callers of a run: its connections, times the streams of each.
const MAX_CALLERS: usize = 100_000;
/// Maximum size of a random payload, in bytes: as of one that is sent here.
const MAX_PAYLOAD_BYTES: usize = 4 << 20;
/// Maximum number of percentiles of a run.
const MAX_PERCENTILES: usize = 100;
/// How long a run stays in the list of those that go on after its stop was asked for: until its workers notice it.
pub const STOP_TIME: Duration = Duration::from_secs(10);

/// States of a run, with Fortio's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It warms up connections.
    Pending = 1,
    /// It sends what counts.
    Running = 2,
    /// It was told to stop.
    Stopping = 3,
}

/// A run that goes on.
#[derive(Debug)]
pub struct Run {
    /// Its number.
    pub number: i64,
    wanted: RunRequest,
    target: Target,
    setup: Setup,
    started: OffsetDateTime,
    /// When the first request that counts was due.
    began: OnceLock<Instant>,
}

/// How far a run is, as Fortio names it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Status {
    #[serde(rename = "RunID")]
    run_id: i64,
    state: i32,
    runner_options: Options,
}

/// What a run was asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Options {
    #[serde(rename = "QPS")]
    qps: f64,
    duration: i64,
    num_threads: usize,
    percentiles: Vec<f64>,
    resolution: f64,
    labels: String,
    exactly: u64,
    jitter: bool,
    uniform: bool,
    #[serde(rename = "RunID")]
    run_id: i64,
    #[serde(rename = "ID")]
    id: String,
    no_catch_up: bool,
}

impl Run {
    /// The name of its result.
    pub fn id(&self) -> String {
        self.report().id()
    }

    /// Where it is.
    pub fn state(&self) -> State {
        if self.setup.plan.stop.load(Ordering::Relaxed) {
            return State::Stopping;
        }
        if self.began.get().is_some() { State::Running } else { State::Pending }
    }

    /// The run so far; `None` before the first responses.
    pub fn live(&self) -> Option<Live> {
        let ranges = Ranges { resolution: self.wanted.run.resolution, offset: self.wanted.run.offset.as_secs_f64() };
        let elapsed = self.began.get()?.elapsed();
        self.setup.plan.progress.live(elapsed, &ranges, &self.wanted.run.percentiles)
    }

    fn stop(&self) {
        self.setup.plan.stop.store(true, Ordering::Relaxed);
    }

    fn report(&self) -> Report<'_> {
        Report {
            target: &self.target,
            url: &self.wanted.url,
            request: &self.wanted.request,
            run: &self.wanted.run,
            setup: &self.setup,
            started: self.started,
        }
    }

    /// Sends all, and waits for the last response.
    fn execute(&self) -> Result<RunResult, String> {
        let setup = &self.setup;
        let before = &mut || _ = self.began.set(Instant::now());
        let measured = run::run(&setup.plan, setup.settings, &*setup.codecs(&self.wanted.request), before)?;
        Ok(self.report().result(&measured))
    }

    fn status(&self) -> Status {
        let (run, pace) = (&self.wanted.run, &self.setup.plan.pace);
        Status {
            run_id: self.number,
            state: self.state() as i32,
            runner_options: Options {
                qps: pace.rate.unwrap_or(-1.0),
                duration: pace.duration.map_or(-1, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)),
                num_threads: self.setup.plan.callers,
                percentiles: run.percentiles.clone(),
                resolution: run.resolution,
                labels: self.report().labels(),
                exactly: run.exactly,
                jitter: run.jitter,
                uniform: run.uniform,
                run_id: self.number,
                id: self.id(),
                no_catch_up: run.nocatchup,
            },
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its number.
    pub number: i64,
    /// The result, or why there was no run.
    pub result: Result<Arc<RunResult>, String>,
}

/// All runs.
#[derive(Debug)]
pub struct Runs {
    max_runs: usize,
    max_connections: usize,
    state: Mutex<Numbered>,
}

#[derive(Debug, Default)]
struct Numbered {
    last: i64,
    active: BTreeMap<i64, Arc<Run>>,
    finished: VecDeque<Finished>,
}

impl Runs {
    /// None yet.
    pub fn new(max_runs: usize, max_connections: usize) -> Self {
        Self { max_runs, max_connections, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, Numbered> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a run in. It does not send anything before [`Self::execute`].
    ///
    /// # Errors
    /// A parameter is wrong, or there are too many runs.
    pub fn add(&self, mut wanted: RunRequest) -> Result<Arc<Run>, String> {
        let sockets = wanted.run.connections;
        if sockets > self.max_connections {
            return Err(format!("c={sockets}: this server allows {} (-max-connections)", self.max_connections));
        }
        if sockets.max(1).saturating_mul(wanted.run.streams.max(1)) > MAX_CALLERS {
            return Err(format!("c={sockets}, s={}: this server allows {MAX_CALLERS} callers", wanted.run.streams));
        }
        if wanted.request.payload_size > MAX_PAYLOAD_BYTES {
            return Err(format!("payload-size: this server allows {MAX_PAYLOAD_BYTES} bytes"));
        }
        if wanted.run.percentiles.len() > MAX_PERCENTILES {
            return Err(format!("p: this server allows {MAX_PERCENTILES} percentiles"));
        }
        let target = if wanted.run.grpc { Target::grpc(&wanted.url)? } else { Target::parse(&wanted.url)? };
        // It resolves names, which may take seconds: not under the lock, which the event loop takes, too.
        let setup = Setup::new(&target, &wanted.request, &wanted.run, Audience::Reader)?;
        let mut state = self.state();
        if state.active.len() >= self.max_runs {
            return Err(format!("{} runs go on, and this server allows no more (-max-runs)", state.active.len()));
        }
        let number = state.last + 1;
        wanted.run.runid = number;
        state.last = number;
        let (started, began) = (OffsetDateTime::now_utc(), OnceLock::new());
        let run = Arc::new(Run { number, wanted, target, setup, started, began });
        state.active.insert(number, run.clone());
        Ok(run)
    }

    /// Does a run that was taken in, and remembers its result. It blocks the thread.
    pub fn execute(&self, run: &Run) -> Finished {
        let result = run.execute().map(Arc::new);
        let finished = Finished { number: run.number, result };
        let mut state = self.state();
        state.active.remove(&run.number);
        state.finished.push_back(finished.clone());
        if state.finished.len() > MAX_FINISHED {
            state.finished.pop_front();
        }
        finished
    }

    /// A run that goes on.
    pub fn active(&self, number: i64) -> Option<Arc<Run>> {
        self.state().active.get(&number).cloned()
    }

    /// A run that has ended, if it is one of the last.
    pub fn finished(&self, number: i64) -> Option<Finished> {
        self.state().finished.iter().find(|run| run.number == number).cloned()
    }

    /// How far a run is, or all are (0).
    pub fn statuses(&self, number: i64) -> BTreeMap<i64, Status> {
        let runs: Vec<_> = self.state().active.values().cloned().collect();
        let wanted = runs.iter().filter(|run| number == 0 || run.number == number);
        wanted.map(|run| (run.number, run.status())).collect()
    }

    /// Stops a run, or all (0); returns those that were not told before.
    pub fn stop(&self, number: i64) -> Vec<Arc<Run>> {
        let runs: Vec<_> = self.state().active.values().cloned().collect();
        let wanted = runs.into_iter().filter(|run| number <= 0 || run.number == number);
        let stopped: Vec<_> = wanted.filter(|run| run.state() != State::Stopping).collect();
        for run in &stopped {
            run.stop();
        }
        stopped
    }
}
