//! Read buffers. A connection owns one only while bytes are in it: idle connections cost no buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Size of a pooled block in bytes: one read of a TLS record and more, and most heads.
pub(crate) const BLOCK_BYTES: usize = 32 * 1024;
/// Blocks a worker keeps for reuse.
const MAX_POOLED_BLOCKS: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and not yet used.
#[derive(Default)]
pub(crate) struct Buffer {
    /// Zeroed once and then always initialized to its full length; empty when no block is held.
    block: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// A buffer that begins with `bytes`.
    pub(crate) fn with(bytes: &[u8]) -> Self {
        let mut buffer = Self::default();
        if !bytes.is_empty() {
            buffer.block = take_block(bytes.len());
            buffer.block[..bytes.len()].copy_from_slice(bytes);
            buffer.end = bytes.len();
        }
        buffer
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block[self.start..self.end]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Marks the first `count` bytes as used; an empty buffer gives its block back.
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.release();
        }
    }

    /// Reads once; `Ok(0)` is the end of the stream. At most `limit` bytes are ever held.
    pub(crate) fn poll_fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.make_room(limit);
        let mut free = ReadBuf::new(&mut self.block[self.end..]);
        if free.remaining() == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, "read buffer limit")));
        }
        let result = Pin::new(stream).poll_read(cx, &mut free);
        let count = free.filled().len();
        self.end += count;
        if self.start == self.end {
            self.release();
        }
        ready!(result)?;
        Poll::Ready(Ok(count))
    }

    fn make_room(&mut self, limit: usize) {
        if self.block.is_empty() {
            self.block = take_block(0);
        } else if self.end == self.block.len() {
            self.block.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.block.len() && self.end < limit {
                self.block.resize((self.end * 2).min(limit), 0);
            }
        }
    }

    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        let block = std::mem::take(&mut self.block);
        if block.len() == BLOCK_BYTES {
            // During thread exit the pool may be gone; then the block is freed.
            let _ = POOL.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                if pool.len() < MAX_POOLED_BLOCKS {
                    pool.push(block);
                }
            });
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.block.is_empty() {
            self.release();
        }
    }
}

fn take_block(at_least: usize) -> Vec<u8> {
    if at_least > BLOCK_BYTES {
        return vec![0; at_least];
    }
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_else(|| vec![0; BLOCK_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_read_and_gives_its_block_back() {
        let mut buffer = Buffer::with(b"abc");
        let mut source: &[u8] = b"def";
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(buffer.poll_fill(&mut source, BLOCK_BYTES, &mut cx), Poll::Ready(Ok(3))));
        assert_eq!(buffer.bytes(), b"abcdef");
        buffer.consume(4);
        assert_eq!(buffer.bytes(), b"ef");
        assert!(matches!(buffer.poll_fill(&mut source, BLOCK_BYTES, &mut cx), Poll::Ready(Ok(0))));
        buffer.consume(2);
        assert!(buffer.is_empty() && buffer.block.is_empty());
    }

    #[test]
    fn grows_to_its_limit_and_no_further() {
        let many = vec![7; 100_000];
        let mut source: &[u8] = &many;
        let mut buffer = Buffer::default();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let error = loop {
            match buffer.poll_fill(&mut source, 70_000, &mut cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => break error,
                Poll::Pending => unreachable!("a slice is always ready"),
            }
        };
        assert_eq!((error.kind(), buffer.len()), (io::ErrorKind::OutOfMemory, 70_000));
    }
}
