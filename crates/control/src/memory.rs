//! Hooks into the program's allocator, with which the control plane keeps the memory of its configuration apart.
//!
//! A configuration comes and goes, while the streams of proxies stay. If blocks of both lie in the same pages, a few bytes of
//! streams keep every page that a configuration once filled. So data derived from the configuration is allocated from a
//! separate heap, and from a new heap when most of the configuration has been removed and the rest is built anew.

use std::marker::PhantomData;
use std::sync::OnceLock;

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// The functions of an allocator that a control plane uses.
#[derive(Debug, Clone, Copy)]
pub struct Allocator {
    /// Makes this thread allocate from the configuration's heap until `leave`; returns false if it already does.
    pub enter: fn() -> bool,
    /// Makes this thread allocate again from where it did before `enter`.
    pub leave: fn(),
    /// Replaces the configuration's heap by a new one, which `enter` selects from now on.
    pub renew: fn(),
    /// Whether freed memory is returned to the system at once, or kept for a while for later allocations.
    pub at_once: fn(bool),
    /// Returns free memory to the system; each thread does so before it goes to sleep.
    pub give_back: fn(),
    /// Returns this thread's free memory to the system.
    pub collect: fn(),
}

/// Sets the functions of the program's allocator; without them nothing is done. Only the first call has an effect.
pub fn set_allocator(allocator: Allocator) {
    _ = ALLOCATOR.set(allocator);
}

/// Makes this thread allocate from the configuration's heap until the value is dropped. Must not be held while other tasks
/// may run on the thread.
pub(crate) fn apart() -> Apart {
    let leave = ALLOCATOR.get().filter(|allocator| (allocator.enter)()).map(|allocator| allocator.leave);
    Apart { leave, here: PhantomData }
}

/// The guard that [`apart`] returns.
#[must_use]
pub(crate) struct Apart {
    leave: Option<fn()>,
    /// The guard must not leave its thread.
    here: PhantomData<*const ()>,
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(leave) = self.leave {
            leave();
        }
    }
}

/// Makes the configuration allocate from a new heap from now on.
pub(crate) fn renew() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.renew)();
    }
}

/// Sets whether freed memory is returned to the system at once, or kept for a while. Kept memory is faster to allocate again;
/// but long-lived blocks then end up in pages of a larger heap and keep all of them. So it is not kept while the whole
/// configuration is read.
pub(crate) fn at_once(at_once: bool) {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.at_once)(at_once);
    }
}

/// Makes this thread, which does not belong to the runtime, return its free memory.
pub(crate) fn collect() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.collect)();
    }
}

/// Makes all threads of the runtime return their free memory. A thread does so before it goes to sleep, so each is woken.
pub(crate) fn give_back() {
    let Some(allocator) = ALLOCATOR.get() else { return };
    (allocator.give_back)();
    for _ in 0..tokio::runtime::Handle::current().metrics().num_workers() {
        tokio::spawn(tokio::task::yield_now());
    }
}
