//! Body decoding: finds the payload in framed bytes.

use std::ops::Range;

use crate::bytes::TOKEN;
use crate::error::BodyError;
use crate::framing::Framing;
use crate::headers::Headers;

/// Maximum length of a chunk size, in digits; more than 16 are significant only with zeros before them.
const MAX_SIZE_DIGITS: u8 = 64;
/// Maximum size of a chunk extension and of a trailer section, each in bytes.
const MAX_LINE_BYTES: u32 = 16 * 1024;

/// Maximum number of trailers of one body.
const MAX_TRAILERS: u32 = 100;

/// Finds the payload in the bytes of a framed body, however they are split.
#[derive(Debug, Clone, Copy)]
pub struct BodyDecoder {
    state: State,
    /// Where the name and value of the current trailer begin in the arena, and the number of trailers so far.
    name: u32,
    value: u32,
    trailers: u32,
}

/// The payload that [`BodyDecoder::decode`] found at the start of its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of input consumed, payload and framing.
    pub consumed: usize,
    /// Where in the input the payload lies; may be empty.
    pub data: Range<usize>,
    /// The body is complete.
    pub done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    /// In a chunk size, with its digits so far.
    Size {
        size: u64,
        digits: u8,
    },
    /// In a chunk extension, with its bytes so far.
    Extension {
        size: u64,
        bytes: u32,
    },
    /// After the CR of a chunk size line.
    SizeLineFeed(u64),
    Data(u64),
    DataReturn,
    DataLineFeed,
    /// In the trailer section: bytes so far, and where in a line.
    Trailer {
        bytes: u32,
        line: TrailerLine,
    },
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrailerLine {
    Start,
    Name,
    Value,
    LineFeed { last: bool },
}

impl BodyDecoder {
    /// A decoder at the start of a body.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size { size: 0, digits: 0 },
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, name: 0, value: 0, trailers: 0 }
    }

    /// The body is complete.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Decodes the next run of payload, or of framing, at the start of `input`. Call it again with the rest until
    /// `done`, or until all input is consumed.
    ///
    /// # Errors
    /// Broken chunking; trailers are checked and dropped.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, BodyError> {
        self.decode_to(input, None)
    }

    /// [`BodyDecoder::decode`], which also collects the trailers: give the same `Headers`, empty at first, for the
    /// whole body. They are complete when the body is done. Framing and hop-by-hop fields are left out.
    ///
    /// # Errors
    /// Broken chunking or trailers.
    pub fn decode_with_trailers(&mut self, input: &[u8], trailers: &mut Headers) -> Result<Decoded, BodyError> {
        self.decode_to(input, Some(trailers))
    }

    fn decode_to(&mut self, input: &[u8], mut trailers: Option<&mut Headers>) -> Result<Decoded, BodyError> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => return Ok(Decoded { consumed: at, data: at..at, done: true }),
                State::UntilClose => return Ok(Decoded { consumed: input.len(), data: 0..input.len(), done: false }),
                State::Length(left) => {
                    let (data, left) = take(input, at, left);
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                    return Ok(Decoded { consumed: data.end, data, done: left == 0 });
                }
                State::Data(left) => {
                    let (data, left) = take(input, at, left);
                    self.state = if left == 0 { State::DataReturn } else { State::Data(left) };
                    return self.after_data(input, data, trailers);
                }
                _ => {
                    let Some(&byte) = input.get(at) else {
                        return Ok(Decoded { consumed: at, data: at..at, done: false });
                    };
                    self.step(byte, trailers.as_deref_mut())?;
                    at += 1;
                }
            }
        }
    }

    /// The input ended.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] unless the body was complete or ends with the connection.
    pub fn end(&mut self) -> Result<(), BodyError> {
        match self.state {
            State::Done | State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(BodyError::Truncated),
        }
    }

    /// Consumes the framing directly after a chunk's data, so that a body that is complete in the input is done in one
    /// call.
    fn after_data(
        &mut self,
        input: &[u8],
        data: Range<usize>,
        mut trailers: Option<&mut Headers>,
    ) -> Result<Decoded, BodyError> {
        let mut at = data.end;
        while let (Some(&byte), false) = (input.get(at), matches!(self.state, State::Data(_) | State::Done)) {
            self.step(byte, trailers.as_deref_mut())?;
            at += 1;
        }
        Ok(Decoded { consumed: at, data, done: self.is_done() })
    }

    /// Consumes one byte of framing; bytes of trailers go to `trailers`.
    #[inline]
    fn step(&mut self, byte: u8, trailers: Option<&mut Headers>) -> Result<(), BodyError> {
        let before = self.state;
        self.state = step(before, byte)?;
        if let State::Trailer { line: before, .. } = before {
            self.trailer(before, byte, trailers)?;
        }
        Ok(())
    }

    fn trailer(&mut self, before: TrailerLine, byte: u8, trailers: Option<&mut Headers>) -> Result<(), BodyError> {
        let State::Trailer { line, .. } = self.state else { return Ok(()) };
        if (before, line) == (TrailerLine::Start, TrailerLine::Name) {
            self.trailers += 1;
            if self.trailers > MAX_TRAILERS {
                return Err(BodyError::TooLarge);
            }
        }
        let Some(trailers) = trailers else { return Ok(()) };
        match (before, line) {
            (TrailerLine::Start, TrailerLine::Name) => {
                self.name = trailers.position();
                trailers.push_byte(byte.to_ascii_lowercase());
            }
            (TrailerLine::Name, TrailerLine::Name) => trailers.push_byte(byte.to_ascii_lowercase()),
            (TrailerLine::Name, TrailerLine::Value) => self.value = trailers.position(),
            (TrailerLine::Value, TrailerLine::Value) => trailers.push_byte(byte),
            (TrailerLine::Value, TrailerLine::LineFeed { .. }) => trailers.end_trailer(self.name, self.value),
            _ => {}
        }
        Ok(())
    }
}

