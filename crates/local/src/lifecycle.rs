//! Startup and liveness probes, and the hooks `postStart` and `preStop` of a program. Readiness is in
//! [`crate::probe::ReadinessCounter`].

use std::time::Duration;

use evenkeel_api::decode::IntOrString;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::probe::{Probe, ProbeContext};
use crate::process::{Phase, State};

/// Time limit of a `postStart` hook.
const POST_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Probes and hooks of a program, without its readiness probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifecycle {
    /// Until this probe has succeeded once, no other probe runs; a program that fails it is restarted.
    pub startup: Option<Probe>,
    /// A program that fails this probe is restarted.
    pub liveness: Option<Probe>,
    /// Runs after the program was started.
    pub post_start: Option<Hook>,
    /// Runs before the program is told to end.
    pub pre_stop: Option<Hook>,
    /// The grace period to end, including `pre_stop`; `None`: the default.
    pub grace: Option<Duration>,
}

/// A hook, which runs once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// A command in the program's container.
    Exec(Vec<String>),
    /// A GET; any answer is a success.
    Get {
        /// Port.
        port: u16,
        /// Path and query.
        path: String,
    },
    /// A pause.
    Sleep(Duration),
}

impl Hook {
    /// Runs the hook with a time limit; the error says why it failed.
    pub async fn run(&self, inside: &ProbeContext<'_>, within: Duration) -> Result<(), String> {
        match self {
            Self::Exec(command) => inside.run(command, within).await,
            Self::Get { port, path } => inside.get(*port, path, &[], within).await.map(drop),
            Self::Sleep(pause) => {
                tokio::time::sleep((*pause).min(within)).await;
                Ok(())
            }
        }
    }

    /// Makes a GET hook; `number` resolves port names.
    pub(crate) fn get(
        port: &IntOrString,
        path: Option<&String>,
        number: impl Fn(&IntOrString) -> Option<u16>,
    ) -> Option<Self> {
        Some(Self::Get { port: number(port)?, path: path.cloned().unwrap_or_else(|| "/".to_owned()) })
    }
}

/// The state of a program.
#[derive(Debug, PartialEq, Eq)]
pub enum ProgramState {
    /// It has started and is alive; the readiness probe may run.
    Started,
    /// It has not started yet.
    Starting(String),
    /// A probe failed, and it must be restarted.
    Failed(String),
}

/// The startup and liveness probes of a program's present process.
#[derive(Debug)]
pub struct ProcessProbes {
    process: u32,
    since: Instant,
    startup: Option<ProbeState>,
    liveness: Option<ProbeState>,
    failed: bool,
}

impl ProcessProbes {
    /// Begins the probes of a process that was just started.
    pub fn of(lifecycle: &Lifecycle, process: u32, now: Instant) -> Self {
        let state = |probe: &Option<Probe>| probe.clone().map(|probe| ProbeState::new(probe, now));
        Self {
            process,
            since: now,
            startup: state(&lifecycle.startup),
            liveness: state(&lifecycle.liveness),
            failed: false,
        }
    }

    /// The process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// How long it has run.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Runs the probes that are due. `Failed` is returned only once.
    pub async fn ask(&mut self, inside: &ProbeContext<'_>) -> ProgramState {
        if self.failed {
            return ProgramState::Starting("is being restarted".to_owned());
        }
        if let Some(state) = &mut self.startup {
            match state.ask("startup probe", inside).await {
                ProbeResult::Pending(reason) => return ProgramState::Starting(reason),
                ProbeResult::Failed(reason) => return self.fail(reason),
                ProbeResult::Succeeded => {}
            }
            // The liveness probe begins now.
            self.startup = None;
            self.liveness = self.liveness.take().map(|state| ProbeState::new(state.probe, Instant::now()));
        }
        if let Some(state) = &mut self.liveness
            && let ProbeResult::Failed(reason) = state.ask("liveness probe", inside).await
        {
            return self.fail(reason);
        }
        ProgramState::Started
    }

