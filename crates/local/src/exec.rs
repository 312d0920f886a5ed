//! `evenkeel exec WORKLOAD -- CMD…`: runs a command inside one of a replica's containers, like `kubectl exec`. The
//! command sees what the program there sees and has the same privileges.
//!
//! The running `up` hands out the namespaces as descriptors over a Unix socket in its state directory, which only its
//! own user can open. Process ids would have no meaning across the mesh's process namespace.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, execvp, fexecve, fork};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::confine::Privileges;
use crate::container::Container;
use crate::terminal::Session;
use crate::tools::find_program;

/// Maximum size of a request and an answer, in bytes.
const MAX_MESSAGE_BYTES: u64 = 256 * 1024;
/// Number of descriptors, in the order user, pid, network, mount, UTS.
const DESCRIPTORS: usize = 5;

/// The command to run, and where.
#[derive(Debug, Clone)]
pub struct ExecOptions {
    /// State directory of the running `up`.
    pub state: PathBuf,
    /// Name of a workload (or of one of its pods).
    pub workload: String,
    /// Its namespace; `None`: any namespace that has it.
    pub namespace: Option<String>,
    /// The container to run it in.
    pub container: ContainerName,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// One of a replica's containers, by the name that Istio gives the sidecar's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerName {
    /// The application.
    #[default]
    #[serde(rename = "app")]
    Application,
    /// The proxy with its agent.
    #[serde(rename = "istio-proxy")]
    Proxy,
}

impl std::str::FromStr for ContainerName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "app" => Ok(Self::Application),
            "istio-proxy" => Ok(Self::Proxy),
            other => Err(format!("a replica has no container `{other}`; it has `app` and `istio-proxy`")),
        }
    }
}

/// Why no command was run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No `up` answers in that directory.
    #[error("no mesh is running with the state directory {}; start one: evenkeel up DIR, or name its directory: --state DIR", .0.display())]
    NotRunning(PathBuf),
    /// `up` refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer was not as expected.
    #[error("cannot ask the running `evenkeel up`: {0}")]
    Ask(io::Error),
    /// The namespaces could not be entered.
    #[error("cannot enter the workload's namespaces: {0}")]
    Enter(io::Error),
    /// The command could not be run.
    #[error("cannot run {command:?}: {source}")]
    Command {
        /// The command.
        command: OsString,
        /// The operating system's error.
        source: io::Error,
    },
}

pub use evenkeel_inject::ADMIN_VARIABLE;

/// A request to the running `up`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The purpose.
    pub purpose: Purpose,
    /// Namespace of the workload; `None`: any namespace that has it.
    pub namespace: Option<String>,
    /// Name of the workload or pod, in one of the forms of [`evenkeel_base::replica::match_name`]; empty: all.
    pub workload: String,
    /// Its container.
    pub container: ContainerName,
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Run something inside one replica.
    Enter,
    /// List the matching replicas.
    List,
    /// Replace the replicas of the matching workloads by new ones.
    Restart,
    /// Follow the files as they are now, and open the ports of their Gateways.
    Settle,
}

/// A replica that matches a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// Its namespace.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Its name.
    pub pod: String,
    /// Its processes that keep crashing.
    #[serde(default)]
    pub failing: Vec<Failing>,
}

/// A program or proxy of a replica that keeps ending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// `program` or `proxy`.
    pub part: String,
    /// Whether it is running.
    pub runs: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// Its last exit.
    pub last_end: String,
    /// How long ago that was, in seconds.
    pub seconds_ago: u64,
}

/// The answer, which is sent together with the descriptors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The replica found.
    Replica {
        /// Variables its program runs with.
        environment: Vec<(String, String)>,
        /// Its program's working directory.
        directory: PathBuf,
        /// The privileges of its program.
        privileges: Privileges,
    },
    /// The replicas that match best.
    Replicas(Vec<ReplicaInfo>),
    /// The workloads whose replicas have been replaced, as NAMESPACE/NAME.
    Restarted(Vec<String>),
    /// The gateways that are not ready, although a Gateway has a port on this machine, as NAMESPACE/NAME.
    Settled(Vec<String>),
    /// Why the request was refused.
    Refused(String),
}

/// The variable that names the kind of terminal.
const TERMINAL_VARIABLE: &str = "TERM";

