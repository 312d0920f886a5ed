//! Read buffers. A connection owns one only while bytes are in it: idle connections cost no buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::held;
use crate::stream::Stream;

/// Size of a pooled block in bytes: fits a whole TLS record and most heads.
pub const BLOCK_BYTES: usize = 32 * 1024;
/// Blocks a worker keeps for reuse.
const MAX_POOLED_BLOCKS: usize = 64;
/// Size in bytes of a block for bulk data: eight TLS records.
pub const BULK_BYTES: usize = 128 * 1024;
/// Blocks of that size a worker keeps for reuse.
const MAX_POOLED_BULK_BLOCKS: usize = 2;
/// Up to this many bytes are moved to a block of their own size while more is awaited: a client that sends its head
/// byte by byte should not hold a whole block meanwhile.
const MAX_PARKED_BYTES: usize = 8 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static BULK_POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and not yet used.
#[derive(Default)]
pub struct Buffer {
    /// Zeroed once, then always initialized to its full length. Empty when no block is held; shorter than
    /// [`BLOCK_BYTES`] while its bytes are parked.
    block: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// A buffer that begins with `bytes`.
    pub fn with(bytes: &[u8]) -> Self {
        let mut buffer = Self::default();
        if !bytes.is_empty() {
            buffer.block = take_block(bytes.len());
            buffer.block[..bytes.len()].copy_from_slice(bytes);
            buffer.end = bytes.len();
        }
        buffer
    }

    /// The bytes in it.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.block[self.start..self.end]
    }

    /// The number of bytes in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Marks the first `count` bytes as used; a buffer that becomes empty returns its block to the pool.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.release();
        }
    }

    /// Reads once; `Ok(0)` is the end of the stream. Never holds more than `limit` bytes. While memory is scarce, the
    /// read may have to wait even if data is available.
    pub fn poll_fill(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if held::is_paused() {
            return Poll::Pending;
        }
        self.make_room(limit);
        let mut free = ReadBuf::new(&mut self.block[self.end..]);
        if free.remaining() == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, "read buffer limit")));
        }
        let result = Pin::new(stream).poll_read(cx, &mut free);
        let count = free.filled().len();
        self.end += count;
        if count > 0 {
            held::has_read();
        }
        if self.start == self.end {
            self.release();
        } else if result.is_pending() {
            self.park();
        }
        ready!(result)?;
        Poll::Ready(Ok(count))
    }

    /// Like [`Buffer::poll_fill`], into an empty buffer and from a stream with bulk data: larger reads wake the peers less often.
    pub fn poll_fill_bulk(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.block.is_empty() && !held::is_paused() {
            let pooled = BULK_POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
            self.block = pooled.unwrap_or_else(|| vec![0; BULK_BYTES]);
            held::changed(0, self.block.len());
        }
        self.poll_fill(stream, BULK_BYTES, cx)
    }

    /// Like [`Buffer::poll_fill`], from a connection of either side. Most have nothing to read most of the time; then
    /// no block is taken from the pool only to be given back.
    pub fn poll_receive(&mut self, stream: &mut Stream, limit: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if stream.poll_readable(cx).is_pending() {
            self.park();
            return Poll::Pending;
        }
        self.poll_fill(stream, limit, cx)
    }

    fn make_room(&mut self, limit: usize) {
        if self.block.len() < BLOCK_BYTES {
            let parked = std::mem::replace(&mut self.block, take_block(0));
            held::changed(parked.len(), 0);
            let bytes = parked.get(self.start..self.end).unwrap_or_default();
            self.block[..bytes.len()].copy_from_slice(bytes);
            (self.start, self.end) = (0, bytes.len());
        } else if self.end == self.block.len() {
            self.block.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.block.len() && self.end < limit {
                self.block.resize((self.end * 2).min(limit), 0);
                held::changed(self.end, self.block.len());
            }
        }
    }

    /// Returns the block to the pool and keeps the few remaining bytes in one of their size.
    fn park(&mut self) {
        if self.block.len() == BLOCK_BYTES && self.len() <= MAX_PARKED_BYTES {
            let parked = self.bytes().to_vec();
            self.release();
            held::changed(0, parked.len());
            self.end = parked.len();
            self.block = parked;
        }
    }

    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        let block = std::mem::take(&mut self.block);
        held::changed(block.len(), 0);
        let (pool, most) = match block.len() {
            BLOCK_BYTES => (&POOL, MAX_POOLED_BLOCKS),
            BULK_BYTES => (&BULK_POOL, MAX_POOLED_BULK_BLOCKS),
            _ => return,
        };
        // During thread exit the pool may be gone; then the block is freed.
        let _ = pool.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < most {
                pool.push(block);
            }
        });
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
    held::changed(0, at_least.max(BLOCK_BYTES));
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

    /// Alternates between one byte per read and nothing to read.
    struct Trickle(bool);

    impl AsyncRead for Trickle {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.0 = !self.0;
            if !self.0 {
                return Poll::Pending;
            }
            buffer.put_slice(b"x");
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_comes_slowly_is_held_in_little() {
        let before = held::now();
        let (mut buffer, mut trickle) = (Buffer::default(), Trickle(false));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for count in 1..=100 {
            assert!(matches!(buffer.poll_fill(&mut trickle, BLOCK_BYTES, &mut cx), Poll::Ready(Ok(1))));
            assert_eq!((buffer.len(), held::now() - before), (count, BLOCK_BYTES as i64));
            assert!(buffer.poll_fill(&mut trickle, BLOCK_BYTES, &mut cx).is_pending());
            assert_eq!(
                (buffer.bytes(), buffer.block.capacity(), held::now() - before),
                (&[b'x'; 100][..count], count, count as i64)
            );
        }
        buffer.consume(40);
        assert!(buffer.poll_fill(&mut trickle, BLOCK_BYTES, &mut cx).is_ready());
        assert_eq!(buffer.len(), 61);
        drop(buffer);
        assert_eq!(held::now(), before);
    }

    #[test]
    fn bulk_is_read_at_once_and_its_block_used_again() {
        let before = held::now();
        let many = vec![7; 2 * BULK_BYTES + 1];
        let mut source: &[u8] = &many;
        let mut buffer = Buffer::default();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut block = None;
        for expected in [BULK_BYTES, BULK_BYTES, 1, 0] {
            assert!(matches!(buffer.poll_fill_bulk(&mut source, &mut cx), Poll::Ready(Ok(count)) if count == expected));
            assert_eq!(buffer.bytes(), vec![7; expected]);
            if expected > 0 {
                assert_eq!(*block.get_or_insert(buffer.block.as_ptr()), buffer.block.as_ptr());
                assert_eq!(held::now() - before, BULK_BYTES as i64);
            }
            buffer.consume(expected);
            assert_eq!(held::now(), before);
        }
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
