//! A supervised program: it is restarted after a crash, and if another process takes over from it, that process is
//! supervised.

use std::io;
use std::os::unix::fs::lchown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_process::service::Notices;
use futures_util::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::logs;
use crate::main_process::MainProcess;
use crate::program::Program;

/// First wait before a crashed program is restarted. It is short, because callers wait for a program that was healthy,
/// and it doubles for one that is not.
pub const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum wait between two starts.
pub const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A program that ran this long is healthy: its next crash waits [`FIRST_BACKOFF`] again.
pub const STABLE_AFTER: Duration = Duration::from_secs(30);
/// A program that has served meanwhile ([`Process::note_served`]) is healthy after this time.
pub const SERVED_AFTER: Duration = Duration::from_secs(1);
/// A program that kept ending counts as stable when it has run for twice the time between its last two ends, for at
/// least [`STABLE_AFTER`] and at most this time.
pub const PAST_AFTER: Duration = Duration::from_secs(600);
/// Maximum wait for a program that no other replica can replace ([`Process::shorten_backoff`]).
pub const ALONE_BACKOFF: Duration = Duration::from_secs(1);

/// The state of a supervised program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not started yet.
    Starting,
    /// Running with this process id.
    Running(u32),
    /// Ended by itself; it will be restarted.
    Crashed(String),
    /// Ended on request.
    Stopped,
}

/// A program's phase and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its state.
    pub phase: Phase,
    /// How often it was started again after a crash.
    pub restarts: u32,
    /// How often another process has taken over from the program's process.
    pub takeovers: u32,
    /// Its last exit; `None` if it has never ended.
    pub last_end: Option<Exit>,
}

/// An exit that was not requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Why it ended.
    pub reason: String,
    /// When.
    pub at: Instant,
    /// Time since the previous exit; `None` if there was none.
    pub since_last: Option<Duration>,
}

impl Exit {
    /// Makes an exit that follows the previous one, if there was one.
    fn new(reason: String, before: Option<&Self>) -> Self {
        let at = Instant::now();
        Self { reason, at, since_last: before.map(|before| at.saturating_duration_since(before.at)) }
    }

    /// Whether the program keeps ending: this was not its first exit, and it has not run for long since.
    pub fn is_of_many(&self, now: Instant) -> bool {
        let lasts = |between: Duration| (between * 2).clamp(STABLE_AFTER, PAST_AFTER);
        self.since_last.is_some_and(|between| now.saturating_duration_since(self.at) < lasts(between))
    }
}

/// An order to a program's supervisor.
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
    signals: Arc<Signals>,
    task: JoinHandle<()>,
}

/// Facts about a program that others report.
#[derive(Debug, Default)]
struct Signals {
    /// Whether it has served since its last start.
    served: AtomicBool,
    /// Whether it has ever served.
    has_served: AtomicBool,
    shorten_backoff: Notify,
}

impl Process {
    /// Starts `program` and keeps it running.
    pub fn start(mut program: Program) -> Self {
        let (report, state) =
            watch::channel(State { phase: Phase::Starting, restarts: 0, takeovers: 0, last_end: None });
        let (order, orders) = watch::channel(Order::Run);
        program.begin_output();
        let signals = Arc::<Signals>::default();
        let task = tokio::spawn(ProcessTask::new(program, report, orders, signals.clone()).run());
        Self { state, order, signals, task }
    }

    /// Records that the program serves. A later exit is not a failure to start, so it is restarted soon.
    pub fn note_served(&self) {
        self.signals.served.store(true, Relaxed);
        self.signals.has_served.store(true, Relaxed);
    }

    /// Whether it ever served.
    pub fn has_served(&self) -> bool {
        self.signals.has_served.load(Relaxed)
    }

    /// Records that no other replica serves: the program waits at most [`ALONE_BACKOFF`] for its restart.
    pub fn shorten_backoff(&self) {
        self.signals.shorten_backoff.notify_one();
    }

    /// A subscription to its state.
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

    /// Ends it: SIGTERM to its process group, then SIGKILL to the rest after `grace`.
    pub async fn stop(&mut self, grace: Duration) {
        let _ = self.order.send(Order::Stop(grace));
        let _ = (&mut self.task).await;
    }
}

