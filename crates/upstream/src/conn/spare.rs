//! Write buffers that have been sent, kept for the next bytes.

use std::cell::RefCell;

/// Buffers a worker keeps, and the most bytes each of them may hold on to.
const MAX_POOLED: usize = 64;
const MAX_POOLED_BYTES: usize = 64 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with memory if there is any.
#[inline]
pub(super) fn take() -> Vec<u8> {
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Keeps a buffer's memory for the next, within limits.
pub(super) fn keep(mut bytes: Vec<u8>) {
    if (1..=MAX_POOLED_BYTES).contains(&bytes.capacity()) {
        bytes.clear();
        // During thread exit the pool may be gone; then the buffer is freed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED {
                pool.push(bytes);
            }
        });
    }
}
