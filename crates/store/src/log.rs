//! Logs in a directory: files that one process appends to, and locks while it does.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A log that this process holds, until it is dropped.
pub trait Log: fmt::Debug + Send {
    /// Appends bytes, in one write: no reader sees a part of several lines.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// How a log begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// It is a new one; an error (`AlreadyExists`) if there is one of this key.
    New,
    /// It replaces one of this key. Others see it when it is held and its first bytes are stored.
    Replace,
}

#[derive(Debug)]
struct LogFile(File);

/// Begins the log in a file.
pub(crate) fn begin(path: &Path, first: &[u8], begin: Begin) -> io::Result<Box<dyn Log>> {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    let at = match begin {
        Begin::New => {
            options.create_new(true).append(true);
            path.to_owned()
        }
        Begin::Replace => {
            options.create(true).truncate(true).write(true);
            beside(path)
        }
    };
    let file = options.open(&at)?;
    let written =
        fill(file, first, begin).and_then(|log| if at == path { Ok(log) } else { fs::rename(&at, path).map(|()| log) });
    if written.is_err() {
        // It would count as a log.
        let _ = fs::remove_file(&at);
    }
    Ok(Box::new(written?))
}

fn fill(mut file: File, first: &[u8], begin: Begin) -> io::Result<LogFile> {
    file.try_lock().map_err(io::Error::from)?;
    file.write_all(first)?;
    if begin == Begin::Replace {
        file.sync_all()?;
    }
    Ok(LogFile(file))
}

/// Whether a process holds the log in a file. The lock is shared, so that two processes that ask do not take each other for
/// the holder.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => Ok(file.try_lock_shared().is_err()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Log for LogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}
