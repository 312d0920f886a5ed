//! Files of the state directory: written whole, and gone with their owner.

use std::io;
use std::path::{Path, PathBuf};

/// Writes beside the file and renames, so that nobody reads half of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

/// A file that goes with its owner.
pub(crate) struct RemoveFile(pub(crate) PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
