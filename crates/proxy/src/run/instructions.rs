//! What the process is told from outside: signals, or the program it runs in.

use std::io;

use evenkeel_process::signals::Signals;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// What the process is told.
pub(super) enum Instruction {
    End,
    ReopenLogs,
}

/// By whom the process is told.
pub(super) enum Instructions {
    Signals { ending: Signals, reopen: Signal },
    Program(oneshot::Receiver<()>),
}

impl Instructions {
    /// `stop`: another program has the signals, and sends or drops this.
    pub(super) fn new(stop: Option<oneshot::Receiver<()>>) -> io::Result<Self> {
        if let Some(stop) = stop {
            return Ok(Self::Program(stop));
        }
        Ok(Self::Signals { ending: Signals::listen()?, reopen: signal(SignalKind::user_defined1())? })
    }

    /// The next thing the process is told.
    pub(super) async fn next(&mut self) -> Instruction {
        match self {
            Self::Signals { ending, reopen } => tokio::select! {
                () = ending.end() => Instruction::End,
                _ = reopen.recv() => Instruction::ReopenLogs,
            },
            Self::Program(stop) if stop.is_terminated() => std::future::pending().await,
            Self::Program(stop) => {
                _ = stop.await;
                Instruction::End
            }
        }
    }

    /// Done when the process is told to end once more.
    pub(super) async fn end(&mut self) {
        while !matches!(self.next().await, Instruction::End) {}
    }
}
