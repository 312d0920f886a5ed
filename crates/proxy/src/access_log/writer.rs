//! Buffers per worker, and one background thread that owns the files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_filters::format::{Record, format_line};
use evenkeel_runtime_config::access_log::{AccessLog, LogFormat, LogSink};
use tokio::task::JoinHandle as TaskHandle;

use super::{Collectors, admits};

/// When workers hand over the lines that they have buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushOptions {
    /// After this time at the latest. Workers look once a second.
    pub interval: Duration,
    /// At this size, in bytes.
    pub bytes: usize,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self { interval: Duration::ZERO, bytes: 64 * 1024 }
    }
}

impl FlushOptions {
    /// Maximum size of a worker's buffer for one file, in bytes: memory must not grow with an option.
    pub const MAX_BYTES: usize = 1024 * 1024;

    /// Envoy's options: `--file-flush-interval-msec` and `--file-flush-min-size-kb`.
    pub fn new(interval_ms: Option<u64>, min_size_kb: Option<u64>) -> Self {
        let default = Self::default();
        let bytes = min_size_kb.map(|size| usize::try_from(size.saturating_mul(1024)).unwrap_or(usize::MAX));
        Self {
            interval: interval_ms.map_or(default.interval, Duration::from_millis),
            bytes: bytes.unwrap_or(default.bytes).min(Self::MAX_BYTES),
        }
    }
}

/// Memory that a buffer for a file has from the start, in bytes.
const FIRST_BYTES: usize = 64 * 1024;
/// Buffers that may wait for a slow disk. Beyond that, lines are dropped and counted; workers never wait.
const MAX_QUEUED_BUFFERS: usize = 64;
/// Delay before a failed write of a log is retried.
const RETRY: Duration = Duration::from_secs(5);
/// How long the end of the process waits for lines to be written: a log may be a pipe that nobody reads.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// The pause between two checks whether they were.
const LAST_WRITES_POLL: Duration = Duration::from_millis(1);

enum Message {
    Write { path: Arc<str>, lines: Vec<u8> },
    Reopen,
    Flush(Sender<()>),
    Stop,
}

/// The thread that owns the log files. When this is dropped, the thread writes all it was given and ends.
#[derive(Debug)]
pub struct LogThread {
    handle: LogHandle,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

impl LogThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses another thread.
    pub fn start(flush: FlushOptions) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_QUEUED_BUFFERS);
        let handle = LogHandle { sender, flush, dropped_lines: Arc::default() };
        let files = Files { open: HashMap::new(), dropped_lines: handle.dropped_lines.clone() };
        let (alive, ended) = channel();
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(move || {
            files.serve(&receiver);
            drop(alive);
        })?;
        Ok(Self { handle, thread: Some(thread), ended })
    }

    /// A handle for workers and the admin port.
    pub fn handle(&self) -> LogHandle {
        self.handle.clone()
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_WRITES;
        let Some(thread) = self.thread.take() else { return };
        let mut message = Some(Message::Stop);
        // The thread drops its side of `ended` when it ends.
        while !matches!(self.ended.recv_timeout(LAST_WRITES_POLL), Err(RecvTimeoutError::Disconnected)) {
            if Instant::now() >= deadline {
                // The lines are not taken, by a full pipe for example. The thread ends with the process.
                return;
            }
            if let Some(stop) = message.take()
                && let Err(TrySendError::Full(stop)) = self.handle.sender.try_send(stop)
            {
                message = Some(stop);
            }
        }
        // A panic in the thread has been reported by the panic hook already.
        let _ = thread.join();
    }
}

/// Sends to the log thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct LogHandle {
    sender: SyncSender<Message>,
    flush: FlushOptions,
    dropped_lines: Arc<AtomicU64>,
}

impl LogHandle {
    /// Closes the files and opens them anew by name, after a rotation (`SIGUSR1`, `POST /reopen_logs`).
    pub fn reopen(&self) {
        let _ = self.sender.send(Message::Reopen);
    }

