//! Buffers per worker, one background thread that owns the files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_runtime_config::access_log::AccessLog;

use super::{Record, admits, format_line};

/// A worker hands its buffer over at this size, in bytes (Envoy's `flush_access_log_size`).
const FLUSH_BYTES: usize = 64 * 1024;
/// Buffers waiting for a slow disk; beyond them lines are dropped and counted, never waited for.
const MAX_QUEUED_BUFFERS: usize = 64;

enum Message {
    Write { path: Arc<str>, lines: Vec<u8> },
    Reopen,
    Flush(Sender<()>),
    Stop,
}

/// The thread that owns the log files; ends when it is dropped, after writing all it was given.
#[derive(Debug)]
pub struct LogThread {
    handle: LogHandle,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses another thread.
    pub fn start() -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_QUEUED_BUFFERS);
        let handle = LogHandle { sender, dropped_lines: Arc::default() };
        let thread =
            std::thread::Builder::new().name("access-log".into()).spawn(move || Files::default().serve(&receiver))?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A handle for workers and the admin port.
    pub fn handle(&self) -> LogHandle {
        self.handle.clone()
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        if self.handle.sender.send(Message::Stop).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic in the thread has been reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

/// Sends to the log thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct LogHandle {
    sender: SyncSender<Message>,
    dropped_lines: Arc<AtomicU64>,
}

impl LogHandle {
    /// Closes the files and opens them anew by name, after a rotation (`SIGUSR1`, `POST /reopen_logs`).
    pub fn reopen(&self) {
        let _ = self.sender.send(Message::Reopen);
    }

    /// Waits until all that was handed over is written, `limit` at most.
    pub fn flush(&self, limit: Duration) {
        let (done, wait) = channel();
        if self.sender.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(limit);
        }
    }

    /// Lines dropped because the disk was too slow, since start.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped_lines.load(Ordering::Relaxed)
    }
}

/// One worker's buffers, one for each file.
#[derive(Debug)]
pub struct WorkerLog {
    handle: LogHandle,
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    path: Arc<str>,
    lines: Vec<u8>,
}

impl WorkerLog {
    /// No buffers yet.
    pub fn new(handle: LogHandle) -> Self {
        Self { handle, buffers: Vec::new() }
    }

    /// Formats a record into the file's buffer, if the log's filter admits it.
    pub fn write(&mut self, log: &AccessLog, record: &Record<'_>) {
        if !admits(&log.filter, record.flags) {
            return;
        }
        let index = match self.buffers.iter().position(|buffer| is_same(&buffer.path, &log.path)) {
            Some(index) => index,
            None => {
                self.buffers.push(Buffer { path: log.path.clone(), lines: Vec::with_capacity(FLUSH_BYTES) });
                self.buffers.len() - 1
            }
        };
        let Some(buffer) = self.buffers.get_mut(index) else { return };
        format_line(&log.format, record, &mut buffer.lines);
        if buffer.lines.len() >= FLUSH_BYTES {
            hand_over(&self.handle, buffer);
        }
    }

    /// Hands over what is buffered; the worker calls this every second and when it ends.
    pub fn flush(&mut self) {
        for buffer in &mut self.buffers {
            if !buffer.lines.is_empty() {
                hand_over(&self.handle, buffer);
            }
        }
    }
}

/// Nearly always the very same text.
fn is_same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