/// The part of `left` bytes that is in `input` from `at`, and how many remain.
fn take(input: &[u8], at: usize, left: u64) -> (Range<usize>, u64) {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(input.len() - at);
    (at..at + here, left - here as u64)
}

/// Chunk framing, byte by byte (RFC 9112 section 7.1). Only CRLF ends a line.
fn step(state: State, byte: u8) -> Result<State, BodyError> {
    Ok(match state {
        State::Size { size, digits } => match (char::from(byte).to_digit(16), byte) {
            (Some(digit), _) if digits < MAX_SIZE_DIGITS && size >> 60 == 0 => {
                State::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (None, b'\r') if digits > 0 => State::SizeLineFeed(size),
            // As in Envoy, blanks may stand before an extension, and without one: some servers pad sizes to write them later.
            (None, b';' | b' ' | b'\t') if digits > 0 => State::Extension { size, bytes: 0 },
            _ => return Err(BodyError::ChunkSize),
        },
        State::Extension { size, bytes } => match byte {
            b'\r' => State::SizeLineFeed(size),
            _ if bytes >= MAX_LINE_BYTES => return Err(BodyError::TooLarge),
            byte if is_text(byte) => State::Extension { size, bytes: bytes + 1 },
            _ => return Err(BodyError::ChunkSize),
        },
        State::SizeLineFeed(size) => match (byte, size) {
            (b'\n', 0) => State::Trailer { bytes: 0, line: TrailerLine::Start },
            (b'\n', size) => State::Data(size),
            _ => return Err(BodyError::ChunkSize),
        },
        State::DataReturn if byte == b'\r' => State::DataLineFeed,
        State::DataLineFeed if byte == b'\n' => State::Size { size: 0, digits: 0 },
        State::DataReturn | State::DataLineFeed => return Err(BodyError::ChunkEnd),
        State::Trailer { bytes, line } => {
            if bytes >= MAX_LINE_BYTES {
                return Err(BodyError::TooLarge);
            }
            trailer(bytes + 1, line, byte)?
        }
        State::Length(_) | State::UntilClose | State::Data(_) | State::Done => state,
    })
}

fn trailer(bytes: u32, line: TrailerLine, byte: u8) -> Result<State, BodyError> {
    let line = match (line, byte) {
        (TrailerLine::Start, b'\r') => TrailerLine::LineFeed { last: true },
        (TrailerLine::Name, b':') => TrailerLine::Value,
        (TrailerLine::Start | TrailerLine::Name, byte) if TOKEN.holds(byte) => TrailerLine::Name,
        (TrailerLine::Value, b'\r') => TrailerLine::LineFeed { last: false },
        (TrailerLine::Value, byte) if is_text(byte) => TrailerLine::Value,
        (TrailerLine::LineFeed { last: true }, b'\n') => return Ok(State::Done),
        (TrailerLine::LineFeed { last: false }, b'\n') => TrailerLine::Start,
        _ => return Err(BodyError::Trailer),
    };
    Ok(State::Trailer { bytes, line })
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Payload, bytes consumed, and whether the body is done, with the input split at the given places.
    fn decode(framing: Framing, input: &[u8], splits: &[usize]) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let mut decoder = BodyDecoder::new(framing);
        let (mut payload, mut consumed) = (Vec::new(), 0);
        let ends = splits.iter().copied().chain([input.len()]);
        for end in ends {
            while consumed < end && !decoder.is_done() {
                let piece = &input[consumed..end];
                let decoded = decoder.decode(piece)?;
                payload.extend_from_slice(&piece[decoded.data.clone()]);
                consumed += decoded.consumed;
            }
        }
        Ok((payload, consumed, decoder.is_done()))
    }

    #[test]
    fn every_split_gives_the_same() {
        let chunked = b"5\r\nhello\r\nA;x=\"1\"\r\n0123456789\r\n0\r\nx-t: 1\r\n\r\nGET / ";
        let expected = Ok((b"hello0123456789".to_vec(), chunked.len() - 6, true));
        for split in 0..chunked.len() {
            assert_eq!(decode(Framing::Chunked, chunked, &[split]), expected, "split at {split}");
        }
        let each: Vec<_> = (0..chunked.len()).collect();
        assert_eq!(decode(Framing::Chunked, chunked, &each), expected);
        assert_eq!(decode(Framing::Length(3), b"abcdef", &[1]), Ok((b"abc".to_vec(), 3, true)));
        assert_eq!(decode(Framing::UntilClose, b"abc", &[2]), Ok((b"abc".to_vec(), 3, false)));
    }

    #[test]
    fn sizes_may_be_padded() {
        for size in ["5", "5 ", "5\t", "5   \t", "05", "0000000000000000000005", "5 ;a", "5; a=\"b\""] {
            let body = format!("{size}\r\nhello\r\n0 \r\n\r\n");
            for split in 0..body.len() {
                let expected = Ok((b"hello".to_vec(), body.len(), true));
                assert_eq!(decode(Framing::Chunked, body.as_bytes(), &[split]), expected, "{size:?}");
            }
        }
    }

    #[test]
    fn refuses_broken_chunks() {
        let check = |input: &str, expected: BodyError| {
            assert_eq!(decode(Framing::Chunked, input.as_bytes(), &[]), Err(expected), "{input:?}");
        };
        check("\r\n", BodyError::ChunkSize);
        check("5\n", BodyError::ChunkSize);
        check("+5\r\n", BodyError::ChunkSize);
        check("0x5\r\n", BodyError::ChunkSize);
        check(" 5\r\nhello\r\n", BodyError::ChunkSize);
        check("5 \nhello\r\n", BodyError::ChunkSize);
        check(&format!("{}5\r\nhello", "0".repeat(64)), BodyError::ChunkSize);
        check(&format!("5{}", " ".repeat(20_000)), BodyError::TooLarge);
        check("5;a\nb\r\n", BodyError::ChunkSize);
        check("5;a\0\r\n", BodyError::ChunkSize);
        check("11111111111111111\r\n", BodyError::ChunkSize);
        check("5\r\nhelloX", BodyError::ChunkEnd);
        check("5\r\nhello\rX", BodyError::ChunkEnd);
        check("0\r\nno colon\r\n\r\n", BodyError::Trailer);
        check("0\r\na : b\r\n\r\n", BodyError::Trailer);
        check("0\r\na: b\n\n", BodyError::Trailer);
        check(&format!("5;{}", "a".repeat(20_000)), BodyError::TooLarge);
        check(&format!("0\r\n{}", "a: b\r\n".repeat(4_000)), BodyError::TooLarge);
    }

    /// Trailers as text, however the input is split.
    fn trailers(input: &[u8], splits: &[usize]) -> Result<String, BodyError> {
        let (mut decoder, mut headers, mut at) = (BodyDecoder::new(Framing::Chunked), Headers::default(), 0);
        for end in splits.iter().copied().chain([input.len()]) {
            while at < end && !decoder.is_done() {
                at += decoder.decode_with_trailers(&input[at..end], &mut headers)?.consumed;
            }
        }
        let lines = headers.iter().map(|(_, n, v)| format!("{}={}|", n.escape_ascii(), v.escape_ascii()));
        Ok(lines.collect())
    }

    #[test]
    fn collects_trailers() {
        let check = |section: &str, expected: Result<&str, BodyError>| {
            let input = format!("3\r\nabc\r\n0\r\n{section}\r\n");
            for split in 0..input.len() {
                assert_eq!(
                    trailers(input.as_bytes(), &[split]),
                    expected.map(str::to_owned),
                    "{section:?} split at {split}"
                );
            }
        };
        check("", Ok(""));
        check("Grpc-Status: 0\r\nX:\r\nx-b: \t a  b \r\n", Ok("grpc-status=0|x=|x-b=a  b|"));
        check("Content-Length: 5\r\na: 1\r\nTransfer-Encoding: chunked\r\nHost: x\r\nb: 2\r\n", Ok("a=1|b=2|"));
        check("a: 1\r\n b\r\n", Err(BodyError::Trailer));
        check(": 1\r\n", Err(BodyError::Trailer));
        check(&"a: b\r\n".repeat(101), Err(BodyError::TooLarge));
    }

    #[test]
    fn trailers_written_are_trailers_read() {
        let mut sent = Headers::default();
        sent.append(b"grpc-status", b"0");
        sent.append(b"content-length", b"7");
        sent.append(b"grpc-message", b"");
        let mut wire = Vec::new();
        crate::encode::chunk(&mut wire, b"abc");
        crate::encode::last_chunk_with_trailers(&mut wire, &sent);
        assert_eq!(trailers(&wire, &[9]).as_deref(), Ok("grpc-status=0|grpc-message=|"));
    }

    #[test]
    fn an_early_end_is_told_from_a_proper_one() {
        let mut decoder = BodyDecoder::new(Framing::Length(3));
        assert_eq!(decoder.end(), Err(BodyError::Truncated));
        assert_eq!(BodyDecoder::new(Framing::UntilClose).end(), Ok(()));
        assert_eq!(BodyDecoder::new(Framing::Chunked).end(), Err(BodyError::Truncated));
        assert_eq!(BodyDecoder::new(Framing::None).end(), Ok(()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_splits_agree(input: Vec<u8>, split in 0usize..64) {
            let whole = decode(Framing::Chunked, &input, &[]);
            let parts = decode(Framing::Chunked, &input, &[split.min(input.len())]);
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn what_is_encoded_decodes(pieces: Vec<Vec<u8>>, split in 0usize..4096) {
            let mut wire = Vec::new();
            for piece in &pieces {
                crate::encode::chunk(&mut wire, piece);
            }
            crate::encode::last_chunk(&mut wire);
            let (payload, consumed, done) = decode(Framing::Chunked, &wire, &[split.min(wire.len())]).expect("valid");
            prop_assert_eq!(payload, pieces.concat());
            prop_assert!(done && consumed == wire.len());
        }
    }
}
