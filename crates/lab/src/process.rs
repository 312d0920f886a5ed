//! Child processes: started to end with the lab, measured from outside.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// How much of a log's end an error message shows, in bytes.
const LOG_TAIL_BYTES: u64 = 2048;

/// What a process has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time of all its threads, in seconds.
    pub cpu_s: f64,
    /// Resident memory, in MiB.
    pub resident_mib: f64,
    /// The most it ever was, in MiB.
    pub peak_mib: f64,
}

impl Usage {
    /// Of a process; an error once it has ended.
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

/// The clock that `/proc/PID/stat` rounds to hundredths.
fn cpu_time(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock` outlives the call.
    let error = unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: `time` outlives the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).map_err(io::Error::other)?))
}

/// A running program; killed when dropped, and by the kernel if the lab itself is killed.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it; what it prints is added to the file `log`.
    pub fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Self, LabError> {
        let open = || fs::OpenOptions::new().create(true).append(true).open(log);
        let file = open().map_err(LabError::io(format!("opening {}", log.display())))?;
        let copy = file.try_clone().map_err(LabError::io(format!("opening {}", log.display())))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        // SAFETY: prctl is one system call; nothing is allocated and no lock is taken between fork and exec.
        unsafe {
            command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let program = command.get_program().display().to_string();
        let child = command.spawn().map_err(LabError::io(format!("starting the {name} ({program})")))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has used.
    pub fn usage(&self) -> Result<Usage, LabError> {
        Usage::of(self.pid()).map_err(|error| self.failure(format!("cannot be measured ({error})")))
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(format!("ended ({status})"))),
            Err(error) => Err(self.failure(format!("cannot be watched ({error})"))),
        }
    }

    /// Ends it, without a chance to say goodbye, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// An error about it, with the end of its log.
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

/// Ports on the loopback interface that nobody listens on now, all different.
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

/// Raises the limit on open files to what the system allows, for this process and its children; returns it.
pub fn allow_many_files() -> Result<u64, LabError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    let result = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    match result {
        0 => Ok(limit.rlim_cur),
        _ => Err(LabError::io("raising the limit on open files")(io::Error::last_os_error())),
    }
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
