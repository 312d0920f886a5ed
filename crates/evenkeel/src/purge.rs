//! When the allocator returns free pages to the system.

use std::ffi::{c_int, c_long};

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
