//! HTTP/1 bodies, read and written: the same on both sides of the proxy.

use evenkeel_http::{BodyDecoder, BodyError, Framing, Headers, encode};
use evenkeel_upstream::conn::Buffer;

/// The part of a body that is available without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// At least one byte of payload was given to the closure.
    Data,
    /// The body is complete, and its trailers are known.
    End,
    /// More has to be received first.
    Nothing,
}

/// Takes a piece of a body, and whether it is known to be the last, without trailers after it.
pub(super) type Take<'t> = dyn FnMut(&[u8], bool) + 't;

/// Receives a body.
pub(super) struct FramedBody {
    decoder: BodyDecoder,
    /// Trailers are kept; otherwise they are checked and dropped.
    keeps_trailers: bool,
}

impl FramedBody {
    pub(super) fn new(framing: Framing, keeps_trailers: bool) -> Self {
        Self { decoder: BodyDecoder::new(framing), keeps_trailers }
    }

    /// The whole body was taken.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Gives the next piece available in `input` to `take`.
    pub(super) fn piece(
        &mut self,
        input: &mut Buffer,
        trailers: &mut Headers,
        take: &mut Take<'_>,
    ) -> Result<Piece, BodyError> {
        while !self.decoder.is_done() {
            if input.is_empty() {
                return Ok(Piece::Nothing);
            }
            let decoded = if self.keeps_trailers {
                self.decoder.decode_with_trailers(input.bytes(), trailers)?
            } else {
                self.decoder.decode(input.bytes())?
            };
            let found = !decoded.data.is_empty();
            if found {
                let last = decoded.done && trailers.is_empty();
                take(input.bytes().get(decoded.data).unwrap_or_default(), last);
            }
            input.consume(decoded.consumed);
            if found {
                return Ok(Piece::Data);
            }
        }
        Ok(Piece::End)
    }

    /// The peer closed.
    pub(super) fn end(&mut self) -> Result<(), BodyError> {
        self.decoder.end()
    }
}

/// Writes a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyWriter {
    framing: Framing,
    trailers: bool,
}

impl BodyWriter {
    /// `trailers`: the peer accepts trailers.
    pub(super) fn new(framing: Framing, trailers: bool) -> Self {
        Self { framing, trailers }
    }

    #[inline]
    pub(super) fn data(&self, out: &mut Vec<u8>, data: &[u8]) {
        match self.framing {
            Framing::Chunked => encode::chunk(out, data),
            _ => out.extend_from_slice(data),
        }
    }

    #[inline]
    pub(super) fn end(&self, out: &mut Vec<u8>, trailers: &Headers) {
        match self.framing {
            Framing::Chunked if self.trailers && !trailers.is_empty() => {
                encode::last_chunk_with_trailers(out, trailers)
            }
            Framing::Chunked => encode::last_chunk(out),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_however_they_are_taken() {
        let wire = b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 9\r\n\r\nnext";
        for split in 0..wire.len() {
            let mut body = FramedBody::new(Framing::Chunked, true);
            let (mut payload, mut trailers) = (Vec::new(), Headers::default());
            let mut rest = wire.get(..split).unwrap_or_default().to_vec();
            let mut piece =
                |input: &mut Buffer| body.piece(input, &mut trailers, &mut |data, _| payload.extend_from_slice(data));
            let mut input = Buffer::with(&rest);
            while piece(&mut input) == Ok(Piece::Data) {}
            rest = [input.bytes(), wire.get(split..).unwrap_or_default()].concat();
            let mut input = Buffer::with(&rest);
            while piece(&mut input) == Ok(Piece::Data) {}
            assert!(body.is_done());
            assert_eq!((payload.as_slice(), input.bytes()), (&b"hello world"[..], &b"next"[..]), "split at {split}");
            assert_eq!(trailers.find(b"x-sum"), Some(&b"9"[..]));
        }
    }
}
