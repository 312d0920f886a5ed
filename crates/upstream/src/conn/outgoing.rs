//! Write buffers. Like [`super::Buffer`], a connection owns one only while it holds bytes.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::burst::{self, Ticket};
use super::{held, spare};
use crate::stream::Stream;

/// Bytes to be sent to a peer. Must be dropped before the stream they go to: see [`Outgoing::leaves_in_burst`].
#[derive(Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Total bytes that the stream has accepted.
    taken: usize,
    /// Capacity counted as held, because it waits for the peer while other tasks run.
    counted: usize,
    /// The stream accepted bytes since its last flush: TLS may still buffer them.
    unflushed: bool,
    /// All bytes wait for the worker's next burst, or left with it.
    ticket: Option<Ticket>,
    /// The burst could not send them all: they wait for the socket.
    stuck: bool,
}

impl Outgoing {
    /// The buffer to append to.
    #[inline]
    pub fn writer(&mut self) -> &mut Vec<u8> {
        if self.ticket.is_some() {
            // An error shows again with the next send.
            _ = self.end_burst();
        }
        if self.bytes.capacity() == 0 {
            self.bytes = spare::take();
        }
        &mut self.bytes
    }

    /// Bytes still to be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Total bytes that the stream is known to have accepted.
    #[inline]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether the socket accepted all bytes.
    #[inline]
    pub fn is_sent(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed && self.ticket.is_none()
    }

    /// Whether the bytes wait for the worker's next burst.
    pub fn is_in_burst(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::waits)
    }

    /// Queues the bytes for the worker's next burst, if that is worthwhile; on true, the caller need not wait for them.
    /// The task is woken only if something is left to send, which [`Outgoing::poll_send`] does. Until then nothing else
    /// may be written to the stream.
    pub fn leaves_in_burst(&mut self, stream: &Stream, cx: &mut Context<'_>) -> bool {
        if let Stream::Tcp(stream) = stream
            && self.ticket.is_none()
            && !(self.bytes.is_empty() || self.stuck)
            && self.sent == 0
        {
            self.ticket = burst::join(stream.as_raw_fd(), &mut self.bytes, cx.waker());
        }
        self.is_in_burst()
    }

    /// Takes the outcome of a queued burst, or takes the bytes back if they have not been sent yet.
    fn end_burst(&mut self) -> io::Result<()> {
        let Some(ticket) = self.ticket.take() else { return Ok(()) };
        let length = ticket.length();
        match ticket.outcome()? {
            None => self.taken += length,
            Some((bytes, sent)) => {
                self.taken += sent;
                (self.bytes, self.sent, self.stuck) = (bytes, sent, true);
            }
        }
        Ok(())
    }

    /// Discards everything unsent.
    pub fn clear(&mut self) {
        self.ticket = None;
        self.stuck = false;
        self.sent = 0;
        held::changed(std::mem::take(&mut self.counted), 0);
        spare::keep(std::mem::take(&mut self.bytes));
    }

    /// Sends and flushes everything. May be called again after an error; it then returns that error or another one.
    pub fn poll_send(&mut self, stream: &mut (impl AsyncWrite + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end_burst()?;
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(cx, rest) else {
                held::changed(self.counted, self.bytes.capacity());
                self.counted = self.bytes.capacity();
                return Poll::Pending;
            };
            match written? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => {
                    self.sent += count;
                    self.taken += count;
                }
            }
            self.unflushed = true;
        }
        if !self.bytes.is_empty() {
            self.clear();
        }
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts three bytes at a time, then is pending once.
    #[derive(Default)]
    struct Slow {
        taken: Vec<u8>,
        busy: bool,
        flushes: u32,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.busy = !self.busy;
            if !self.busy {
                return Poll::Pending;
            }
            let count = bytes.len().min(3);
            self.taken.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn sends_everything_once_and_remembers_to_flush() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let (mut slow, mut outgoing) = (Slow::default(), Outgoing::default());
        outgoing.writer().extend_from_slice(b"abcdefgh");
        let mut polls = 0;
        while outgoing.poll_send(&mut slow, &mut cx).is_pending() {
            polls += 1;
        }
        assert_eq!((slow.taken.as_slice(), polls, slow.flushes), (&b"abcdefgh"[..], 3, 2));
        assert!(outgoing.is_sent() && outgoing.bytes.capacity() == 0, "an empty buffer goes back to the pool");
    }
}