impl Signals {
    /// Waits for the backoff before a start, or for less if no other replica serves.
    async fn wait(&self, backoff: Duration) {
        // Ignore a notification that was meant for an earlier exit.
        let _ = self.shorten_backoff.notified().now_or_never();
        let crashed = Instant::now();
        let alone = async {
            self.shorten_backoff.notified().await;
            tokio::time::sleep_until(crashed + backoff.min(ALONE_BACKOFF)).await;
        };
        tokio::select! {
            () = tokio::time::sleep_until(crashed + backoff) => {}
            () = alone => {}
        }
    }
}

/// Whether a program that ended after this time was healthy, so that its next start need not wait.
fn was_sound(ran: Duration, served: bool) -> bool {
    ran >= if served { SERVED_AFTER } else { STABLE_AFTER }
}

/// The task that keeps a program running.
struct ProcessTask {
    program: Program,
    /// The socket on which the program names a process that takes over from it.
    notices: Option<Notices>,
    report: watch::Sender<State>,
    orders: watch::Receiver<Order>,
    signals: Arc<Signals>,
    /// When the present process started or took over.
    since: Instant,
}

impl ProcessTask {
    fn new(
        program: Program,
        report: watch::Sender<State>,
        orders: watch::Receiver<Order>,
        signals: Arc<Signals>,
    ) -> Self {
        let notices = listen(&program);
        Self { program, notices, report, orders, signals, since: Instant::now() }
    }

    async fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            self.since = Instant::now();
            logs::note_start(&self.program.log);
            let reason = match self.program.spawn() {
                Ok(child) => match self.watch(MainProcess::started(child)).await {
                    Some(reason) => reason,
                    None => return self.leave().await,
                },
                Err(error) => format!("cannot start {}: {error}", self.program.command.display()),
            };
            let served = self.signals.served.swap(false, Relaxed);
            if was_sound(self.since.elapsed(), served) {
                backoff = FIRST_BACKOFF;
            }
            tracing::warn!(log = %self.program.log.display(), "{reason}; next start in {} s", backoff.as_secs_f32());
            self.report.send_modify(|state| {
                state.last_end = Some(Exit::new(reason.clone(), state.last_end.as_ref()));
                state.phase = Phase::Crashed(reason);
            });
            tokio::select! {
                () = self.signals.wait(backoff) => {}
                _ = ordered(&mut self.orders) => return self.leave().await,
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
            self.report.send_modify(|state| state.restarts += 1);
        }
    }

    /// Ends the task without a restart.
    async fn leave(mut self) {
        self.program.end_output().await;
        self.set_phase(Phase::Stopped);
    }

    /// Waits for the end of the program, including processes that take over; `None` if it was told to end.
    async fn watch(&mut self, mut main: MainProcess) -> Option<String> {
        // A named successor that has ended already.
        let mut lost = None;
        loop {
            self.set_phase(Phase::Running(main.id()));
            let (successor, reason) = tokio::select! {
                successor = successor_of(self.notices.as_ref(), main.id()) => (successor, None),
                reason = main.ended() => match self.named_by(&main) {
                    Some(successor) => (successor, Some(reason)),
                    None => {
                        main.clear_group();
                        return Some(lost.unwrap_or(reason));
                    }
                },
                grace = ordered(&mut self.orders) => {
                    self.stop(main, grace).await;
                    return None;
                }
            };
            match (self.follow(successor), reason) {
                (Ok(next), _) => (main, lost) = (next, None),
                (Err(error), reason) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let log = self.program.log.display();
                    tracing::warn!(process = successor, %error, %log, "a process was named that cannot take over; it is ignored");
                    if let Some(reason) = reason {
                        main.clear_group();
                        return Some(lost.unwrap_or(reason));
                    }
                }
                (Err(error), reason) => {
                    let what =
                        format!("ended, and process {successor}, which took over from it, has ended, too: {error}");
                    if reason.is_some() {
                        return Some(what);
                    }
                    lost = Some(what);
                }
            }
        }
    }

    /// Supervises the successor from now on; a restart then starts the successor's version.
    fn follow(&mut self, successor: u32) -> io::Result<MainProcess> {
        let main = MainProcess::successor(successor, &self.program)?;
        match main.seen(&self.program) {
            Ok(program) => self.program = program,
            Err(error) => {
                tracing::warn!(process = successor, %error, "cannot inspect the process that took over; a restart starts the previous version")
            }
        }
        self.since = Instant::now();
        self.report.send_modify(|state| state.takeovers += 1);
        tracing::info!(process = successor, command = %self.program.command.display(), "another process has taken over");
        Ok(main)
    }

    /// Ends the process, and any that takes over from it meanwhile.
    async fn stop(&mut self, mut main: MainProcess, grace: Duration) {
        loop {
            main.stop(grace).await;
            match self.named_by(&main).map(|successor| MainProcess::successor(successor, &self.program)) {
                Some(Ok(next)) => main = next,
                Some(Err(_)) | None => return main.clear_group(),
            }
        }
    }

    /// The successor that a process named before it ended.
    fn named_by(&self, main: &MainProcess) -> Option<u32> {
        self.notices.as_ref()?.successor_named_by(main.id())
    }

    fn set_phase(&self, phase: Phase) {
        self.report.send_modify(|state| state.phase = phase);
    }
}

