//! The allocator: small and fast, and it returns memory; a sidecar stands beside every replica.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// What every allocation of mimalloc's that is as large is aligned to, in bytes (`MI_MAX_ALIGN_SIZE`).
const NATURAL_ALIGNMENT: usize = 16;

unsafe extern "C" {
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_zalloc(size: usize) -> *mut c_void;
    fn mi_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    /// Returns free memory of the calling thread's heap to the system (mimalloc's documentation, "Extended Functions").
    safe fn mi_collect(force: bool);
}

/// mimalloc, asked for an alignment only where it is not given anyway: what is asked for by alignment and is over 1 KiB, as the
/// futures of requests are, it takes out of larger blocks, by a way that is several times as long.
struct Allocator;

fn is_natural(size: usize, alignment: usize) -> bool {
    alignment <= NATURAL_ALIGNMENT && alignment <= size
}

// SAFETY: all of it is mimalloc's, whose functions for the same heap may be mixed; `is_natural` says when those without alignment give
// what the layout asks for.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_natural(layout.size(), layout.align()) {
            // SAFETY: any size may be asked for.
            true => unsafe { mi_malloc(layout.size()) }.cast(),
            // SAFETY: the caller's layout is passed on.
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_natural(layout.size(), layout.align()) {
            // SAFETY: any size may be asked for.
            true => unsafe { mi_zalloc(layout.size()) }.cast(),
            // SAFETY: the caller's layout is passed on.
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got the pointer from here, so it is mimalloc's.
        unsafe { MiMalloc.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match is_natural(size, layout.align()) {
            // SAFETY: the caller got the pointer from here, so it is mimalloc's.
            true => unsafe { mi_realloc(pointer.cast(), size) }.cast(),
            // SAFETY: what the caller promises is passed on.
            false => unsafe { MiMalloc.realloc(pointer, layout, size) },
        }
    }
}

/// Returns what this thread has free to the system.
pub(crate) fn collect() {
    mi_collect(true);
}
