//! The sandbox: fresh user, process, network and mount namespaces around everything that `up` starts.
//!
//! ```text
//! keeper      the process the user started: stays outside, passes signals on, opens sockets there, cleans up afterwards
//! └─ supervisor   process 1 inside; the kernel kills all that is inside when it ends, and it when the keeper ends
//!    ├─ control plane, gateway
//!    └─ per replica: application, sidecar
//! ```
//!
//! However the keeper ends, SIGKILL included, no process, interface, rule or mount can outlive it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use evenkeel_process::resources::raise_open_files;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fork, getegid, geteuid, pipe, setpgid};

use futures_util::future::join_all;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::egress::broker::Broker;
use crate::preflight::{Refused, is_root};

/// Exit status of a supervisor that could not even isolate itself; its message is already written.
const EXIT_NOT_ISOLATED: i32 = 70;

/// Why the sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel or its configuration does not allow it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Another I/O error.
    #[error("cannot start the supervisor: {0}")]
    Io(#[from] io::Error),
}

/// How the supervisor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorExit {
    /// It exited with this status.
    Exited(u8),
    /// It was killed by this signal.
    Killed(Signal),
}

/// Forks into two processes. The supervisor runs `supervise` inside fresh namespaces and exits with the status it
/// returns. The keeper calls `started` with the supervisor's process id, waits for its end and passes on the signals
/// that mean "stop". Meanwhile its `brokers` open sockets of the machine's network on request.
///
/// Must be called while the process has a single thread.
pub fn run(
    supervise: impl FnOnce() -> u8,
    started: impl FnOnce(Pid) -> io::Result<()>,
    brokers: Vec<Broker>,
) -> Result<SupervisorExit, SandboxError> {
    let (uid, gid) = (geteuid(), getegid());
    let signals = keeper_signals();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).map_err(io::Error::from)?;
    unshare_processes(uid, gid)?;
    let (alive, keeper_end) = pipe().map_err(io::Error::from)?;
    // SAFETY: single-threaded by this function's contract, so the child may use everything it inherits.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Child => {
            drop((keeper_end, brokers));
            let status = match isolate(&alive, &signals) {
                Ok(()) => i32::from(supervise()),
                Err(error) => {
                    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("error: {error}\n"));
                    EXIT_NOT_ISOLATED
                }
            };
            std::process::exit(status)
        }
        ForkResult::Parent { child } => {
            drop(alive);
            started(child)?;
            let ending = keep(child, &signals, brokers)?;
            drop(keeper_end);
            Ok(ending)
        }
    }
}

fn keeper_signals() -> SigSet {
    let mut signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD].into_iter().collect();
    // Under nohup the process continues without its terminal.
    if !is_ignored(Signal::SIGHUP) {
        signals.add(Signal::SIGHUP);
    }
    signals
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only fills the one it is given, which lives through it.
    let asked = unsafe { libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it has filled the structure.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Makes the process namespace, inside a user namespace unless root does not need one.
fn unshare_processes(uid: Uid, gid: Gid) -> Result<(), SandboxError> {
    if is_root() && unshare(CloneFlags::CLONE_NEWPID).is_ok() {
        return Ok(());
    }
    let refused = |what| move |error: Errno| Refused::new(what, error.into());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).map_err(refused("a user namespace"))?;
    // The kernel requires this before an unprivileged gid_map, so that nobody can drop a group that denies access.
    let map = |name: &str, content: &str| {
        fs::write(format!("/proc/self/{name}"), content)
            .map_err(|error| Refused::new("a user namespace with root inside", error))
    };
    map("setgroups", "deny")?;
    map("uid_map", &format!("0 {uid} 1"))?;
    map("gid_map", &format!("0 {gid} 1"))?;
    Ok(())
}

/// The supervisor's first steps: end with the keeper, get its own network and mounts, and see only processes inside.
fn isolate(alive: &OwnedFd, signals: &SigSet) -> Result<(), SandboxError> {
    // A process group of its own, so that Ctrl-C arrives only once, through the keeper.
    setpgid(Pid::from_raw(0), Pid::from_raw(0)).map_err(io::Error::from)?;
    let refused = |what| move |error: Errno| Refused::new(what, error.into());
    // The host name as well, because a namespace that is not its own could not be joined again.
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(refused("a network namespace"))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(refused("private mounts"))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)
        .map_err(refused("a /proc of its own"))?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)?;
    exit_if_orphaned(alive)?;
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(signals), None).map_err(io::Error::from)?;
    Ok(())
}

/// The keeper may have ended before the death signal was armed; then its end of the pipe is closed.
fn exit_if_orphaned(alive: &OwnedFd) -> io::Result<()> {
    let mut fds = [PollFd::new(alive.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO)? > 0 {
        tracing::debug!(descriptor = alive.as_raw_fd(), "the keeper is gone");
        std::process::exit(EXIT_NOT_ISOLATED);
    }
    Ok(())
}

/// Waits for the supervisor's end and passes signals on, each exactly once.
///
/// Everything runs on this thread, because after unsharing the process namespace the kernel allows no further threads.
fn keep(child: Pid, signals: &SigSet, brokers: Vec<Broker>) -> io::Result<SupervisorExit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let serving = async {
            // Each connection takes one while it is made. Where the limit stays as it is, fewer fit.
            let _ = raise_open_files();
            for served in join_all(brokers.into_iter().map(Broker::serve)).await {
                if let Err(error) = served {
                    let told = format!("error: cannot open sockets of the machine any more: {error}\n");
                    let _ = io::Write::write_all(&mut io::stderr(), told.as_bytes());
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            ending = follow(child, signals) => ending,
            () = serving => Err(io::ErrorKind::Other.into()),
        }
    })
}

async fn follow(child: Pid, signals: &SigSet) -> io::Result<SupervisorExit> {
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    // SAFETY: a `SignalFd` owns its descriptor: open, and the same, until it is dropped.
    let pending = unsafe { AsyncFd::register(SignalFd::with_flags(signals, flags)?) }?;
    let next = |pending: &SignalFd| pending.read_signal()?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
    loop {
        let came = pending.async_io(Interest::READABLE, next).await?;
        match Signal::try_from(i32::try_from(came.ssi_signo).unwrap_or_default())? {
            Signal::SIGCHLD => match waitpid(child, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::Exited(_, status) => return Ok(SupervisorExit::Exited(u8::try_from(status).unwrap_or(1))),
                WaitStatus::Signaled(_, signal, _) => return Ok(SupervisorExit::Killed(signal)),
                _ => {}
            },
            Signal::SIGINT => kill(child, Signal::SIGINT)?,
            // A closed terminal means stop as well.
            _ => kill(child, Signal::SIGTERM)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{SigHandler, signal};

    use super::*;

    #[test]
    fn a_closed_terminal_ends_it_unless_that_is_ignored() {
        // SAFETY: neither of the two runs code of ours, and no other test depends on this signal.
        let set = |handler| unsafe { signal(Signal::SIGHUP, handler) }.expect("a disposition");
        set(SigHandler::SigIgn);
        assert!(!keeper_signals().contains(Signal::SIGHUP));
        set(SigHandler::SigDfl);
        assert!(keeper_signals().contains(Signal::SIGHUP));
    }
}
