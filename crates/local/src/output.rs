//! Copies an application's output from a pipe to its log, so that the application's writes never fail because of the
//! disk.
//!
//! The supervisor holds both ends of the pipe as long as the program may be restarted, and it is process 1 of the
//! mesh's process namespace. So the pipe is closed (SIGPIPE) only when the supervisor has ended, and then the kernel
//! kills the program as well.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

use crate::confine::Account;

/// Bytes read at a time: the size of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long to wait for the last output of a program that has ended; a process that it left behind may keep the pipe
/// open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The event loop of all copies, on a thread of its own, so that a slow disk delays only the programs' output.
static COPIES: OnceLock<Option<Handle>> = OnceLock::new();

/// The pipe for a program's output, and the task that empties it.
#[derive(Debug)]
pub(crate) struct Output {
    writer: OwnedFd,
    copied: JoinHandle<()>,
}

impl Output {
    /// Begins to copy to the end of this file. The program, which runs as `account`, may reopen `/dev/stdout`.
    ///
    /// # Errors
    /// If there are no descriptors, or no thread, for it.
    pub(crate) fn begin(log: &Path, account: Option<Account>) -> io::Result<Self> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        if let Some(account) = account {
            fchown(&writer, Some(account.uid), Some(account.gid))?;
        }
        // Only this end is non-blocking: programs expect that writing blocks.
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let copies = COPIES.get_or_init(|| start_copies().ok()).as_ref();
        let copies = copies.ok_or_else(|| io::Error::other("cannot start a thread to copy the output"))?;
        let reader = {
            let _inside = copies.enter();
            pipe::Receiver::from_owned_fd(reader)?
        };
        let mut file = LogFile { path: log.to_path_buf(), file: None };
        // The log of a program that prints nothing is there, and empty. If there is no space for it, the first write tries
        // again.
        let _ = file.write(&[]);
        let log = Log::new(file);
        Ok(Self { writer, copied: copies.spawn(copy(reader, log)) })
    }

    /// The end of the pipe for the program.
    pub(crate) fn writer(&self) -> io::Result<OwnedFd> {
        self.writer.as_fd().try_clone_to_owned()
    }

    /// Waits until the output is in the log, as far as it fits.
    pub(crate) async fn end(self) {
        drop(self.writer);
        let _ = tokio::time::timeout(LAST_WORDS, self.copied).await;
    }
}

fn start_copies() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("logs".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

/// Copies until the other end is closed everywhere.
async fn copy(mut from: pipe::Receiver, mut log: Log<LogFile>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut chunk).await {
            Ok(0) | Err(_) => return log.resume(),
            Ok(count) => log.take(chunk.get(..count).unwrap_or_default()),
        }
    }
}

/// A file that is opened at the first write, because there may have been no space for it before.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: Option<File>,
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.is_none() {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            self.file = Some(OpenOptions::new().create(true).append(true).open(&self.path)?);
        }
        self.file.as_ref().map_or(Ok(0), |mut file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        // There is no buffer to flush.
        Ok(())
    }
}

/// Writes output to the log. Lines that cannot be written are dropped and counted; when there is space again, a line
/// reports how many.
#[derive(Debug)]
struct Log<W> {
    out: W,
    /// Number of lost lines that were not reported yet, and the reason.
    lost: Option<(u64, io::ErrorKind)>,
    /// Whether the last written line is incomplete.
    is_cut: bool,
    /// Whether the beginning of the current line was lost.
    skips: bool,
}

impl<W: Write> Log<W> {
    fn new(out: W) -> Self {
        Self { out, lost: None, is_cut: false, skips: false }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        if self.skips {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
            bytes = bytes.get(end + 1..).unwrap_or_default();
            self.skips = false;
        }
        if bytes.is_empty() {
            return;
        }
        self.resume();
        let written = match self.lost {
            None => self.write(bytes),
            Some((_, kind)) => Err((0, kind)),
        };
        let Err((count, kind)) = written else { return };
        let rest = bytes.get(count..).unwrap_or_default();
        self.skips = !rest.ends_with(b"\n");
        let ends = rest.iter().filter(|byte| **byte == b'\n').count();
        let lines = u64::try_from(ends).unwrap_or(u64::MAX).saturating_add(u64::from(self.skips));
        let before = self.lost.map_or(0, |(count, _)| count);
        self.lost = Some((before.saturating_add(lines), kind));
    }

    /// Reports lost lines, if that can be written.
    fn resume(&mut self) {
        let Some((count, kind)) = self.lost else { return };
        let end = if self.is_cut { "\n" } else { "" };
        let told = format!("{end}evenkeel: {count} lines before this one could not be written ({kind})\n");
        match self.write(told.as_bytes()) {
            Ok(()) => self.lost = None,
            Err((_, kind)) => self.lost = Some((count, kind)),
        }
    }

    /// Writes bytes; the error says how many were written before it failed, and why.
    fn write(&mut self, bytes: &[u8]) -> Result<(), (usize, io::ErrorKind)> {
        let mut count = 0;
        while let Some(rest) = bytes.get(count..).filter(|rest| !rest.is_empty()) {
            match self.out.write(rest) {
                Ok(0) => return Err((count, io::ErrorKind::WriteZero)),
                Ok(more) => {
                    count += more;
                    self.is_cut = bytes.get(count.saturating_sub(1)).is_some_and(|last| *last != b'\n');
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((count, error.kind())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for a number of bytes.
    #[derive(Default)]
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.written.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_whole_lines_which_are_counted() {
        let check = |room: usize, printed: &[&str], then: &[&str], expected: &str| {
            let mut log = Log::new(Disk { room, ..Disk::default() });
            printed.iter().for_each(|text| log.take(text.as_bytes()));
            log.out.room = 10_000;
            then.iter().for_each(|text| log.take(text.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&log.out.written), expected, "{room} {printed:?} {then:?}");
        };
        let told =
            |count: u64| format!("evenkeel: {count} lines before this one could not be written (no storage space)\n");
        check(100, &["one\n", "tw"], &["o\nthree\n"], "one\ntwo\nthree\n");
        check(4, &["one\n", "two\n", "three\n"], &["four\n", "five\n"], &format!("one\n{}four\nfive\n", told(2)));
        // Only a part of a line fits; its rest is not written later.
        check(6, &["one\ntwo\nth", "ree"], &["!\nfour\n"], &format!("one\ntw\n{}four\n", told(2)));
        check(0, &["a", "b"], &["c", "d\n", "next\n"], &format!("{}next\n", told(1)));
        check(0, &["a\n"], &[], "");
    }
}
