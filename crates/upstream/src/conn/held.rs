//! Bytes that the buffers of this thread's connections hold. A task has its thread to itself while it runs, so the difference
//! between before and after is what it took or gave back: see [`crate::worker::Charged`].

use std::cell::Cell;
use std::ops::Deref;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static READING: Cell<Reading> = const { Cell::new(Reading::Allowed) };
}

/// Whether the task that runs may read from its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Allowed,
    /// Once in this turn.
    Once,
    /// Not in this turn.
    Paused,
    /// Not in this turn, and it wanted to.
    Missed,
}

/// Runs a task's turn in which it may read once or not at all; true when it would have read more.
pub fn hardly_reading<T>(once: bool, run: impl FnOnce() -> T) -> (T, bool) {
    READING.set(if once { Reading::Once } else { Reading::Paused });
    let result = run();
    (result, READING.replace(Reading::Allowed) == Reading::Missed)
}

/// Whether a read has to wait; whoever paused the task wakes it.
#[inline]
pub fn is_paused() -> bool {
    match READING.get() {
        Reading::Allowed | Reading::Once => false,
        Reading::Paused | Reading::Missed => {
            READING.set(Reading::Missed);
            true
        }
    }
}

/// Something was read.
#[inline]
pub fn has_read() {
    if READING.get() == Reading::Once {
        READING.set(Reading::Paused);
    }
}

/// A buffer of this thread has grown from `before` to `now` bytes, or shrunk.
#[inline]
pub fn changed(before: usize, now: usize) {
    // During thread exit nobody counts any more.
    _ = HELD.try_with(|held| held.set(held.get() + now as i64 - before as i64));
}

/// Bytes held now; what counts is the difference to another look.
#[inline]
pub fn now() -> i64 {
    HELD.try_with(Cell::get).unwrap_or(0)
}

/// Bytes that are kept, and count as held for as long as they last.
#[derive(Debug, Default)]
pub struct HeldBytes(Vec<u8>);

impl HeldBytes {
    /// Appends `data`.
    pub fn extend(&mut self, data: &[u8]) {
        let before = self.0.capacity();
        self.0.extend_from_slice(data);
        changed(before, self.0.capacity());
    }
}

impl From<Vec<u8>> for HeldBytes {
    fn from(bytes: Vec<u8>) -> Self {
        changed(0, bytes.capacity());
        Self(bytes)
    }
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        changed(self.0.capacity(), 0);
    }
}
