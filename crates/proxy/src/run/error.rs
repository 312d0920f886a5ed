//! Why the process does not start, or ends with an error.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::bootstrap::BootstrapError;
use crate::handover::HandoverError;
use crate::options::OptionsError;

/// Why the process does not start, or ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line is invalid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The bootstrap is invalid.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Taking over from the running process is not possible.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The admin interface cannot listen.
    #[error("cannot listen on the admin address {address}: {error}")]
    Admin {
        /// `admin.address`.
        address: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// Bootstrap listeners could not be bound.
    #[error("{}", .0.join("\n"))]
    Listeners(Vec<String>),
    /// A file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// A system call that every process depends on failed.
    #[error("{what}: {error}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's reason.
        error: io::Error,
    },
}
