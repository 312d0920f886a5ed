//! When the allocator returns free pages to the system.

use std::ffi::{c_int, c_long};

unsafe extern "C" {
    /// Sets an option at run time (mimalloc's documentation, "Runtime Options").
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay`: milliseconds until a free page is returned to the system.
const PURGE_DELAY: c_int = 15;

/// Has free pages returned to the system at once, rather than when something is allocated again after a while. For the control
/// plane, which is at rest after a burst; a proxy would pay for it with every burst of requests.
pub fn at_once() {
    mi_option_set(PURGE_DELAY, 0);
}
