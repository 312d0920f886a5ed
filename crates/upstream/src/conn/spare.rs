//! Pool of write buffers whose bytes have been sent.

use std::cell::RefCell;

/// Maximum number of buffers in a worker's pool, and maximum capacity in bytes of a pooled buffer.
const MAX_POOLED: usize = 64;
const MAX_POOLED_BYTES: usize = 64 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, with capacity if the pool has one.
#[inline]
pub(super) fn take() -> Vec<u8> {
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Returns a buffer's memory to the pool, within the limits above.
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
