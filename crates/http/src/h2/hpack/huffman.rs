//! The Huffman code of RFC 7541 appendix B.
//!
//! The code is canonical: sorted by length, then by symbol, the codes count upwards. So the lengths alone define it,
//! and the tables are computed from them at compile time.

/// Length in bits of each symbol's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// Bits looked up at once when decoding; ASCII text has almost no longer code.
const FAST_BITS: usize = 9;

struct Code {
    /// Code of each symbol, in its low bits.
    codes: [u32; 256],
    /// Symbols in the order of their codes.
    symbols: [u8; 256],
    /// For each length: its first code, and one past its last.
    first: [u32; LONGEST + 1],
    limit: [u32; LONGEST + 1],
    /// For each length: where its symbols start in `symbols`.
    start: [u16; LONGEST + 1],
    /// By the next [`FAST_BITS`] bits: the symbol in the high byte, its length in the low one; 0 where the code is longer.
    fast: [u16; 1 << FAST_BITS],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut table = Code {
        codes: [0; 256],
        symbols: [0; 256],
        first: [0; LONGEST + 1],
        limit: [0; LONGEST + 1],
        start: [0; LONGEST + 1],
        fast: [0; 1 << FAST_BITS],
    };
    let (mut next, mut count, mut length) = (0u32, 0usize, SHORTEST);
    while length <= LONGEST {
        table.first[length] = next;
        table.start[length] = count as u16;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                table.codes[symbol] = next;
                table.symbols[count] = symbol as u8;
                if length <= FAST_BITS {
                    let shift = FAST_BITS - length;
                    let mut fill = 0;
                    while fill < 1 << shift {
                        table.fast[((next as usize) << shift) | fill] = (symbol as u16) << 8 | length as u16;
                        fill += 1;
                    }
                }
                next += 1;
                count += 1;
            }
            symbol += 1;
        }
        table.limit[length] = next;
        next <<= 1;
        length += 1;
    }
    table
}

/// The bytes are not a Huffman-coded string: they have an unknown code, the end-of-string symbol, or padding that is
/// not up to seven of its first bits (RFC 7541 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Appends the decoded `input` to `out`.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    // The shortest code has five bits.
    out.reserve(input.len() * 8 / SHORTEST);
    let mut rest = input;
    let (mut bits, mut have) = (0u64, 0usize);
    loop {
        while have <= 56 {
            let Some((&byte, after)) = rest.split_first() else { break };
            bits |= u64::from(byte) << (56 - have);
            have += 8;
            rest = after;
        }
        if have < SHORTEST {
            break;
        }
        let entry = CODE.fast[(bits >> (64 - FAST_BITS)) as usize];
        let (symbol, length) = if entry == 0 {
            match long(bits, have) {
                Some(found) => found,
                None => break,
            }
        } else {
            ((entry >> 8) as u8, usize::from(entry & 0xff))
        };
        if length > have {
            break;
        }
        out.push(symbol);
        bits <<= length;
        have -= length;
    }
    // What is left is padding: fewer than eight bits, all of them ones.
    let padded = have < 8 && rest.is_empty() && (have == 0 || bits >> (64 - have) == (1 << have) - 1);
    if padded { Ok(()) } else { Err(Malformed) }
}

/// A code longer than [`FAST_BITS`].
fn long(bits: u64, have: usize) -> Option<(u8, usize)> {
    for length in FAST_BITS + 1..=LONGEST.min(have) {
        let code = (bits >> (64 - length)) as u32;
        if code < CODE.limit[length] {
            let index = usize::from(CODE.start[length]) + (code - CODE.first[length]) as usize;
            return CODE.symbols.get(index).map(|symbol| (*symbol, length));
        }
    }
    None
}

/// Bytes [`encode`] will append.
pub(super) fn encoded_len(input: &[u8]) -> usize {
    let bits: usize = input.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the Huffman-coded `input` to `out`.
pub(super) fn encode(input: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut have) = (0u64, 0usize);
    for &byte in input {
        let length = usize::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(CODE.codes[usize::from(byte)]);
        have += length;
        while have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
        }
    }
    if have > 0 {
        out.push((bits << (8 - have)) as u8 | (0xff >> have));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::tests::hex;
    use proptest::prelude::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    #[test]
    fn strings_of_rfc_7541_appendix_c() {
        let check = |text: &str, coded: &str| {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(out, hex(coded), "{text}");
            assert_eq!(encoded_len(text.as_bytes()), out.len(), "{text}");
            assert_eq!(decoded(&out), Ok(text.as_bytes().to_vec()), "{text}");
        };
        check("www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff");
        check("no-cache", "a8eb 1064 9cbf");
        check("custom-value", "25a8 49e9 5bb8 e8b4 bf");
        check("302", "6402");
        check("private", "aec3 771a 4b");
        check("Mon, 21 Oct 2013 20:13:21 GMT", "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff");
        check("https://www.example.com", "9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3");
        check(
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        );
        check("", "");
    }

    #[test]
    fn refuses_what_is_no_string() {
        let check = |coded: &str| assert_eq!(decoded(&hex(coded)), Err(Malformed), "{coded}");
        check("ff"); // eight bits of padding
        check("1fff"); // 'a' and eleven bits of padding
        check("18"); // 'a' and a padding of zeros
        check("ffff fffc"); // the end-of-string symbol
        check("ffff ffff"); // the same, padded
        check("ffff ff"); // the first bits of a longer code
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(text: Vec<u8>) {
            let mut out = Vec::new();
            encode(&text, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&text));
            prop_assert_eq!(decoded(&out), Ok(text));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            // There is one encoding of a string only, so what decodes is what encoding it gives.
            if let Ok(text) = decoded(&bytes) {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