    /// Waits until all that was handed over is written, for `limit` at most.
    pub fn flush(&self, limit: Duration) {
        let (done, wait) = channel();
        if self.sender.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(limit);
        }
    }

    /// Lines dropped because the disk was too slow, or full, since start.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped_lines.load(Ordering::Relaxed)
    }
}

/// One worker's buffers, one per file, and its collectors.
#[derive(Debug)]
pub struct WorkerLog {
    handle: LogHandle,
    buffers: Vec<Buffer>,
    /// Access log services; `None`: entries for them are dropped.
    collectors: Option<Collectors>,
    /// When all buffers were handed over last.
    flushed: Option<Instant>,
}

#[derive(Debug)]
struct Buffer {
    path: Arc<str>,
    lines: Vec<u8>,
}

impl WorkerLog {
    /// A log without buffers, for files only.
    pub fn new(handle: LogHandle) -> Self {
        Self { handle, buffers: Vec::new(), collectors: None, flushed: None }
    }

    /// Creates a log that also has collectors.
    pub fn with_collectors(handle: LogHandle, collectors: Collectors) -> Self {
        Self { collectors: Some(collectors), ..Self::new(handle) }
    }

    /// Formats a record into the buffer of the log's file or service, if the log's filter admits it.
    pub fn write(&mut self, log: &AccessLog, record: &Record<'_>) {
        if !admits(&log.filter, record) {
            return;
        }
        match (&log.sink, &mut self.collectors) {
            (LogSink::File { path, format }, _) => self.write_line(path, format, record),
            (LogSink::Grpc(log), Some(collectors)) => collectors.write(log, record),
            (LogSink::Grpc(_), None) => {}
        }
    }

    fn write_line(&mut self, path: &Arc<str>, format: &LogFormat, record: &Record<'_>) {
        let index = match self.buffers.iter().position(|buffer| is_same(&buffer.path, path)) {
            Some(index) => index,
            None => {
                self.buffers.push(Buffer {
                    path: path.clone(),
                    lines: Vec::with_capacity(self.handle.flush.bytes.min(FIRST_BYTES)),
                });
                self.buffers.len() - 1
            }
        };
        let Some(buffer) = self.buffers.get_mut(index) else { return };
        format_line(format, record, &mut buffer.lines);
        if buffer.lines.len() >= self.handle.flush.bytes {
            hand_over(&self.handle, buffer);
        }
    }

    /// Hands over buffered lines if they are due; the worker calls this every second.
    pub fn tick(&mut self, now: Instant) {
        if self.flushed.is_none_or(|flushed| now.saturating_duration_since(flushed) >= self.handle.flush.interval) {
            self.flushed = Some(now);
            self.flush();
        }
        if let Some(collectors) = &mut self.collectors {
            collectors.tick(now.into());
        }
    }

    /// Sends everything that is buffered for services; the tasks end when that is done, or after a short time.
    pub fn close_collectors(&mut self) -> Vec<TaskHandle<()>> {
        self.collectors.as_mut().map(Collectors::close).unwrap_or_default()
    }

    /// Hands over all buffered lines.
    pub fn flush(&mut self) {
        for buffer in &mut self.buffers {
            if !buffer.lines.is_empty() {
                hand_over(&self.handle, buffer);
            }
        }
    }
}

/// Whether the paths are equal; they are nearly always the same text in memory.
fn is_same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

fn hand_over(handle: &LogHandle, buffer: &mut Buffer) {
    let capacity = buffer.lines.len().clamp(4096, FIRST_BYTES + 4096);
    let lines = std::mem::replace(&mut buffer.lines, Vec::with_capacity(capacity));
    if let Err(TrySendError::Full(Message::Write { lines, .. })) =
        handle.sender.try_send(Message::Write { path: buffer.path.clone(), lines })
    {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        handle.dropped_lines.fetch_add(count as u64, Ordering::Relaxed);
    }
}

struct Files {
    open: HashMap<Arc<str>, Output>,
    dropped_lines: Arc<AtomicU64>,
}

