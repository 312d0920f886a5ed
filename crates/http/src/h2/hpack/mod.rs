//! HPACK (RFC 7541): header lists as bytes, and back.

mod decoder;
mod encoder;
mod error;
mod huffman;
mod integer;
mod name;
mod static_table;
mod table;

pub(crate) use decoder::{DEFAULT_TABLE_BYTES, Decoded, Decoder};
pub(crate) use encoder::Encoder;
pub(crate) use error::HpackError;
pub(crate) use name::Name;

#[cfg(test)]
pub(crate) mod tests {
    /// Bytes of hexadecimal digits with blanks between.
    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
        digits.chunks(2).map(byte).collect()
    }
}
