//! The hash functions of load balancing.

use twox_hash::XxHash64;

/// xxHash64.
pub fn xxhash64(bytes: &[u8], seed: u64) -> u64 {
    XxHash64::oneshot(seed, bytes)
}

/// The seed of `std::hash` in GNU's C++ library, with which Envoy's MURMUR_HASH_2 has to agree.
const MURMUR_SEED: u64 = 0xc70f_6907;
const MURMUR_FACTOR: u64 = 0xc6a4_a793_5bd1_e995;

/// MurmurHash64A (Appleby), seeded like GNU's C++ library.
pub fn murmur2_64(bytes: &[u8]) -> u64 {
    let mut hash = MURMUR_SEED ^ (bytes.len() as u64).wrapping_mul(MURMUR_FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(MURMUR_FACTOR);
        word = (word ^ (word >> 47)).wrapping_mul(MURMUR_FACTOR);
        hash = (hash ^ word).wrapping_mul(MURMUR_FACTOR);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |last, byte| (last << 8) | u64::from(*byte));
        hash = (hash ^ last).wrapping_mul(MURMUR_FACTOR);
    }
    hash = (hash ^ (hash >> 47)).wrapping_mul(MURMUR_FACTOR);
    hash ^ (hash >> 47)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // xxHash's own test vectors; GNU's std::hash<std::string>.
        assert_eq!(xxhash64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxhash64(b"foo", 0), 3_728_699_739_546_630_719);
        assert_eq!(xxhash64(b"bar", 0), 5_234_164_152_756_840_025);
        assert_eq!(murmur2_64(b""), 6_142_509_188_972_423_790);
        assert_eq!(murmur2_64(b"foo"), 9_631_199_822_919_835_226);
        assert_eq!(murmur2_64(b"bar"), 11_474_628_671_133_349_555);
    }
}
