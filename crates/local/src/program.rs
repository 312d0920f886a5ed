//! Programs: a command line in a container, with its log; also a copy of a running process's command line.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_process::manager::NOTIFY_SOCKET;
use nix::unistd::{chdir, setsid};
use tokio::process::{Child, Command};

use crate::confine::close_on_exec;
use crate::container::Container;
use crate::output::Output;
use crate::pidfd::PidFd;
use crate::ports::lift;

/// First descriptor of inherited listening sockets (systemd's `SD_LISTEN_FDS_START`).
const FIRST_INHERITED: RawFd = 3;
/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The executable.
    pub command: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// All its variables: those of `up`, which may hold secrets, are not passed on.
    pub environment: Vec<(String, String)>,
    /// Working directory.
    pub directory: PathBuf,
    /// File that receives standard output and error.
    pub log: PathBuf,
    /// Whether its output goes through a pipe that is copied to the log, because the program may fail if a write fails.
    /// Otherwise it writes to the log itself.
    pub piped: bool,
    /// The container to run in; `None`: the supervisor's own namespaces.
    pub container: Option<Arc<Container>>,
    /// Listening sockets to hand over, with their names (`LISTEN_FDNAMES`). Descriptors must lie above those handed over.
    pub listeners: Vec<(String, RawFd)>,
    /// The socket (`NOTIFY_SOCKET`) on which it names a process that takes over; `None` if that cannot happen.
    pub notify: Option<PathBuf>,
    /// The pipe, while it is supervised.
    output: Option<Arc<Output>>,
    /// The process that it is a copy of.
    like: Option<Arc<ObservedProcess>>,
}

/// Properties of a process that are not in its command line.
#[derive(Debug)]
struct ObservedProcess {
    /// Its executable, held open because the file may be replaced or removed.
    executable: OwnedFd,
    /// All its variables.
    environment: Vec<(OsString, OsString)>,
}

impl Program {
    /// A command in the supervisor's own namespaces.
    pub fn new(command: impl Into<PathBuf>, arguments: Vec<OsString>, directory: PathBuf, log: PathBuf) -> Self {
        Self {
            command: command.into(),
            arguments,
            environment: Vec::new(),
            directory,
            log,
            piped: false,
            container: None,
            listeners: Vec::new(),
            notify: None,
            output: None,
            like: None,
        }
    }

    /// A command in this program's container and environment, whose output is discarded.
    pub fn beside(&self, command: &[String]) -> Self {
        let mut words = command.iter();
        let program = words.next().map(PathBuf::from).unwrap_or_default();
        let arguments = words.map(OsString::from).collect();
        let (log, listeners, notify, like) = (PathBuf::from("/dev/null"), Vec::new(), None, None);
        let (piped, output) = (false, None);
        Self { command: program, arguments, log, piped, listeners, notify, output, like, ..self.clone() }
    }

    /// The same program in the version of this process: its executable, arguments, environment and working directory.
    ///
    /// # Errors
    /// If the process has ended, or cannot be inspected.
    pub fn as_seen_in(&self, pid: u32, process: &PidFd) -> io::Result<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let executable = lift(File::open(folder.join("exe"))?.into())?;
        let directory = fs::read_link(folder.join("cwd"))?;
        let command_line = fs::read(folder.join("cmdline"))?;
        let mut command_line = words(&command_line).map(OsStr::to_owned);
        let (command, arguments) = (command_line.next().unwrap_or_default().into(), command_line.collect());
        let environment = words(&fs::read(folder.join("environ"))?).filter_map(variable).collect();
        // If the process still runs, what was read belongs to it and not to another that got its id.
        if process.wait(Duration::ZERO) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let like = Some(Arc::new(ObservedProcess { executable, environment }));
        Ok(Self { command, arguments, environment: Vec::new(), directory, like, ..self.clone() })
    }

    /// Makes the pipe for its output, if it has one.
    pub(crate) fn begin_output(&mut self) {
        if !self.piped {
            return;
        }
        let account = self.container.as_ref().and_then(|container| container.privileges.account);
        match Output::begin(&self.log, account) {
            Ok(output) => self.output = Some(Arc::new(output)),
            Err(error) => tracing::warn!(log = %self.log.display(), %error, "a program writes to its log itself"),
        }
    }

    /// Waits until its output is in the log; call it when the program has ended for good.
    pub(crate) async fn end_output(&mut self) {
        if let Some(output) = self.output.take().and_then(Arc::into_inner) {
            output.end().await;
        }
    }

    /// Starts it once, in a session of its own, so that Ctrl-C in a terminal reaches only the supervisor, which then
    /// ends programs in order.
    pub fn spawn(&self) -> io::Result<Child> {
        let output = match &self.output {
            Some(output) => output.writer()?,
            None => self.open_log()?.into(),
        };
        let mut command = match &self.like {
            None => Command::new(&self.command),
            Some(seen) => {
                let mut command = Command::new(format!("/proc/self/fd/{}", seen.executable.as_raw_fd()));
                command
                    .arg0(&self.command)
                    .env_clear()
                    .envs(seen.environment.iter().map(|(name, value)| (name, value)));
                command
            }
        };
        command.args(&self.arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        self.prepare(&mut command)?;
        match &self.container {
            Some(container) => container.with_children_inside(|| command.spawn())?,
            None => command.spawn(),
        }
    }

    /// Environment, namespaces, directory and inherited sockets.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        if self.like.is_none() {
            command.env_clear();
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.envs(self.notify.iter().map(|socket| (NOTIFY_SOCKET, socket)));
        if !self.listeners.is_empty() {
            let names: Vec<&str> = self.listeners.iter().map(|(name, _)| name.as_str()).collect();
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let confined = self.container.as_ref().map(|container| (container.handles(), container.privileges));
        let directory = CString::new(self.directory.as_os_str().as_bytes())?;
        let listeners: Vec<RawFd> = self.listeners.iter().map(|(_, descriptor)| *descriptor).collect();
        let move_in = move || {
            // It only fails for a process that already leads a group.
            let _ = setsid();
            if let Some((handles, privileges)) = &confined {
                handles.enter()?;
                privileges.drop_others()?;
            }
            // After joining, because a new mount namespace resets the working directory. As the program's user, because
            // the directory may be closed to others.
            chdir(directory.as_c_str())?;
            close_on_exec()?;
            hand_over(&listeners)
        };
        // SAFETY: the closure allocates nothing and makes only async-signal-safe calls (setsid, setns, those of
        // `Privileges`, chdir, close_range, dup2).
        unsafe { command.pre_exec(move_in) };
        Ok(())
    }

    fn open_log(&self) -> io::Result<File> {
        let open = || {
            if let Some(folder) = self.log.parent() {
                fs::create_dir_all(folder)?;
            }
            let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
            // A program that opens `/dev/stdout` opens this file as its own user, so the file must belong to that user;
            // `/dev/null` must not.
            let account = self.container.as_ref().and_then(|container| container.privileges.account);
            if let Some(account) = account.filter(|_| log.metadata().is_ok_and(|log| log.is_file())) {
                fchown(&log, Some(account.uid), Some(account.gid))?;
            }
            Ok(log)
        };
        open().or_else(|error: io::Error| {
            // A full disk may have no room for another file; better to run the program without a log than not at all.
            tracing::warn!(log = %self.log.display(), %error, "a program runs without its log");
            OpenOptions::new().write(true).open("/dev/null")
        })
    }
}

