//! Numbers from a seed: the same ones in every run.

/// xorshift64* (Marsaglia 2003, Vigna 2016): small, and good enough to pick cases.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Any seed will do; ones that are next to each other start far apart.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 32) as usize % end
    }

    /// Returns one of these values, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns true once in `times` times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Bytes that repeat nowhere near a buffer's size.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.bits().to_le_bytes());
        words.flatten().take(count).collect()
    }
}
