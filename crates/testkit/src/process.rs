//! A child process that cannot outlive its test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;

/// A running child whose output is kept. Dropping it ends it: SIGTERM, then after two seconds SIGKILL, always by its pid.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// How long the last output of an ended process may take to be read; its own children may hold the pipe open for ever.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

impl Process {
    /// Starts `command` with its standard output and error captured.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        Self::spawn_with_input(command, Stdio::null())
    }

    /// Starts a process with standard input.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn spawn_with_input(command: &mut Command, input: impl Into<Stdio>) -> Self {
        let name = std::path::Path::new(command.get_program())
            .file_name()
            .unwrap_or_else(|| OsStr::new("process"))
            .to_string_lossy()
            .into_owned();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = Arc::new(Mutex::new(String::new()));
        let readers = [collect(child.stdout.take(), &output), collect(child.stderr.take(), &output)];
        Self { name, child, output, readers: readers.into_iter().flatten().collect() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything the process has printed so far, standard output and error interleaved by line.
    pub fn output(&self) -> String {
        self.output.lock().expect("no reader panicked").clone()
    }

    /// Waits for a line that contains `text` and returns it.
    ///
    /// # Panics
    /// When the process ends first or the time is up; the message holds its output.
    pub fn wait_for_line(&mut self, text: &str) -> String {
        self.wait_for(&format!("a line with {text:?}"), |process| {
            process.output().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
    }

    /// Waits until something accepts TCP connections on `address`.
    ///
    /// # Panics
    /// When the process ends first or the time is up; the message holds its output.
    pub fn wait_for_port(&mut self, address: SocketAddr) {
        self.wait_for(&format!("a listener on {address}"), |_| {
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok().map(drop)
        });
    }

    /// Waits until `probe` returns a value.
    ///
    /// # Panics
    /// When the process ends first or the time is up; the message holds its output.
    pub fn wait_for<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Option<T>) -> T {
        let found = wait::poll(wait::PATIENCE, || {
            if let Some(value) = probe(self) {
                return Some(Ok(value));
            }
            self.exited().map(Err)
        });
        match found {
            Some(Ok(value)) => value,
            Some(Err(status)) => {
                panic!("{} ended ({status}) before {what}; it printed:\n{}", self.name, self.output())
            }
            None => panic!("{} never showed {what}; it printed:\n{}", self.name, self.output()),
        }
    }

    /// The exit status, if the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours to wait for")
    }

    /// Waits for the process to end by itself, and for its last output.
    ///
    /// # Panics
    /// When it still runs after `patience`.
    pub fn wait_for_exit(&mut self, patience: Duration) -> ExitStatus {
        let status = wait::poll(patience, || self.exited())
            .unwrap_or_else(|| panic!("{} still runs after {patience:?}; it printed:\n{}", self.name, self.output()));
        wait::poll(LAST_OUTPUT, || self.readers.iter().all(JoinHandle::is_finished).then_some(()));
        status
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        // A child that is not yet reaped has its number for itself.
        if self.exited().is_none() {
            let _ = kill(Pid::from_raw(self.pid().cast_signed()), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        if wait::poll(Duration::from_secs(2), || self.exited()).is_none() {
            self.child.kill().and_then(|()| self.child.wait()).ok();
        }
    }
}

fn collect(stream: Option<impl Read + Send + 'static>, output: &Arc<Mutex<String>>) -> Option<JoinHandle<()>> {
    let stream = stream?;
    let output = Arc::clone(output);
    Some(std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            output.lock().expect("no reader panicked").push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }))
}