fn hand_over(handle: &LogHandle, buffer: &mut Buffer) {
    let capacity = buffer.lines.len().clamp(4096, FLUSH_BYTES + 4096);
    let lines = std::mem::replace(&mut buffer.lines, Vec::with_capacity(capacity));
    if let Err(TrySendError::Full(Message::Write { lines, .. })) =
        handle.sender.try_send(Message::Write { path: buffer.path.clone(), lines })
    {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        handle.dropped_lines.fetch_add(count as u64, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Files {
    open: HashMap<Arc<str>, Output>,
}

enum Output {
    File(File),
    Stdout,
    Stderr,
    /// Could not be opened; tried again after a reopen.
    Broken,
}

impl Files {
    fn serve(mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            match message {
                Message::Write { path, lines } => self.write(path, &lines),
                Message::Reopen => self.open.clear(),
                Message::Flush(done) => _ = done.send(()),
                Message::Stop => return,
            }
        }
    }

    fn write(&mut self, path: Arc<str>, lines: &[u8]) {
        let output = self.open.entry(path.clone()).or_insert_with(|| open(&path));
        let written = match output {
            Output::File(file) => file.write_all(lines),
            Output::Stdout => io::stdout().lock().write_all(lines).and_then(|()| io::stdout().flush()),
            Output::Stderr => io::stderr().lock().write_all(lines),
            Output::Broken => Ok(()),
        };
        if let Err(error) = written {
            tracing::error!(%path, %error, "access log not written; POST /reopen_logs tries again");
            *output = Output::Broken;
        }
    }
}

fn open(path: &str) -> Output {
    match path {
        "/dev/stdout" => Output::Stdout,
        "/dev/stderr" => Output::Stderr,
        path => match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Output::File(file),
            Err(error) => {
                tracing::error!(%path, %error, "access log not opened; POST /reopen_logs tries again");
                Output::Broken
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use evenkeel_runtime_config::access_log::{Format, LogFilter, LogFormat};

    use super::*;
    use crate::response_flags::ResponseFlags;

    fn log(path: &std::path::Path, filter: LogFilter) -> AccessLog {
        let format = Format::parse("%RESPONSE_CODE%\n", &|_| None).expect("a valid format");
        AccessLog { path: path.to_string_lossy().into(), format: LogFormat::Text(format), filter }
    }

    fn record<'a>(code: u16, flags: ResponseFlags) -> Record<'a> {
        Record { response_code: code, flags, ..Record::new(SystemTime::UNIX_EPOCH) }
    }

    #[test]
    fn lines_arrive_in_order_and_survive_a_rotation() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let thread = LogThread::start().expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        let access_log = log(&path, LogFilter::All);
        for code in 0..30_000 {
            worker.write(&access_log, &record(code, ResponseFlags::NONE));
        }
        worker.flush();
        thread.handle().flush(Duration::from_secs(10));
        let rotated = folder.path().join("access.log.1");
        std::fs::rename(&path, &rotated).expect("rotated");
        thread.handle().reopen();
        worker.write(&access_log, &record(999, ResponseFlags::NONE));
        worker.flush();
        drop(thread);
        let expected: String = (0..30_000).map(|code| format!("{code}\n")).collect();
        assert_eq!(std::fs::read_to_string(rotated).expect("the old file"), expected);
        assert_eq!(std::fs::read_to_string(path).expect("the new file"), "999\n");
    }

    #[test]
    fn filters_by_response_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let thread = LogThread::start().expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        let no_route = log(&path, LogFilter::ResponseFlags(vec!["NR".into()]));
        let any = log(&path, LogFilter::ResponseFlags(Vec::new()));
        for access_log in [&no_route, &any] {
            worker.write(access_log, &record(200, ResponseFlags::NONE));
            worker.write(access_log, &record(404, ResponseFlags::NO_ROUTE_FOUND));
            worker.write(access_log, &record(503, ResponseFlags::NO_HEALTHY_UPSTREAM));
        }
        worker.flush();
        drop(thread);
        assert_eq!(std::fs::read_to_string(path).expect("the file"), "404\n404\n503\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_harms_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let thread = LogThread::start().expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        worker
            .write(&log(&folder.path().join("missing/access.log"), LogFilter::All), &record(200, ResponseFlags::NONE));
        let good = folder.path().join("good.log");
        worker.write(&log(&good, LogFilter::All), &record(201, ResponseFlags::NONE));
        worker.flush();
        drop(thread);
        assert_eq!(std::fs::read_to_string(good).expect("the file"), "201\n");
    }
}
