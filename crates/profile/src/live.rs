//! Which sampled blocks are still allocated. The allocator looks every block up that it frees, so this is a table of atomics without locks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of places; 1 MiB, of which the system provides what is written to.
const PLACES: usize = 1 << 16;
/// The places next to each other where a block may be.
const PROBES: usize = 16;

/// Sampled blocks by their address.
pub(crate) struct Live {
    addresses: [AtomicUsize; PLACES],
    samples: [AtomicU64; PLACES],
}

impl Live {
    pub(crate) const fn new() -> Self {
        Self { addresses: [const { AtomicUsize::new(0) }; PLACES], samples: [const { AtomicU64::new(0) }; PLACES] }
    }

    fn places(address: usize) -> impl Iterator<Item = usize> {
        // Fibonacci hashing.
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACES.trailing_zeros());
        (0..PROBES).map(move |probe| (start + probe) % PLACES)
    }

    /// Notes a block under the number of its sample; false: there is no room.
    pub(crate) fn add(&self, address: usize, sample: u64) -> bool {
        let free = |place: &usize| {
            self.addresses[*place].compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place = Self::places(address).find(free);
        place.inspect(|place| self.samples[*place].store(sample, Ordering::Release)).is_some()
    }

    /// Forgets a block, if it is here.
    #[inline]
    pub(crate) fn remove(&self, address: usize) {
        if let Some(place) =
            Self::places(address).find(|place| self.addresses[*place].load(Ordering::Relaxed) == address)
        {
            self.addresses[place].store(0, Ordering::Relaxed);
        }
    }

    /// Forgets all blocks; returns the numbers of their samples.
    pub(crate) fn clear(&self) -> Vec<u64> {
        let taken = |place: &usize| self.addresses[*place].swap(0, Ordering::Relaxed) != 0;
        (0..PLACES).filter(taken).map(|place| self.samples[place].load(Ordering::Acquire)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Live, PLACES};

    #[test]
    fn blocks_are_forgotten_when_they_are_freed_and_refused_when_there_is_no_room() {
        static LIVE: Live = Live::new();
        assert!(LIVE.add(0x1000, 1) && LIVE.add(0x2000, 2) && LIVE.add(0x3000, 3));
        LIVE.remove(0x2000);
        LIVE.remove(0x2000);
        LIVE.remove(0x4000);
        let mut left = LIVE.clear();
        left.sort_unstable();
        assert_eq!(left, [1, 3]);
        let fits = (1..=2 * PLACES).filter(|number| LIVE.add(number * 16, 1)).count();
        assert!((PLACES / 2..=PLACES).contains(&fits), "{fits}");
        assert_eq!(LIVE.clear().len(), fits);
        assert!(LIVE.clear().is_empty());
    }
}
