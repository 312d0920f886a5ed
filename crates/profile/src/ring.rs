//! Samples on their way from signal handlers and the allocator to the thread that counts them.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The number of samples that may wait; further ones are lost and counted.
const SLOTS: usize = 1024;

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const FULL: u8 = 2;

/// Places for samples. Writers take no lock and allocate nothing.
pub(crate) struct Ring<T> {
    slots: Box<[Slot<T>]>,
    next: AtomicUsize,
    lost: AtomicU64,
}

struct Slot<T> {
    state: AtomicU8,
    sample: UnsafeCell<T>,
}

// SAFETY: a sample is used only by who has made its slot busy.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T: Copy> Ring<T> {
    pub(crate) fn new(empty: T) -> Self {
        let slot = |_| Slot { state: AtomicU8::new(EMPTY), sample: UnsafeCell::new(empty) };
        Self { slots: (0..SLOTS).map(slot).collect(), next: AtomicUsize::new(0), lost: AtomicU64::new(0) }
    }

    /// Fills the next place, unless its last sample still waits there.
    pub(crate) fn push(&self, fill: impl FnOnce(&mut T)) {
        let slot = self.slots.get(self.next.fetch_add(1, Ordering::Relaxed) % SLOTS);
        match slot.filter(|slot| slot.changes(EMPTY, BUSY)) {
            Some(slot) => {
                // SAFETY: this thread has made the slot busy.
                fill(unsafe { &mut *slot.sample.get() });
                slot.state.store(FULL, Ordering::Release);
            }
            None => _ = self.lost.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Empties all places.
    pub(crate) fn drain(&self, mut take: impl FnMut(&T)) {
        for slot in self.slots.iter().filter(|slot| slot.changes(FULL, BUSY)) {
            // SAFETY: this thread has made the slot busy.
            take(unsafe { &*slot.sample.get() });
            slot.state.store(EMPTY, Ordering::Release);
        }
    }

    /// Number of samples that found no place.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl<T> Slot<T> {
    fn changes(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Ring, SLOTS};

    #[test]
    fn samples_without_a_place_are_counted() {
        let ring = Ring::new(0_usize);
        for number in 1..=SLOTS + 5 {
            ring.push(|place| *place = number);
        }
        let mut sum = 0;
        ring.drain(|number| sum += number);
        assert_eq!((sum, ring.lost()), (SLOTS * (SLOTS + 1) / 2, 5));
        ring.drain(|_| unreachable!("it is empty"));
        ring.push(|place| *place = 7);
        ring.drain(|number| assert_eq!(*number, 7));
    }
}
