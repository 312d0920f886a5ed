//! Why the lab could not measure.

use std::io;

/// Why a scenario was not played to its end.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file, a socket, a process.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's word.
        reason: io::Error,
    },
    /// The flags do not fit together.
    #[error("{0}")]
    Usage(String),
    /// The control plane or the gateway did not start, or ended.
    #[error("{program} {what}; the end of its log:\n{log}")]
    Program {
        /// Which one.
        program: &'static str,
        /// What happened.
        what: String,
        /// Its last lines.
        log: String,
    },
    /// Something that has to happen did not, within the time given.
    #[error("{what} after {seconds:.0} s: {state}")]
    Stalled {
        /// What was waited for.
        what: &'static str,
        /// How long.
        seconds: f64,
        /// How far it came.
        state: String,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// For `map_err`: what was tried, then the reason.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}