/// Runs the command, with a terminal of its own if this process has one, and returns its exit status (128 + N when signal N ended it).
///
/// Must be called while the process has a single thread.
pub fn run(options: &ExecOptions) -> Result<u8, ExecError> {
    let (namespace, workload) = (options.namespace.clone(), options.workload.clone());
    let request = Request { purpose: Purpose::Enter, namespace, workload, container: options.container };
    let (reply, descriptors) = ask(&options.state, &request)?;
    let Reply::Replica { environment, directory, privileges } = reply else { return Err(unexpected(reply)) };
    let brought = caller_executable(options);
    let session = Session::begin(privileges.account).map_err(ExecError::Enter)?;
    enter(&descriptors).map_err(ExecError::Enter)?;
    let program = options.command.first().cloned().unwrap_or_else(|| "sh".into());
    let failed = |source: io::Error| ExecError::Command { command: program.clone(), source };
    let arguments: Vec<CString> = options
        .command
        .iter()
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(|error| failed(error.into()))?;
    // SAFETY: single-threaded by this function's contract.
    match unsafe { fork() }.map_err(|error| failed(error.into()))? {
        ForkResult::Child => {
            let terminal = session.has_terminal().then(|| std::env::var_os(TERMINAL_VARIABLE)).flatten();
            let error = match session.enter().and_then(|()| privileges.drop_others()) {
                Ok(()) => {
                    set_environment(&environment, terminal);
                    become_command(&directory, brought, &arguments)
                }
                Err(error) => error,
            };
            let _ = writeln!(io::stderr(), "error: {}", failed(error));
            std::process::exit(127)
        }
        ForkResult::Parent { child } => match session.follow(child).map_err(failed)? {
            WaitStatus::Exited(_, status) => Ok(u8::try_from(status).unwrap_or(1)),
            WaitStatus::Signaled(_, number, _) => Ok(128_u8.saturating_add(u8::try_from(number as i32).unwrap_or(0))),
            _ => Ok(1),
        },
    }
}

/// The executable of a command for the proxy's container, looked up where `exec` is called; for example a newer version
/// of the proxy. The container itself has only the machine's own programs.
fn caller_executable(options: &ExecOptions) -> Option<File> {
    let name = options.command.first().filter(|_| options.container == ContainerName::Proxy)?;
    let path = if name.as_bytes().contains(&b'/') { PathBuf::from(name) } else { find_program(name.to_str()?)? };
    OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path).ok()
}

