//! The end on a signal: an experiment stops between two measurements, and what was measured stays.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use evenkeel_process::signals::Signals;

use crate::error::BenchError;

/// SIGINT, SIGTERM and a closed terminal.
pub struct Interrupt {
    signals: Receiver<()>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// Those of the system.
    pub fn listen() -> Result<Self, BenchError> {
        let failed = || BenchError::io("listening for signals");
        let (sender, signals) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
        let mut received = {
            let _inside = runtime.enter();
            Signals::listen().map_err(failed())?
        };
        std::thread::spawn(move || {
            runtime.block_on(received.end());
            // Nobody listens once the experiment has ended.
            let _ = sender.send(());
            runtime.block_on(received.end());
            // A second signal does not wait for the clean-up.
            std::process::exit(1);
        });
        Ok(Self { signals })
    }

    /// Waits so long; an error as soon as a signal comes.
    ///
    /// # Errors
    /// There was a signal.
    pub fn wait(&self, time: Duration) -> Result<(), BenchError> {
        match self.signals.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            // The thread ends after a signal only.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Err(BenchError::Signal),
        }
    }
}
