//! Mutations of seeds, the same ones every time.

use crate::targets::Target;

/// Maximum size of a generated input, in bytes.
const MAX_BYTES: usize = 4096;

/// Tokens that parsers are sensitive to.
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"%",
    b"/",
    b"\\",
    b"..",
    b"\"",
    b"{",
    b"}",
    b"-1",
    b"0x",
    b"4294967296",
    b"18446744073709551616",
    b"content-length: 1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"host: a\r\n",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xe2\x80\xae",
];

/// Runs a target with its seeds and with as many mutations of them as it asks for.
///
/// # Panics
/// When the target's promise is broken; the input is in the message.
pub fn run(target: &Target) {
    let guarded = |input: &[u8]| {
        let outcome = std::panic::catch_unwind(|| (target.run)(input));
        assert!(outcome.is_ok(), "{} breaks its promise for b\"{}\"", target.name, input.escape_ascii());
    };
    target.seeds.iter().for_each(|seed| guarded(seed));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..target.mutations {
        guarded(&mutant(target.seeds, &mut random));
    }
}

fn mutant(seeds: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => bytes.insert(at, random.below(256) as u8),
            3 if at < bytes.len() => {
                bytes.remove(at);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
            6 => {
                let other = seeds[random.below(seeds.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.below(other.len())..]);
            }
            _ => {
                let end = at + random.below(bytes.len() + 1 - at);
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
        bytes.truncate(MAX_BYTES);
    }
    bytes
}

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}
