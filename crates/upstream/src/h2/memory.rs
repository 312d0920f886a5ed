//! Buffers lent to streams and connections while they need them; idle ones hold none.

use std::cell::RefCell;

use evenkeel_http::{RequestHead, ResponseHead};

/// A worker's pool of reusable values, limited in number.
struct Spare<T> {
    items: RefCell<Vec<T>>,
    most: usize,
}

impl<T> Spare<T> {
    const fn new(most: usize) -> Self {
        Self { items: RefCell::new(Vec::new()), most }
    }

    fn take(&self) -> Option<T> {
        self.items.borrow_mut().pop()
    }

    fn give(&self, item: T) {
        let mut items = self.items.borrow_mut();
        if items.len() < self.most {
            items.push(item);
        }
    }
}

/// Maximum size of a stream buffer that is kept, in bytes.
const MAX_KEPT_BYTES: usize = 32 * 1024;
/// Stream buffers that [`trim`] leaves in the pool.
const RESTING_BODIES: usize = 64;
/// Maximum size of a connection buffer that is kept, in bytes: the output of a turn in which hundreds of streams sent
/// responses.
const MAX_KEPT_OUTPUT_BYTES: usize = 1024 * 1024;

thread_local! {
    /// Buffers for streams' bodies.
    static BODIES: Spare<Vec<u8>> = const { Spare::new(256) };
    /// Buffers for connections' output. Nearly all are small; only few are large, since connections take turns.
    static OUTPUTS: Spare<Vec<u8>> = const { Spare::new(4) };
    static REQUESTS: Spare<RequestHead> = const { Spare::new(256) };
    static RESPONSES: Spare<ResponseHead> = const { Spare::new(256) };
}

// During thread exit the pools are gone; then memory is allocated and freed.

fn take() -> Vec<u8> {
    BODIES.try_with(Spare::take).ok().flatten().unwrap_or_default()
}

fn give(mut buffer: Vec<u8>) {
    if (1..=MAX_KEPT_BYTES).contains(&buffer.capacity()) {
        buffer.clear();
        _ = BODIES.try_with(|spare| spare.give(buffer));
    }
}

/// An empty buffer for a connection's output, with capacity if the pool has one.
pub(super) fn take_output() -> Vec<u8> {
    OUTPUTS.try_with(Spare::take).ok().flatten().unwrap_or_default()
}

/// Returns a connection's output buffer to the pool.
pub(super) fn give_output(buffer: Vec<u8>) {
    if (1..=MAX_KEPT_OUTPUT_BYTES).contains(&buffer.capacity()) {
        _ = OUTPUTS.try_with(|spare| spare.give(buffer));
    }
}

/// Frees memory that only large turns in the past needed. Call about once a second.
pub fn trim() {
    _ = BODIES.try_with(|spare| spare.items.borrow_mut().truncate(RESTING_BODIES));
    _ = OUTPUTS.try_with(|spare| spare.items.borrow_mut().retain(|buffer| buffer.capacity() <= MAX_KEPT_BYTES));
}

/// An empty head, with capacity if the pool has one.
pub(super) fn take_request() -> RequestHead {
    REQUESTS.try_with(Spare::take).ok().flatten().unwrap_or_default()
}

/// Returns a request head's memory to the pool.
pub fn give_request(mut head: RequestHead) {
    head.clear();
    _ = REQUESTS.try_with(|spare| spare.give(head));
}

/// An empty head, with capacity if the pool has one.
pub(super) fn take_response() -> ResponseHead {
    RESPONSES.try_with(Spare::take).ok().flatten().unwrap_or_default()
}

/// Returns a response head's memory to the pool.
pub(super) fn give_response(mut head: ResponseHead) {
    head.clear();
    _ = RESPONSES.try_with(|spare| spare.give(head));
}

/// A byte queue. Holds no memory while it is empty.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    at: usize,
}

impl Chunk {
    /// The bytes in the queue.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
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

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
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
