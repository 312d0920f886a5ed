//! A digest of the names and versions of many resources, independent of their order: two sides that hold the same have
//! the same digest.

use twox_hash::XxHash64;

/// The sum, modulo 2^64, of each pair's xxh64 of name, a zero byte and version.
pub fn of<N: AsRef<str>, V: AsRef<str>>(held: impl Iterator<Item = (N, V)>) -> u64 {
    let mut buffer = Vec::with_capacity(128);
    held.fold(0, |sum: u64, (name, version)| {
        buffer.clear();
        buffer.extend_from_slice(name.as_ref().as_bytes());
        buffer.push(0);
        buffer.extend_from_slice(version.as_ref().as_bytes());
        sum.wrapping_add(XxHash64::oneshot(0, &buffer))
    })
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn order_does_not_matter_and_all_else_does() {
        let digest = |held: &[(&str, &str)]| of(held.iter().copied());
        assert_eq!(digest(&[("a", "1"), ("b", "2")]), digest(&[("b", "2"), ("a", "1")]));
        assert_ne!(digest(&[("a", "1"), ("b", "2")]), digest(&[("a", "2"), ("b", "1")]));
        assert_ne!(digest(&[("a", "1")]), digest(&[("a", "1"), ("a", "1")]));
        assert_ne!(digest(&[("a", "1b")]), digest(&[("a1", "b")]));
        assert_eq!(digest(&[]), 0);
    }
}
