//! Why the past cannot be told.

use std::io;
use std::path::PathBuf;

/// Why the past cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The log.
    #[error("cannot read the history in {}: {reason}", .state.display())]
    Read {
        /// The state directory.
        state: PathBuf,
        /// The system's word.
        reason: io::Error,
    },
    /// Nobody of that name was connected by then.
    #[error("no proxy `{wanted}` had acknowledged anything by then; {known}")]
    NoProxy {
        /// Who was asked about.
        wanted: String,
        /// Who was there instead.
        known: String,
    },
    /// The log begins later.
    #[error("the log no longer holds generation {0}")]
    Forgotten(u64),
}
