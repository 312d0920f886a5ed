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

/// A program that loads capture rules, and `ip`.
#[derive(Debug, Clone)]
pub enum Loader {
    /// nftables.
    Nftables {
        /// `ip`.
        ip: PathBuf,
        /// `nft`.
        nft: PathBuf,
    },
    /// iptables, where there are no nftables.
    Iptables {
        /// `ip`.
        ip: PathBuf,
        /// `iptables-restore`.
        restore: PathBuf,
        /// `iptables-save`.
        save: PathBuf,
    },
}

/// What `ip` says of a route or an address that is there already; newer ones say the latter of an address of IPv6.
const IS_THERE: [&str; 2] = ["File exists", "already assigned"];
/// A chain of the rules, by which loaded ones are recognized.
const IPTABLES_CHAIN: &str = ":ISTIO_OUTPUT ";

impl Loader {
    /// Looks up nftables, or else iptables.
    pub fn find() -> Result<Self, ToolError> {
        let ip = locate("ip")?;
        if let Some(nft) = find_program("nft") {
            return Ok(Self::Nftables { ip, nft });
        }
        match (find_program("iptables-restore"), find_program("iptables-save")) {
            (Some(restore), Some(save)) => Ok(Self::Iptables { ip, restore, save }),
            _ => Err(ToolError::Missing("nft")),
        }
    }

    /// Loads rules, as text for this program. Rules of iptables that are there already stay.
    pub fn load(&self, rules: &str, is_v6: bool) -> Result<(), ToolError> {
        match self {
            Self::Nftables { nft, .. } => feed(Command::new(nft).args(["-f", "-"]), rules),
            Self::Iptables { restore, save, .. } => {
                if saved(&of_family(save, is_v6))?.contains(IPTABLES_CHAIN) {
                    return Ok(());
                }
                feed(Command::new(of_family(restore, is_v6)).arg("--noflush"), rules)
            }
        }
    }

    /// The loaded rules of this program as text; empty: there are none. `arguments`: those of `nft` that list them.
    pub fn listed(&self, arguments: &[&str], is_v6: bool) -> Result<String, ToolError> {
        let nft = match self {
            Self::Nftables { nft, .. } => nft,
            Self::Iptables { save, .. } => return saved(&of_family(save, is_v6)),
        };
        let output = Command::new(nft).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|source| ToolError::Spawn { program: nft.clone(), source })?;
        let message = String::from_utf8_lossy(&output.stderr).lines().collect::<Vec<_>>().join("; ");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else if message.contains("No such file or directory") {
            Ok(String::new())
        } else {
            Err(ToolError::Failed { program: nft.clone(), message })
        }
    }

    /// Runs the lines of `script` as `ip` commands. What is there already stays.
    pub fn add_routes(&self, script: &str, is_v6: bool) -> Result<(), ToolError> {
        let (Self::Nftables { ip, .. } | Self::Iptables { ip, .. }) = self;
        let family = if is_v6 { "-6" } else { "-4" };
        for line in script.lines() {
            if let Some(rule) = line.strip_prefix("rule add ") {
                // The kernel would take the same rule twice. The first time there is none.
                let _ = feed(Command::new(ip).args([family, "-batch", "-"]), &format!("rule del {rule}"));
            }
            match feed(Command::new(ip).args([family, "-batch", "-"]), line) {
                Err(ToolError::Failed { message, .. }) if IS_THERE.iter().any(|text| message.contains(text)) => {}
                result => result?,
            }
        }
        Ok(())
    }
}

/// The program of IPv6 beside that of IPv4: `ip6tables-restore`.
fn of_family(program: &Path, is_v6: bool) -> PathBuf {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    if is_v6 { program.with_file_name(name.replacen("iptables", "ip6tables", 1)) } else { program.to_owned() }
}

/// The loaded rules.
fn saved(program: &Path) -> Result<String, ToolError> {
    let output = Command::new(program).stdin(Stdio::null()).output();
    let output = output.map_err(|source| ToolError::Spawn { program: program.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
