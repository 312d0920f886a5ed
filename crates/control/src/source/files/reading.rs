//! Reads files without trusting what they are: their kind and their size are checked.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use evenkeel_base::limits::MAX_FILE_BYTES;
use rustix::fs::OFlags;

/// Reads a file that a user has named; an error if it is not text, or is too long. It may be a pipe.
pub fn read_text(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    read_within(file, length)
}

/// Reads a file that was found in a directory; an error if it is not a regular file, not text, or too long.
pub(super) fn read_found(path: &Path) -> io::Result<String> {
    let file = open_regular(path, Links::Followed)?;
    let length = file.metadata()?.len();
    read_within(file, length)
}

/// Reads as much as possible of a file that is not text, or is too long.
pub(super) fn read_lossy(path: &Path) -> io::Result<String> {
    let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    open_regular(path, Links::Followed)?.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a path may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// It is followed.
    Followed,
    /// It is an error: the directory belongs to somebody else.
    Refused,
}

/// Reads a regular file into which somebody else may have put anything: neither a pipe nor a device is waited for.
///
/// # Errors
/// If it is another kind of file, or has more than `limit` bytes.
pub fn read_regular(path: &Path, links: Links, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_regular(path, links)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read <= limit) {
        Ok(bytes)
    } else {
        Err(io::Error::other(format!("it has more than {limit} bytes")))
    }
}

/// Opens a regular file. Whatever else is there, such as a pipe without a writer, opening it neither waits nor changes
/// anything.
fn open_regular(path: &Path, links: Links) -> io::Result<fs::File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    // Opening a device may already do something.
    let found = if links == Links::Refused { fs::symlink_metadata(path) } else { fs::metadata(path) };
    let file = if found?.is_file() {
        fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?
    } else {
        return Err(not_regular());
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// The error of what is neither a file nor a link to one: no text can be expected there.
fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "it is not a regular file")
}

/// Reads to the end; an error if it is not text, or is too long.
pub fn read_all(from: impl Read) -> io::Result<String> {
    read_within(from, 0)
}

fn read_within(from: impl Read, length: u64) -> io::Result<String> {
    let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    // With room to detect the end, as it would otherwise be read in small pieces.
    let mut bytes = Vec::with_capacity(usize::try_from(length.saturating_add(64).min(limit)).unwrap_or(0));
    let read = from.take(limit).read_to_end(&mut bytes)?;
    if read > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes; split it into several files")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}
