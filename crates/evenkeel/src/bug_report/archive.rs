//! The archive that a report is written to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes that one entry may have; of a longer one the last are kept.
const MAX_ENTRY_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of all entries together.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// A gzipped tar archive that only its owner can read. It appears under its name once it is complete.
pub struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    path: PathBuf,
    unfinished: PathBuf,
    folder: String,
    bytes: usize,
    time_s: u64,
    /// What could not be collected, one line each.
    pub problems: Vec<String>,
}

impl Archive {
    /// Begins an archive. Its entries are in a folder with the name of the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let unfinished = path.with_extension("unfinished");
        // In a folder of others, a link there must not lead this process to another file.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self {
            tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
            path: path.to_owned(),
            unfinished,
            folder: name.trim_end_matches(".tar.gz").trim_end_matches(".tgz").to_owned(),
            bytes: 0,
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            problems: Vec::new(),
        })
    }

    /// Adds an entry. Of a long text the end is kept: in logs it is the newest.
    pub fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let start = content.len().saturating_sub(MAX_ENTRY_BYTES);
        let end = content.get(start..).unwrap_or_default();
        if start > 0 {
            self.problems.push(format!(
                "{name}: only the last {} MiB of {} bytes",
                MAX_ENTRY_BYTES >> 20,
                content.len()
            ));
        }
        if self.bytes + end.len() > MAX_BYTES {
            self.problems.push(format!("{name}: left out, the report has {} MiB already", MAX_BYTES >> 20));
            return Ok(());
        }
        self.bytes += end.len();
        let mut header = tar::Header::new_gnu();
        header.set_size(end.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time_s);
        self.tar.append_data(&mut header, format!("{}/{name}", self.folder), end)
    }

    /// Adds an entry, or notes why there is none.
    pub fn add_result(&mut self, name: &str, content: anyhow::Result<Vec<u8>>) -> io::Result<()> {
        match content {
            Ok(content) => self.add(name, &content),
            Err(error) => {
                self.problems.push(format!("{name}: {error:#}"));
                Ok(())
            }
        }
    }

    /// Completes the archive with the list of what is missing, and returns its size in bytes.
    pub fn finish(mut self) -> io::Result<u64> {
        let problems = std::mem::take(&mut self.problems);
        if !problems.is_empty() {
            self.add("missing.txt", format!("{}\n", problems.join("\n")).as_bytes())?;
        }
        let mut file = self.tar.into_inner()?.finish()?;
        file.flush()?;
        file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        Ok(file.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_its_place_lead_nowhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("report.tar.gz"), folder.path().join("other"));
        fs::write(&other, "theirs").expect("our own folder");
        for link in [path.clone(), path.with_extension("unfinished")] {
            std::os::unix::fs::symlink(&other, link).expect("our own folder");
        }
        let mut archive = Archive::create(&path).expect("a new file");
        archive.add("a.txt", b"a").expect("it can be written");
        archive.finish().expect("it can be written");
        assert_eq!(fs::read(&other).expect("it is there"), b"theirs");
        assert!(fs::symlink_metadata(&path).expect("it is there").is_file());
    }
}
