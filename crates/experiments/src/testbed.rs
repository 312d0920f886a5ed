//! A running mesh: `evenkeel up` as a child with its own state directory, and commands inside its workloads.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_process::children::die_with_parent;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::manifests::{self, CLIENT, Programs};
use crate::processes::{self, Sidecar};
use crate::setup::Setup;

/// How long the mesh may take to be ready, at least, and for each replica.
const START_LIMIT: Duration = Duration::from_secs(60);
const START_LIMIT_EACH: Duration = Duration::from_secs(5);
/// How long the mesh may take to end, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How often a child is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How long a command inside a workload may take beyond the time of its load.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Lines of the mesh's output that an error shows.
const OUTPUT_LINES: usize = 12;

/// A mesh that runs. It ends when this is dropped.
pub struct Testbed<'a> {
    evenkeel: PathBuf,
    files: TempDir,
    up: Child,
    interrupt: &'a Interrupt,
    sidecars: Vec<Sidecar>,
}

impl<'a> Testbed<'a> {
    /// Starts the namespaces of these setups and waits until all replicas are ready.
    ///
    /// # Errors
    /// The mesh does not start, with the message of `up`.
    pub fn start(setups: &[Setup], programs: &Programs<'_>, interrupt: &'a Interrupt) -> Result<Self, BenchError> {
        let files = tempfile::Builder::new().prefix("evenkeel-bench-").tempdir();
        let files = files.map_err(BenchError::io("making a temporary directory"))?;
        let mesh = files.path().join("mesh");
        let write = || {
            fs::create_dir(&mesh)?;
            fs::write(mesh.join("mesh.yaml"), manifests::render(setups, programs))?;
            File::create(files.path().join("output"))
        };
        let output = write().map_err(BenchError::io("writing the mesh"))?;
        let copy = output.try_clone().map_err(BenchError::io("writing the mesh"))?;
        let mut command = Command::new(programs.evenkeel);
        command.arg("up").arg(&mesh).arg("--state").arg(files.path().join("state"));
        command.stdin(Stdio::null()).stdout(output).stderr(copy).process_group(0);
        die_with_parent(&mut command);
        let up = command.spawn().map_err(BenchError::io(programs.evenkeel.display().to_string()))?;
        let evenkeel = programs.evenkeel.to_owned();
        let mut testbed = Self { evenkeel, files, up, interrupt, sidecars: Vec::new() };
        testbed.wait_ready(setups.iter().map(|setup| setup.services + 1).sum())?;
        testbed.sidecars = processes::sidecars(testbed.up.id());
        Ok(testbed)
    }

    fn wait_ready(&mut self, replicas: usize) -> Result<(), BenchError> {
        let limit = START_LIMIT + START_LIMIT_EACH * u32::try_from(replicas).unwrap_or(u32::MAX);
        let begin = Instant::now();
        loop {
            let output = self.output();
            if output.lines().filter(|line| line.starts_with("ready ")).count() >= replicas {
                return Ok(());
            }
            let ended = self.up.try_wait().map_err(BenchError::io("waiting for the mesh"))?;
            if let Some(status) = ended {
                return Err(self.failure(&format!("ended ({status})")));
            }
            if begin.elapsed() > limit {
                return Err(self.failure(&format!("was not ready within {} s", limit.as_secs())));
            }
            self.interrupt.wait(POLL)?;
        }
    }

    fn output(&self) -> String {
        fs::read(self.files.path().join("output"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn failure(&self, what: &str) -> BenchError {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let end = &lines[lines.len().saturating_sub(OUTPUT_LINES)..];
        BenchError::Mesh { what: what.to_owned(), output: end.join("\n") }
    }

    /// The sidecars of a setup's caller, or of its services.
    pub fn sidecars(&self, setup: &Setup, is_caller: bool) -> Vec<&Sidecar> {
        let namespace = setup.namespace();
        let is_one = |sidecar: &&Sidecar| sidecar.namespace == namespace && (sidecar.workload == CLIENT) == is_caller;
        self.sidecars.iter().filter(is_one).collect()
    }

    /// Starts `evenkeel` with these arguments inside a workload.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, place: &Place<'_>, arguments: &[String]) -> Result<Running<'a>, BenchError> {
        let mut command = Command::new(&self.evenkeel);
        command.args(["exec", place.workload, "-n", place.namespace, "--state"]).arg(self.files.path().join("state"));
        command.arg("--").arg(&self.evenkeel).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        die_with_parent(&mut command);
        let mut child = command.spawn().map_err(BenchError::io("running a command in a workload"))?;
        let stdout = child.stdout.take().map(reading);
        let stderr = child.stderr.take().map(reading);
        Ok(Running { child, stdout, stderr, interrupt: self.interrupt })
    }
}

impl Drop for Testbed<'_> {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.up.id().cast_signed());
        // An error means that it has already ended.
        let _ = kill(pid, Signal::SIGINT);
        let begin = Instant::now();
        while matches!(self.up.try_wait(), Ok(None)) && begin.elapsed() < END_LIMIT {
            // A signal must not keep the mesh from ending in order.
            std::thread::park_timeout(POLL);
        }
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

/// A workload of the mesh.
pub struct Place<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub workload: &'a str,
}

/// A command that runs inside a workload. It is killed when this is dropped.
pub struct Running<'a> {
    child: Child,
    stdout: Option<std::thread::JoinHandle<String>>,
    stderr: Option<std::thread::JoinHandle<String>>,
    interrupt: &'a Interrupt,
}

impl Running<'_> {
    /// Waits for its end and returns its standard output.
    ///
    /// # Errors
    /// It fails, does not end in time, or a signal comes.
    pub fn output(mut self, limit: Duration) -> Result<String, BenchError> {
        let status = self.wait(limit)?;
        let text = |reader: Option<std::thread::JoinHandle<String>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        if status.success() {
            return Ok(stdout);
        }
        let end = stderr.lines().last().unwrap_or("no output").to_owned();
        Err(BenchError::Load(format!("the load ended ({status}): {end}")))
    }

    fn wait(&mut self, limit: Duration) -> Result<ExitStatus, BenchError> {
        let begin = Instant::now();
        loop {
            let ended = self.child.try_wait().map_err(BenchError::io("waiting for a load"))?;
            if let Some(status) = ended {
                return Ok(status);
            }
            if begin.elapsed() > limit {
                return Err(BenchError::Load(format!("the load did not end within {} s", limit.as_secs())));
            }
            self.interrupt.wait(POLL)?;
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Errors mean that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe to its end on a thread, so that the program never waits for a reader.
fn reading(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is shown.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The path of a program as other processes see it.
///
/// # Errors
/// There is no such file.
pub fn absolute(program: &Path) -> Result<PathBuf, BenchError> {
    program.canonicalize().map_err(BenchError::io(program.display().to_string()))
}
