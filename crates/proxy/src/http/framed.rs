//! HTTP/1 bodies, read and written: the same on both sides of the proxy.

use evenkeel_http::{BodyDecoder, BodyError, Framing, Headers, encode};

use crate::conn::Buffer;

/// What of a body can be had without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// Payload, at least one byte.
    Data,
    /// The body is complete, its trailers are known.
    End,
    /// More must be received first.
    Nothing,
}

/// A body on its way in.
pub(super) struct FramedBody {
    decoder: BodyDecoder,
    /// Trailers are wanted; otherwise they are checked and dropped.
    keeps_trailers: bool,
    /// Payload at the start of the buffer, and framing right behind it.
    data: usize,
    framing: usize,
}

impl FramedBody {
    pub(super) fn new(framing: Framing, keeps_trailers: bool) -> Self {
        Self { decoder: BodyDecoder::new(framing), keeps_trailers, data: 0, framing: 0 }
    }

    /// Everything was taken.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.decoder.is_done() && self.data == 0
    }

    /// The next piece of what `input` holds.
    pub(super) fn piece(&mut self, input: &mut Buffer, trailers: &mut Headers) -> Result<Piece, BodyError> {
        loop {
            if self.data > 0 {
                return Ok(Piece::Data);
            }
            if self.decoder.is_done() {
                return Ok(Piece::End);
            }
            if input.is_empty() {
                return Ok(Piece::Nothing);
            }
            let decoded = match self.keeps_trailers {
                true => self.decoder.decode_with_trailers(input.bytes(), trailers)?,
                false => self.decoder.decode(input.bytes())?,
            };
            input.consume(decoded.data.start);
            self.data = decoded.data.len();
            self.framing = decoded.consumed - decoded.data.end;
            if self.data == 0 {
                input.consume(std::mem::take(&mut self.framing));
            }
        }
    }

    /// The payload of [`Piece::Data`].
    #[inline]
    pub(super) fn data<'b>(&self, input: &'b Buffer) -> &'b [u8] {
        input.bytes().get(..self.data).unwrap_or_default()
    }

    /// Marks payload as used.
    #[inline]
    pub(super) fn consume(&mut self, input: &mut Buffer, count: usize) {
        self.data -= count;
        let framing = if self.data == 0 { std::mem::take(&mut self.framing) } else { 0 };
        input.consume(count + framing);
    }

    /// The peer closed.
    pub(super) fn end(&mut self) -> Result<(), BodyError> {
        self.decoder.end()
    }
}

/// How a body goes out.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyWriter {
    framing: Framing,
    trailers: bool,
}

impl BodyWriter {
    /// `trailers`: the peer may be sent trailers.
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
        for step in [1, 3, 100] {
            let mut input = Buffer::with(wire);
            let mut body = FramedBody::new(Framing::Chunked, true);
            let (mut payload, mut trailers) = (Vec::new(), Headers::default());
            while body.piece(&mut input, &mut trailers) == Ok(Piece::Data) {
                let some = body.data(&input);
                let some = &some[..some.len().min(step)];
                payload.extend_from_slice(some);
                let count = some.len();
                body.consume(&mut input, count);
            }
            assert!(body.is_done());
            assert_eq!((payload.as_slice(), input.bytes()), (&b"hello world"[..], &b"next"[..]), "step {step}");
            assert_eq!(trailers.find(b"x-sum"), Some(&b"9"[..]));
        }
    }
}
