//! Finds the files in the configuration directories.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_base::{Diagnostic, Severity, Span};

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
                if depth < MAX_DIRECTORY_DEPTH {
                    pending.push((path, depth + 1))
                } else {
                    let finding = limit(&path, "directories are nested deeper than", MAX_DIRECTORY_DEPTH);
                    scan.leave_out(&path, finding);
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
