//! Private keys: written for their owner only, and refused if anybody else can read them.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
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
    let mode = found.mode() & 0o7777;
    let user = files::effective_user().map_err(failed)?;
    if !is_private(mode, found.uid() == user) {
        return Err(SecretError::Mode { path: path.to_owned(), mode });
    }
    // The user who created the file knows the key in it.
    files::check_owner(path, &found)?;
    io::read_to_string(&mut file).map(Some).map_err(failed)
}

/// Whether the permission bits let only this process's user reach a file. A file of another user (root, as `check_owner` demands) can
/// only be read by way of the group: so is a Secret of Kubernetes that a Pod mounts with `fsGroup`.
fn is_private(mode: u32, is_own: bool) -> bool {
    let others = if is_own { 0o077 } else { 0o037 };
    mode & others == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_private() {
        let check = |mode, is_own, expected| assert_eq!(is_private(mode, is_own), expected, "{mode:o} {is_own}");
        check(0o600, true, true);
        check(0o400, true, true);
        check(0o640, true, false);
        check(0o440, true, false);
        check(0o440, false, true);
        check(0o400, false, true);
        check(0o460, false, false);
        check(0o450, false, false);
        check(0o444, false, false);
        check(0o644, false, false);
    }
}
