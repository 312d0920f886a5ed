//! Finds the files in the configuration directories.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use evenkeel_base::limits::MAX_FILE_BYTES;
use evenkeel_base::{Diagnostic, Severity, Span};
use rustix::fs::OFlags;

use super::ignore::Ignored;

/// Maximum number of files read from the configuration directories.
pub const MAX_FILES: usize = 20_000;
/// Maximum nesting of configuration directories, in levels.
pub(super) const MAX_DIRECTORY_DEPTH: usize = 32;
/// The error number for a link in a cycle.
const ELOOP: i32 = 40;
/// Extensions of configuration files.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The contents of the directories below the roots.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The files.
    pub found: BTreeMap<PathBuf, io::Result<Metadata>>,
    /// Directories that were read completely.
    pub read: Vec<PathBuf>,
    /// Directories whose content is unknown, with the reason: their known files are kept.
    pub unreadable: BTreeMap<PathBuf, Diagnostic>,
    /// Excluded files and directories.
    pub ignored: Ignored,
}

impl Scan {
    /// Records that a directory, or an entry that may be one, cannot be read.
    fn cannot_read(&mut self, directory: &Path, reason: &io::Error) {
        let message = format!("cannot read the directory: {reason}");
        let finding = Diagnostic::error("unreadable-file", Span::whole_file(directory.to_string_lossy()), message);
        let help = "check that it exists and may be read; what was read of it before stays in force";
        self.leave_out(directory, finding.with_help(help));
    }

    /// Records that a directory is not read, or not completely.
    fn leave_out(&mut self, directory: &Path, finding: Diagnostic) {
        self.unreadable.insert(directory.to_owned(), finding);
    }
}

/// Finds all configuration files below the roots.
pub(super) fn scan(roots: &[PathBuf]) -> Scan {
    let mut scan = Scan::default();
    let mut pending: Vec<(PathBuf, usize)> = roots.iter().map(|root| (root.clone(), 0)).collect();
    while let Some((directory, depth)) = pending.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // Deleted since its parent was read; a missing root is more likely an accident.
            Err(reason) if reason.kind() == io::ErrorKind::NotFound && depth > 0 => continue,
            Err(reason) => {
                scan.cannot_read(&directory, &reason);
                continue;
            }
        };
        scan.ignored.enter(&directory);
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(reason) => {
                    scan.cannot_read(&directory, &reason);
                    break;
                }
            };
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden {
                continue;
            }
            let metadata = fs::metadata(&path);
            if scan.ignored.leaves_out(&path, metadata.as_ref().is_ok_and(Metadata::is_dir)) {
                continue;
            }
            if metadata.as_ref().is_ok_and(Metadata::is_dir) {
                if leads_back(&directory, &path) {
                    continue;
                }
                match depth < MAX_DIRECTORY_DEPTH {
                    true => pending.push((path, depth + 1)),
                    false => {
                        let finding = limit(&path, "directories are nested deeper than", MAX_DIRECTORY_DEPTH);
                        scan.leave_out(&path, finding);
                    }
                }
            } else if is_configuration(&path) {
                if scan.found.len() >= MAX_FILES {
                    for directory in pending.into_iter().map(|(directory, _)| directory).chain([directory]) {
                        scan.leave_out(&directory, limit(&directory, "there are more files than", MAX_FILES));
                    }
                    return scan;
                }
                scan.found.insert(path, metadata);
            } else if let Err(reason) = metadata
                && may_lead_somewhere(&reason)
            {
                scan.cannot_read(&path, &reason);
            }
        }
        if !scan.unreadable.contains_key(&directory) {
            scan.read.push(directory);
        }
    }
    scan
}

/// Whether an entry that cannot be examined may be a directory: it has not been deleted, and is not a dangling or cyclic
/// link.
fn may_lead_somewhere(reason: &io::Error) -> bool {
    reason.kind() != io::ErrorKind::NotFound && reason.raw_os_error() != Some(ELOOP)
}

/// Whether a link leads to one of its own parent directories, which is read already.
fn leads_back(directory: &Path, link: &Path) -> bool {
    let is_link = fs::symlink_metadata(link).is_ok_and(|metadata| metadata.is_symlink());
    let real = |path: &Path| path.canonicalize().ok();
    is_link && real(directory).zip(real(link)).is_some_and(|(directory, target)| directory.starts_with(target))
}

/// Whether a file is configuration, by its name.
pub fn is_configuration(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    EXTENSIONS.contains(&extension)
}

fn limit(path: &Path, what: &str, limit: usize) -> Diagnostic {
    let span = Span::whole_file(path.to_string_lossy());
    Diagnostic::new(Severity::Error, "too-many-files", span, format!("{what} {limit}; the rest is not read")).with_help(
        "give a directory that holds only the mesh's configuration, or exclude others by a file `.evenkeelignore`",
    )
}

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
    match u64::try_from(read).is_ok_and(|read| read <= limit) {
        true => Ok(bytes),
        false => Err(io::Error::other(format!("it has more than {limit} bytes"))),
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
    let file = match found?.is_file() {
        true => fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?,
        false => return Err(not_regular()),
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
