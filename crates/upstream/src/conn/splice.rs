//! Bytes from one socket to another through a pipe, without a copy into this process (splice(2)).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes asked of a socket at once, and the pipe's capacity. The system's default for pipes is 64 KiB.
const PIPE_BYTES: usize = 512 * 1024;
/// Pipes a worker has at most, two descriptors each: idle and in use.
const MAX_PIPES: usize = 64;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { idle: Vec::new(), made: 0 }) };
}

struct Pool {
    idle: Vec<Ends>,
    made: usize,
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe on loan from its worker's pool, and the bytes in it.
pub struct Pipe {
    ends: Option<Ends>,
    held: usize,
}

impl Pipe {
    /// `None` when the worker has as many as it may, or the system has no more.
    pub fn take() -> Option<Self> {
        let ends = POOL.with_borrow_mut(|pool| match pool.idle.pop() {
            Some(ends) => Some(ends),
            None if pool.made < MAX_PIPES => {
                let ends = Ends::new().ok()?;
                pool.made += 1;
                Some(ends)
            }
            None => None,
        })?;
        Some(Self { ends: Some(ends), held: 0 })
    }

    /// Bytes in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes bytes out of `from`; ready with 0 at its end. To be called while nothing is held.
    pub fn poll_fill(&mut self, from: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(ends) = &self.ends else { return Poll::Ready(Ok(0)) };
        loop {
            let result =
                from.try_io(Interest::READABLE, || splice(from.as_raw_fd(), ends.write.as_raw_fd(), PIPE_BYTES));
            match result {
                Ok(count) => {
                    self.held += count;
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(from.poll_read_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Gives `to` some of what is held.
    pub fn poll_drain(&mut self, to: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(ends) = &self.ends else { return Poll::Ready(Ok(0)) };
        loop {
            let result = to.try_io(Interest::WRITABLE, || splice(ends.read.as_raw_fd(), to.as_raw_fd(), self.held));
            match result {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.held = self.held.saturating_sub(count);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(to.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        // During thread exit the pool may be gone; then the pipe is closed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            match self.held {
                0 => pool.idle.push(ends),
                // What is left in it must never come out elsewhere.
                _ => pool.made -= 1,
            }
        });
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        let mut fds: [RawFd; 2] = [-1; 2];
        // SAFETY: `fds` has room for the two descriptors that pipe2(2) writes.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: pipe2 has just opened both, and nobody else knows them.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let capacity = libc::c_int::try_from(PIPE_BYTES).unwrap_or(libc::c_int::MAX);
        // A user who has many pipes gets small ones: slower, and no error.
        // SAFETY: the descriptor is open; F_SETPIPE_SZ takes a number.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) };
        Ok(Self { read, write })
    }
}

fn splice(from: RawFd, to: RawFd, most: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: both descriptors are open for the call; null offsets are what sockets and pipes take.
    let count = unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), most, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