/// Sets the variables of the container's program in place of the caller's, which may hold secrets, and the kind of
/// terminal.
fn set_environment(environment: &[(String, String)], terminal: Option<OsString>) {
    let callers: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    // SAFETY: the forked child has a single thread, so nobody reads the environment meanwhile.
    callers.iter().for_each(|name| unsafe { std::env::remove_var(name) });
    let terminal = terminal.map(|kind| (OsString::from(TERMINAL_VARIABLE), kind));
    let own = environment.iter().map(|(name, value)| (name.into(), value.into()));
    for (name, value) in terminal.into_iter().chain(own) {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
}

fn become_command(directory: &Path, brought: Option<File>, arguments: &[CString]) -> io::Error {
    let Some(program) = arguments.first() else { return io::Error::from(io::ErrorKind::InvalidInput) };
    if let Err(error) = std::env::set_current_dir(directory) {
        return error;
    }
    if let Some(file) = brought {
        let variable =
            |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
        let variables: Vec<CString> = std::env::vars_os().filter_map(variable).collect();
        // A file that cannot be executed by descriptor, such as a script, is looked up inside.
        let _ = fexecve(file, arguments, &variables);
    }
    match execvp(program, arguments) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// The running replicas that match a name; all of them if it is empty.
///
/// # Errors
/// If no mesh is running, or no replica matches.
pub fn list(state: &Path, workload: &str, namespace: Option<&str>) -> Result<Vec<ReplicaInfo>, ExecError> {
    let (workload, namespace) = (workload.to_owned(), namespace.map(str::to_owned));
    match ask(state, &Request { purpose: Purpose::List, namespace, workload, container: ContainerName::default() })?.0 {
        Reply::Replicas(replicas) => Ok(replicas),
        other => Err(unexpected(other)),
    }
}

/// Replaces all replicas of the workloads that match a name by new ones, and waits until that is done. Returns the
/// workloads' names.
///
/// # Errors
/// As [`list`].
pub fn restart(state: &Path, workload: &str, namespace: Option<&str>) -> Result<Vec<String>, ExecError> {
    let (workload, namespace) = (workload.to_owned(), namespace.map(str::to_owned));
    match ask(state, &Request { purpose: Purpose::Restart, namespace, workload, container: ContainerName::default() })?
        .0
    {
        Reply::Restarted(workloads) => Ok(workloads),
        other => Err(unexpected(other)),
    }
}

/// Waits for a while until `up` follows the files as they are now, and the ports of Gateways are open and their gateways
/// ready; returns the gateways that are not.
///
/// # Errors
/// If no mesh is running.
pub fn settle(state: &Path) -> Result<Vec<String>, ExecError> {
    let (workload, container) = (String::new(), ContainerName::default());
    match ask(state, &Request { purpose: Purpose::Settle, namespace: None, workload, container })?.0 {
        Reply::Settled(waiting) => Ok(waiting),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: Reply) -> ExecError {
    ExecError::Refused(match reply {
        Reply::Refused(reason) => reason,
        _ => "the running `evenkeel up` is another version; restart it".to_owned(),
    })
}

fn ask(state: &Path, request: &Request) -> Result<(Reply, Vec<OwnedFd>), ExecError> {
    let not_running = |_| ExecError::NotRunning(state.to_owned());
    let mut stream = UnixStream::connect(state.join("exec.sock")).map_err(not_running)?;
    let mut exchange = || -> io::Result<(Reply, Vec<OwnedFd>)> {
        stream.write_all(serde_json::to_string(request)?.as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        receive(&mut stream)
    };
    exchange().map_err(ExecError::Ask)
}

fn receive(stream: &mut UnixStream) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let mut first = vec![0; 16 * 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut carried = RecvAncillaryBuffer::new(&mut space);
    let length = recvmsg(&*stream, &mut [IoSliceMut::new(&mut first)], &mut carried, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in carried.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    first.truncate(length);
    stream.take(MAX_MESSAGE_BYTES).read_to_end(&mut first)?;
    Ok((serde_json::from_slice(&first)?, descriptors))
}

/// Joins all namespaces; the user namespace first, because it gives the privilege to join the others.
fn enter(descriptors: &[OwnedFd]) -> io::Result<()> {
    let [user, process, network, mount, uts] = descriptors else {
        return Err(io::Error::other("the running `evenkeel up` sent no namespaces"));
    };
    // Without a user namespace of its own (started by root) the mesh's is ours, and joining one's own is an error.
    if std::fs::metadata("/proc/self/ns/user")?.ino() != nix::sys::stat::fstat(user)?.st_ino {
        setns(user, CloneFlags::CLONE_NEWUSER)?;
    }
    setns(process, CloneFlags::CLONE_NEWPID)?;
    setns(network, CloneFlags::CLONE_NEWNET)?;
    setns(uts, CloneFlags::CLONE_NEWUTS)?;
    Ok(setns(mount, CloneFlags::CLONE_NEWNS)?)
}

/// The supervisor's side: reads one request.
pub async fn read_request(stream: &mut tokio::net::UnixStream) -> io::Result<Request> {
    use tokio::io::AsyncReadExt;
    let mut request = Vec::new();
    stream.take(MAX_MESSAGE_BYTES).read_to_end(&mut request).await?;
    Ok(serde_json::from_slice(&request)?)
}

/// The supervisor's side: answers with a container's namespaces, or with the reason why not.
pub async fn answer(stream: tokio::net::UnixStream, reply: &Reply, container: Option<&Container>) -> io::Result<()> {
    use tokio::io::AsyncWriteExt;
    let text = serde_json::to_vec(reply)?;
    let Some(container) = container else {
        let mut stream = stream;
        return stream.write_all(&text).await;
    };
    let own = |kind: &str| std::fs::File::open(format!("/proc/self/ns/{kind}"));
    let (user, process) = (own("user")?, own("pid")?);
    let (namespaces, processes) = container.descriptors()?;
    let [network, mount, uts] = namespaces.map(|descriptor| descriptor.as_raw_fd());
    let process = processes.as_ref().map_or(process.as_raw_fd(), |processes| processes.as_raw_fd());
    let raw: [RawFd; DESCRIPTORS] = [user.as_raw_fd(), process, network, mount, uts];
    // One blocking message to a local peer that is already reading, off the event loop's non-blocking socket.
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(std::time::Duration::from_secs(1)))?;
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(&text)],
        &[ControlMessage::ScmRights(&raw)],
        MsgFlags::empty(),
        None,
    )?;
    (&stream).write_all(text.get(sent..).unwrap_or_default())
}
