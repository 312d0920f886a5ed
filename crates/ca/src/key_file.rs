//! Files with private keys: written for their owner only, and refused if anybody else can read them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_base::files::{self, Readers, UntrustedError};

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
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
pub fn read(path: &Path) -> Result<Option<String>, KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Checks the opened file rather than the path, so that nobody can exchange the file in between.
    let found = file.metadata().map_err(failed)?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode { path: path.to_owned(), mode });
    }
    // The user who created the file knows the key in it.
    files::check_owner(path, &found)?;
    io::read_to_string(&mut file).map(Some).map_err(failed)
}

/// Writes a key file with mode 0600, completely or not at all.
pub fn write(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    files::write_atomically(path, text.as_bytes(), Readers::Owner).map_err(failed)
}
