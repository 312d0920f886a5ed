//! Received frames, in the order of RFC 9113 section 6. Header blocks are in [`super::blocks`].

use super::PREFACE;
use super::connection::{Connection, GoAway, MAX_31_BITS, Role, SHUTDOWN_PING};
use super::error::{ConnectionError, Reason, Violation, protocol_error};
use super::floods::Floods;
use super::frame::{FrameHeader, HEADER_BYTES, flag, kind, number};
use super::head::Refusal;
use super::partial::PartialData;
use super::sink::{Counter, Fault, Reset, Sink, StreamKey};
use super::streams::{ClosedBy, Direction};

fn stream_closed(text: &'static str) -> ConnectionError {
    ConnectionError { reason: Reason::STREAM_CLOSED, text, violation: Violation::Protocol }
}

impl Connection {
    /// Processes input: reports complete frames, and parts of DATA frames, at the start of `input` to the sink, and
    /// returns how many bytes were consumed. Call it again with the rest and the bytes that follow (the rest has at
    /// most [`super::Options::max_frame_size`] + 9 bytes).
    ///
    /// # Errors
    /// The connection has ended: write the output, then close. All streams end without further calls of the sink.
    pub fn receive(&mut self, input: &[u8], sink: &mut impl Sink) -> Result<usize, ConnectionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.next_turn();
        self.receive_frames(input, sink).inspect_err(|error| {
            self.failed = Some(*error);
            self.output.goaway(self.last_peer_id, error.reason, error.text.as_bytes());
        })
    }

    fn receive_frames(&mut self, input: &[u8], sink: &mut impl Sink) -> Result<usize, ConnectionError> {
        let mut rest = input;
        if !self.preface_received {
            let have = rest.len().min(PREFACE.len());
            if !PREFACE.starts_with(rest.get(..have).unwrap_or_default()) {
                return Err(protocol_error("no HTTP/2 preface"));
            }
            let Some(after) = rest.get(PREFACE.len()..) else { return Ok(0) };
            rest = after;
            self.preface_received = true;
        }
        loop {
            rest = self.rest_of_data(rest, sink);
            if self.partial.is_some() {
                break;
            }
            let Some(header) = FrameHeader::parse(rest) else { break };
            self.check_order(header)?;
            let payload = rest.get(HEADER_BYTES..).unwrap_or_default();
            rest = if header.kind == kind::DATA {
                let Some(data) = self.data(header, payload, sink)? else { break };
                data
            } else {
                let Some((payload, after)) = payload.split_at_checked(header.length) else { break };
                self.frame(header, payload, sink)?;
                after
            };
            Floods::output(&self.output, &self.options)?;
        }
        Ok(input.len() - rest.len())
    }

    /// Checks a frame's header before its payload is read.
    fn check_order(&self, header: FrameHeader) -> Result<(), ConnectionError> {
        if header.length > self.options.max_frame_size as usize {
            return Err(ConnectionError::frame_size("frame over MAX_FRAME_SIZE"));
        }
        if !self.settings_received && (header.kind != kind::SETTINGS || header.has(flag::ACK)) {
            return Err(protocol_error("the first frame is not SETTINGS"));
        }
        let continued = self.block.as_ref().map(|block| block.stream);
        match (continued, header.kind == kind::CONTINUATION) {
            (Some(stream), true) if stream == header.stream => Ok(()),
            (Some(_), _) => Err(protocol_error("a frame inside a header block")),
            (None, true) => Err(protocol_error("CONTINUATION without a header block")),
            (None, false) => Ok(()),
        }
    }

    fn frame(&mut self, header: FrameHeader, payload: &[u8], sink: &mut impl Sink) -> Result<(), ConnectionError> {
        match header.kind {
            kind::HEADERS => self.headers(header, payload, sink),
            kind::CONTINUATION => self.continuation(header, payload, sink),
            kind::PRIORITY => self.priority(header, payload, sink),
            kind::RST_STREAM => self.rst_stream(header, payload, sink),
            kind::SETTINGS => self.receive_settings(header, payload, sink),
            kind::PUSH_PROMISE => Err(protocol_error("PUSH_PROMISE, which was not allowed")),
            kind::PING => self.ping_frame(header, payload, sink),
            kind::GOAWAY => self.goaway_frame(header, payload, sink),
            kind::WINDOW_UPDATE => self.window_update(header, payload, sink),
            // Extensions (RFC 9113 section 5.5).
            _ => Ok(()),
        }
    }

    // DATA -----------------------------------------------------------------------------------------------------------------

    /// The head of a DATA frame; returns what follows it, or `None` when its padding's length has not come.
    fn data<'a>(
        &mut self,
        header: FrameHeader,
        payload: &'a [u8],
        sink: &mut impl Sink,
    ) -> Result<Option<&'a [u8]>, ConnectionError> {
        if header.stream == 0 || self.is_idle(header.stream) {
            return Err(protocol_error("DATA on a stream that is not open"));
        }
        let (mut rest, mut data, mut padding) = (payload, header.length, 0);
        if header.has(flag::PADDED) {
            data = data.checked_sub(1).ok_or(ConnectionError::frame_size("padded DATA without a length"))?;
            let Some((&length, after)) = payload.split_first() else { return Ok(None) };
            (rest, padding) = (after, usize::from(length));
            data = data.checked_sub(padding).ok_or(protocol_error("padding longer than the frame"))?;
        }
        let end = header.has(flag::END_STREAM);
        self.floods.payload(data == 0 && !end, &self.options)?;
        self.recv_window -= header.length as i64;
        if self.recv_window < 0 {
            return Err(ConnectionError::flow_control("DATA beyond the connection's window"));
        }
        let stream = self.admit_data(header, data, sink)?;
        match stream {
            // The application releases only data, not padding.
            Some(key) => {
                self.release_stream(key, header.length - data);
                self.release_connection(header.length - data);
                if data == 0 && end {
                    sink.data(key, &[], true);
                    self.received_end(key);
                }
            }
            None => self.release_connection(header.length),
        }
        self.partial = (data + padding > 0).then_some(PartialData { stream, data, padding, end });
        Ok(Some(rest))
    }

    /// The stream that gets a DATA frame, if one does.
    fn admit_data(
        &mut self,
        header: FrameHeader,
        data: usize,
        sink: &mut impl Sink,
    ) -> Result<Option<StreamKey>, ConnectionError> {
        let Some(key) = self.streams.find(header.stream) else {
            match self.closed_streams.look_up(header.stream) {
                ClosedBy::ResetHere => {}
                ClosedBy::ResetByPeer => self.output.reset(header.stream, Reason::STREAM_CLOSED),
                ClosedBy::Ended | ClosedBy::Skipped => return Err(stream_closed("DATA on a closed stream")),
            }
            return Ok(None);
        };
        let end = header.has(flag::END_STREAM);
        let Some(stream) = self.streams.get_mut(key) else { return Ok(None) };
        let refused = if stream.recv == Direction::Ended {
            Some(Reason::STREAM_CLOSED)
        } else if stream.recv == Direction::Head {
            // Before the response.
            Some(Reason::PROTOCOL_ERROR)
        } else if header.length > 0 && stream.recv_window < header.length as i32 {
            Some(Reason::FLOW_CONTROL_ERROR)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.stream_error(key, reason, sink)?;
            return Ok(None);
        }
        stream.recv_window -= header.length as i32;
        if let Some(expected) = stream.expected {
            let left = expected.checked_sub(data as u64).filter(|left| !end || *left == 0);
            if left.is_none() {
                // The message is malformed (RFC 9113 section 8.1.1), but its frames are not: other streams are not affected.
                self.stream_error(key, Reason::PROTOCOL_ERROR, sink)?;
                return Ok(None);
            }
            stream.expected = left;
        }
        Ok(Some(key))
    }

    /// Delivers the available part of a DATA frame; returns what follows it.
    fn rest_of_data<'a>(&mut self, input: &'a [u8], sink: &mut impl Sink) -> &'a [u8] {
        let Some(mut partial) = self.partial else { return input };
        let (piece, rest) = input.split_at(partial.data.min(input.len()));
        partial.data -= piece.len();
        if !piece.is_empty() {
            let open = partial.stream.filter(|key| self.streams.get(*key).is_some());
            let end = partial.end && partial.data == 0;
            match open {
                Some(key) => {
                    sink.data(key, piece, end);
                    if end {
                        self.received_end(key);
                    }
                }
                // This side reset the stream since the frame began; a frame without a stream was released at its start.
                None if partial.stream.is_some() => self.release_connection(piece.len()),
                None => {}
            }
        }
        let (padding, rest) = rest.split_at(partial.padding.min(rest.len()));
        partial.padding -= padding.len();
        self.partial = (partial.data + partial.padding > 0).then_some(partial);
        rest
    }

    // Other frames of a stream ---------------------------------------------------------------------------------------------

    fn priority(&mut self, header: FrameHeader, payload: &[u8], sink: &mut impl Sink) -> Result<(), ConnectionError> {
        self.floods.priority(&self.options)?;
        if header.stream == 0 {
            return Err(protocol_error("PRIORITY without a stream"));
        }
        let reason = if payload.len() != 5 {
            Reason::FRAME_SIZE_ERROR
        } else if number(payload).is_some_and(|on| on & MAX_31_BITS == header.stream) {
            Reason::PROTOCOL_ERROR
        } else {
            return Ok(());
        };
        match self.streams.find(header.stream) {
            Some(key) => self.stream_error(key, reason, sink),
            // An idle stream cannot be reset.
            None => Err(ConnectionError { reason, text: "malformed PRIORITY frame", violation: Violation::Protocol }),
        }
    }

    fn rst_stream(&mut self, header: FrameHeader, payload: &[u8], sink: &mut impl Sink) -> Result<(), ConnectionError> {
        if self.is_idle(header.stream) {
            return Err(protocol_error("RST_STREAM on an idle stream"));
        }
        let reason = number(payload).filter(|_| payload.len() == 4);
        let reason = Reason(reason.ok_or(ConnectionError::frame_size("RST_STREAM of a length other than 4"))?);
        sink.count(Counter::RxReset);
        let Some(key) = self.streams.find(header.stream) else { return Ok(()) };
        let unprocessed = reason == Reason::REFUSED_STREAM && self.role == Role::Client;
        let premature = self.is_premature(key);
        sink.reset(key, Reset { reason, by_peer: true, unprocessed, fault: None });
        self.remove(key, ClosedBy::ResetByPeer);
        if premature { self.floods.premature_reset(&self.options) } else { Ok(()) }
    }

    fn window_update(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let increment = number(payload).filter(|_| payload.len() == 4);
        let increment =
            increment.ok_or(ConnectionError::frame_size("WINDOW_UPDATE of a length other than 4"))? & MAX_31_BITS;
        self.floods.window_update(&self.options)?;
        if header.stream == 0 {
            self.send_window += i64::from(increment);
            return match increment {
                0 => Err(protocol_error("WINDOW_UPDATE by 0")),
                _ if self.send_window > i64::from(MAX_31_BITS) => {
                    Err(ConnectionError::flow_control("the connection's window is over 2^31-1"))
                }
                _ => Ok(()),
            };
        }
        if self.is_idle(header.stream) {
            return Err(protocol_error("WINDOW_UPDATE on an idle stream"));
        }
        let Some(key) = self.streams.find(header.stream) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if increment == 0 {
            return self.stream_error(key, Reason::PROTOCOL_ERROR, sink);
        }
        let Some(window) = stream.send_window.checked_add(increment as i32) else {
            return self.stream_error(key, Reason::FLOW_CONTROL_ERROR, sink);
        };
        stream.send_window = window;
        if stream.waiting && !stream.in_line && window > 0 {
            stream.in_line = true;
            self.line.push_back(key);
        }
        Ok(())
    }

    // Frames of the connection ---------------------------------------------------------------------------------------------

    fn ping_frame(&mut self, header: FrameHeader, payload: &[u8], sink: &mut impl Sink) -> Result<(), ConnectionError> {
        if header.stream != 0 {
            return Err(protocol_error("PING on a stream"));
        }
        let payload: [u8; 8] =
            payload.try_into().map_err(|_| ConnectionError::frame_size("PING of a length other than 8"))?;
        if !header.has(flag::ACK) {
            self.output.control(kind::PING, flag::ACK, 0, &payload);
        } else if payload == SHUTDOWN_PING && self.goaway == GoAway::Announced {
            self.finish_shutdown();
        } else {
            sink.pong(payload);
        }
        Ok(())
    }

    fn goaway_frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        if header.stream != 0 {
            return Err(protocol_error("GOAWAY on a stream"));
        }
        let (Some(last), Some(reason)) = (number(payload), payload.get(4..).and_then(number)) else {
            return Err(ConnectionError::frame_size("GOAWAY of less than 8 bytes"));
        };
        let last = last & MAX_31_BITS;
        self.peer_leaves = true;
        if self.role == Role::Client {
            for key in self.streams.above(last) {
                let reset = Reset { reason: Reason::REFUSED_STREAM, by_peer: true, unprocessed: true, fault: None };
                sink.reset(key, reset);
                self.remove(key, ClosedBy::ResetByPeer);
            }
        }
        sink.goaway(last, Reason(reason), payload.get(8..).unwrap_or_default());
        Ok(())
    }

    // Shared by several frame types ------------------------------------------------------------------------------------------

    /// Whether only HEADERS and PRIORITY may arrive on this stream yet; also true for stream 0 and for ids that the
    /// peer must not use.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        let newest = match self.role {
            Role::Server => self.last_peer_id,
            Role::Client => self.next_id.saturating_sub(2),
        };
        id.is_multiple_of(2) || id > newest
    }

    /// The peer has ended a stream.
    pub(super) fn received_end(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.recv = Direction::Ended;
        if stream.send == Direction::Ended {
            self.remove(key, ClosedBy::Ended);
        }
    }

    /// Resets a stream because of what the peer did.
    pub(super) fn stream_error(
        &mut self,
        key: StreamKey,
        reason: Reason,
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        self.message_error(key, reason, None, sink)
    }

    /// Resets a stream because of the peer's behavior, or of an error in its message.
    pub(super) fn message_error(
        &mut self,
        key: StreamKey,
        reason: Reason,
        fault: Option<Fault>,
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        let premature = self.is_premature(key);
        sink.count(Counter::TxReset);
        sink.reset(key, Reset { reason, by_peer: false, unprocessed: false, fault });
        self.reset(key, reason);
        // A peer can make this side reset streams just as it can reset them itself.
        if premature { self.floods.premature_reset(&self.options) } else { Ok(()) }
    }

    /// The message on a stream is malformed: resets the stream or ends the connection, as configured. `key` is set if
    /// the sink knows the stream.
    pub(super) fn malformed(
        &mut self,
        key: Option<StreamKey>,
        id: u32,
        (fault, text): Refusal,
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        sink.count(Counter::RxMessagingError);
        let reason = Reason::PROTOCOL_ERROR;
        if !self.options.stream_error_on_invalid_http_message {
            if let Some(key) = key {
                // The other streams end with the connection; this one is the reason.
                sink.reset(key, Reset { reason, by_peer: false, unprocessed: false, fault: Some(fault) });
            }
            return Err(ConnectionError { reason, text, violation: Violation::Messaging });
        }
        if let Some(key) = key {
            return self.message_error(key, reason, Some(fault), sink);
        }
        self.refuse(id, reason, sink);
        if self.role == Role::Server { self.floods.premature_reset(&self.options) } else { Ok(()) }
    }

    /// Resets a stream that was never opened.
    pub(super) fn refuse(&mut self, id: u32, reason: Reason, sink: &mut impl Sink) {
        sink.count(Counter::TxReset);
        self.output.reset(id, reason);
        self.closed_streams.record(id, ClosedBy::ResetHere);
        self.floods.stream_closed();
    }

    /// Whether a reset of this request now counts as premature: it is young and not answered.
    fn is_premature(&self, key: StreamKey) -> bool {
        let most = self.options.premature_reset_min_stream_lifetime_seconds;
        self.role == Role::Server
            && self.streams.get(key).is_some_and(|stream| {
                stream.send == Direction::Head && self.now_seconds.saturating_sub(stream.opened) <= most
            })
    }
}
