//! Integers with a prefix (RFC 7541 section 5.1).

use super::error::HpackError;

/// Reads the integer at the start of `input`, whose first byte has `prefix` bits for it; returns it and what follows.
/// Integers have at most 32 bits: HPACK needs no larger ones, and longer ones are an attack.
pub(super) fn decode(input: &[u8], prefix: u32) -> Result<(u32, &[u8]), HpackError> {
    let (&first, mut rest) = input.split_first().ok_or(HpackError::Truncated)?;
    let mask = (1u32 << prefix) - 1;
    let mut value = u64::from(u32::from(first) & mask);
    if value < u64::from(mask) {
        return Ok((value as u32, rest));
    }
    let mut shift = 0;
    loop {
        let (&byte, after) = rest.split_first().ok_or(HpackError::Truncated)?;
        rest = after;
        if shift > 28 {
            return Err(HpackError::Integer);
        }
        value += u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return u32::try_from(value).map(|value| (value, rest)).map_err(|_| HpackError::Integer);
        }
    }
}

/// Appends an integer; `pattern` holds the bits of the first byte above the prefix.
#[inline]
pub(super) fn encode(out: &mut Vec<u8>, pattern: u8, prefix: u32, value: u32) {
    let mask = (1u32 << prefix) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::tests::hex;
    use proptest::prelude::*;

    #[test]
    fn examples_of_rfc_7541_appendix_c_1() {
        let check = |value: u32, prefix: u32, coded: &str| {
            let mut out = Vec::new();
            encode(&mut out, 0, prefix, value);
            assert_eq!(out, hex(coded), "{value}");
            assert_eq!(decode(&out, prefix), Ok((value, &b""[..])), "{value}");
        };
        check(10, 5, "0a");
        check(1337, 5, "1f9a0a");
        check(42, 8, "2a");
        check(127, 7, "7f00");
    }

    #[test]
    fn refuses_too_large_and_too_long() {
        assert_eq!(decode(&hex("7fffffffff0f"), 7), Err(HpackError::Integer));
        assert_eq!(decode(&hex("7f808080808000"), 7), Err(HpackError::Integer));
        assert_eq!(decode(&hex("7f8080"), 7), Err(HpackError::Truncated));
        assert_eq!(decode(b"", 7), Err(HpackError::Truncated));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(value: u32, prefix in 4u32..=8) {
            let mut out = Vec::new();
            encode(&mut out, 0, prefix, value);
            prop_assert_eq!(decode(&out, prefix), Ok((value, &b""[..])));
        }
    }
}
