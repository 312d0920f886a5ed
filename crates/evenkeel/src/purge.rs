//! Settings of the allocator for returning free pages to the system.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    /// Sets an option at run time (mimalloc's documentation, "Runtime Options").
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay`: milliseconds until a free page is returned to the system.
const PURGE_DELAY: c_int = 15;

/// Milliseconds for which the control plane keeps a free page. When it is idle after a burst, it returns the memory
/// that the burst needed. Returning pages at once would make each change a tenth more expensive: 300 page faults to get
/// them back for the next one.
const KEPT_MS: c_long = 1000;

/// Sets whether free pages return to the system at once or after a second.
pub fn at_once(at_once: bool) {
    mi_option_set(PURGE_DELAY, if at_once { 0 } else { KEPT_MS });
}

/// Whether this process starts: see [`while_starting`].
static STARTING: AtomicBool = AtomicBool::new(false);

/// Returns free pages at once until [`started`]. A start fills pages that the process does not need afterwards. If they
/// were kept for a second, blocks that stay would be spread over them and would keep all of them.
pub fn while_starting() {
    STARTING.store(true, Ordering::Relaxed);
    at_once(true);
}

/// The start is over, if [`while_starting`] has said that there is one.
pub fn started() {
    if STARTING.swap(false, Ordering::Relaxed) {
        at_once(false);
    }
}
