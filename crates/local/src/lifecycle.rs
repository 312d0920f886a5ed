//! Whether a program has started, and whether it is alive: startup and liveness probes, and what is done at the beginning and the end
//! of its life. Whether it is ready is for [`crate::probe::ReadinessCounter`].

use std::time::Duration;

use evenkeel_api::decode::IntOrString;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::probe::{Probe, ProbeContext};
use crate::process::{Phase, State};

/// Longest time something at the beginning of a program's life may take.
const POST_START_TIMEOUT: Duration = Duration::from_secs(60);

/// What is asked of a program, and done with it, besides its readiness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifecycle {
    /// Until this has been answered once nothing else is asked; a program that never answers is started again.
    pub startup: Option<Probe>,
    /// A program that does not answer is started again.
    pub liveness: Option<Probe>,
    /// Done when it has been started.
    pub post_start: Option<Hook>,
    /// Done before it is told to end.
    pub pre_stop: Option<Hook>,
    /// Time it has to end, `pre_stop` included; none: the default.
    pub grace: Option<Duration>,
}

/// Something that is done once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// A command beside the program.
    Exec(Vec<String>),
    /// A GET; whatever the answer.
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
    /// Does it, within a time; the error says why it failed.
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

    /// The number of a port, or that of the container's port of that name.
    pub(crate) fn get(
        port: &IntOrString,
        path: Option<&String>,
        number: impl Fn(&IntOrString) -> Option<u16>,
    ) -> Option<Self> {
        Some(Self::Get { port: number(port)?, path: path.cloned().unwrap_or_else(|| "/".to_owned()) })
    }
}

/// How a program is.
#[derive(Debug, PartialEq, Eq)]
pub enum ProgramState {
    /// It may be asked whether it is ready.
    Started,
    /// It has not started yet.
    Starting(String),
    /// It is to be started again.
    Failed(String),
}

/// The present process of a program, and what it has answered.
#[derive(Debug)]
pub struct ProcessProbes {
    process: u32,
    since: Instant,
    startup: Option<ProbeState>,
    liveness: Option<ProbeState>,
    failed: bool,
}

impl ProcessProbes {
    /// Of a process that has just been started.
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

    /// Asks what is due. `Ill` is said once.
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
            // Liveness counts from now on.
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

    /// The time until something is to be asked.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let due = [&self.startup, &self.liveness].into_iter().flatten().map(|state| state.due).min();
        due.map(|due| due.saturating_duration_since(now))
    }
}

/// One probe of one process.
#[derive(Debug)]
struct ProbeState {
    probe: Probe,
    due: Instant,
    misses: u32,
    last: String,
}

/// What a probe has come to.
#[derive(Debug, PartialEq, Eq)]
enum ProbeResult {
    /// Nothing yet, or it was not due.
    Pending(String),
    Succeeded,
    /// So often that it counts.
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
        match self.misses >= self.probe.failures {
            true => ProbeResult::Failed(format!("{what} failed {} times: {}; it is restarted", self.misses, self.last)),
            false => ProbeResult::Pending(format!("{what}: {}", self.last)),
        }
    }
}

/// Does what is to be done at the beginning, beside everything else.
pub async fn post_start(hook: &Hook, inside: &ProbeContext<'_>) {
    if let Err(reason) = hook.run(inside, POST_START_TIMEOUT).await {
        tracing::warn!(%reason, "postStart failed");
    }
}

/// Ends a process so that it is started again: SIGTERM to its group, SIGKILL after the grace if it is still the one that runs.
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
