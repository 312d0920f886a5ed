//! Files in the state directory: written only when their content changes, and removed with their owner.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_base::files::{Readers, write_atomically};

/// Replaces the file as a whole, unless it has this content already: an agent that restarts on a full disk then needs
/// no space.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    match std::fs::read(path) {
        Ok(there) if there == bytes => Ok(()),
        _ => write_atomically(path, bytes, readers),
    }
}

/// A file that is removed when this value is dropped.
pub(crate) struct RemoveFile(pub(crate) PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
