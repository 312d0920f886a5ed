//! A program that is kept running: started inside a replica's namespaces, logged to a file, restarted after a crash.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::namespace::Namespace;

/// First wait before a crashed program is started again: callers wait for one that was sound, and one that is not costs little
/// so seldom.
pub const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest wait between two starts.
pub const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A program that ran this long is healthy: its next crash waits [`FIRST_BACKOFF`] again.
pub const STABLE_AFTER: Duration = Duration::from_secs(30);
/// First descriptor of inherited listening sockets (systemd's `SD_LISTEN_FDS_START`).
const FIRST_INHERITED: RawFd = 3;
/// Variables that would send a workload's requests somewhere else than into its mesh, and the one for whoever started `up`: what
/// it starts is not the service.
const STRIPPED: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "NOTIFY_SOCKET",
];

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct Program {
    /// The executable.
    pub command: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to those of `up`.
    pub environment: Vec<(String, String)>,
    /// Working directory.
    pub directory: PathBuf,
    /// File that receives standard output and error.
    pub log: PathBuf,
    /// Namespaces to run in; none: those of the supervisor.
    pub namespace: Option<Arc<Namespace>>,
    /// Listening sockets to hand over, with their names (`LISTEN_FDNAMES`). Descriptors must lie above those handed over.
    pub listeners: Vec<(String, RawFd)>,
}

/// What a supervised program is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not started yet.
    Starting,
    /// Running with this process id.
    Running(u32),
    /// Ended by itself; it will be started again.
    Crashed(String),
    /// Ended on request.
    Stopped,
}

/// A program's phase and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// What it is doing.
    pub phase: Phase,
    /// How often it was started again after a crash.
    pub restarts: u32,
}

/// How to end a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Run,
    /// SIGTERM, then SIGKILL after this long.
    Stop(Duration),
}

/// A program under supervision. Dropping it leaves the program running until the supervisor itself ends.
#[derive(Debug)]
pub struct Process {
    state: watch::Receiver<State>,
    order: watch::Sender<Order>,
    task: JoinHandle<()>,
}

impl Process {
    /// Starts `program` and keeps it running.
    pub fn start(program: Program) -> Self {
        let (report, state) = watch::channel(State { phase: Phase::Starting, restarts: 0 });
        let (order, orders) = watch::channel(Order::Run);
        let task = tokio::spawn(keep_running(program, report, orders));
        Self { state, order, task }
    }

    /// Follows what it is doing.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Its process id (inside the mesh's process namespace), while it runs.
    pub fn pid(&self) -> Option<u32> {
        match self.state.borrow().phase {
            Phase::Running(pid) => Some(pid),
            _ => None,
        }
    }

    /// Ends it: SIGTERM to its process group, SIGKILL to what is left after `grace`.
    pub async fn stop(&mut self, grace: Duration) {
        let _ = self.order.send(Order::Stop(grace));
        let _ = (&mut self.task).await;
    }
}

async fn keep_running(program: Program, report: watch::Sender<State>, mut orders: watch::Receiver<Order>) {
    let mut backoff = FIRST_BACKOFF;
    loop {
        let started = Instant::now();
        let reason = match program.spawn() {
            Ok(child) => match run_once(child, &report, &mut orders).await {
                Some(reason) => reason,
                None => return set_phase(&report, Phase::Stopped),
            },
            Err(error) => format!("cannot start {}: {error}", program.command.display()),
        };
        tracing::warn!(log = %program.log.display(), "{reason}; next start in {} s", backoff.as_secs_f32());
        set_phase(&report, Phase::Crashed(reason));
        if started.elapsed() >= STABLE_AFTER {
            backoff = FIRST_BACKOFF;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            _ = ordered(&mut orders) => return set_phase(&report, Phase::Stopped),
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
        report.send_modify(|state| state.restarts += 1);
    }
}

/// Waits for the child's end; `None` if it was asked to end.
async fn run_once(
    mut child: Child,
    report: &watch::Sender<State>,
    orders: &mut watch::Receiver<Order>,
) -> Option<String> {
    let pid = child.id().unwrap_or_default();
    set_phase(report, Phase::Running(pid));
    let ended = tokio::select! {
        status = child.wait() => Some(describe(status)),
        grace = ordered(orders) => {
            signal_group(pid, Signal::SIGTERM);
            if tokio::time::timeout(grace, child.wait()).await.is_err() {
                let _ = child.start_kill();
                let _ = child.wait().await;
            }
            None
        }
    };
    // What the leader started must not keep the replica's port from its successor.
    signal_group(pid, Signal::SIGKILL);
    ended
}

async fn ordered(orders: &mut watch::Receiver<Order>) -> Duration {
    match orders.wait_for(|order| *order != Order::Run).await.map(|order| *order) {
        Ok(Order::Stop(grace)) => grace,
        // The owner dropped its handle without an order: leave the program alone.
        Ok(Order::Run) | Err(_) => std::future::pending().await,
    }
}

fn set_phase(report: &watch::Sender<State>, phase: Phase) {
    report.send_modify(|state| state.phase = phase);
}

fn signal_group(pid: u32, signal: Signal) {
    if let Ok(pid @ 2..) = i32::try_from(pid) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal().and_then(|number| Signal::try_from(number).ok())) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("killed by {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(error) => format!("lost: {error}"),
    }
}

