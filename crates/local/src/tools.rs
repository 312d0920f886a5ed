//! The two programs with which `up` configures the network: `ip` (iproute2) and `nft` (nftables).
//!
//! Both read a whole script from standard input, so a namespace costs one process of each.

use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

/// Why a tool could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not on this machine.
    #[error("`{0}` was not found on PATH, in /usr/sbin or in /sbin; install it: apt-get install iproute2 nftables")]
    Missing(&'static str),
    /// The program could not be started or fed.
    #[error("cannot run {program}: {source}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The program ran and refused.
    #[error("{program} refused its script: {message}")]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its standard error, in one line.
        message: String,
    },
}

/// The paths of the tools.
#[derive(Debug, Clone)]
pub struct Tools {
    ip: PathBuf,
    nft: PathBuf,
}

impl Tools {
    /// Looks both up; an error names the one that is missing and the package it comes in.
    pub fn find() -> Result<Self, ToolError> {
        Ok(Self { ip: locate("ip")?, nft: locate("nft")? })
    }

    /// Runs the lines of `script` as `ip` commands in the calling thread's network namespace; stops at the first that fails.
    pub fn ip(&self, script: &str) -> Result<(), ToolError> {
        feed(Command::new(&self.ip).args(["-batch", "-"]), script)
    }

    /// Like [`Self::ip`], with a network namespace that the commands may name: `script` gets its path.
    pub fn ip_with(&self, namespace: BorrowedFd<'_>, script: impl FnOnce(&str) -> String) -> Result<(), ToolError> {
        let failed = |source| ToolError::Spawn { program: self.ip.clone(), source };
        let inherited = namespace.try_clone_to_owned().map_err(failed)?;
        let number = inherited.as_raw_fd();
        let keep_open = move || Ok(fcntl_setfd(&inherited, FdFlags::empty())?);
        let mut command = Command::new(&self.ip);
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(keep_open) };
        feed(command.args(["-batch", "-"]), &script(&format!("/proc/self/fd/{number}")))
    }

    /// Loads `ruleset` in the calling thread's network namespace, whole or not at all.
    pub fn nft(&self, ruleset: &str) -> Result<(), ToolError> {
        feed(Command::new(&self.nft).args(["-f", "-"]), ruleset)
    }
}

/// Finds a program; Debian leaves `/usr/sbin` off an ordinary user's PATH, so it is searched as well.
fn locate(name: &'static str) -> Result<PathBuf, ToolError> {
    find_program(name).ok_or(ToolError::Missing(name))
}

/// The first executable file called `name` on PATH or in the system directories.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

fn feed(command: &mut Command, script: &str) -> Result<(), ToolError> {
    let program = PathBuf::from(command.get_program());
    let spawn = |source| ToolError::Spawn { program: program.clone(), source };
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(spawn)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops at the first bad line closes its input early; its own message is more useful than the write
        // error.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(spawn)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).lines().collect::<Vec<_>>().join("; ");
    Err(ToolError::Failed { program, message })
}
