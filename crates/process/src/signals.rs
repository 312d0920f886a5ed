//! Signals that end a process: SIGTERM, SIGINT and, only if its terminal was closed, SIGHUP.

use std::io;

use evenkeel_base::terminal::Terminal;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, as all our processes handle them. They count from the call to [`Signals::listen`] on: a
/// signal that comes before the first [`Signals::end`] is not lost.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    terminal: Terminal,
}

impl Signals {
    /// Listens from now on. Must be called within a runtime.
    ///
    /// # Errors
    /// Those of the system, or other handlers are installed already.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: Terminal::at_start(),
        })
    }

    /// Completes when the process should end: on SIGTERM or SIGINT, or on SIGHUP if its terminal was closed. With any
    /// other SIGHUP an operator asks to reload configuration; that is logged only, because changes are applied as they
    /// come. A second call waits for the next signal, which means "end at once". Dropping the future loses no signal.
    pub async fn end(&mut self) {
        loop {
            tokio::select! {
                            _ = self.terminate.recv() => return,
                            _ = self.interrupt.recv() => return,
                            _ = self.hangup.recv() => if self.terminal.is_gone() {
            return
            } else {
            // As Envoy does.
            tracing::info!("SIGHUP: nothing to reload, changes are applied as they come")
            },
                        }
        }
    }
}
