//! A container for one program of a replica, as in a Pod: the replica's network and host name, its own view of the file
//! system, its own process namespace if it is an application, and only the privileges it needs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{OFlag, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use crate::confine::{Privileges, close_on_exec};
use crate::init;
use crate::namespace::{Handles, Namespace};
use crate::pidfd::PidFd;
use crate::view::{View, ViewError};

/// A container. It outlives its program, which may be restarted in it.
#[derive(Debug)]
pub struct Container {
    namespace: Arc<Namespace>,
    mount: Arc<OwnedFd>,
    processes: Option<Mutex<Processes>>,
    /// The privileges of its programs.
    pub privileges: Privileges,
}

/// The specification of a container.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// The view of the file system.
    pub view: View,
    /// The privileges.
    pub privileges: Privileges,
    /// The privileges of process 1 of their own process namespace; `None`: they see the processes of the whole mesh.
    pub init: Option<Privileges>,
}

/// A container that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// Its view of the file system could not be made.
    #[error(transparent)]
    View(#[from] ViewError),
    /// Its namespaces could not be made.
    #[error("cannot make a container: {0}")]
    Io(#[from] io::Error),
}

impl Container {
    /// Makes a container in a replica. It blocks. A new thread does the work, because the thread cannot leave the
    /// namespaces again.
    pub fn create(namespace: Arc<Namespace>, spec: ContainerSpec) -> Result<Self, ContainerError> {
        let worker = std::thread::Builder::new().name("container".to_owned()).spawn(move || {
            let handles = namespace.handles();
            let own = own_namespaces()?;
            // Joining a mount namespace takes a thread that shares its working directory with no other.
            unshare(CloneFlags::CLONE_FS).map_err(io::Error::from)?;
            handles.enter()?;
            unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from)?;
            spec.view.mount()?;
            let mount =
                openat(&own, "mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(io::Error::from)?;
            let processes = spec.init.map(|init| Processes::begin(&own, init, false)).transpose()?;
            Ok(Self {
                namespace,
                mount: Arc::new(mount),
                processes: processes.map(Mutex::new),
                privileges: spec.privileges,
            })
        })?;
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes a container panicked").into()))
    }

    /// The process namespace, if it has its own. A namespace whose first process has ended accepts no more processes,
    /// so it is then made again.
    fn processes(&self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(processes) = &self.processes else { return Ok(None) };
        let mut processes = processes.lock().unwrap_or_else(PoisonError::into_inner);
        if processes.init.wait(Duration::ZERO) {
            let (handles, privileges) = (self.handles(), processes.privileges);
            let made = std::thread::scope(|scope| {
                let worker =
                    std::thread::Builder::new().name("container".to_owned()).spawn_scoped(scope, move || {
                        let own = own_namespaces()?;
                        unshare(CloneFlags::CLONE_FS)?;
                        handles.enter()?;
                        Processes::begin(&own, privileges, true)
                    })?;
                worker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that renews a container panicked")))
            });
            *processes = made?;
        }
        Ok(Some(processes.namespace.clone()))
    }

    /// The replica it is part of.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// What a freshly forked child needs to enter it; see [`Namespace::handles`].
    pub fn handles(&self) -> Handles {
        Handles { mount: Arc::clone(&self.mount), ..self.namespace.handles() }
    }

    /// The descriptors, to hand to another process (`evenkeel exec`): network, mount, UTS, and processes if it has its own.
    ///
    /// # Errors
    /// If a namespace had to be made again and could not be.
    pub fn descriptors(&self) -> io::Result<([BorrowedFd<'_>; 3], Option<Arc<OwnedFd>>)> {
        let [network, _, uts] = self.namespace.descriptors();
        Ok(([network, self.mount.as_fd(), uts], self.processes()?))
    }

    /// Runs `fork` so that the child process is created inside the container. `fork` must not start any other thread or
    /// process.
    pub fn with_children_inside<T>(&self, fork: impl FnOnce() -> T) -> io::Result<T> {
        let Some(processes) = self.processes()? else { return Ok(fork()) };
        let home = File::open("/proc/thread-self/ns/pid")?;
        setns(&processes, CloneFlags::CLONE_NEWPID)?;
        let result = fork();
        if setns(home, CloneFlags::CLONE_NEWPID).is_err() {
            // Everything started from here on would be in the container, so the process cannot continue.
            std::process::abort();
        }
        Ok(result)
    }
}

/// A process namespace. Dropping it kills all processes in it.
#[derive(Debug)]
struct Processes {
    namespace: Arc<OwnedFd>,
    init: PidFd,
    /// Those of `init`.
    privileges: Privileges,
}

/// This thread's namespaces, which stay accessible when the thread can no longer find itself in `/proc`.
fn own_namespaces() -> io::Result<File> {
    File::open("/proc/thread-self/ns")
}

impl Processes {
    /// Creates the namespace with its first process, and mounts its `/proc` in this thread's mount namespace. `again`
    /// says whether an earlier `/proc` is mounted.
    fn begin(namespaces: &File, privileges: Privileges, again: bool) -> io::Result<Self> {
        unshare(CloneFlags::CLONE_NEWPID)?;
        let mut command = init::command();
        let prepare = move || {
            if again {
                // A failed attempt may already have unmounted it.
                let _ = umount2("/proc", MntFlags::MNT_DETACH);
            }
            own_proc()?;
            close_on_exec()?;
            privileges.drop_others()
        };
        // SAFETY: the closure only makes system calls, with strings that were allocated before.
        unsafe { command.pre_exec(prepare) };
        // The collector of orphans collects it.
        let init = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let init = PidFd::open(i32::try_from(init.id()).map_err(io::Error::other)?)?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let namespace = Arc::new(openat(namespaces, "pid_for_children", flags, Mode::empty())?);
        Ok(Self { namespace, init, privileges })
    }
}

/// Mounts a `/proc` with only the processes of this namespace, and with read-only kernel settings.
fn own_proc() -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)?;
    mount(Some("/proc/sys"), "/proc/sys", None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let read_only = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/proc/sys", None::<&str>, read_only, None::<&str>)
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.init.signal(Signal::SIGKILL);
    }
}
