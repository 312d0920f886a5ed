//! Why an experiment did not run.

use std::io;
use std::path::PathBuf;

/// Why an experiment, or a part of it, failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A wrong combination of flags or files.
    #[error("{0}")]
    Usage(String),
    /// A signal asked for the end.
    #[error("interrupted; continue with --resume {}", .0.display())]
    Interrupted(PathBuf),
    /// A signal came while a program was awaited.
    #[error("interrupted")]
    Signal,
    /// The mesh did not start, or ended.
    #[error("`evenkeel up` {what}; the end of its output:\n{output}")]
    Mesh {
        /// What happened.
        what: String,
        /// Its last lines.
        output: String,
    },
    /// A load failed.
    #[error("{0}")]
    Load(String),
    /// The operating system's error.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// A file that is no result.
    #[error("{}: {reason}", .file.display())]
    Record {
        /// The file.
        file: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
}

impl BenchError {
    /// Adds to the system's error what was attempted.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
