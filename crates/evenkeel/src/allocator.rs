//! The memory allocator: mimalloc. It is small and fast and returns memory to the system, which matters because every
//! replica has a sidecar.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use evenkeel_profile::heap;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The alignment of every mimalloc block of at least this size, in bytes (`MI_MAX_ALIGN_SIZE`).
const NATURAL_ALIGNMENT: usize = 16;

unsafe extern "C" {
    fn mi_malloc(size: usize) -> *mut c_void;
    fn mi_zalloc(size: usize) -> *mut c_void;
    fn mi_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    /// Returns free memory of the calling thread's heap to the system (mimalloc's documentation, "Extended Functions").
    safe fn mi_collect(force: bool);
}

/// mimalloc, which profiles watch ([`heap`]), called with an explicit alignment only where the natural one is not enough. It serves aligned allocations
/// over 1 KiB, such as the futures of requests, from larger blocks, on a code path that is several times as long.
struct Allocator;

fn is_natural(size: usize, alignment: usize) -> bool {
    alignment <= NATURAL_ALIGNMENT && alignment <= size
}

// SAFETY: all functions are mimalloc's, which may be mixed for the same heap; `is_natural` says when those without
// alignment satisfy the layout.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = if is_natural(layout.size(), layout.align()) {
            // SAFETY: any size is allowed.
            unsafe { mi_malloc(layout.size()) }.cast()
        } else {
            // SAFETY: the caller's layout is passed on.
            unsafe { MiMalloc.alloc(layout) }
        };
        heap::allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = if is_natural(layout.size(), layout.align()) {
            // SAFETY: any size is allowed.
            unsafe { mi_zalloc(layout.size()) }.cast()
        } else {
            // SAFETY: the caller's layout is passed on.
            unsafe { MiMalloc.alloc_zeroed(layout) }
        };
        heap::allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        heap::freed(pointer);
        // SAFETY: the caller got the pointer from here, so it is mimalloc's.
        unsafe { MiMalloc.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Before another thread can get the block.
        heap::freed(pointer);
        let block = if is_natural(size, layout.align()) {
            // SAFETY: the caller got the pointer from here, so it is mimalloc's.
            unsafe { mi_realloc(pointer.cast(), size) }.cast()
        } else {
            // SAFETY: what the caller promises is passed on.
            unsafe { MiMalloc.realloc(pointer, layout, size) }
        };
        heap::allocated(block, size);
        block
    }
}

/// Returns this thread's free memory to the system.
pub(crate) fn collect() {
    mi_collect(true);
}
