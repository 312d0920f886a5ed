//! A limit of how many there may be at a time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places that are taken and given back.
#[derive(Debug)]
pub struct Places {
    most: u64,
    taken: AtomicU64,
}

impl Places {
    /// Creates `most` free places.
    pub fn new(most: u64) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    /// The number of places.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The number of those that were counted in and not out yet. It may exceed the places.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Takes a place; false, and nothing is taken, if none is free.
    pub fn enter(&self) -> bool {
        self.taken.fetch_update(Relaxed, Relaxed, |taken| (taken < self.most).then_some(taken + 1)).is_ok()
    }

    /// Counts one more in, whether or not there is a place; false if there is none. It has to leave in both cases.
    pub fn enter_anyway(&self) -> bool {
        self.taken.fetch_add(1, Relaxed) < self.most
    }

    /// Counts one out that was counted in.
    pub fn leave(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_and_given_back() {
        let places = Places::new(2);
        assert_eq!([places.enter(), places.enter(), places.enter()], [true, true, false]);
        assert_eq!((places.taken(), places.most()), (2, 2));
        places.leave();
        assert!(places.enter());
        assert!(!places.enter_anyway());
        places.leave();
        assert!(!places.enter(), "the two before are still there");
        assert!(!Places::new(0).enter());
    }

    #[test]
    fn threads_never_take_more_than_there_are() {
        let places = Places::new(3);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..10_000 {
                        if places.enter() {
                            assert!(places.taken() <= 3);
                            places.leave();
                        }
                    }
                });
            }
        });
        assert_eq!(places.taken(), 0);
    }
}
