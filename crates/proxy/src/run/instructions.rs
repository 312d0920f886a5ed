//! Instructions to the process: from signals, or from the program that embeds it.

use std::io;

use evenkeel_process::signals::Signals;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// An instruction to the process.
pub(super) enum Instruction {
    End,
    ReopenLogs,
}

/// The source of instructions.
pub(super) enum Instructions {
    Signals { ending: Signals, reopen: Signal },
    Program(oneshot::Receiver<()>),
}

impl Instructions {
    /// `stop`: sent or dropped by an embedding program, which then handles the signals itself.
    pub(super) fn new(stop: Option<oneshot::Receiver<()>>) -> io::Result<Self> {
        if let Some(stop) = stop {
            return Ok(Self::Program(stop));
        }
        Ok(Self::Signals { ending: Signals::listen()?, reopen: signal(SignalKind::user_defined1())? })
    }

    /// Waits for the next instruction.
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

    /// Waits until the process is told to end again.
    pub(super) async fn end(&mut self) {
        while !matches!(self.next().await, Instruction::End) {}
    }
}
