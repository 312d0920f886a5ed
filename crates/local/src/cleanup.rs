//! The state directory: its lock, its content, and the removal of what a crashed run left.
//!
//! ```text
//! control/        the control plane's root certificate and keys; kept, so that a restart keeps all identities
//! logs/           one file per program; kept for reading afterwards, emptied by the next run
//! runtime/        Pod objects for the control plane      ┐
//! pods/NAME/      a sidecar's tokens and sockets, its own │ removed at the end of a run
//! mounts/NAME/    a replica's volumes and /etc files      │
//! etc/UID/        names of users                          │
//! data/           applications' files                     │
//! check/          what `--check` runs: a copy to edit     │
//! run.json, ports.json, exec.sock, pages, …               ┘
//! lock            held by the running `up`
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_base::files::{Readers, UntrustedError, check_owner, private_directory, write_atomically};
use evenkeel_model::PublishedPort;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::names;
use crate::pidfd::PidFd;
use crate::running::{self, RunningOptions};

/// Maximum length of a state directory's path, in bytes: the path of a Unix socket has at most 107, of which `/pods/…` needs
/// the rest.
pub const MAX_STATE_PATH_BYTES: usize = 80;
/// Maximum length of a replica's folder path in bytes, leaving room for its socket's name.
const MAX_POD_PATH_BYTES: usize = 107 - "/sds.sock".len();
/// Least free disk space to start with, in bytes.
const LEAST_SPACE_BYTES: u64 = 1024 * 1024;
/// Maximum size of a run's record, in bytes: a path and two processes.
const MAX_RECORD_BYTES: u64 = 64 * 1024;
/// How long a killed supervisor of an earlier run may take to disappear.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another run holds the lock.
    #[error(
        "another `evenkeel up` uses {}{holder}; stop it, or choose another directory: --state DIR",
        .state.display()
    )]
    Busy {
        /// The directory.
        state: PathBuf,
        /// ` (process N, running DIR)`, if known.
        holder: String,
    },
    /// The path is too long for the sockets below it.
    #[error(
        "the state directory's path {} is longer than {MAX_STATE_PATH_BYTES} bytes, so the Unix sockets in it cannot be \
         opened; choose a shorter one: --state DIR",
        .0.display()
    )]
    TooLong(PathBuf),
    /// A process of an earlier run does not end.
    #[error("process {0} of an earlier run does not end; end it yourself: kill -9 {0}")]
    Undead(i32),
    /// Other users can write to it.
    #[error("the state directory is not safe: {0}")]
    Untrusted(UntrustedError),
    /// Its disk has too little space.
    #[error(
        "the disk of the state directory {} has {free} bytes left, and a mesh needs {LEAST_SPACE_BYTES} to start; make space, or choose \
         another: --state DIR", .path.display()
    )]
    Full {
        /// The directory.
        path: PathBuf,
        /// The free space, in bytes.
        free: u64,
    },
    /// A file could not be read or written.
    #[error("cannot use the state directory {} (another: --state DIR): {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl From<UntrustedError> for StateError {
    fn from(error: UntrustedError) -> Self {
        match error {
            UntrustedError::Io { path, source } => Self::Io { path, source },
            other => Self::Untrusted(other),
        }
    }
}

