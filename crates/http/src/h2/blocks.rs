//! Received header blocks: the stream they belong to, and their effect on it.

use super::connection::{Connection, GoAway, MAX_31_BITS, Role};
use super::error::{ConnectionError, Reason, Violation, protocol_error};
use super::frame::{FRAME_BYTES, FrameHeader, flag, number};
use super::head::{self, Refusal, RequestReader, ResponseReader, TrailersReader};
use super::hpack::HpackError;
use super::partial::HeaderBlock;
use super::sink::{Counter, Fault, Sink, StreamKey};
use super::streams::{ClosedBy, Direction};
use crate::framing::Framing;
use crate::head::ResponseHead;

/// A header block may be this many times the limit of the header list, plus [`BLOCK_LIMIT_EXTRA_BYTES`], and still get
/// a regular answer. A larger one ends the connection instead of being decoded.
const BLOCK_LIMIT_FACTOR: usize = 2;
const BLOCK_LIMIT_EXTRA_BYTES: usize = 16 * 1024;

/// CONTINUATION frames allowed for one block beyond the number that full frames would need.
const SPARE_CONTINUATIONS: u32 = 8;

fn header_overflow(text: &'static str) -> ConnectionError {
    ConnectionError { reason: Reason::ENHANCE_YOUR_CALM, text, violation: Violation::HeaderOverflow }
}

fn compression_error(error: HpackError) -> ConnectionError {
    let text = match error {
        HpackError::Truncated => "header block ends early",
        HpackError::Integer => "integer in a header block is too large",
        HpackError::Index => "index beyond the header tables",
        HpackError::Huffman => "malformed Huffman code in a header block",
        HpackError::TableSize => "invalid header table size update",
    };
    ConnectionError { reason: Reason::COMPRESSION_ERROR, text, violation: Violation::Compression }
}

