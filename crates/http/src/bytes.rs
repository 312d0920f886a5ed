//! Sets of the bytes allowed in names, targets and authorities. A check costs one load per byte.

const TOKEN_MARKS: &[u8] = b"!#$%&'*+-.^_`|~";

/// A set of bytes.
pub(crate) struct ByteSet([bool; 256]);

/// The bytes of a token (RFC 9110 section 5.6.2).
pub(crate) static TOKEN: ByteSet = ByteSet::alphanumeric_and(TOKEN_MARKS);
/// Token bytes without upper-case letters: the bytes of an HTTP/2 field name.
pub(crate) static LOWER_TOKEN: ByteSet = ByteSet::alphanumeric_and(TOKEN_MARKS).without(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ");
/// The bytes of a request target: visible characters except `#`, which begins a fragment.
pub(crate) static TARGET: ByteSet = ByteSet::alphanumeric_and(b"!\"$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
/// The bytes of a host name or an address without brackets (RFC 3986 section 3.2.2).
pub(crate) static HOST: ByteSet = ByteSet::alphanumeric_and(b"-._~%!$&'()*+,;=");
/// The bytes of an address in brackets.
pub(crate) static ADDRESS_LITERAL: ByteSet = ByteSet::alphanumeric_and(b"-._~%!$&'()*+,;=:");

impl ByteSet {
    pub(crate) const fn alphanumeric_and(marks: &[u8]) -> Self {
        let mut set = [false; 256];
        let mut byte = 0u8;
        while byte < 128 {
            set[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let mut mark = 0;
        while mark < marks.len() {
            set[marks[mark] as usize] = true;
            mark += 1;
        }
        Self(set)
    }

    const fn without(mut self, bytes: &[u8]) -> Self {
        let mut at = 0;
        while at < bytes.len() {
            self.0[bytes[at] as usize] = false;
            at += 1;
        }
        self
    }

    #[inline]
    pub(crate) const fn holds(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }

    #[inline]
    pub(crate) fn holds_all(&self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| self.holds(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_those_of_their_grammars() {
        for byte in 0..=u8::MAX {
            let visible = byte.is_ascii_graphic();
            assert_eq!(TARGET.holds(byte), visible && byte != b'#', "{byte}");
            assert_eq!(TOKEN.holds(byte), visible && !b"\"(),/:;<=>?@[\\]{}".contains(&byte), "{byte}");
            assert_eq!(LOWER_TOKEN.holds(byte), TOKEN.holds(byte) && !byte.is_ascii_uppercase(), "{byte}");
            assert_eq!(ADDRESS_LITERAL.holds(byte), HOST.holds(byte) || byte == b':', "{byte}");
        }
    }
}
