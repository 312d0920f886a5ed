//! Moves bytes from one socket to another through a pipe, without copying them into this process (splice(2)).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes requested of a socket at once, and the pipe's capacity. The kernel's default for pipes is 64 KiB.
const PIPE_BYTES: usize = 512 * 1024;
/// Maximum number of pipes per worker, idle and in use. Each takes two descriptors.
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
    /// `None` when the worker has as many as it may, or the kernel grants no more.
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

    /// Moves bytes from `from` into the pipe; ready with 0 at the end of the stream. The pipe must be empty.
    pub fn poll_fill(&mut self, from: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(ends) = &self.ends else { return Poll::Ready(Ok(0)) };
        loop {
            let result = from.try_io(Interest::READABLE, || splice(from, &ends.write, PIPE_BYTES));
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

    /// Moves bytes from the pipe to `to`.
    pub fn poll_drain(&mut self, to: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(ends) = &self.ends else { return Poll::Ready(Ok(0)) };
        loop {
            let result = to.try_io(Interest::WRITABLE, || splice(&ends.read, to, self.held));
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
                // Never reuse a pipe that still holds another connection's bytes.
                _ => pool.made -= 1,
            }
        });
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Past its pipe quota, a user gets small pipes: slower, but no error.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Self { read, write })
    }
}

fn splice(from: &impl AsFd, to: &impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(rustix::pipe::splice(from, None, to, None, most, flags)?)
}
