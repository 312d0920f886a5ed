//! Bytes that the buffers of this thread's connections hold. A task has its thread to itself while it runs, so the difference
//! between before and after is what it took or gave back: see [`crate::worker::Charged`].

use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// A buffer of this thread has grown from `before` to `now` bytes, or shrunk.
#[inline]
pub(crate) fn changed(before: usize, now: usize) {
    // During thread exit nobody counts any more.
    _ = HELD.try_with(|held| held.set(held.get() + now as i64 - before as i64));
}

/// Bytes held now; what counts is the difference to another look.
#[inline]
pub(crate) fn now() -> i64 {
    HELD.try_with(Cell::get).unwrap_or(0)
}