struct Output {
    /// `None` while the log cannot be opened or written.
    file: Option<File>,
    /// When the next attempt to open it is due.
    retry: Instant,
    /// Lines lost since the last successful write.
    lost: u64,
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
        let now = Instant::now();
        let output = self.open.entry(path.clone()).or_insert_with(|| Output { file: None, retry: now, lost: 0 });
        if let Err(error) = output.write(&path, lines, now) {
            let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
            if output.lost == 0 {
                tracing::error!(%path, %error, "access log not written: its lines are dropped and counted until it can be");
            }
            output.lost += count;
            self.dropped_lines.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl Output {
    fn write(&mut self, path: &str, lines: &[u8], now: Instant) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None if now < self.retry => return Err(io::ErrorKind::WouldBlock.into()),
            None => {
                self.retry = now + RETRY;
                self.file.insert(open(path)?)
            }
        };
        if let Err(error) = file.write_all(lines) {
            self.file = None;
            return Err(error);
        }
        if self.lost > 0 {
            tracing::info!(path, lost_lines = std::mem::take(&mut self.lost), "access log is written again");
        }
        Ok(())
    }
}

/// Opens a log. Standard output and error are duplicated: if they are sockets, their names in `/dev` cannot be opened.
fn open(path: &str) -> io::Result<File> {
    match path {
        // Avoids the buffer of `io::stdout`, which would keep what a full disk does not take.
        "/dev/stdout" => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
        "/dev/stderr" => Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
        path => OpenOptions::new().create(true).append(true).open(path),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::access_log::{LogFilter, LogFormat};
    use evenkeel_runtime_config::substitution_format::Format;

    use super::*;
    use crate::connection_record::record_of_connection;
    use evenkeel_filters::{ConnectionInfo, ResponseFlags, StreamInfo};

    fn log(path: &std::path::Path, filter: LogFilter) -> AccessLog {
        let format = Format::parse("%RESPONSE_CODE%\n", &|_| None).expect("a valid format");
        let sink = LogSink::File { path: path.to_string_lossy().into(), format: LogFormat::Text(format) };
        AccessLog { sink, filter }
    }

    fn write(worker: &mut WorkerLog, log: &AccessLog, status: u16, flags: ResponseFlags) {
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let (mut stream, connection) =
            (StreamInfo::new(Instant::now()), ConnectionInfo::new(1, Instant::now(), nowhere, nowhere));
        stream.flags = flags;
        worker.write(log, &Record { status, ..record_of_connection(&stream, &connection) });
    }

    #[test]
    fn lines_arrive_in_order_and_survive_a_rotation() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let thread = LogThread::start(FlushOptions::default()).expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        let access_log = log(&path, LogFilter::All);
        for code in 0..30_000 {
            write(&mut worker, &access_log, code, ResponseFlags::NONE);
        }
        worker.flush();
        thread.handle().flush(Duration::from_secs(10));
        let rotated = folder.path().join("access.log.1");
        std::fs::rename(&path, &rotated).expect("rotated");
        thread.handle().reopen();
        write(&mut worker, &access_log, 999, ResponseFlags::NONE);
        worker.flush();
        drop(thread);
        let expected: String = (0..30_000).map(|code| format!("{code}\n")).collect();
        assert_eq!(std::fs::read_to_string(rotated).expect("the old file"), expected);
        assert_eq!(std::fs::read_to_string(path).expect("the new file"), "999\n");
    }

    #[test]
    fn lines_wait_for_the_time_or_the_size_that_options_say() {
        let start = Instant::now();
        let check = |interval_ms: Option<u64>, size_kb: Option<u64>, seconds: u64, lines: u16, expected: bool| {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("access.log");
            let thread = LogThread::start(FlushOptions::new(interval_ms, size_kb)).expect("a thread");
            let mut worker = WorkerLog::new(thread.handle());
            worker.tick(start);
            for _ in 0..lines {
                write(&mut worker, &log(&path, LogFilter::All), 200, ResponseFlags::NONE);
            }
            worker.tick(start + Duration::from_secs(seconds));
            thread.handle().flush(Duration::from_secs(10));
            let is_written = std::fs::metadata(&path).is_ok_and(|file| file.len() > 0);
            assert_eq!(is_written, expected, "{interval_ms:?} {size_kb:?} {seconds} {lines}");
        };
        check(None, None, 1, 1, true);
        check(Some(5000), None, 4, 1, false);
        check(Some(5000), None, 5, 1, true);
        // A line has four bytes.
        check(Some(60_000), Some(1), 1, 255, false);
        check(Some(60_000), Some(1), 1, 256, true);
        assert_eq!(FlushOptions::new(None, Some(u64::MAX)).bytes, FlushOptions::MAX_BYTES);
    }

    #[test]
    fn filters_by_response_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let thread = LogThread::start(FlushOptions::default()).expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        let no_route = log(&path, LogFilter::ResponseFlags(vec!["NR".into()]));
        let any = log(&path, LogFilter::ResponseFlags(Vec::new()));
        for access_log in [&no_route, &any] {
            write(&mut worker, access_log, 200, ResponseFlags::NONE);
            write(&mut worker, access_log, 404, ResponseFlags::NO_ROUTE_FOUND);
            write(&mut worker, access_log, 503, ResponseFlags::NO_HEALTHY_UPSTREAM);
        }
        worker.flush();
        drop(thread);
        assert_eq!(std::fs::read_to_string(path).expect("the file"), "404\n404\n503\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_harms_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let thread = LogThread::start(FlushOptions::default()).expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        let missing = log(&folder.path().join("missing/access.log"), LogFilter::All);
        write(&mut worker, &missing, 200, ResponseFlags::NONE);
        let good = folder.path().join("good.log");
        write(&mut worker, &log(&good, LogFilter::All), 201, ResponseFlags::NONE);
        worker.flush();
        drop(thread);
        assert_eq!(std::fs::read_to_string(good).expect("the file"), "201\n");
    }

    /// `/dev/full` accepts nothing, like a full disk: lines are counted, and the end of the process is not delayed.
    #[test]
    fn a_full_disk_costs_lines_that_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let thread = LogThread::start(FlushOptions::default()).expect("a thread");
        let (handle, mut worker) = (thread.handle(), WorkerLog::new(thread.handle()));
        let good = folder.path().join("good.log");
        for _ in 0..3 {
            write(&mut worker, &log(std::path::Path::new("/dev/full"), LogFilter::All), 200, ResponseFlags::NONE);
            write(&mut worker, &log(&good, LogFilter::All), 201, ResponseFlags::NONE);
            worker.flush();
        }
        drop(thread);
        assert_eq!(handle.dropped_lines(), 3);
        assert_eq!(std::fs::read_to_string(good).expect("the file"), "201\n201\n201\n");
    }

    /// Once there is space again, the log is written again without intervention.
    #[test]
    fn a_log_that_failed_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("later/access.log");
        let begin = Instant::now();
        let mut output = Output { file: None, retry: begin, lost: 0 };
        let mut write = |text: &str, at: Duration| output.write(&path.to_string_lossy(), text.as_bytes(), begin + at);
        write("1\n", Duration::ZERO).expect_err("there is no such folder");
        std::fs::create_dir(folder.path().join("later")).expect("a folder");
        write("2\n", RETRY - Duration::from_millis(1)).expect_err("not yet");
        write("3\n", RETRY).expect("a log");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "3\n");
    }

    /// A pipe that nobody reads from.
    #[test]
    fn lines_that_nobody_takes_do_not_hold_up_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let _reader = OpenOptions::new().read(true).write(true).open(&path).expect("an end that does not read");
        let thread = LogThread::start(FlushOptions::default()).expect("a thread");
        let mut worker = WorkerLog::new(thread.handle());
        (0..100_000).for_each(|_| write(&mut worker, &log(&path, LogFilter::All), 200, ResponseFlags::NONE));
        worker.flush();
        drop(thread);
    }
}
