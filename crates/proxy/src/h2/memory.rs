//! Buffers lent to streams and connections while they hold bytes; idle ones hold none.

use std::cell::RefCell;

/// Buffers a worker keeps for reuse.
const MAX_KEPT: usize = 64;
/// Largest buffer that is kept, in bytes.
const MAX_KEPT_BYTES: usize = 32 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with memory if there is some to spare.
pub(super) fn take() -> Vec<u8> {
    SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Gives a buffer back.
pub(super) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > MAX_KEPT_BYTES {
        return;
    }
    buffer.clear();
    // During thread exit there is nothing to give it to, and it is freed.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MAX_KEPT {
            spare.push(buffer);
        }
    });
}

/// Bytes that come in at one end and leave at the other. Costs no memory while it is empty.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    at: usize,
}

impl Chunk {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = take();
        } else if self.at > 0 && self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.bytes.len());
        if self.at == self.bytes.len() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.at = 0;
        give(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_gives_its_memory_back_when_it_is_empty() {
        let mut chunk = Chunk::default();
        chunk.push(b"abc");
        chunk.push(b"def");
        chunk.consume(4);
        assert_eq!((chunk.bytes(), chunk.len()), (&b"ef"[..], 2));
        chunk.push(&[b'x'; 100]);
        assert_eq!((chunk.len(), &chunk.bytes()[..3]), (102, &b"efx"[..]));
        chunk.consume(1000);
        assert!(chunk.is_empty() && chunk.bytes.capacity() == 0);
    }
}
