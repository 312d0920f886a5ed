//! A process by descriptor, which, unlike a process id, can never refer to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process of this process namespace, a child or not. See pidfd_open(2).
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this id now.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Sends it a signal; does nothing if it has ended.
    pub fn signal(&self, signal: Signal) {
        let number = rustix::process::Signal::from_named_raw(signal as i32);
        let _ = number.map(|number| pidfd_send_signal(&self.0, number));
    }

    /// Waits for its end with a time limit and returns whether it has ended. Blocks the thread.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        matches!(poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout), Ok(1..))
    }

    /// Completes when it has ended, even if nobody has collected it.
    ///
    /// # Errors
    /// The event loop's, which has no room.
    pub async fn ended(&self) -> io::Result<()> {
        // SAFETY: the descriptor is borrowed for as long as it is registered, so it stays open and means the same process.
        let process = unsafe { AsyncFd::register_with_interest(self.0.as_fd(), Interest::READABLE) }?;
        process.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_waited_for_and_signalled_until_it_has_ended() -> Result<(), Box<dyn std::error::Error>> {
        let mut child = std::process::Command::new("sleep").arg("60").spawn()?;
        let process = PidFd::open(i32::try_from(child.id())?)?;
        assert!(!process.wait(Duration::ZERO));
        process.signal(Signal::SIGTERM);
        tokio::time::timeout(Duration::from_secs(10), process.ended()).await??;
        assert!(process.wait(Duration::ZERO), "it has ended, though nobody has collected it");
        child.wait()?;
        process.ended().await?;
        process.signal(Signal::SIGTERM);
        assert!(PidFd::open(i32::try_from(child.id())?).is_err());
        Ok(())
    }
}
