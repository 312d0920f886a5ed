//! Processes and a directory that end with this process, even if it is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

use tempfile::TempDir;

use crate::process::Process;

/// A process to start, and where it is expected.
struct Start {
    command: Command,
    started: SyncSender<Process>,
}

/// Starts a process that the kernel kills when this process ends.
///
/// The kernel watches the thread that started the process (PR_SET_PDEATHSIG), and a test's thread ends with the test. So one
/// thread, which lasts as long as the process, starts all of them.
///
/// # Panics
/// When the program cannot be started.
pub(super) fn spawn(command: Command) -> Process {
    static STARTER: OnceLock<Sender<Start>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, starts) = channel::<Start>();
        std::thread::spawn(move || {
            for start in starts {
                let _ = start.started.send(Process::spawn(&mut attached(&start.command)));
            }
        });
        sender
    });
    let (started, process) = sync_channel(1);
    starter.send(Start { command, started }).expect("the starting thread lives");
    process.recv().expect("the process starts")
}

/// The same program and arguments, run by the program that sets the signal: this crate has no unsafe code.
pub(super) fn attached(command: &Command) -> Command {
    let mut attached = Command::new("setpriv");
    attached.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    attached
}

/// A temporary directory that is removed with this value, or after this process has ended.
pub(super) struct Folder {
    directory: TempDir,
    /// It waits for the end of its input, which is that of this process at the latest.
    remover: Child,
}

impl Folder {
    /// Creates the directory.
    pub(super) fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("evenkeel-kubernetes-").tempdir().expect("a temporary directory");
        // The processes that write to the directory are killed at the same moment: hence the second attempt.
        let script = "read -r _; rm -rf \"$1\" || { sleep 2; rm -rf \"$1\"; }";
        let remover = Command::new("setsid")
            .args(["sh", "-c", script, "remover"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        Self { directory, remover }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}
