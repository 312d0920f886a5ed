//! Signals that end a process, and the one that only may.

use std::io;

use evenkeel_base::terminal::Terminal;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, as all our processes take them. They are heeded from the call to [`Signals::listen`] on: one that
/// comes before the first [`Signals::end`] is not lost.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    terminal: Terminal,
}

impl Signals {
    /// Listens from now on, on the present runtime.
    ///
    /// # Errors
    /// The system's, or of a process with other handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: Terminal::at_start(),
        })
    }

    /// Completes when the process is to end: by SIGTERM or SIGINT, or by the SIGHUP of a terminal that was closed. Any other SIGHUP
    /// is an operator's who would have configuration read again: it is followed as it changes, and that is logged. May be
    /// called again, for "at once"; dropping the future loses no signal.
    pub async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => match self.terminal.is_gone() {
                    true => return,
                    // As Envoy does.
                    false => tracing::info!("SIGHUP: nothing to reload, changes are applied as they come"),
                },
            }
        }
    }
}
