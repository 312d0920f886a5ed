//! Logs of a run do not fill the disk.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

/// A log larger than this is set aside; only the last one set aside is kept, so a program takes at most twice this.
pub const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Sets aside every log of the folder that is too large, as `NAME.log.1`.
pub fn limit(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if is_log
            && entry.metadata().is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES)
            && let Err(error) = set_aside(&path)
        {
            tracing::warn!(log = %path.display(), %error, "a large log could not be set aside");
        }
    }
}

/// Copies and empties: its writers hold the file open, and append, so they go on at its new beginning. Where there is no space
/// for a copy it is emptied all the same: it is what fills the disk.
fn set_aside(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("log.1");
    // First: the copy has its space.
    let _ = fs::remove_file(&aside);
    let copied = fs::copy(path, &aside);
    if copied.is_err() {
        let _ = fs::remove_file(&aside);
    }
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_that_is_too_large_is_set_aside_and_its_writer_goes_on() -> io::Result<()> {
        use std::io::Write;
        let folder = tempfile::tempdir()?;
        let (large, small) = (folder.path().join("web.app.log"), folder.path().join("info.app.log"));
        fs::write(&small, "few")?;
        let mut writer = OpenOptions::new().create(true).append(true).open(&large)?;
        writer.set_len(MAX_LOG_BYTES + 1)?;
        limit(folder.path());
        writer.write_all(b"more")?;
        assert_eq!(fs::read(&large)?, b"more");
        assert_eq!(fs::metadata(folder.path().join("web.app.log.1"))?.len(), MAX_LOG_BYTES + 1);
        assert_eq!(fs::read(&small)?, b"few");
        assert_eq!(fs::read_dir(folder.path())?.count(), 3);
        Ok(())
    }
}
