//! A heap for what a control plane makes of its configuration, apart from all else (`evenkeel_control::memory`).
//!
//! There are two, used in turn: what is left of a configuration is built anew in the other one, and the one it was in
//! becomes free but for what is still in use here and there.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_control::memory::Allocator;
use evenkeel_proxy::memory;

use crate::{allocator, purge};

unsafe extern "C" {
    /// A heap, for all threads (mimalloc's documentation, "First-class heaps"); null where memory is short.
    safe fn mi_heap_new() -> *mut c_void;
    /// This thread's part of a heap.
    fn mi_heap_theap(heap: *mut c_void) -> *mut c_void;
    /// The part that this thread takes blocks from.
    safe fn mi_theap_get_default() -> *mut c_void;
    /// Sets that. The public `mi_theap_set_default` is declared in mimalloc 3.3, and left out of its sources.
    fn _mi_theap_default_set(part: *mut c_void);
    /// Returns what is free in this thread's part of a heap.
    fn mi_theap_collect(part: *mut c_void, force: bool);
}

/// What a control plane may ask for.
pub(crate) const ALLOCATOR: Allocator = Allocator { enter, leave, renew, at_once: purge::at_once, give_back, collect };

#[derive(Debug, Clone, Copy)]
struct Heap(*mut c_void);

// SAFETY: a heap may be used by all threads; each gets its own part of it.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

static HEAPS: OnceLock<[Heap; 2]> = OnceLock::new();
/// How often the heap in use was changed.
static TURN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Where blocks came from before [`enter`]; null outside.
    static BEFORE: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
    /// This thread's parts of the heaps, as far as it has any.
    static PARTS: [Cell<*mut c_void>; 2] = const { [Cell::new(ptr::null_mut()), Cell::new(ptr::null_mut())] };
}

/// Takes blocks from the heap in use until [`leave`]; false if this thread does, or there is none.
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

/// Takes blocks from where they came from before [`enter`].
fn leave() {
    let before = BEFORE.replace(ptr::null_mut());
    if !before.is_null() {
        // SAFETY: what this thread had before.
        unsafe { _mi_theap_default_set(before) };
    }
}

/// Takes blocks from the other heap from now on.
fn renew() {
    TURN.fetch_add(1, Ordering::Relaxed);
}

/// Has all threads return what they have free, this one at once: of two that do at the same time one leaves it at that.
fn give_back() {
    collect();
    memory::give_back();
}

/// Returns what this thread has free to the system, in these heaps and elsewhere.
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
