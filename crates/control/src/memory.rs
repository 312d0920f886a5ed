//! What the control plane asks of the program's allocator.
//!
//! A configuration comes and goes, while the streams of proxies stay. Where blocks of both lie in the same pages, a few
//! bytes of streams keep every page that a configuration once filled. So what is made of the configuration is taken from
//! memory of its own, and from other memory when most of it has gone and the rest is built anew.

use std::marker::PhantomData;
use std::sync::OnceLock;

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// What an allocator can do for a control plane.
#[derive(Debug, Clone, Copy)]
pub struct Allocator {
    /// Has this thread take blocks from the memory of the configuration until `leave`; false if it does already.
    pub enter: fn() -> bool,
    /// Has this thread take blocks from where it did before `enter`.
    pub leave: fn(),
    /// What is entered from now on is other memory than it was.
    pub renew: fn(),
    /// Whether what becomes free goes back to the system at once, or is kept for a while for what comes next.
    pub at_once: fn(bool),
    /// Returns what is free to the system, each thread before it goes to sleep.
    pub give_back: fn(),
    /// Returns what this thread has free to the system.
    pub collect: fn(),
}

/// Tells the control plane what the program's allocator can do; without, nothing is done. The first call counts.
pub fn set_allocator(allocator: Allocator) {
    _ = ALLOCATOR.set(allocator);
}

/// Has this thread take blocks from the memory of the configuration until the value is dropped. Not to be held while other
/// tasks may run on the thread.
pub(crate) fn apart() -> Apart {
    let leave = ALLOCATOR.get().filter(|allocator| (allocator.enter)()).map(|allocator| allocator.leave);
    Apart { leave, here: PhantomData }
}

/// See [`apart`].
#[must_use]
pub(crate) struct Apart {
    leave: Option<fn()>,
    /// Of this thread, which it must not leave.
    here: PhantomData<*const ()>,
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(leave) = self.leave {
            leave();
        }
    }
}

/// Has the configuration be made in other memory from now on.
pub(crate) fn renew() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.renew)();
    }
}

/// Has what becomes free go back to the system at once, or be kept for a while. Kept, it is faster to take again; but what stays for
/// long then takes its place in memory that was used for more, all of which it keeps: not while a configuration is read whole.
pub(crate) fn at_once(at_once: bool) {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.at_once)(at_once);
    }
}

/// Has this thread, which is none of the runtime's, give back what it has free.
pub(crate) fn collect() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.collect)();
    }
}

/// Has all threads of the runtime give back what they have free: a thread does before it goes to sleep, so each is woken.
pub(crate) fn give_back() {
    let Some(allocator) = ALLOCATOR.get() else { return };
    (allocator.give_back)();
    for _ in 0..tokio::runtime::Handle::current().metrics().num_workers() {
        tokio::spawn(tokio::task::yield_now());
    }
}
