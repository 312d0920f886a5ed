//! Files of the state directory: written when they say something new, and gone with their owner.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_base::files::{Readers, write_atomically};

/// Replaces the file whole, unless it says the same already: an agent that starts anew on a full disk needs nothing of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    match std::fs::read(path) {
        Ok(there) if there == bytes => Ok(()),
        _ => write_atomically(path, bytes, readers),
    }
}

/// A file that goes with its owner.
pub(crate) struct RemoveFile(pub(crate) PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