/// Paths below a state directory.
#[derive(Debug, Clone)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// A state directory at this path, made absolute.
    pub fn new(path: &Path) -> Result<Self, StateError> {
        let absolute = std::path::absolute(path).map_err(|source| StateError::Io { path: path.into(), source })?;
        if absolute.as_os_str().len() > MAX_STATE_PATH_BYTES {
            return Err(StateError::TooLong(absolute));
        }
        Ok(Self(absolute))
    }

    /// The default state directory: `$XDG_STATE_HOME/evenkeel` or `~/.local/state/evenkeel`. Without `$HOME` the home
    /// directory is taken from the user database.
    pub fn default_path() -> PathBuf {
        let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let users = || nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
        let in_home = || named("HOME").or_else(users).map(|home| home.join(".local/state"));
        match named("XDG_STATE_HOME").or_else(in_home) {
            Some(base) => base.join("evenkeel"),
            // The user who creates it first owns it; `claim` refuses a directory of another user.
            None => std::env::temp_dir().join(format!("evenkeel-{}", nix::unistd::geteuid())),
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The control plane's root certificate and keys.
    pub fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// Pod objects for the control plane.
    pub fn runtime(&self) -> PathBuf {
        self.0.join("runtime")
    }

    /// All logs.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// One program's log; `name` is the replica's, `part` `app` or `proxy`.
    pub fn log(&self, name: &str, part: &str) -> PathBuf {
        self.logs().join(format!("{name}.{part}.log"))
    }

    /// The folder of a replica's volumes and `/etc` files. Unlike [`Self::pod`], it belongs to nobody but this process's
    /// user, so paths in it lead where this process has made them lead.
    pub fn mounts(&self, name: &str) -> PathBuf {
        let folder = self.pod(name);
        self.0.join("mounts").join(folder.file_name().unwrap_or_default())
    }

    /// The folder of a replica's sidecar, which owns it; named after the replica unless the path would be too long for
    /// its sockets.
    pub fn pod(&self, name: &str) -> PathBuf {
        let folder = self.0.join("pods").join(name);
        if folder.as_os_str().len() <= MAX_POD_PATH_BYTES {
            folder
        } else {
            self.0.join("pods").join(names::digest(name, 10))
        }
    }

    /// The directory for files of applications during a run.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// The copy of the directory that `--check` runs and edits.
    pub fn check(&self) -> PathBuf {
        self.0.join("check")
    }

    /// Returns the path of the socket on which `evenkeel exec` requests a replica's namespaces.
    pub fn exec_socket(&self) -> PathBuf {
        self.0.join("exec.sock")
    }

    /// The file with the address of the control plane's pages on the host.
    pub fn pages(&self) -> PathBuf {
        self.0.join("pages")
    }

    /// The file with the address of the dashboard on the host.
    pub fn dashboard(&self) -> PathBuf {
        self.0.join("dashboard")
    }

    /// The directory of the mesh that runs with this state directory; `None` if none runs.
    pub fn running(&self) -> Option<PathBuf> {
        let record = self.read_record()?;
        (ProcessId::of(record.keeper.pid).ok()? == record.keeper).then_some(record.directory)
    }

    /// The options of the mesh that runs with this state directory; `None` if none runs.
    pub fn running_options(&self) -> Option<RunningOptions> {
        self.running()?;
        self.read_record()?.options
    }

    /// The ports of this machine that lead to gateways of the mesh that runs with this state directory; none while it starts.
    pub fn published_ports(&self) -> Vec<PublishedPort> {
        running::read_ports(&self.ports_file())
    }

    /// Writes down those ports.
    pub(crate) fn publish_ports(&self, ports: &[PublishedPort]) -> io::Result<()> {
        running::write_ports(&self.ports_file(), ports)
    }

    fn ports_file(&self) -> PathBuf {
        self.0.join("ports.json")
    }

    fn record(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// Locks the directory for this run and removes what a crashed run left; `directory` is what will be run.
    pub fn claim(&self, directory: &Path) -> Result<(Claim, Option<Leftovers>), StateError> {
        let io = |source| StateError::Io { path: self.0.clone(), source };
        private_directory(&self.0)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.0.join("lock"))
            .map_err(io)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| self.busy())?;
        let leftovers = self.clear_leftovers()?;
        // Without this check the first write would fail later.
        if let Some(free) = disk::free_bytes(&self.0).filter(|free| *free < LEAST_SPACE_BYTES) {
            return Err(StateError::Full { path: self.0.clone(), free });
        }
        for folder in ["control", "runtime", "pods", "mounts", "data", "logs"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(self.0.join(folder)).map_err(io)?;
        }
        // No other user can get here, but the control plane checks the mode of its key directory itself.
        fs::set_permissions(self.control(), fs::Permissions::from_mode(0o700)).map_err(io)?;
        Ok((Claim { state: self.clone(), directory: directory.to_path_buf(), lock }, leftovers))
    }

    fn busy(&self) -> StateError {
        let holder = self
            .read_record()
            .map(|record| format!(" (process {}, running {})", record.keeper.pid, record.directory.display()));
        StateError::Busy { state: self.0.clone(), holder: holder.unwrap_or_default() }
    }

    fn read_record(&self) -> Option<Record> {
        // The next run kills the process in this record, so a record that another user may have written is ignored.
        let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(self.record()).ok()?;
        check_owner(&self.record(), &file.metadata().ok()?).ok()?;
        let mut text = String::new();
        file.by_ref().take(MAX_RECORD_BYTES).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Removes leftovers. While the lock is held, everything still here belongs to a run that crashed.
    fn clear_leftovers(&self) -> Result<Option<Leftovers>, StateError> {
        let record = self.read_record();
        let mut leftovers = Leftovers { process: None, files: count_files(&self.0, &Self::VOLATILE) };
        if let Some(supervisor) = record.and_then(|record| record.supervisor)
            && supervisor.end()?
        {
            leftovers.process = Some(supervisor.pid);
        }
        let _ = fs::remove_dir_all(self.logs());
        self.remove_volatile().map_err(|source| StateError::Io { path: self.0.clone(), source })?;
        Ok((leftovers.process.is_some() || leftovers.files > 0).then_some(leftovers))
    }

    #[rustfmt::skip]
    const VOLATILE: [&str; 12] = [
        "runtime", "pods", "mounts", "etc", "data", "check", "run.json", "ports.json", "exec.sock", "pages", "dashboard",
        "control/registered",
    ];

    fn remove_volatile(&self) -> io::Result<()> {
        for name in Self::VOLATILE {
            let path = self.0.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The remains of a crashed run that were removed.
#[derive(Debug, PartialEq, Eq)]
pub struct Leftovers {
    /// Its supervisor, if it was still running; everything inside ended with it.
    pub process: Option<i32>,
    /// Files removed.
    pub files: usize,
}

impl std::fmt::Display for Leftovers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "removed what an interrupted run left behind: {} files", self.files)?;
        match self.process {
            Some(pid) => write!(f, ", process {pid} and all it had started"),
            None => Ok(()),
        }
    }
}

/// The locked state directory of this run. The lock ends with the process; [`Claim::release`] removes the files.
#[derive(Debug)]
pub struct Claim {
    state: StateDir,
    directory: PathBuf,
    lock: Flock<File>,
}

impl Claim {
    /// Records this run's processes, so that the next run finds them if this one crashes, and its options.
    pub fn record(&self, supervisor: i32, options: Option<RunningOptions>) -> io::Result<()> {
        let record = Record {
            directory: self.directory.clone(),
            keeper: ProcessId::of(i32::try_from(std::process::id()).unwrap_or_default())?,
            supervisor: Some(ProcessId::of(supervisor)?),
            options,
        };
        write_atomically(&self.state.record(), serde_json::to_string_pretty(&record)?.as_bytes(), Readers::Owner)
    }

    /// Removes the run's files and unlocks the directory.
    pub fn release(self) -> io::Result<()> {
        self.state.remove_volatile()?;
        // Removed while locked, so that a process that waits for the lock makes a new file.
        fs::remove_file(self.state.path().join("lock"))?;
        drop(self.lock);
        Ok(())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    directory: PathBuf,
    keeper: ProcessId,
    supervisor: Option<ProcessId>,
    #[serde(default)]
    options: Option<RunningOptions>,
}

/// A process id with its start time in clock ticks since boot; together they are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ProcessId {
    pid: i32,
    started: u64,
}

impl ProcessId {
    fn of(pid: i32) -> io::Result<Self> {
        let mut stat = String::new();
        File::open(format!("/proc/{pid}/stat"))?.read_to_string(&mut stat)?;
        let started = start_time(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { pid, started })
    }

    /// Kills it and waits until it is gone; `false` if it was gone already.
    fn end(self) -> Result<bool, StateError> {
        // The descriptor pins the process: from here on its id cannot be reused.
        let Ok(process) = PidFd::open(self.pid) else { return Ok(false) };
        if Self::of(self.pid).ok() != Some(self) {
            return Ok(false);
        }
        process.signal(Signal::SIGKILL);
        if process.wait(DEATH_TIMEOUT) { Ok(true) } else { Err(StateError::Undead(self.pid)) }
    }
}

/// Field 22 of `/proc/PID/stat`, unless the process is a zombie. The name in field 2 may itself hold spaces and
/// parentheses.
fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next().filter(|state| !["Z", "X"].contains(state));
    state.and_then(|_| fields.nth(18)?.parse().ok())
}

