//! Private keys: written for their owner only, and refused if anybody else can read them.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_base::files::{self, UntrustedError};

/// Why a private key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Where it is.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another user may have created it.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
    /// Other users than the owner have access.
    #[error("{path}: mode {mode:04o} lets others than the owner reach a private key; run `chmod 600 {path}`")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Reads a key file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<String>, SecretError> {
    let failed = |source| SecretError::Io { path: path.to_owned(), source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Checks the opened file rather than the path, so that nobody can exchange the file in between.
    let found = file.metadata().map_err(failed)?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Mode { path: path.to_owned(), mode });
    }
    // The user who created the file knows the key in it.
    files::check_owner(path, &found)?;
    io::read_to_string(&mut file).map(Some).map_err(failed)
}
