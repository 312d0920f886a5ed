//! Content codings (RFC 9110 section 8.4.1): bodies are compressed and decompressed piece by piece.

mod choice;
mod decoder;
mod encoder;
#[cfg(test)]
mod tests;

pub use choice::{Choice, Encodings};
pub(crate) use decoder::{Decoder, Malformed};
pub(crate) use encoder::Encoder;

use evenkeel_http::{HeaderId, Headers};

/// Whether a header's list has a token, whatever its case.
pub(crate) fn lists(headers: &Headers, name: &[u8], token: &[u8]) -> bool {
    headers.find_all(name).any(|value| tokens(value).any(|listed| listed.eq_ignore_ascii_case(token)))
}

/// The elements of a list.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Whether a request asks for another protocol.
pub(crate) fn is_upgrade(headers: &Headers) -> bool {
    headers.contains(HeaderId::Upgrade)
}

/// The body no longer has the length that the head announces.
pub(crate) fn forget_length(headers: &mut Headers) {
    headers.remove(HeaderId::ContentLength);
}
