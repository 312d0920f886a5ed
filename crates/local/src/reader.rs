//! A command whose output nobody reads any more, as in `evenkeel logs web | head`.

use std::io::{self, ErrorKind, Write};

use nix::sys::signal::{SigHandler, Signal, signal};

/// From now on writing to a pipe that is closed ends this process silently, as it does other programs (SIGPIPE). For commands that
/// do nothing but print: what is written to sockets is not concerned.
pub fn end_with_reader() {
    // SAFETY: the default action runs no handler code.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Output that does not matter once nobody reads it: the command goes on.
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
