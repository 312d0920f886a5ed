//! Level-triggered epoll, with only the operations that the relay and the backend need.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::SockRef;

/// Events taken from the kernel in one call.
const BATCH: usize = 256;

/// Connections that may wait to be accepted. The standard library asks for 128, which a load of 256 that connects at once overflows: what
/// does not fit is tried again after a second.
const BACKLOG: i32 = 4096;

/// Listens on `address` without ever waiting in accept(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // A second call changes the backlog.
    SockRef::from(&listener).listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The events that a registered descriptor waits for.
#[derive(Clone, Copy)]
pub enum Interest {
    /// Bytes, or the peer's end.
    Read,
    /// Room in the send buffer.
    Write,
    /// Either of them.
    Both,
    /// Only errors.
    None,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN | EventFlags::OUT,
            Self::None => EventFlags::empty(),
        }
    }
}

/// One epoll instance and its event buffer.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<Event>,
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    /// Registers `target`; its events carry `token`.
    pub fn add(&self, target: &impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, target, EventData::new_u64(token as u64), interest.flags())?)
    }

    /// Changes what `target` waits for.
    pub fn change(&self, target: &impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, target, EventData::new_u64(token as u64), interest.flags())?)
    }

    /// Waits for events and appends their tokens to `ready`.
    pub fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.wait_for(None, ready)
    }

    /// Like [`wait`](Self::wait), for at most this long, with a resolution of a nanosecond.
    pub fn wait_for(&mut self, limit: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        let limit = limit
            .map(|limit| Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) });
        self.events.clear();
        match epoll::wait(&self.fd, spare_capacity(&mut self.events), limit.as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            waited => waited?,
        };
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}
