//! Classification of field names, computed once for each table entry.

use crate::bytes::LOWER_TOKEN;
use crate::names::HeaderId;

/// A field name of HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// `:method`.
    Method,
    /// `:scheme`.
    Scheme,
    /// `:authority`.
    Authority,
    /// `:path`.
    Path,
    /// `:protocol` (RFC 8441).
    Protocol,
    /// `:status`.
    Status,
    /// An ordinary name: a token in lower case.
    Field(HeaderId),
    /// None of these: empty, with upper-case letters, or an unknown pseudo-header field.
    Invalid,
}

impl Name {
    /// Classifies any bytes.
    pub(crate) fn of(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ if !name.is_empty() && LOWER_TOKEN.holds_all(name) => Self::Field(HeaderId::of(name)),
            _ => Self::Invalid,
        }
    }
}

/// Whether a value has neither control characters, which could end a line at the next hop, nor blanks at its ends (RFC
/// 9113 section 8.2.1).
pub(crate) fn is_valid_value(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    // Without an early exit the compiler can vectorize this loop.
    let control = value.iter().fold(false, |bad, byte| bad | ((*byte < b' ') & (*byte != b'\t')) | (*byte == 0x7f));
    !control && !blank(value.first()) && !blank(value.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let check = |name: &str, expected: Name| assert_eq!(Name::of(name.as_bytes()), expected, "{name:?}");
        check(":path", Name::Path);
        check("x-a_b", Name::Field(HeaderId::Other));
        check("host", Name::Field(HeaderId::Host));
        for name in ["", ":other", ":", "Host", "a b", "a:", "a\0", "é", ":Path"] {
            check(name, Name::Invalid);
        }
    }

    #[test]
    fn values() {
        for value in ["", "a", "a b\tc", "\u{e9}\u{4e2d}", "\"{}\""] {
            assert!(is_valid_value(value.as_bytes()), "{value:?}");
        }
        for value in [" a", "a ", "\ta", "a\r\nb: c", "a\nb", "a\rb", "a\0", "a\x7f", "\x1b"] {
            assert!(!is_valid_value(value.as_bytes()), "{value:?}");
        }
    }
}
