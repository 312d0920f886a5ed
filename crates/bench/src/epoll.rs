//! Level-triggered epoll, as little of it as the relay and the backend need.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Events taken from the kernel in one call.
const BATCH: usize = 256;

/// Connections that may wait to be accepted. The standard library asks for 128, which a load of 256 that connects at once overflows: what
/// does not fit is tried again after a second.
const BACKLOG: libc::c_int = 4096;

/// Listens on `address` without ever waiting in accept(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // SAFETY: the descriptor is open; a second call changes the backlog.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What a registered descriptor waits for.
#[derive(Clone, Copy)]
pub enum Interest {
    /// Bytes, or the peer's end.
    Read,
    /// Room in the send buffer.
    Write,
    /// Nothing but errors.
    None,
}

impl Interest {
    fn bits(self) -> u32 {
        match self {
            Self::Read => libc::EPOLLIN.cast_unsigned(),
            Self::Write => libc::EPOLLOUT.cast_unsigned(),
            Self::None => 0,
        }
    }
}

/// One epoll instance and its event buffer.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Vec::with_capacity(BATCH) })
    }

    /// Registers `target`; its events carry `token`.
    pub fn add(&self, target: &impl AsRawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, target, token, interest)
    }

    /// Changes what `target` waits for.
    pub fn change(&self, target: &impl AsRawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, target, token, interest)
    }

    /// Waits for events and appends their tokens to `ready`.
    pub fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.wait_for(None, ready)
    }

    /// The same, for at most this long, to the nanosecond.
    pub fn wait_for(&mut self, limit: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the buffer has room for BATCH events, and the kernel writes at most that many; the limit is null or a timespec
        // that outlives the call; no signal mask is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as i32,
                limit,
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        };
        // SAFETY: the kernel has written `count` events.
        unsafe { self.events.set_len(count) };
        ready.extend(self.events.iter().map(|event| event.u64 as usize));
        Ok(())
    }

    fn control(&self, operation: i32, target: &impl AsRawFd, token: usize, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token as u64 };
        // SAFETY: `event` outlives the call, and both descriptors are open.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, target.as_raw_fd(), &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