fn count_files(root: &Path, names: &[&str]) -> usize {
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut files = 0;
    let mut visit = |path: PathBuf, folders: &mut Vec<PathBuf>| match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => folders.push(path),
        Ok(_) => files += 1,
        Err(_) => {}
    };
    names.iter().for_each(|name| visit(root.join(name), &mut folders));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            visit(entry.path(), &mut folders);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let check = |name: &str| {
            let stat = format!("42 ({name}) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0");
            assert_eq!(start_time(&stat), Some(987_654), "{name}");
        };
        check("sleep");
        check("a) S (b c");
        assert_eq!(start_time("42 (ended) Z 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0"), None);
        assert_eq!(start_time("garbage"), None);
    }

    #[test]
    fn a_held_directory_is_refused_with_its_holder_and_freed_by_release() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let state = StateDir::new(folder.path())?;
        let (claim, leftovers) = state.claim(Path::new("/some/app"))?;
        assert_eq!(leftovers, None);
        claim.record(i32::try_from(std::process::id())?, None)?;
        let refused = state.claim(Path::new("/other")).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("/some/app") && refused.contains("--state"), "{refused}");
        claim.release()?;
        assert!(state.claim(Path::new("/other")).is_ok());
        Ok(())
    }

    #[test]
    fn the_next_run_ends_the_process_of_a_crashed_one_and_removes_its_files() -> Result<(), Box<dyn std::error::Error>>
    {
        let folder = tempfile::tempdir()?;
        let state = StateDir::new(folder.path())?;
        let mut survivor = std::process::Command::new("sleep").arg("60").spawn()?;
        let (claim, _) = state.claim(Path::new("/app"))?;
        claim.record(i32::try_from(survivor.id())?, None)?;
        fs::create_dir_all(state.pod("web-1"))?;
        fs::write(state.pod("web-1").join("token"), "t")?;
        drop(claim);
        let (claim, leftovers) = state.claim(Path::new("/app"))?;
        assert_eq!(leftovers, Some(Leftovers { process: Some(i32::try_from(survivor.id())?), files: 2 }));
        assert!(!survivor.wait()?.success());
        assert!(!state.pod("web-1").exists());
        claim.release()?;
        Ok(())
    }

    /// The process in the record is killed.
    #[test]
    fn a_record_that_others_may_have_written_ends_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let state = StateDir::new(folder.path())?;
        let mut victim = std::process::Command::new("sleep").arg("60").spawn()?;
        let (claim, _) = state.claim(Path::new("/app"))?;
        claim.record(i32::try_from(victim.id())?, None)?;
        drop(claim);
        fs::set_permissions(state.record(), fs::Permissions::from_mode(0o666))?;
        let (claim, leftovers) = state.claim(Path::new("/app"))?;
        assert_eq!(leftovers, Some(Leftovers { process: None, files: 1 }), "removed, and not heeded");

        // A record in another place is ignored as well.
        claim.record(i32::try_from(victim.id())?, None)?;
        drop(claim);
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(state.record(), &elsewhere)?;
        std::os::unix::fs::symlink(&elsewhere, state.record())?;
        assert_eq!(state.claim(Path::new("/app"))?.1, Some(Leftovers { process: None, files: 1 }));
        assert!(victim.try_wait()?.is_none(), "it lives");
        victim.kill()?;
        victim.wait()?;
        Ok(())
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let state = StateDir::new(&folder.path().join("state"))?;
        state.claim(Path::new("/app"))?.0.release()?;
        let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        assert_eq!((mode(state.path())?, mode(&state.control())?), (0o700, 0o700));
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o777))?;
        let refused = state.claim(Path::new("/app")).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("has mode 0777") && refused.contains("chmod go-w"), "{refused}");
        Ok(())
    }

    #[test]
    fn a_socket_fits_below_the_longest_state_directory_for_any_pod() -> Result<(), StateError> {
        let state = StateDir::new(Path::new(&format!("/{}", "s".repeat(MAX_STATE_PATH_BYTES - 1))))?;
        let folders = ["web", &"w".repeat(63), &"v".repeat(63)].map(|name| state.pod(name));
        assert!(folders.iter().all(|folder| folder.join("sds.sock").as_os_str().len() <= 107), "{folders:?}");
        assert!(folders[0].ends_with("pods/web") && folders[1] != folders[2], "{folders:?}");
        Ok(())
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let long = format!("/tmp/{}", "x".repeat(MAX_STATE_PATH_BYTES));
        assert!(matches!(StateDir::new(Path::new(&long)), Err(StateError::TooLong(_))));
    }
}
