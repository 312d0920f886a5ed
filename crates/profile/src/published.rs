//! A value that other threads, signal handlers and the allocator use while it is published, without locks.

use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// At most one value, which its users may be using.
#[derive(Debug)]
pub(crate) struct Published<T> {
    value: AtomicPtr<T>,
    /// Number of changes of the side that new uses are counted on.
    side: AtomicUsize,
    /// Number of uses that have begun and not ended, on each side. Old uses are waited for, and new ones do not delay that.
    uses: [AtomicUsize; 2],
}

impl<T> Published<T> {
    pub(crate) const fn new() -> Self {
        let uses = [AtomicUsize::new(0), AtomicUsize::new(0)];
        Self { value: AtomicPtr::new(ptr::null_mut()), side: AtomicUsize::new(0), uses }
    }

    /// Publishes a value in place of the one before, which ends with its last use.
    pub(crate) fn publish(&self, value: T) {
        self.replace(Box::into_raw(Box::new(value)));
    }

    /// Waits for the last use of the value, and returns it.
    pub(crate) fn withdraw(&self) -> Option<Box<T>> {
        self.replace(ptr::null_mut())
    }

    /// For one thread at a time.
    fn replace(&self, value: *mut T) -> Option<Box<T>> {
        let before = self.value.swap(value, Ordering::SeqCst);
        // Twice: a use may have read the side before it changed, and be counted there after it was seen empty.
        for _ in 0..self.uses.len() {
            let old = self.uses_on(self.side.fetch_add(1, Ordering::SeqCst));
            while old.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
        // SAFETY: a pointer here comes from a box, and nobody uses this one any more.
        (!before.is_null()).then(|| unsafe { Box::from_raw(before) })
    }

    fn uses_on(&self, side: usize) -> &AtomicUsize {
        let [even, odd] = &self.uses;
        if side.is_multiple_of(2) { even } else { odd }
    }

    /// The value, if there is one. Takes no lock and allocates nothing.
    pub(crate) fn get(&self) -> Option<InUse<'_, T>> {
        let uses = self.uses_on(self.side.load(Ordering::SeqCst));
        uses.fetch_add(1, Ordering::SeqCst);
        let in_use = InUse { value: self.value.load(Ordering::SeqCst), uses };
        (!in_use.value.is_null()).then_some(in_use)
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// A value in use.
#[derive(Debug)]
pub(crate) struct InUse<'p, T> {
    value: *const T,
    uses: &'p AtomicUsize,
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: not null where it is handed out, and it lives until this use ends.
        unsafe { &*self.value }
    }
}

impl<T> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        self.uses.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Published;

    #[test]
    fn a_value_lives_until_its_last_use_ends() {
        let published = Published::new();
        assert!(published.get().is_none());
        published.publish(vec![7; 1000]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(value) = published.get() {
                        assert!(value.iter().all(|number| *number == value[0]));
                    }
                });
            }
            for number in 8..40 {
                published.publish(vec![number; 1000]);
            }
            assert_eq!(published.withdraw().map(|value| value[0]), Some(39));
        });
        assert!(published.withdraw().is_none());
    }
}
