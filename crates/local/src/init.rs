//! Process 1 of an application's process namespace: holds it open, and collects whatever is left over in it.

use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::pause;

/// The subcommand of this binary that does [`run`]; nobody else needs it.
pub const COMMAND: &str = "pod-init";

/// A process that does nothing but wait, to hold a namespace open.
pub(crate) fn command() -> Command {
    // Not a path: the binary may be rebuilt or removed while it runs.
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).env_clear().current_dir("/");
    command
}

/// Waits until it is killed, as it is when whoever started it ends.
pub fn run() -> ! {
    // Whose parent ignores it is collected by the kernel. As process 1 it hears no other signal from inside.
    // SAFETY: ignoring a signal installs no handler code.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
    loop {
        pause();
    }
}
