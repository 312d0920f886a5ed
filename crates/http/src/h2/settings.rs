//! SETTINGS (RFC 9113 section 6.5), sent and received.

use super::connection::{Connection, DEFAULT_WINDOW, MAX_31_BITS, Role};
use super::error::{ConnectionError, Reason, protocol_error};
use super::frame::{FrameHeader, flag};
use super::hpack::DEFAULT_TABLE_BYTES;
use super::sink::Sink;
use super::streams::Direction;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;
pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;
pub(super) const ENABLE_CONNECT_PROTOCOL: u16 = 8;

impl Connection {
    /// Sends the first settings: those that differ from the defaults.
    pub(super) fn send_first_settings(&mut self) {
        let options = &self.options;
        let mut settings = vec![
            (INITIAL_WINDOW_SIZE, options.initial_stream_window_size),
            (MAX_HEADER_LIST_SIZE, options.max_header_list_bytes),
        ];
        match self.role {
            Role::Client => settings.push((ENABLE_PUSH, 0)),
            Role::Server => {
                settings.push((MAX_CONCURRENT_STREAMS, options.max_concurrent_streams));
                if options.enable_connect_protocol {
                    settings.push((ENABLE_CONNECT_PROTOCOL, 1));
                }
            }
        }
        if options.hpack_table_size as usize != DEFAULT_TABLE_BYTES {
            settings.push((HEADER_TABLE_SIZE, options.hpack_table_size));
        }
        if options.max_frame_size != 16 * 1024 {
            settings.push((MAX_FRAME_SIZE, options.max_frame_size));
        }
        let (table, more) =
            (options.hpack_table_size as usize, options.initial_connection_window_size - DEFAULT_WINDOW);
        self.decoder.set_limit(table.max(DEFAULT_TABLE_BYTES));
        self.send_settings(&settings);
        if more > 0 {
            self.output.window_update(0, more);
        }
    }

    pub(super) fn receive_settings(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), ConnectionError> {
        if header.stream != 0 {
            return Err(protocol_error("SETTINGS on a stream"));
        }
        if header.has(flag::ACK) {
            return self.settings_confirmed(payload);
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(ConnectionError::frame_size("SETTINGS of a length that is no multiple of 6"));
        }
        let (before, mut initial_window) = (self.peer, self.peer_initial_window);
        for [i0, i1, v0, v1, v2, v3] in settings {
            let (id, value) = (u16::from_be_bytes([*i0, *i1]), u32::from_be_bytes([*v0, *v1, *v2, *v3]));
            match id {
                HEADER_TABLE_SIZE => self.encoder.set_peer_limit(value as usize),
                ENABLE_PUSH if value > 1 || (value == 1 && self.role == Role::Client) => {
                    return Err(protocol_error("invalid ENABLE_PUSH"));
                }
                MAX_CONCURRENT_STREAMS => self.peer.max_concurrent_streams = value,
                INITIAL_WINDOW_SIZE => {
                    initial_window = i32::try_from(value)
                        .map_err(|_| ConnectionError::flow_control("INITIAL_WINDOW_SIZE over 2^31-1"))?;
                }
                MAX_FRAME_SIZE if !(16_384..1 << 24).contains(&value) => {
                    return Err(protocol_error("invalid MAX_FRAME_SIZE"));
                }
                MAX_HEADER_LIST_SIZE => self.peer.max_header_list_bytes = value,
                ENABLE_CONNECT_PROTOCOL if value > 1 || (value == 0 && self.peer.enable_connect_protocol) => {
                    return Err(protocol_error("invalid ENABLE_CONNECT_PROTOCOL"));
                }
                ENABLE_CONNECT_PROTOCOL => self.peer.enable_connect_protocol = value == 1,
                _ => {}
            }
        }
        // Only the last value counts; applying each one to all streams would let one frame cause a million steps.
        self.change_initial_window(initial_window)?;
        self.confirm_settings();
        if !std::mem::replace(&mut self.settings_received, true) {
            let told = settings.iter().any(|[i0, i1, ..]| u16::from_be_bytes([*i0, *i1]) == MAX_CONCURRENT_STREAMS);
            if !told {
                self.peer.max_concurrent_streams = u32::MAX;
            }
            sink.settings(self.peer);
        } else if before != self.peer {
            sink.settings(self.peer);
        }
        Ok(())
    }

    fn settings_confirmed(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        if !payload.is_empty() {
            return Err(ConnectionError::frame_size("SETTINGS acknowledgement with a payload"));
        }
        if self.settings_unconfirmed == 0 {
            return Err(protocol_error("SETTINGS acknowledgement for nothing"));
        }
        self.settings_unconfirmed -= 1;
        if (self.options.hpack_table_size as usize) < DEFAULT_TABLE_BYTES {
            self.decoder.set_limit(self.options.hpack_table_size as usize);
        }
        if self.settings_unconfirmed == 0 && !self.is_stream_window_confirmed() {
            self.change_stream_window(self.stream_window_announced);
        }
        Ok(())
    }

    /// From here on the peer knows the new window.
    fn change_stream_window(&mut self, window: i32) {
        let change = window - self.stream_window;
        self.stream_window = window;
        for (key, stream) in self.streams.iter_mut() {
            stream.recv_window = stream.recv_window.saturating_add(change);
            stream.recv_limit = stream.recv_limit.saturating_add(change);
            // Bytes that were too few to announce may be all of a smaller window; without an update the peer could not
            // send again.
            if stream.recv != Direction::Ended && stream.released > 0 && stream.is_worth_telling() {
                let given = std::mem::take(&mut stream.released);
                stream.recv_window = stream.recv_window.saturating_add(given as i32);
                self.output.window_update(key.id(), given);
            }
        }
    }

    /// Every stream's window changes by the difference (RFC 9113 section 6.9.2).
    fn change_initial_window(&mut self, initial: i32) -> Result<(), ConnectionError> {
        let change = i64::from(initial) - i64::from(self.peer_initial_window);
        self.peer_initial_window = initial;
        if change == 0 {
            return Ok(());
        }
        let line = &mut self.line;
        for (key, stream) in self.streams.iter_mut() {
            let window = i64::from(stream.send_window) + change;
            stream.send_window = i32::try_from(window)
                .ok()
                .filter(|window| i64::from(*window) <= i64::from(MAX_31_BITS))
                .ok_or(ConnectionError::flow_control("a window over 2^31-1 after SETTINGS"))?;
            if stream.waiting && !stream.in_line && stream.send_window > 0 {
                stream.in_line = true;
                line.push_back(key);
            }
        }
        Ok(())
    }
}

impl ConnectionError {
    pub(super) fn frame_size(text: &'static str) -> Self {
        Self { reason: Reason::FRAME_SIZE_ERROR, text, violation: super::Violation::Protocol }
    }

    pub(super) fn flow_control(text: &'static str) -> Self {
        Self { reason: Reason::FLOW_CONTROL_ERROR, text, violation: super::Violation::Protocol }
    }
}