impl Connection {
    pub(super) fn headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        if header.stream == 0 {
            return Err(protocol_error("HEADERS without a stream"));
        }
        let short = ConnectionError::frame_size("HEADERS too short for its flags");
        let (mut fragment, mut padding, mut self_dependent) = (payload, 0, false);
        if header.has(flag::PADDED) {
            let (length, rest) = fragment.split_first().ok_or(short)?;
            (fragment, padding) = (rest, usize::from(*length));
        }
        if header.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or(short)?;
            self_dependent = number(priority).is_some_and(|on| on & MAX_31_BITS == header.stream);
            fragment = rest;
        }
        let length = fragment.len().checked_sub(padding).ok_or(protocol_error("padding longer than the frame"))?;
        fragment = fragment.get(..length).unwrap_or_default();
        let end = header.has(flag::END_STREAM);
        self.floods.payload(fragment.is_empty() && !end, &self.options)?;
        if header.has(flag::END_HEADERS) {
            return self.block(header.stream, end, self_dependent, fragment, sink);
        }
        let bytes = fragment.to_vec();
        self.block = Some(Box::new(HeaderBlock { stream: header.stream, end, self_dependent, bytes, frames: 0 }));
        Ok(())
    }

    pub(super) fn continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let Some(mut block) = self.block.take() else { return Err(protocol_error("CONTINUATION without a block")) };
        self.floods.payload(payload.is_empty(), &self.options)?;
        let most_bytes = self.options.max_header_list_bytes as usize * BLOCK_LIMIT_FACTOR + BLOCK_LIMIT_EXTRA_BYTES;
        block.frames += 1;
        if block.frames > most_bytes as u32 / (16 * 1024) + SPARE_CONTINUATIONS {
            return Err(header_overflow("too many CONTINUATION frames"));
        }
        if block.bytes.len() + payload.len() > most_bytes {
            return Err(header_overflow("header block over the size limit"));
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            return self.block(block.stream, block.end, block.self_dependent, &block.bytes, sink);
        }
        self.block = Some(block);
        Ok(())
    }

    /// A complete header block.
    fn block(
        &mut self,
        id: u32,
        end: bool,
        self_dependent: bool,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let known = self.streams.find(id);
        if self_dependent {
            self.discard(block)?;
            let new = self.role == Role::Server && id > self.last_peer_id;
            self.opened_by_peer(id)?;
            return match known {
                Some(key) => self.stream_error(key, Reason::PROTOCOL_ERROR, sink),
                None => {
                    if new {
                        sink.refused(Fault::Message);
                    }
                    self.refuse(id, Reason::PROTOCOL_ERROR, sink);
                    Ok(())
                }
            };
        }
        let Some(key) = known else {
            return if self.role == Role::Server && id % 2 == 1 && id > self.last_peer_id {
                self.request_block(id, end, block, sink)
            } else {
                self.block_on_no_stream(id, block)
            };
        };
        match self.streams.get(key).map(|stream| stream.recv) {
            Some(Direction::Head) => self.response_block(key, end, block, sink),
            Some(Direction::Body) => self.trailers_block(key, end, block, sink),
            Some(Direction::Ended) | None => {
                self.discard(block)?;
                self.stream_error(key, Reason::STREAM_CLOSED, sink)
            }
        }
    }

    /// Decodes a block only to keep the HPACK tables in sync.
    fn discard(&mut self, block: &[u8]) -> Result<(), ConnectionError> {
        self.decoder.decode(block, &mut |_| {}).map_err(compression_error)
    }

    /// Records the id of a stream that the peer opens. Ids between it and the last one can no longer be opened.
    fn opened_by_peer(&mut self, id: u32) -> Result<(), ConnectionError> {
        if self.role == Role::Client || id.is_multiple_of(2) {
            return if self.is_idle(id) { Err(protocol_error("HEADERS on an idle stream")) } else { Ok(()) };
        }
        if id > self.last_peer_id {
            let next = if self.last_peer_id == 0 { 1 } else { self.last_peer_id + 2 };
            if id > next {
                self.closed_streams.skip(next, id - 2);
            }
            self.last_peer_id = id;
        }
        Ok(())
    }

    fn block_on_no_stream(&mut self, id: u32, block: &[u8]) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(protocol_error("HEADERS on a stream that cannot be opened"));
        }
        self.discard(block)?;
        match self.closed_streams.look_up(id) {
            ClosedBy::ResetHere => Ok(()),
            ClosedBy::ResetByPeer => {
                self.output.reset(id, Reason::STREAM_CLOSED);
                Ok(())
            }
            ClosedBy::Skipped => Err(protocol_error("HEADERS on a stream with a lower number than another")),
            ClosedBy::Ended => Err(ConnectionError {
                reason: Reason::STREAM_CLOSED,
                text: "HEADERS on a closed stream",
                violation: Violation::Protocol,
            }),
        }
    }

    fn request_block(&mut self, id: u32, end: bool, block: &[u8], sink: &mut impl Sink) -> Result<(), ConnectionError> {
        self.opened_by_peer(id)?;
        let full = self.streams.len() >= self.options.max_concurrent_streams as usize;
        if full || matches!(self.goaway, GoAway::Final { last } if id > last) {
            self.discard(block)?;
            self.refuse(id, Reason::REFUSED_STREAM, sink);
            return Ok(());
        }
        let mut reader = RequestReader::new(&mut self.request, &self.options);
        if let Err(error) = self.decoder.decode(block, &mut |field| reader.field(field)) {
            sink.refused(Fault::Block);
            return Err(compression_error(error));
        }
        (0..reader.dropped()).for_each(|_| sink.count(Counter::DroppedUnderscore));
        match reader.finish(end) {
            Ok(meta) => {
                let mut stream = self.new_stream(id);
                stream.recv = if end { Direction::Ended } else { Direction::Body };
                stream.to_head = self.request.method() == b"HEAD";
                stream.connect = self.request.method() == b"CONNECT";
                if let Framing::Length(length) = meta.framing {
                    stream.expected = Some(length);
                }
                let key = self.streams.insert(stream);
                sink.request(key, &mut self.request, meta);
                Ok(())
            }
            Err(refusal) => self.refuse_request(id, refusal, sink),
        }
    }

    fn refuse_request(&mut self, id: u32, refusal: Refusal, sink: &mut impl Sink) -> Result<(), ConnectionError> {
        sink.refused(refusal.0);
        match refusal.0 {
            Fault::TooLarge => {
                self.answer_too_large(id, sink);
                Ok(())
            }
            Fault::Underscore => {
                sink.count(Counter::RejectedUnderscore);
                self.refuse(id, Reason::INTERNAL_ERROR, sink);
                self.floods.premature_reset(&self.options)
            }
            Fault::Field | Fault::Message | Fault::Block => self.malformed(None, id, refusal, sink),
        }
    }

    /// Answers 431 (RFC 9113 section 10.5.1), and takes no body.
    fn answer_too_large(&mut self, id: u32, sink: &mut impl Sink) {
        sink.count(Counter::HeaderOverflow);
        self.answer(id, 431);
        self.refuse(id, Reason::NO_ERROR, sink);
    }

    /// Ends the connection because something that [`Connection::begun`] reported did not arrive completely in time. If
    /// it was a request's head, the request is answered with 408 (RFC 9110 section 15.5.9). Returns true if there was
    /// such a request.
    pub fn end_late(&mut self, input: &[u8]) -> bool {
        let late = self.begun(input).filter(|id| self.role == Role::Server && id % 2 == 1 && *id > self.last_peer_id);
        if let Some(id) = late {
            self.last_peer_id = id;
            self.answer(id, 408);
            self.output.reset(id, Reason::NO_ERROR);
        }
        self.goaway(Reason::NO_ERROR, b"");
        late.is_some()
    }

    /// Sends a response without a body.
    fn answer(&mut self, id: u32, status: u16) {
        let head = ResponseHead { status, ..ResponseHead::default() };
        let encoder = &mut self.encoder;
        self.output.headers(id, true, FRAME_BYTES, |out| {
            head::encode_response(encoder, out, &head, Framing::None, false);
        });
    }

    fn response_block(
        &mut self,
        key: StreamKey,
        end: bool,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        let mut reader = ResponseReader::new(&mut self.response, &self.options);
        self.decoder.decode(block, &mut |field| reader.field(field)).map_err(compression_error)?;
        let meta = match reader.finish(end, stream.to_head, stream.connect) {
            Ok(meta) => meta,
            Err(refusal) => return self.fault(key, refusal, sink),
        };
        if self.response.status < 200 {
            sink.interim(key, &mut self.response);
            return Ok(());
        }
        stream.recv = Direction::Body;
        stream.expected = match meta.framing {
            Framing::Length(length) => Some(length),
            Framing::None => Some(0),
            Framing::Chunked | Framing::UntilClose => None,
        };
        sink.response(key, &mut self.response, meta);
        if end {
            self.received_end(key);
        }
        Ok(())
    }

    fn trailers_block(
        &mut self,
        key: StreamKey,
        end: bool,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let mut reader = TrailersReader::new(&mut self.trailers, &self.options);
        self.decoder.decode(block, &mut |field| reader.field(field)).map_err(compression_error)?;
        let cut = self.streams.get(key).is_some_and(|stream| stream.expected.is_some_and(|left| left > 0));
        (0..reader.dropped()).for_each(|_| sink.count(Counter::DroppedUnderscore));
        let refusal = match reader.finish() {
            Ok(()) if !end => (Fault::Message, "a second header block that does not end the stream"),
            Ok(()) if cut => return self.stream_error(key, Reason::PROTOCOL_ERROR, sink),
            Ok(()) => {
                sink.count(Counter::Trailers);
                sink.trailers(key, &mut self.trailers);
                self.received_end(key);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        self.fault(key, refusal, sink)
    }

    /// Refuses a message on an open stream.
    fn fault(&mut self, key: StreamKey, refusal: Refusal, sink: &mut impl Sink) -> Result<(), ConnectionError> {
        let fault = refusal.0;
        match fault {
            Fault::TooLarge => {
                sink.count(Counter::HeaderOverflow);
                self.message_error(key, Reason::ENHANCE_YOUR_CALM, Some(fault), sink)
            }
            Fault::Underscore => {
                sink.count(Counter::RejectedUnderscore);
                self.message_error(key, Reason::INTERNAL_ERROR, Some(fault), sink)
            }
            Fault::Field | Fault::Message | Fault::Block => self.malformed(Some(key), key.id, refusal, sink),
        }
    }
}
