//! Child processes that end with the lab, and are measured from outside.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use evenkeel_process::children::die_with_parent;
use evenkeel_process::resources::cpu_time;
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// The number of bytes at the end of a log that an error message shows.
const LOG_TAIL_BYTES: u64 = 2048;

/// The resources that a process has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time of all its threads, in seconds.
    pub cpu_s: f64,
    /// Resident memory, in MiB.
    pub resident_mib: f64,
    /// Peak resident memory, in MiB.
    pub peak_mib: f64,
}

impl Usage {
    /// Reads the usage of a process; an error once it has ended.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |field| kib_of(&status, field).map(|kib| kib as f64 / 1024.0);
        let missing = || io::Error::other("the process has ended");
        Ok(Self {
            cpu_s: cpu_time(pid)?.as_secs_f64(),
            resident_mib: mib("VmRSS:").ok_or_else(missing)?,
            peak_mib: mib("VmHWM:").ok_or_else(missing)?,
        })
    }
}

fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// A running program. It is killed when this is dropped, and by the kernel when the lab itself is killed.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts the program and appends its output to the file `log`.
    pub fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Self, LabError> {
        let open = || fs::OpenOptions::new().create(true).append(true).open(log);
        let file = open().map_err(LabError::io(format!("opening {}", log.display())))?;
        let copy = file.try_clone().map_err(LabError::io(format!("opening {}", log.display())))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        die_with_parent(&mut command);
        let program = command.get_program().display().to_string();
        let child = command.spawn().map_err(LabError::io(format!("starting the {name} ({program})")))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its usage.
    pub fn usage(&self) -> Result<Usage, LabError> {
        Usage::of(self.pid()).map_err(|error| self.failure(format!("cannot be measured ({error})")))
    }

    /// Returns an error if the program has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(format!("ended ({status})"))),
            Err(error) => Err(self.failure(format!("cannot be watched ({error})"))),
        }
    }

    /// Kills it with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Builds an error about the program, with the end of its log.
    pub fn failure(&self, what: impl Into<String>) -> LabError {
        let log = match tail(&self.log) {
            Ok(log) if log.is_empty() => "(it is empty)".to_owned(),
            Ok(log) => log,
            Err(error) => format!("({}: {error})", self.log.display()),
        };
        LabError::Program { program: self.name, what: what.into(), log }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Returns different free ports on the loopback interface.
pub fn free_ports<const N: usize>() -> Result<[SocketAddr; N], LabError> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for port in &mut ports {
        let socket = TcpListener::bind(*port).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = socket.map_err(LabError::io("looking for a free port"))?;
        *port = address;
        held.push(socket);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_measured_and_ends_with_its_guard() {
        let folder = tempfile::tempdir().expect("a directory");
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo started; exec cat /dev/zero > /dev/null"]);
        let mut program = Program::start("program", command, &log).expect("a shell");
        while program.usage().expect("running").cpu_s < 0.01 {
            std::thread::yield_now();
        }
        let usage = program.usage().expect("running");
        assert!(usage.resident_mib > 0.0 && usage.peak_mib >= usage.resident_mib, "{usage:?}");
        program.check().expect("running");
        assert!(program.failure("failed").to_string().ends_with("its log:\nstarted"), "{}", program.failure("failed"));
        let pid = program.pid();
        drop(program);
        assert!(Usage::of(pid).is_err());
    }

    #[test]
    fn an_end_is_noticed() {
        let folder = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let mut program = Program::start("program", command, &folder.path().join("log")).expect("a shell");
        let error = loop {
            match program.check() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("program ended (exit status: 3)"), "{error}");
    }

    #[test]
    fn reads_memory_fields() {
        let status = "VmHWM:\t   2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(
            (kib_of(status, "VmRSS:"), kib_of(status, "VmHWM:"), kib_of(status, "VmSwap:")),
            (Some(1024), Some(2048), None)
        );
    }
}
