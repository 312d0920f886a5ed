//! Results in files: a directory whose files another program may write, too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use crate::results::RunResult;

/// Maximum size of a file that is read as a result.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum number of results that are listed: the newest.
const MAX_LISTED: usize = 1_000;
const EXTENSION: &str = ".json";

/// The directory of results.
#[derive(Debug)]
pub struct Saved {
    folder: PathBuf,
}

impl Saved {
    /// Results in this directory.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Names of results, without the ending; the newest first, because names begin with the time.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(&self.folder)?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(EXTENSION).map(str::to_owned))
            .filter(|name| is_name(name))
            .collect();
        names.sort_unstable_by(|one, other| other.cmp(one));
        names.truncate(MAX_LISTED);
        Ok(names)
    }

    /// A result's bytes. Links are not followed: whoever can write here could else show files of this user to others.
    ///
    /// # Errors
    /// There is no such result, or it cannot be read.
    pub fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned());
        if !is_name(name) {
            return Err(invalid("no name of a result"));
        }
        let path = self.folder.join(format!("{name}{EXTENSION}"));
        // Without O_NONBLOCK a named pipe would block the reader.
        let flags = O_NOFOLLOW | O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(invalid("no file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES { Err(invalid("too large for a result")) } else { Ok(bytes) }
    }

    /// A result.
    ///
    /// # Errors
    /// There is none of this name, or it is no result; says why.
    pub fn read(&self, name: &str) -> Result<RunResult, String> {
        let bytes = self.bytes(name).map_err(|error| format!("{name}: {error}"))?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{name}: {error}"))
    }

    /// Writes a result. An earlier one of the same name stays.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, json: &str) -> io::Result<()> {
        let path = self.folder.join(format!("{name}{EXTENSION}"));
        let mut file: File = OpenOptions::new().write(true).create_new(true).custom_flags(O_NOFOLLOW).open(path)?;
        file.write_all(json.as_bytes())
    }
}

/// Names as [`crate::results::id`] makes them, and those of files that people name.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_of_the_directory_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let saved = Saved::new(folder.path().to_owned());
        saved.write("2026-11-30-233038_a", "{\"Labels\":\"a\"}").expect("written");
        assert!(saved.write("2026-11-30-233038_a", "{}").is_err(), "the earlier one stays");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link.json")).expect("a link");
        nix::unistd::mkfifo(&folder.path().join("pipe.json"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        fs::write(folder.path().join("wrong.json"), "[").expect("written");
        fs::write(folder.path().join("notes.txt"), "text").expect("written");
        assert_eq!(saved.list().expect("names"), ["wrong", "pipe", "link", "2026-11-30-233038_a"]);
        assert_eq!(saved.read("2026-11-30-233038_a").expect("a result").labels, "a");
        for name in ["link", "pipe", "wrong", "absent", "../x", "a/b", "", ".hidden"] {
            assert!(saved.read(name).is_err(), "{name}");
        }
    }
}
