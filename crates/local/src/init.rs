//! Process 1 of an application's process namespace: keeps it open and collects orphaned processes.

use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::pause;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// The hidden subcommand of this binary that calls [`run`].
pub const COMMAND: &str = "pod-init";

/// A process that only waits, to keep a namespace open.
pub(crate) fn command() -> Command {
    // Not its path, because the binary may be rebuilt or removed while it runs.
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).env_clear().current_dir("/");
    command
}

/// Waits until it is killed, which happens when its parent ends.
pub fn run() -> ! {
    // Without root all have the same user, and this process has no more capabilities than the others, which must not
    // trace it nevertheless. None of them runs yet.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // If SIGCHLD is ignored, the kernel collects ended children. No process inside can send other signals to process 1.
    // SAFETY: ignoring a signal installs no handler code.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    loop {
        pause();
    }
}