impl Program {
    /// Starts it once, as leader of a session of its own: a terminal's Ctrl-C reaches the supervisor only, which then
    /// ends programs in order.
    pub fn spawn(&self) -> io::Result<Child> {
        let log = self.open_log()?;
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.prepare(&mut command)?;
        command.spawn()
    }

    /// Environment, namespaces, directory and inherited sockets.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        for name in STRIPPED {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !self.listeners.is_empty() {
            let names: Vec<&str> = self.listeners.iter().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let handles = self.namespace.as_ref().map(|namespace| namespace.handles());
        let directory = CString::new(self.directory.as_os_str().as_bytes())?;
        let listeners: Vec<RawFd> = self.listeners.iter().map(|(_, descriptor)| *descriptor).collect();
        let move_in = move || {
            // SAFETY: setsid takes nothing and touches no memory.
            unsafe { libc::setsid() };
            if let Some(handles) = handles {
                handles.enter()?;
            }
            // After joining: a new mount namespace resets the working directory.
            // SAFETY: `directory` is a NUL-terminated string owned by this closure.
            if unsafe { libc::chdir(directory.as_ptr()) } != 0 {
                return Err(io::Error::last_os_error());
            }
            hand_over(&listeners)
        };
        // SAFETY: the closure allocates nothing and makes only async-signal-safe calls (setsid, setns, chdir, dup2).
        unsafe { command.pre_exec(move_in) };
        Ok(())
    }

    fn open_log(&self) -> io::Result<File> {
        if let Some(folder) = self.log.parent() {
            std::fs::create_dir_all(folder)?;
        }
        OpenOptions::new().create(true).append(true).open(&self.log)
    }
}

/// Places listening sockets where the protocol says, from descriptor 3 up; dup2 also clears close-on-exec.
fn hand_over(listeners: &[RawFd]) -> io::Result<()> {
    for (target, source) in (FIRST_INHERITED..).zip(listeners) {
        // SAFETY: dup2 takes two integers; replacing an open descriptor of the child is what it is for.
        if unsafe { libc::dup2(*source, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &tempfile::TempDir, script: &str) -> Program {
        Program {
            command: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("GREETING".to_owned(), "hello".to_owned())],
            directory: folder.path().to_path_buf(),
            log: folder.path().join("log"),
            namespace: None,
            listeners: Vec::new(),
        }
    }

    #[tokio::test]
    async fn output_environment_and_directory_arrive() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let status = shell(&folder, "echo $GREETING; pwd >&2").spawn()?.wait().await?;
        assert!(status.success());
        let expected = format!("hello\n{}\n", folder.path().canonicalize()?.display());
        assert_eq!(std::fs::read_to_string(folder.path().join("log"))?, expected);
        Ok(())
    }

    #[tokio::test]
    async fn a_crash_is_reported_with_its_reason_and_started_again() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let mut process = Process::start(shell(&folder, "[ -e again ] && exec sleep 60; touch again; exit 7"));
        let mut state = process.state();
        let crashed = state.wait_for(|state| matches!(state.phase, Phase::Crashed(_))).await.map(|state| state.clone());
        assert_eq!(crashed.map(|state| state.phase).ok(), Some(Phase::Crashed("exited with status 7".to_owned())));
        let again = |state: &State| state.restarts == 1 && matches!(state.phase, Phase::Running(_));
        assert!(state.wait_for(again).await.is_ok());
        process.stop(Duration::from_secs(5)).await;
        assert_eq!(process.state().borrow().phase, Phase::Stopped);
        Ok(())
    }

    #[tokio::test]
    async fn a_program_that_ignores_sigterm_is_killed_with_its_children() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let mut process = Process::start(shell(&folder, "trap '' TERM; sleep 61 & echo $!; wait; sleep 62"));
        let log = folder.path().join("log");
        let deadline = Instant::now() + Duration::from_secs(10);
        let child: i32 = loop {
            if let Ok(pid) = std::fs::read_to_string(&log).unwrap_or_default().trim().parse() {
                break pid;
            }
            assert!(Instant::now() < deadline, "the program never wrote its child's process id");
            tokio::task::yield_now().await;
        };
        process.stop(Duration::from_millis(50)).await;
        let gone = || nix::sys::signal::kill(Pid::from_raw(child), None).is_err() || is_zombie(child);
        while !gone() {
            assert!(Instant::now() < deadline, "process {child} survived its group");
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn is_zombie(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
