//! Write buffers. A connection owns one only while bytes are in it, as with [`super::Buffer`].

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::held;

/// Write buffers a worker keeps for reuse, and the most bytes each of them may hold on to.
const MAX_POOLED: usize = 64;
const MAX_POOLED_BYTES: usize = 64 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes on their way to a peer.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Capacity that is counted as held: what waits for the peer while others have their turn.
    counted: usize,
    /// The stream took bytes since it was flushed last: TLS may still hold them.
    unflushed: bool,
}

impl Outgoing {
    /// Where to append.
    #[inline]
    pub(crate) fn writer(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        }
        &mut self.bytes
    }

    /// Bytes that are still to be sent.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// All bytes were taken by the socket.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed
    }

    /// Forgets what was not sent.
    pub(crate) fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        held::changed(std::mem::take(&mut self.counted), 0);
        if (1..=MAX_POOLED_BYTES).contains(&self.bytes.capacity()) {
            let bytes = std::mem::take(&mut self.bytes);
            // During thread exit the pool may be gone; then the buffer is freed.
            let _ = POOL.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                if pool.len() < MAX_POOLED {
                    pool.push(bytes);
                }
            });
        } else {
            self.bytes = Vec::new();
        }
    }

    /// Sends and flushes all there is. May be called again after an error, which it then repeats or turns into another.
    pub(crate) fn poll_send(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(cx, rest) else {
                held::changed(self.counted, self.bytes.capacity());
                self.counted = self.bytes.capacity();
                return Poll::Pending;
            };
            match written? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
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

    /// Takes three bytes at a time and is then busy once.
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
