//! What the process is told from outside: signals, or the program it runs in.

use std::io;

use evenkeel_base::terminal::Terminal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// What the process is told.
pub(super) enum Told {
    End,
    ReopenLogs,
}

/// By whom the process is told.
pub(super) enum Telling {
    Signals(Signals),
    Program(oneshot::Receiver<()>),
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
    hangup: Signal,
    terminal: Terminal,
}

impl Telling {
    /// `stop`: another program has the signals, and sends or drops this.
    pub(super) fn new(stop: Option<oneshot::Receiver<()>>) -> io::Result<Self> {
        if let Some(stop) = stop {
            return Ok(Self::Program(stop));
        }
        Ok(Self::Signals(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: Terminal::at_start(),
        }))
    }

    /// The next thing the process is told.
    pub(super) async fn next(&mut self) -> Told {
        match self {
            Self::Signals(signals) => signals.next().await,
            Self::Program(stop) if stop.is_terminated() => std::future::pending().await,
            Self::Program(stop) => {
                _ = stop.await;
                Told::End
            }
        }
    }

    /// Done when the process is told to end once more.
    pub(super) async fn end(&mut self) {
        while !matches!(self.next().await, Told::End) {}
    }
}

impl Signals {
    async fn next(&mut self) -> Told {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Told::End,
                _ = self.interrupt.recv() => return Told::End,
                _ = self.reopen.recv() => return Told::ReopenLogs,
                _ = self.hangup.recv() => match self.terminal.is_gone() {
                    true => return Told::End,
                    // As Envoy does.
                    false => tracing::info!("SIGHUP: there is nothing to do, configuration is followed as it comes"),
                },
            }
        }
    }
}
