//! A replica's namespaces: network, mount and UTS, held open by file descriptors.
//!
//! No process has to stay inside to keep a namespace alive, so a replica's address, rules and `/etc/resolv.conf` survive
//! the restarts of its program and of its proxy, as a pod's do.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sched::{CloneFlags, setns, unshare};

/// Network, mount and UTS namespace of one replica.
#[derive(Debug)]
pub struct Namespace {
    network: OwnedFd,
    mount: OwnedFd,
    uts: OwnedFd,
}

impl Namespace {
    /// Makes the namespaces and runs `setup` inside them, before anything else can be there.
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
        let open = |name: &str| File::open(format!("/proc/thread-self/ns/{name}")).map(OwnedFd::from);
        Ok(Self { network: open("net")?, mount: open("mnt")?, uts: open("uts")? })
    }

    /// The descriptors, to hand to another process (`evenkeel exec`) in the order `Handles` expects them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.network.as_fd(), self.mount.as_fd(), self.uts.as_fd()]
    }

    /// What a freshly forked child needs to enter them: plain numbers, so that nothing is allocated after the fork.
    pub fn handles(&self) -> Handles {
        Handles { network: self.network.as_raw_fd(), mount: self.mount.as_raw_fd(), uts: self.uts.as_raw_fd() }
    }

    /// Runs `work` with this thread in the replica's network, to open sockets: a socket stays in the network it was
    /// made in.
    ///
    /// `work` must not block or await; the thread goes back before this returns.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let home = File::open("/proc/thread-self/ns/net")?;
        setns(&self.network, CloneFlags::CLONE_NEWNET)?;
        let result = work();
        if setns(home, CloneFlags::CLONE_NEWNET).is_err() {
            // Later sockets of this process would be opened in the wrong network, so the process cannot go on.
            std::process::abort();
        }
        Ok(result)
    }
}

/// Raw descriptors of a [`Namespace`] that outlives them.
#[derive(Debug, Clone, Copy)]
pub struct Handles {
    /// Network namespace.
    pub network: RawFd,
    /// Mount namespace.
    pub mount: RawFd,
    /// UTS (host name) namespace.
    pub uts: RawFd,
}

impl Handles {
    /// Moves the calling process into them. It makes only async-signal-safe calls, for use between fork and exec.
    ///
    /// Joining a mount namespace resets the working directory to its root.
    pub fn enter(self) -> io::Result<()> {
        join(self.uts, libc::CLONE_NEWUTS)?;
        join(self.network, libc::CLONE_NEWNET)?;
        join(self.mount, libc::CLONE_NEWNS)
    }
}

/// `setns(2)` on a raw descriptor.
pub(crate) fn join(descriptor: RawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: setns takes two integers and touches no memory of ours; a bad descriptor is an error, not undefined.
    if unsafe { libc::setns(descriptor, kind) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
