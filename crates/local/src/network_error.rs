//! Why a network could not be set up.

use std::io;

use crate::container::ContainerError;
use crate::tools::ToolError;

/// Why a network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// `ip` or `nft` failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file or mount under the namespace failed.
    #[error("cannot set up {what}: {source}")]
    File {
        /// The part that was being set up.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Its containers could not be made.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Namespaces could not be made.
    #[error("cannot make a network namespace: {0}")]
    Namespace(#[from] io::Error),
}
