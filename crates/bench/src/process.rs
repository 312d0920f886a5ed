//! A pinned child process that ends with its guard, and what the kernel knows of it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Where the load and the backend run.
pub const LOAD_CORE: usize = 0;
/// Where the proxies run.
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
    /// Starts `program` on `core`; what it prints goes to `log`.
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

    /// User and system time of all its threads so far.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // proc_pid_stat(5): the name may hold spaces, so count after its closing parenthesis; utime and stime are the
        // 14th and 15th field, the 12th and 13th after it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        let (Some(user), Some(system)) = (ticks(11), ticks(12)) else { bail!("/proc/PID/stat: {stat:?}") };
        Ok(Duration::from_nanos((user + system) * (1_000_000_000 / clock_ticks_per_second())))
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
    let probe = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(&answer[9..] == b"200")
    };
    probe().unwrap_or(false)
}

/// The unit of the times in `/proc/PID/stat`.
fn clock_ticks_per_second() -> u64 {
    // SAFETY: sysconf takes no pointer.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
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

/// What `program args…` prints, its first line that is not empty.
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