fn listen(program: &Program) -> Option<Notices> {
    let socket = program.notify.as_deref()?;
    let listening = Notices::listen(socket).and_then(|notices| {
        if let Some(account) = program.container.as_ref().and_then(|container| container.privileges.account) {
            lchown(socket, Some(account.uid), Some(account.gid))?;
        }
        Ok(notices)
    });
    let failed = |error| tracing::warn!(%error, socket = %socket.display(), "cannot listen for processes that take over; they will not be supervised");
    listening.map_err(failed).ok()
}

/// Completes when `main` names its successor; never if there is no socket for that.
async fn successor_of(notices: Option<&Notices>, main: u32) -> u32 {
    let Some(notices) = notices else { return std::future::pending().await };
    match notices.successor_of(main).await {
        Ok(successor) => successor,
        Err(error) => {
            tracing::warn!(%error, "cannot receive notices of processes that take over any more");
            std::future::pending().await
        }
    }
}

async fn ordered(orders: &mut watch::Receiver<Order>) -> Duration {
    match orders.wait_for(|order| *order != Order::Run).await.map(|order| *order) {
        Ok(Order::Stop(grace)) => grace,
        // The owner dropped its handle without an order: leave the program running.
        Ok(Order::Run) | Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;

    use super::*;

    fn shell(folder: &tempfile::TempDir, script: &str) -> Program {
        let arguments = vec!["-c".into(), script.into()];
        Program::new("/bin/sh", arguments, folder.path().to_path_buf(), folder.path().join("log"))
    }

    async fn seen(process: &Process, condition: impl FnMut(&State) -> bool) -> State {
        let mut state = process.state();
        let seen = tokio::time::timeout(Duration::from_secs(10), state.wait_for(condition)).await;
        seen.expect("within the time").expect("it is kept running").clone()
    }

    #[tokio::test]
    async fn a_crash_is_reported_with_its_reason_and_started_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut process = Process::start(shell(&folder, "[ -e again ] && exec sleep 60; touch again; exit 7"));
        let crashed = seen(&process, |state| matches!(state.phase, Phase::Crashed(_))).await;
        assert_eq!(crashed.phase, Phase::Crashed("exited with status 7".to_owned()));
        let again = seen(&process, |state| state.restarts == 1 && matches!(state.phase, Phase::Running(_))).await;
        assert_eq!(
            again.last_end.map(|end| (end.reason, end.since_last)),
            Some(("exited with status 7".to_owned(), None))
        );
        process.stop(Duration::from_secs(5)).await;
        assert_eq!(process.state().borrow().phase, Phase::Stopped);
    }

    #[test]
    fn what_ends_again_and_again_is_past_it_after_a_while() {
        let check = |since_last: Option<u64>, runs: u64, expected: bool| {
            let at = Instant::now();
            let end = Exit { reason: String::new(), at, since_last: since_last.map(Duration::from_secs) };
            assert_eq!(end.is_of_many(at + Duration::from_secs(runs)), expected, "{since_last:?} {runs}");
        };
        check(None, 0, false);
        check(Some(0), 29, true);
        check(Some(0), 30, false);
        check(Some(60), 119, true);
        check(Some(60), 120, false);
        check(Some(3600), 599, true);
        check(Some(3600), 600, false);
    }

    /// `/dev/full` is a disk without space.
    #[tokio::test]
    async fn a_log_that_cannot_be_written_fails_no_program_that_has_a_pipe() {
        for (log, piped) in [("full", true), ("log", true), ("full", false)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            std::os::unix::fs::symlink("/dev/full", folder.path().join("full")).expect("our own folder");
            let script = "for i in $(seq 50000); do echo line $i || exit 9; done; echo done > /dev/stdout && touch through; sleep 60";
            let mut program = shell(&folder, script);
            (program.log, program.piped) = (folder.path().join(log), piped);
            let mut process = Process::start(program);
            if piped {
                exists(&folder, "through").await
            } else {
                drop(seen(&process, |state| state.phase == Phase::Crashed("exited with status 9".to_owned())).await)
            }
            process.stop(Duration::from_secs(5)).await;
            if log == "log" {
                let text = std::fs::read_to_string(folder.path().join(log)).expect("the log is there");
                assert!(text.ends_with("line 49999\nline 50000\ndone\n"), "{} bytes", text.len());
                assert_eq!(text.lines().count(), 50_001);
            }
        }
    }

    #[test]
    fn one_that_has_served_is_started_again_at_once() {
        for (ran, served, expected) in [
            (SERVED_AFTER, true, true),
            (SERVED_AFTER, false, false),
            (Duration::from_millis(10), true, false),
            (STABLE_AFTER, false, true),
        ] {
            assert_eq!(was_sound(ran, served), expected, "{ran:?} {served}");
        }
    }

    #[tokio::test]
    async fn a_program_that_ignores_sigterm_is_killed_with_its_children() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut process = Process::start(shell(&folder, "trap '' TERM; sleep 61 & echo $!; wait; sleep 62"));
        let child = number_in(&folder, "log").await;
        process.stop(Duration::from_millis(50)).await;
        let deadline = Instant::now() + Duration::from_secs(10);
        while runs(child) {
            assert!(Instant::now() < deadline, "process {child} survived its group");
            tokio::task::yield_now().await;
        }
    }

    /// Sends its argument to the manager. As `exec` keeps the process id, the program that runs it sends it itself.
    const TELL: &str = "import os, socket, sys
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), os.environ['NOTIFY_SOCKET'])
";
    const NAME_IT: &str = "python3 tell.py MAINPID=$(cat successor)";
    const NAME_IT_AND_GO_ON: &str =
        "import time; exec(open(\"tell.py\").read()); open(\"named\", \"w\"); time.sleep(60)";

    /// A program whose first process leaves a successor, and then continues as `first`; run again, it reports that.
    fn replaced(folder: &tempfile::TempDir, successor: &str, first: &str) -> Program {
        std::fs::write(folder.path().join("tell.py"), TELL).expect("our own folder");
        let script = format!(
            "[ -e successor ] && {{ echo $$ > again; exec sleep 63; }}
             {successor} & echo $! > successor.new; mv successor.new successor; {first}"
        );
        let mut program = shell(folder, &script);
        program.notify = Some(folder.path().join("notify"));
        program
    }

    #[tokio::test]
    async fn a_process_that_takes_over_is_watched_and_started_again_as_what_it_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut process = Process::start(replaced(&folder, "sleep 60", &format!("exec {NAME_IT}")));
        let successor = number_in(&folder, "successor").await;
        let now = seen(&process, |state| state.takeovers == 1).await;
        assert_eq!((now.phase, now.restarts), (Phase::Running(successor.unsigned_abs()), 0));
        assert!(runs(successor), "it is ended with the group of the one before");
        kill(successor);
        let crashed = seen(&process, |state| matches!(state.phase, Phase::Crashed(_))).await;
        assert_eq!(crashed.phase, Phase::Crashed("ended".to_owned()));
        seen(&process, |state| matches!(state.phase, Phase::Running(_))).await;
        let again = process.pid().expect("it runs");
        assert_eq!(command_line(again), "sleep 60", "not the one that was started first");
        process.stop(Duration::from_secs(5)).await;
        assert_eq!(process.state().borrow().phase, Phase::Stopped);
        assert!(!folder.path().join("again").exists());
    }

    #[tokio::test]
    async fn a_process_that_took_over_is_ended_with_the_program_also_if_it_is_named_only_then() {
        for first in [format!("exec {NAME_IT}"), format!("trap 'exec {NAME_IT}' TERM; touch waits; wait")] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let successor =
                "sh -c 'trap \"echo drained > drained; exit\" TERM; touch ready; while :; do sleep 0.01; done'";
            // In a separate group: it gets no signals for the first one's.
            let mut process = Process::start(replaced(&folder, &format!("setsid {successor}"), &first));
            let successor = number_in(&folder, "successor").await;
            exists(&folder, "ready").await;
            if first.contains("waits") {
                exists(&folder, "waits").await
            } else {
                drop(seen(&process, |state| state.takeovers == 1).await)
            }
            process.stop(Duration::from_secs(5)).await;
            assert!(!runs(successor), "{first}");
            assert!(folder.path().join("drained").exists(), "{first}");
        }
    }

    #[tokio::test]
    async fn a_successor_that_another_process_names_or_that_is_gone_is_none() {
        let (by_another, gone) = (format!("{NAME_IT}; exit 5"), format!("kill $!; wait; exec {NAME_IT}"));
        for (first, reason) in [(by_another, "exited with status 5"), (gone, "ended, and process ")] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut process = Process::start(replaced(&folder, "sleep 60", &first));
            let crashed = seen(&process, |state| matches!(state.phase, Phase::Crashed(_))).await;
            assert!(matches!(&crashed.phase, Phase::Crashed(seen) if seen.starts_with(reason)), "{crashed:?}");
            let again = number_in(&folder, "again").await;
            assert_eq!(process.pid(), Some(again.unsigned_abs()));
            process.stop(Duration::from_secs(5)).await;
        }
    }

    #[tokio::test]
    async fn a_process_that_belongs_elsewhere_takes_over_from_nobody_and_is_left_alone() {
        // In a network namespace of its own.
        let stranger = "setsid unshare --user --map-root-user --net sh -c 'touch ready; exec sleep 60'";
        for first in [
            format!(
                "while [ ! -e ready ]; do sleep 0.01; done; exec python3 -c '{NAME_IT_AND_GO_ON}' MAINPID=$(cat successor)"
            ),
            format!("while [ ! -e ready ]; do sleep 0.01; done; exec {NAME_IT}"),
        ] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut process = Process::start(replaced(&folder, stranger, &first));
            let stranger = number_in(&folder, "successor").await;
            exists(&folder, "ready").await;
            if first.contains("named") {
                exists(&folder, "named").await;
            } else {
                number_in(&folder, "again").await;
            }
            assert_eq!(process.state().borrow().takeovers, 0, "{first}");
            process.stop(Duration::from_secs(5)).await;
            assert!(runs(stranger), "{first}");
            kill(stranger);
        }
    }

    async fn number_in(folder: &tempfile::TempDir, file: &str) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Ok(number) = std::fs::read_to_string(folder.path().join(file)).unwrap_or_default().trim().parse() {
                return number;
            }
            assert!(Instant::now() < deadline, "no number in {file}");
            tokio::task::yield_now().await;
        }
    }

    async fn exists(folder: &tempfile::TempDir, file: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !folder.path().join(file).exists() {
            assert!(Instant::now() < deadline, "no file {file}");
            tokio::task::yield_now().await;
        }
    }

    fn kill(process: i32) {
        nix::sys::signal::kill(Pid::from_raw(process), nix::sys::signal::Signal::SIGKILL).expect("it runs");
    }

    /// Whether the process exists, and is not only waiting to be collected.
    fn runs(process: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn command_line(process: u32) -> String {
        let text = std::fs::read_to_string(format!("/proc/{process}/cmdline")).expect("it runs");
        text.replace('\0', " ").trim_end().to_owned()
    }
}
