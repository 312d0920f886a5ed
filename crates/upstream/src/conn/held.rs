//! Counts the bytes held by the buffers of this thread's connections. Only one task runs on a thread at a time, so the
//! difference between before and after its turn is what the task took or gave back: see [`crate::worker::Charged`].

use std::cell::Cell;
use std::ops::Deref;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static READING: Cell<Reading> = const { Cell::new(Reading::Allowed) };
}

/// Whether the running task may read from its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Allowed,
    /// Once more in this turn.
    Once,
    /// Not in this turn.
    Paused,
    /// Not in this turn, and it tried to.
    Missed,
}

/// Runs a task's turn in which it may read once or not at all; also returns whether it tried to read more.
pub fn hardly_reading<T>(once: bool, run: impl FnOnce() -> T) -> (T, bool) {
    READING.set(if once { Reading::Once } else { Reading::Paused });
    let result = run();
    (result, READING.replace(Reading::Allowed) == Reading::Missed)
}

/// Whether a read has to wait; the code that paused the task wakes it again.
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

/// Records a read.
#[inline]
pub fn has_read() {
    if READING.get() == Reading::Once {
        READING.set(Reading::Paused);
    }
}

/// Records that a buffer of this thread grew or shrank from `before` to `now` bytes.
#[inline]
pub fn changed(before: usize, now: usize) {
    // During thread exit nothing is counted any more.
    _ = HELD.try_with(|held| held.set(held.get() + now as i64 - before as i64));
}

/// Bytes held now. Only the difference between two readings is meaningful.
#[inline]
pub fn now() -> i64 {
    HELD.try_with(Cell::get).unwrap_or(0)
}

/// Bytes that count as held for as long as this value lives.
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
