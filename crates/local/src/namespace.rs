//! A replica's namespaces: network, mount and UTS, held open by file descriptors.
//!
//! No process has to stay inside to keep a namespace alive, so a replica's address, rules and `/etc/resolv.conf` survive
//! the restarts of its program and of its proxy, as a pod's do.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

/// Network, mount and UTS namespace of one replica.
#[derive(Debug)]
pub struct Namespace(Handles);

impl Namespace {
    /// Makes the namespaces and runs `setup` inside them, before any program can be there.
    ///
    /// Blocks as long as `setup` does. It uses a new thread, because unsharing cannot be undone for a thread.
    pub fn create<E: From<io::Error> + Send + 'static>(
        setup: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<Self, E> {
        let worker = std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
                .map_err(io::Error::from)?;
            let namespace = Self::of_this_thread()?;
            setup()?;
            Ok(namespace)
        })?;
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that sets a namespace up panicked").into()))
    }

    /// The namespaces of the calling thread.
    pub fn of_this_thread() -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/thread-self/ns/{name}")).map(|file| Arc::new(file.into()));
        Ok(Self(Handles { network: open("net")?, mount: open("mnt")?, uts: open("uts")? }))
    }

    /// The descriptors, to hand to another process (`evenkeel exec`) in the order `Handles` expects them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.0.network.as_fd(), self.0.mount.as_fd(), self.0.uts.as_fd()]
    }

    /// What a freshly forked child needs to move in; made before the fork, since nothing may be allocated after it.
    pub fn handles(&self) -> Handles {
        self.0.clone()
    }

    /// Runs `work` with this thread in the replica's network, to open sockets: a socket stays in the network it was
    /// made in.
    ///
    /// `work` must not block or await; the thread goes back before this returns.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let home = File::open("/proc/thread-self/ns/net")?;
        setns(&self.0.network, CloneFlags::CLONE_NEWNET)?;
        let result = work();
        if setns(home, CloneFlags::CLONE_NEWNET).is_err() {
            // Later sockets of this process would be opened in the wrong network, so the process cannot continue.
            std::process::abort();
        }
        Ok(result)
    }
}

/// The descriptors of a [`Namespace`].
#[derive(Debug, Clone)]
pub struct Handles {
    /// Network namespace.
    pub network: Arc<OwnedFd>,
    /// Mount namespace.
    pub mount: Arc<OwnedFd>,
    /// UTS (host name) namespace.
    pub uts: Arc<OwnedFd>,
}

impl Handles {
    /// Moves the calling process into them. It makes only async-signal-safe calls, for use between fork and exec.
    ///
    /// Joining a mount namespace resets the working directory to its root.
    pub fn enter(&self) -> io::Result<()> {
        setns(&self.uts, CloneFlags::CLONE_NEWUTS)?;
        setns(&self.network, CloneFlags::CLONE_NEWNET)?;
        Ok(setns(&self.mount, CloneFlags::CLONE_NEWNS)?)
    }
}
