//! Child processes that end with their parent.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// Lets the kernel kill the command's process when the thread that starts it ends, for any reason.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only the system call prctl is made, which is async-signal-safe.
    unsafe { command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_child_is_killed_with_the_thread_that_started_it() -> io::Result<()> {
        let started = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            die_with_parent(&mut command);
            command.spawn()
        });
        let mut child = started.join().map_err(|_| io::Error::other("the thread panicked"))??;
        assert_eq!(child.wait()?.signal(), Some(Signal::SIGKILL as i32));
        Ok(())
    }
}
