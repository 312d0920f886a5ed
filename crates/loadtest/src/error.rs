//! Why a command did not do what it was to do.

use std::io;
use std::path::PathBuf;

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag is wrong, or the server does not answer.
    #[error("{0}")]
    Refused(String),
    /// A result cannot be read.
    #[error("{path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The page cannot be served.
    #[error("{action}")]
    Serve {
        /// What failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// The result cannot be written.
    #[error("writing {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
}

impl From<String> for Error {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}
