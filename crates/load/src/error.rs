//! Why a load could not do its work.

use std::io;
use std::time::Duration;

/// Why a load could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The operating system refused.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The server closed a connection.
    #[error("the connection was closed")]
    Closed,
    /// The server answered something else than 200.
    #[error("answered {0:?}")]
    Answer(String),
    /// The end of the answer cannot be told.
    #[error("answered without content-length")]
    NoLength,
    /// The server answered nothing that was asked.
    #[error("an answer to no request")]
    NoQuestion,
    /// Answers are missing at the end.
    #[error("{0} requests were not answered")]
    Unanswered(usize),
    /// The time was too short.
    #[error("no request was due")]
    NoRequest,
    /// The server ended a stream, or the connection, by a frame.
    #[error("stream {stream} was ended by frame type {kind}")]
    Reset {
        /// The stream.
        stream: u32,
        /// The frame's type.
        kind: u8,
    },
    /// Nothing came on any stream.
    #[error("no byte came for {0:?}")]
    Silent(Duration),
    /// Nothing came on some.
    #[error("{silent} of {streams} streams got nothing")]
    SomeSilent {
        /// Their number.
        silent: usize,
        /// The number of all.
        streams: usize,
    },
}

/// Says what was being done.
pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> LoadError {
    move |source| LoadError::Io { what, source }
}
