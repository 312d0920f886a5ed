//! A small pseudo-random generator for load balancing and request IDs: fast, per worker, not cryptographic.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

/// xorshift64* (Marsaglia 2003, Vigna 2016), seeded by the system.
#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    /// Seeded by the system.
    pub fn from_system() -> Self {
        Self::seeded(RandomState::new().build_hasher().finish())
    }

    /// Yields the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Cell::new(seed | 1))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `0..bound`; 0 when the bound is 0. The bias is below 2⁻³² for bounds of 32 bits.
    pub fn below(&self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
