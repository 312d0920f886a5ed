//! Random UUIDs.

/// A random UUID (version 4).
pub(crate) fn uuid(random: impl Fn() -> u64) -> [u8; 36] {
    let high = random() & !0xf000 | 0x4000;
    let low = random() & !(0b11 << 62) | 0b10 << 62;
    let [a, b] = hex(high);
    let [c, d] = hex(low);
    let mut text = [b'-'; 36];
    text[..8].copy_from_slice(&a);
    text[9..13].copy_from_slice(&b[..4]);
    text[14..18].copy_from_slice(&b[4..]);
    text[19..23].copy_from_slice(&c[..4]);
    text[24..28].copy_from_slice(&c[4..]);
    text[28..].copy_from_slice(&d);
    text
}

/// Sixteen hex digits, highest first. Computed eight at a time, since every request gets an ID.
fn hex(number: u64) -> [[u8; 8]; 2] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let eight = |half: u32| {
        // Spreads the nibbles into bytes, the highest into the lowest byte, which comes first in memory.
        let mut digits = u64::from(half.swap_bytes());
        digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
        digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
        digits = (digits >> 4 | digits << 8) & 0x0f0f_0f0f_0f0f_0f0f;
        // 1 in each byte above 9, to select between `0` to `9` and `a` to `f`.
        let letters = (digits + 6 * ONES) >> 4 & ONES;
        (digits + 0x30 * ONES + letters * 0x27).to_le_bytes()
    };
    [eight((number >> 32) as u32), eight(number as u32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_version_and_variant() {
        let text = String::from_utf8(uuid(|| 0x0123_4567_89ab_cdef).to_vec()).expect("ASCII");
        let at = |index: usize| text.as_bytes()[index];
        assert_eq!((at(8), at(13), at(14), at(18), at(23)), (b'-', b'-', b'4', b'-', b'-'), "{text}");
        assert!(b"89ab".contains(&at(19)), "{text}");
        for number in [0, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210] {
            assert_eq!(hex(number).concat(), format!("{number:016x}").into_bytes());
        }
    }
}
