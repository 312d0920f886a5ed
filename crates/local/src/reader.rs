//! Handles output that nobody reads any more, as in `evenkeel logs web | head`.

use std::io::{self, ErrorKind, Write};

use nix::sys::signal::{SigHandler, Signal, signal};

/// From now on writing to a closed pipe ends this process silently (SIGPIPE), as in other programs. It is for commands
/// that only print; writes to sockets are not affected.
pub fn end_with_reader() {
    // SAFETY: the default action runs no handler code.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Does something during which writing to a closed pipe is only an error, such as writing to another process.
pub fn despite_closed_pipes<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: ignoring a signal, and restoring the action that it had, runs no handler code of this program.
    let before = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    let done = work();
    if let Ok(before) = before {
        // SAFETY: as above.
        let _ = unsafe { signal(Signal::SIGPIPE, before) };
    }
    done
}

/// Output that ignores errors when nobody reads it any more, so that the command continues.
#[derive(Debug)]
pub struct IgnoreBrokenPipe<W>(pub W);

impl<W: Write> Write for IgnoreBrokenPipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}
