//! Short names made from long ones, the same in every run.

/// Digits as in Kubernetes' generated names: no vowels, nothing easily confused.
const DIGITS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `length` digits (13 at most are of use) that stand for `text`.
pub fn digest(text: &str, length: usize) -> String {
    let base = DIGITS.len() as u64;
    let mut value = fnv1a(text.as_bytes());
    let mut digit = || {
        let index = usize::try_from(value % base).unwrap_or_default();
        value /= base;
        DIGITS.get(index).map_or('b', |digit| char::from(*digit))
    };
    (0..length).map(|_| digit()).collect()
}

/// The 64-bit FNV-1a hash: it only distinguishes names.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
