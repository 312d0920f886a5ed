//! Why a program's view of the file system could not be made.

use std::io;
use std::path::{Path, PathBuf};

/// A view that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A path could not be mounted or hidden.
    #[error("cannot mount {} for a program: {source}", .path.display())]
    Mount {
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The program cannot enter its working directory.
    #[error(
        "the program's user cannot enter its working directory {}, which is outside the directory that runs: {source}; open it to other \
         users, or move it into that directory",
        .path.display()
    )]
    Closed {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ViewError {
    /// A failure to mount or hide a path.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Mount { path: path.clone(), source }
    }
}
