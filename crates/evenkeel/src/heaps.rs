//! A separate heap for what the control plane builds from its configuration (`evenkeel_control::memory`).
//!
//! There are two heaps, used in turn: what remains of a configuration is built again in the other heap, and most of the
//! first heap becomes free.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_control::memory::Allocator;
use evenkeel_proxy::memory;

use crate::{allocator, purge};

unsafe extern "C" {
    /// Creates a heap for all threads (mimalloc's documentation, "First-class heaps"); null if memory is short.
    safe fn mi_heap_new() -> *mut c_void;
    /// This thread's part of a heap.
    fn mi_heap_theap(heap: *mut c_void) -> *mut c_void;
    /// The part that this thread allocates from.
    safe fn mi_theap_get_default() -> *mut c_void;
    /// Sets that part. mimalloc 3.3 declares the public `mi_theap_set_default`, but does not define it.
    fn _mi_theap_default_set(part: *mut c_void);
    /// Returns the free memory in this thread's part of a heap to the system.
    fn mi_theap_collect(part: *mut c_void, force: bool);
}

/// The functions that the control plane may call.
pub(crate) const ALLOCATOR: Allocator = Allocator { enter, leave, renew, at_once: purge::at_once, give_back, collect };

#[derive(Debug, Clone, Copy)]
struct Heap(*mut c_void);

// SAFETY: a heap may be used by all threads; each gets its own part of it.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

static HEAPS: OnceLock<[Heap; 2]> = OnceLock::new();
/// Number of switches of the current heap.
static TURN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The part that was in use before [`enter`]; null outside.
    static BEFORE: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
    /// This thread's parts of the heaps, as far as it has any.
    static PARTS: [Cell<*mut c_void>; 2] = const { [Cell::new(ptr::null_mut()), Cell::new(ptr::null_mut())] };
}

/// Allocates from the current heap until [`leave`]. Returns false if this thread already does, or if there is no heap.
fn enter() -> bool {
    let heaps = HEAPS.get_or_init(|| [Heap(mi_heap_new()), Heap(mi_heap_new())]);
    let turn = TURN.load(Ordering::Relaxed) % heaps.len();
    let heap = heaps[turn].0;
    if heap.is_null() || !BEFORE.get().is_null() {
        return false;
    }
    // SAFETY: the heap is one, and lives as long as the process.
    let part = unsafe { mi_heap_theap(heap) };
    if part.is_null() {
        return false;
    }
    PARTS.with(|parts| parts[turn].set(part));
    BEFORE.set(mi_theap_get_default());
    // SAFETY: a part of this thread, which lives as long as the thread.
    unsafe { _mi_theap_default_set(part) };
    true
}

/// Allocates again from where blocks came from before [`enter`].
fn leave() {
    let before = BEFORE.replace(ptr::null_mut());
    if !before.is_null() {
        // SAFETY: what this thread had before.
        unsafe { _mi_theap_default_set(before) };
    }
}

/// Switches to the other heap.
fn renew() {
    TURN.fetch_add(1, Ordering::Relaxed);
}

/// Lets all threads return their free memory; this thread does so at once. If two threads call it at the same time, one of
/// them does nothing.
fn give_back() {
    collect();
    memory::give_back();
}

/// Returns this thread's free memory to the system, in these heaps and in the default one.
pub(crate) fn collect() {
    allocator::collect();
    PARTS.with(|parts| {
        for part in parts.iter().map(Cell::get).filter(|part| !part.is_null()) {
            // SAFETY: a part of this thread, which lives as long as the thread.
            unsafe { mi_theap_collect(part, true) };
        }
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    unsafe extern "C" {
        /// The heap that a block is of.
        fn mi_heap_of(block: *const c_void) -> *mut c_void;
    }

    fn heap_of(block: &[u64]) -> usize {
        // SAFETY: any address may be asked about.
        unsafe { mi_heap_of(block.as_ptr().cast()) }.addr()
    }

    #[test]
    fn blocks_come_from_two_heaps_in_turn_and_may_be_freed_anywhere() {
        let outside = vec![1; 100];
        assert!(super::enter());
        assert!(!super::enter(), "entered already");
        let first = vec![2; 100];
        super::leave();
        let between = vec![3; 100];
        super::renew();
        assert!(super::enter());
        let second = vec![4; 100];
        super::leave();
        super::leave();
        let after = vec![5; 100];
        let main = heap_of(&outside);
        assert_eq!([heap_of(&between), heap_of(&after)], [main, main]);
        let all = std::collections::BTreeSet::from([main, heap_of(&first), heap_of(&second)]);
        assert_eq!(all.len(), 3);
        // A block that grows inside is of the heap that is entered, whichever it was of.
        std::thread::spawn(move || {
            assert!(super::enter());
            let mut grown = outside;
            grown.resize(100_000, 0);
            assert_eq!(heap_of(&grown), heap_of(&second));
            super::leave();
            drop((grown, first, second));
            super::collect();
        })
        .join()
        .expect("a thread that ends");
        assert!(super::enter());
        super::leave();
        super::collect();
    }
}
