//! A pinned child process that ends with its guard, and its resource usage as reported by the kernel.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenkeel_process::resources::cpu_time;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The core of the load and the backend.
pub const LOAD_CORE: usize = 0;
/// The core of the proxies.
pub const PROXY_CORE: usize = 1;

/// Time a peer has to start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running child, pinned to one core. Dropping it kills it by its pid.
pub struct Pinned {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Pinned {
    /// Starts `program` on `core`; its output goes to `log`.
    pub fn start(core: usize, program: &Path, args: &[String], log: &Path) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = File::create(log).with_context(|| format!("{}", log.display()))?;
        let child = Command::new("taskset")
            .args(["--cpu-list", &core.to_string()])
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name} with taskset"))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Waits until it accepts connections on `address`.
    pub fn wait_for_port(&mut self, address: SocketAddr) -> Result<()> {
        self.wait(&format!("listen on {address}"), || TcpStream::connect(address).is_ok())
    }

    /// Waits until `GET /ready` on the admin address `address` answers 200.
    pub fn wait_until_ready(&mut self, address: SocketAddr) -> Result<()> {
        self.wait(&format!("become ready on {address}"), || is_ready(address))
    }

    fn wait(&mut self, what: &str, reached: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !reached() {
            let exited = self.child.try_wait()?;
            if exited.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                let how =
                    exited.map_or_else(|| format!("took over {START_LIMIT:?} to"), |s| format!("ended ({s}), did not"));
                bail!("{} {how} {what}; it said:\n{said}", self.name);
            }
            std::thread::park_timeout(Duration::from_micros(500));
        }
        Ok(())
    }

    /// User and system time of all its threads so far, from the process's CPU clock: `/proc/PID/stat` counts in steps of 10 ms.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_time(self.child.id()).with_context(|| format!("{}: its CPU clock", self.name))
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc/PID/status")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `GET /ready` answers 200.
fn is_ready(address: SocketAddr) -> bool {
    get(address, "/ready").is_ok()
}

/// The body of an admin page; an error unless it answers 200.
pub fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.get(9..12) == Some("200"), "{path} answered {:?}", answer.lines().next().unwrap_or_default());
    Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// Pins this process and its future children to `core`, except children that are pinned elsewhere.
pub fn pin_self(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on core {core}"))
}

/// The full path of a program on PATH, or of one where Debian puts daemons.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]).map(Path::new);
    folders
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{program} is not installed: run scripts/setup.sh bench"))
}

/// Returns the first non-empty line that `program args…` prints.
pub fn first_line(program: &Path, args: &[&str]) -> Result<String> {
    let output = match Command::new(program).args(args).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{} does not exist", program.display()),
        output => output?,
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    ensure!(line.is_some(), "{} {args:?} printed nothing", program.display());
    Ok(line.unwrap_or_default().to_owned())
}
