//! Errors of the lab.

use std::io;

/// Why a scenario failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An operation on a file, a socket or a process failed.
    #[error("{what}: {reason}")]
    Io {
        /// The operation.
        what: String,
        /// The operating system's error.
        reason: io::Error,
    },
    /// The flags contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The control plane or the gateway did not start, or exited.
    #[error("{program} {what}; the end of its log:\n{log}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The error.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// An expected event did not happen in time.
    #[error("{what} after {seconds:.0} s: {state}")]
    Stalled {
        /// The expected event.
        what: &'static str,
        /// The time limit.
        seconds: f64,
        /// The state at that time.
        state: String,
    },
    /// A signal ended the run.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// For `map_err`: wraps an I/O error with the operation that failed.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}
