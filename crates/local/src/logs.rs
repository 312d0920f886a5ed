//! Limits the size of a run's logs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A log larger than this is rotated. Only the last rotated log is kept, so a program's logs take at most twice this
/// size.
pub const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Extension of the file with the positions at which runs begin in a log.
const STARTS: &str = "starts";

/// Rotates every log in the folder that is too large, to `NAME.log.1`.
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

/// Records the position in a log at which the next run of its program begins, beside that of the previous run. If the disk
/// cannot be written, this is lost like the log.
pub(crate) fn note_start(log: &Path) {
    let here = fs::metadata(log).map_or(0, |found| found.len());
    let before = starts(log).last().map(|start| format!("{start}\n")).unwrap_or_default();
    let _ = fs::write(log.with_extension(STARTS), format!("{before}{here}\n"));
}

/// Returns the previous run's output, as far as it is kept; `None` if there was no previous run.
///
/// # Errors
/// When a log cannot be read.
pub fn previous(log: &Path) -> io::Result<Option<Vec<u8>>> {
    let (aside, own) = (set_aside_as(log), starts(log));
    let older = fs::metadata(&aside).map_or(0, |found| found.len());
    let all: Vec<u64> =
        starts(&aside).into_iter().chain(own.into_iter().map(|start| older.saturating_add(start))).collect();
    let [.., from, to] = all.as_slice() else { return Ok(None) };
    let mut text = Vec::new();
    for (file, first, length) in [(aside, 0, older), (log.to_owned(), older, u64::MAX)] {
        let (from, to) = (from.saturating_sub(first), to.saturating_sub(first).min(length));
        if from < to {
            let mut file = File::open(file)?;
            file.seek(SeekFrom::Start(from))?;
            file.take(to - from).read_to_end(&mut text)?;
        }
    }
    Ok(Some(text))
}

/// The positions at which the last two runs begin in a log.
fn starts(log: &Path) -> Vec<u64> {
    let beside = if log.extension().is_some_and(|extension| extension == "1") {
        // `NAME.log.1`
        log.with_extension("").with_extension(format!("{STARTS}.1"))
    } else {
        log.with_extension(STARTS)
    };
    let text = fs::read_to_string(beside).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn set_aside_as(log: &Path) -> PathBuf {
    log.with_extension("log.1")
}

/// Copies the log and truncates it: writers hold the file open and append, so they go on at its new beginning. Without
/// space for a copy it is truncated anyway, because it is what fills the disk.
fn set_aside(path: &Path) -> io::Result<()> {
    let aside = set_aside_as(path);
    let (starts, starts_aside) = (path.with_extension(STARTS), path.with_extension(format!("{STARTS}.1")));
    // Removed first, so that the copy can use its space.
    let _ = fs::remove_file(&aside);
    let copied = fs::copy(path, &aside);
    if copied.is_err() {
        let _ = fs::remove_file(&aside);
    }
    let _ = fs::remove_file(&starts_aside);
    let _ = if copied.is_ok() { fs::rename(&starts, &starts_aside) } else { fs::remove_file(&starts) };
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_before_is_found_also_where_its_log_was_set_aside() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("web.app.log");
        let say = |text: &str| {
            let mut file = OpenOptions::new().create(true).append(true).open(&log)?;
            io::Write::write_all(&mut file, text.as_bytes())
        };
        let check = |expected: Option<&str>| {
            let found = previous(&log)?.map(|text| String::from_utf8_lossy(&text).into_owned());
            assert_eq!(found.as_deref(), expected);
            io::Result::Ok(())
        };
        check(None)?;
        for (run, before) in [("first\n", None), ("second\n", Some("first\n")), ("third\n", Some("second\n"))] {
            note_start(&log);
            say(run)?;
            check(before)?;
        }
        set_aside(&log)?;
        say("still third\n")?;
        check(Some("second\n"))?;
        note_start(&log);
        say("fourth\n")?;
        check(Some("third\nstill third\n"))?;
        note_start(&log);
        check(Some("fourth\n"))?;
        set_aside(&log)?;
        set_aside(&log)?;
        check(None)
    }

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