/// Places listening sockets where the protocol says, from descriptor 3 up; dup2 also clears close-on-exec.
fn hand_over(listeners: &[RawFd]) -> io::Result<()> {
    for (target, source) in (FIRST_INHERITED..).zip(listeners) {
        // Nix and rustix want the target as an owned descriptor; nothing owns it yet.
        // SAFETY: dup2 takes two integers; replacing an open descriptor of the child is what it is for.
        if unsafe { libc::dup2(*source, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the words of a file in `/proc`, each of which ends with a NUL.
fn words(text: &[u8]) -> impl Iterator<Item = &OsStr> {
    text.strip_suffix(&[0]).into_iter().flat_map(|text| text.split(|byte| *byte == 0)).map(OsStr::from_bytes)
}

fn variable(word: &OsStr) -> Option<(OsString, OsString)> {
    let mut parts = word.as_bytes().splitn(2, |byte| *byte == b'=').map(|part| OsStr::from_bytes(part).to_owned());
    // An entry without a name cannot be set.
    let name = parts.next().filter(|name| !name.is_empty())?;
    Some((name, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &tempfile::TempDir, script: &str) -> Program {
        let arguments = vec!["-c".into(), script.into()];
        let program = Program::new("/bin/sh", arguments, folder.path().to_path_buf(), folder.path().join("log"));
        Program { environment: vec![("GREETING".to_owned(), "hello".to_owned())], ..program }
    }

    #[tokio::test]
    async fn output_environment_and_directory_arrive() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let notify = Some(folder.path().join("notify"));
        let program = Program { notify, ..shell(&folder, "echo $GREETING; pwd >&2; echo $NOTIFY_SOCKET") };
        assert!(program.spawn()?.wait().await?.success());
        let path = folder.path().canonicalize()?;
        let expected = format!("hello\n{}\n{}\n", path.display(), folder.path().join("notify").display());
        assert_eq!(fs::read_to_string(folder.path().join("log"))?, expected);
        Ok(())
    }

    #[tokio::test]
    async fn a_process_is_run_again_as_it_was_though_its_executable_is_gone() -> Result<(), Box<dyn std::error::Error>>
    {
        let (folder, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let shell_of_its_own = other.path().join("newer-sh");
        fs::copy("/bin/sh", &shell_of_its_own)?;
        let mut running = std::process::Command::new(&shell_of_its_own);
        running.args(["-c", "touch here; read line; exit 3", "name", "one", ""]).env_clear().env("KEPT", "a=b");
        let mut running = running.current_dir(other.path()).stdin(Stdio::piped()).spawn()?;
        // Until then it may be the child that is about to become it.
        while !other.path().join("here").exists() {
            tokio::task::yield_now().await;
        }
        let process = PidFd::open(i32::try_from(running.id())?)?;
        let mut again = shell(&folder, "exit 9").as_seen_in(running.id(), &process)?;
        fs::remove_file(&shell_of_its_own)?;
        assert_eq!((&again.command, &again.directory), (&shell_of_its_own, &other.path().to_path_buf()));
        assert_eq!(again.arguments[2..], ["name", "one", ""]);
        again.arguments[1] = "echo $0 $1 \"[$2]\" $KEPT ${GREETING-none}".into();
        assert!(again.spawn()?.wait().await?.success());
        assert_eq!(fs::read_to_string(folder.path().join("log"))?, "name one [] a=b none\n");
        drop(running.stdin.take());
        assert_eq!(running.wait()?.code(), Some(3));
        let gone = again.as_seen_in(running.id(), &process).map(|program| program.command);
        assert!(gone.is_err(), "{gone:?}");
        Ok(())
    }
}
