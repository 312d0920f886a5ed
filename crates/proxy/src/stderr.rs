//! Standard error for logs, where a failed write does not affect the process.
//!
//! A log redirected to a file on a full disk, or to a pipe without a reader, must not break the data path. A line that
//! cannot be written is counted and dropped; when writing works again, a line reports how many were lost.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::fmt::MakeWriter;

static LOST: LostOutput = LostOutput::new();

/// Standard error that never fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { out: io::stderr(), lost: &LOST }
    }
}

/// Number of lines of this process's log that could not be written.
pub fn lost_lines() -> u64 {
    LOST.all.load(Ordering::Relaxed)
}

/// Counts of lost lines: all, and those not reported yet.
#[derive(Debug)]
struct LostOutput {
    all: AtomicU64,
    untold: Mutex<Option<(u64, io::ErrorKind)>>,
}

impl LostOutput {
    const fn new() -> Self {
        Self { all: AtomicU64::new(0), untold: Mutex::new(None) }
    }
}

/// Writes one line.
#[derive(Debug)]
pub struct Line<W> {
    out: W,
    lost: &'static LostOutput,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut untold = self.lost.untold.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((count, kind)) = *untold {
            // The report goes first: if it fails, so would the line.
            let told = format!("log: {count} lines before this one could not be written ({kind})\n");
            if self.out.write_all(told.as_bytes()).is_ok() {
                *untold = None;
            }
        }
        if untold.is_none()
            && let Err(error) = self.out.write_all(bytes)
        {
            *untold = Some((0, error.kind()));
        }
        if let Some((count, _)) = &mut *untold {
            *count += 1;
            self.lost.all.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nothing is buffered.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with a limited number of free bytes.
    struct Disk<'a> {
        room: &'a mut usize,
        written: &'a mut Vec<u8>,
    }

    impl Write for Disk<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if *self.room < bytes.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.room -= bytes.len();
            self.written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let lost: &'static LostOutput = Box::leak(Box::new(LostOutput::new()));
        let (mut room, mut written) = (20, Vec::new());
        let mut line = |room: &mut usize, text: &str| {
            let mut out = Line { out: Disk { room, written: &mut written }, lost };
            out.write_all(text.as_bytes()).expect("it never fails");
        };
        ["one fits\n", "two fits\n", "three does not\n", "four\n"].iter().for_each(|text| line(&mut room, text));
        assert_eq!(lost.all.load(Ordering::Relaxed), 2);
        room = 1000;
        line(&mut room, "five\n");
        line(&mut room, "six\n");
        let told = "log: 2 lines before this one could not be written (no storage space)\n";
        assert_eq!(String::from_utf8_lossy(&written), format!("one fits\ntwo fits\n{told}five\nsix\n"));
    }
}