    fn fail(&mut self, reason: String) -> ProgramState {
        self.failed = true;
        ProgramState::Failed(reason)
    }

    /// The time until the next probe is due.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let due = [&self.startup, &self.liveness].into_iter().flatten().map(|state| state.due).min();
        due.map(|due| due.saturating_duration_since(now))
    }
}

/// The state of one probe for one process.
#[derive(Debug)]
struct ProbeState {
    probe: Probe,
    due: Instant,
    misses: u32,
    last: String,
}

/// The result of a probe.
#[derive(Debug, PartialEq, Eq)]
enum ProbeResult {
    /// No result yet, or the probe was not due.
    Pending(String),
    Succeeded,
    /// It failed often enough in a row.
    Failed(String),
}

impl ProbeState {
    fn new(probe: Probe, now: Instant) -> Self {
        Self { due: now + probe.initial_delay, probe, misses: 0, last: "not probed yet".to_owned() }
    }

    async fn ask(&mut self, what: &str, inside: &ProbeContext<'_>) -> ProbeResult {
        if self.due > Instant::now() {
            return ProbeResult::Pending(format!("{what}: {}", self.last));
        }
        let answer = self.probe.ask(inside).await;
        self.note(what, answer, Instant::now())
    }

    fn note(&mut self, what: &str, answer: Result<(), String>, now: Instant) -> ProbeResult {
        self.due = now + self.probe.period;
        let Err(reason) = answer else {
            self.misses = 0;
            return ProbeResult::Succeeded;
        };
        self.misses = self.misses.saturating_add(1);
        self.last = reason;
        if self.misses >= self.probe.failures {
            ProbeResult::Failed(format!("{what} failed {} times: {}; it is restarted", self.misses, self.last))
        } else {
            ProbeResult::Pending(format!("{what}: {}", self.last))
        }
    }
}

/// Runs a `postStart` hook.
pub async fn post_start(hook: &Hook, inside: &ProbeContext<'_>) {
    if let Err(reason) = hook.run(inside, POST_START_TIMEOUT).await {
        tracing::warn!(%reason, "postStart failed");
    }
}

/// Ends a process so that it is restarted: SIGTERM to its group, then SIGKILL after the grace period if it still runs.
pub async fn end(process: u32, grace: Duration, mut state: watch::Receiver<State>) {
    signal(process, Signal::SIGTERM);
    let gone = state.wait_for(|state| state.phase != Phase::Running(process));
    if tokio::time::timeout(grace, gone).await.is_err() {
        signal(process, Signal::SIGKILL);
    }
}

fn signal(process: u32, signal: Signal) {
    if let Ok(pid @ 2..) = i32::try_from(process) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Check;

    fn state(failures: u32) -> (ProbeState, Instant) {
        let now = Instant::now();
        let probe = Probe { failures, initial_delay: Duration::from_secs(5), ..Probe::new(Check::Tcp(1)) };
        (ProbeState::new(probe, now), now)
    }

    #[test]
    fn failures_in_a_row_count_and_the_first_question_waits() {
        let (mut state, now) = state(2);
        assert_eq!(state.due, now + Duration::from_secs(5));
        let miss = || Err("refused".to_owned());
        assert_eq!(
            state.note("liveness probe", miss(), now),
            ProbeResult::Pending("liveness probe: refused".to_owned())
        );
        assert_eq!(state.due, now + Duration::from_secs(1));
        assert_eq!(state.note("liveness probe", Ok(()), now), ProbeResult::Succeeded);
        assert!(matches!(state.note("liveness probe", miss(), now), ProbeResult::Pending(_)));
        let failed = "liveness probe failed 2 times: refused; it is restarted".to_owned();
        assert_eq!(state.note("liveness probe", miss(), now), ProbeResult::Failed(failed));
    }
}
