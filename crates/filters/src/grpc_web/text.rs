//! Bodies in base64 (`application/grpc-web-text`), in pieces of any length.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Characters that stand for three bytes.
const GROUP: usize = 4;
/// Bytes before a message: a flag and the length.
const FRAME_HEAD: usize = 5;

/// Reads a body in base64.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The characters of an incomplete group.
    rest: Vec<u8>,
}

/// Why a body is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It ends within a group of characters.
    Size,
    /// It is not base64.
    Data,
}

impl Decoder {
    /// Decodes the next characters. `ends`: they are the last ones.
    pub(super) fn take(&mut self, text: &[u8], ends: bool) -> Result<Vec<u8>, Malformed> {
        self.rest.extend_from_slice(text);
        if ends && !self.rest.len().is_multiple_of(GROUP) {
            return Err(Malformed::Size);
        }
        let whole = self.rest.len() / GROUP * GROUP;
        let left = self.rest.split_off(whole);
        let groups = std::mem::replace(&mut self.rest, left);
        let mut bytes = Vec::with_capacity(whole / GROUP * 3);
        // Texts may be joined, each with its padding (`PROTOCOL-WEB.md` of gRPC).
        for text in groups.split_inclusive_groups() {
            STANDARD.decode_vec(text, &mut bytes).map_err(|_| Malformed::Data)?;
        }
        Ok(bytes)
    }
}

/// Texts that were joined.
trait Joined {
    fn split_inclusive_groups(&self) -> impl Iterator<Item = &[u8]>;
}

impl Joined for Vec<u8> {
    fn split_inclusive_groups(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = &**self;
        std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let padding = left.iter().position(|byte| *byte == b'=');
            let end = padding.map_or(left.len(), |at| (at / GROUP + 1) * GROUP).min(left.len());
            let (text, rest) = left.split_at(end);
            left = rest;
            Some(text)
        })
    }
}

/// Writes messages in base64, each as a text of its own, as they pass: Envoy's filter holds them back until they are
/// complete.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    /// Bytes of an incomplete group.
    rest: Vec<u8>,
    /// The frame's flag and length, as far as they have arrived.
    head: Vec<u8>,
    /// Bytes of the message that are still to come.
    left: usize,
}

impl Encoder {
    /// The text for the next bytes.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut text = String::with_capacity(bytes.len() / 3 * GROUP + GROUP * 2);
        while !bytes.is_empty() {
            let in_head = self.left == 0;
            let wanted = if in_head { FRAME_HEAD - self.head.len() } else { self.left };
            let (piece, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            self.encode(piece, &mut text);
            if !in_head {
                self.left -= piece.len();
            } else {
                self.head.extend_from_slice(piece);
                let [_, a, b, c, d] = *self.head.as_slice() else { continue };
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                self.head.clear();
            }
            if self.left == 0 && self.head.is_empty() {
                self.pad(&mut text);
            }
        }
        text.into_bytes()
    }

    /// The text for the last frame. What is left of a message that was cut short comes before it.
    pub(super) fn last(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut text = String::new();
        self.pad(&mut text);
        STANDARD.encode_string(frame, &mut text);
        text.into_bytes()
    }

    fn encode(&mut self, piece: &[u8], text: &mut String) {
        let missing = (3 - self.rest.len()).min(piece.len());
        let (first, piece) = if self.rest.is_empty() { (&[][..], piece) } else { piece.split_at(missing) };
        self.rest.extend_from_slice(first);
        if self.rest.len() == 3 {
            self.pad(text);
        }
        let (whole, left) = piece.split_at(piece.len() / 3 * 3);
        STANDARD.encode_string(whole, text);
        self.rest.extend_from_slice(left);
    }

    fn pad(&mut self, text: &mut String) {
        STANDARD.encode_string(&self.rest, text);
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes pieces one after the other.
    fn decoded(pieces: &[&str]) -> Result<Vec<u8>, Malformed> {
        let mut decoder = Decoder::default();
        let mut all = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            all.extend(decoder.take(piece.as_bytes(), index + 1 == pieces.len())?);
        }
        Ok(all)
    }

    #[test]
    fn texts_are_read_however_they_are_cut() {
        for (pieces, expected) in [
            (&["AAAAAAEH"][..], Ok(&[0, 0, 0, 0, 1, 7][..])),
            (&["A", "AAA", "AAE", "H"], Ok(&[0, 0, 0, 0, 1, 7])),
            (&["AAAAAAEH", ""], Ok(&[0, 0, 0, 0, 1, 7])),
            (&["AAAAAAE=", "Bw=="], Ok(&[0, 0, 0, 0, 1, 7])),
            (&["AAAAAAE=Bw=="], Ok(&[0, 0, 0, 0, 1, 7])),
            (&[""], Ok(&[])),
            (&["AAAAA"], Err(Malformed::Size)),
            (&["AAAA", "A"], Err(Malformed::Size)),
            (&["AA!A"], Err(Malformed::Data)),
            (&["===="], Err(Malformed::Data)),
            (&["A===AAAA"], Err(Malformed::Data)),
            // Non-zero padding bits.
            (&["Bx=="], Err(Malformed::Data)),
        ] {
            assert_eq!(decoded(pieces), expected.map(<[u8]>::to_vec), "{pieces:?}");
        }
    }

    #[test]
    fn messages_are_written_however_they_are_cut() {
        let frames: [&[u8]; 4] =
            [&[0, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 0], &[1, 0, 0, 0, 2, 8, 9], &[0, 0, 0, 0, 3, 1, 2, 3]];
        let expected: String = frames.iter().map(|frame| STANDARD.encode(frame)).collect();
        let body = frames.concat();
        for length in 1..=body.len() {
            let mut encoder = Encoder::default();
            let text: Vec<u8> = body.chunks(length).flat_map(|piece| encoder.take(piece)).collect();
            assert_eq!(String::from_utf8(text).unwrap(), expected, "pieces of {length}");
            assert_eq!(encoder.last(b"end"), STANDARD.encode("end").as_bytes());
        }
        let mut short = Encoder::default();
        assert_eq!(short.take(&[0, 0, 0, 0, 9, 1, 2]), b"AAAAAAkB");
        assert_eq!(short.last(b"end"), b"Ag==ZW5k");
    }
}
