//! Errors of queries to the history.

use std::io;
use std::path::PathBuf;

/// Why a query to the history has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The log cannot be read.
    #[error("cannot read the history in {}: {reason}", .state.display())]
    Read {
        /// The state directory.
        state: PathBuf,
        /// The error of the operating system.
        reason: io::Error,
    },
    /// No proxy of that name was connected by then.
    #[error("no proxy `{wanted}` had acknowledged anything by then; {known}")]
    NoProxy {
        /// The name in the query.
        wanted: String,
        /// The proxies that were connected.
        known: String,
    },
    /// The log begins later.
    #[error("the log no longer holds generation {0}")]
    Forgotten(u64),
}
