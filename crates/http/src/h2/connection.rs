//! The state of one connection, and operations on the connection as a whole.

use std::collections::VecDeque;

use super::PREFACE;
use super::error::{ConnectionError, Reason};
use super::floods::Floods;
use super::frame::{FrameHeader, Output, flag, kind};
use super::hpack::{Decoder, Encoder};
use super::options::Options;
use super::partial::{HeaderBlock, PartialData};
use super::sink::{PeerSettings, StreamKey};
use super::streams::{ClosedBy, ClosedStreams, Streams};
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;

/// Initial window of every stream and connection (RFC 9113 section 6.9.2).
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
/// Largest window and stream identifier; in a first GOAWAY it means "all streams".
pub(super) const MAX_31_BITS: u32 = (1 << 31) - 1;

/// Streams that a client opens before it knows the server's limit: the smallest limit a server should have (RFC 9113
/// section 6.5.2).
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// Payload of the PING between the two GOAWAYs of a shutdown.
pub(super) const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// The progress of closing the connection from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoAway {
    /// No GOAWAY was sent.
    NotSent,
    /// The first GOAWAY was sent.
    Announced,
    /// A GOAWAY was sent with the last stream that is served.
    Final { last: u32 },
}

/// An HTTP/2 connection, client or server, without its socket.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) options: Options,
    pub(super) output: Output,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) streams: Streams,
    pub(super) closed_streams: ClosedStreams,
    pub(super) floods: Floods,

    /// The queue of streams that can send and wait for their turn.
    pub(super) line: VecDeque<StreamKey>,
    /// Counts calls of [`Connection::receive`] and [`Connection::written`]; a granted turn lasts until the next call.
    pub(super) turn: u32,
    /// Bytes granted to the streams whose turn it is.
    pub(super) granted: usize,

    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    /// Bytes released but not yet announced to the peer in a WINDOW_UPDATE.
    pub(super) released: u64,
    /// Window of a new stream, as the peer has confirmed it.
    pub(super) stream_window: i32,
    /// The window of a new stream, as last announced to the peer.
    pub(super) stream_window_announced: i32,
    pub(super) peer: PeerSettings,
    pub(super) peer_initial_window: i32,

    pub(super) preface_received: bool,
    pub(super) settings_received: bool,
    /// Settings this side has sent and the peer has not confirmed.
    pub(super) settings_unconfirmed: u32,
    /// A header block that is continued in the next frame.
    pub(super) block: Option<Box<HeaderBlock>>,
    /// A DATA frame that has not arrived completely.
    pub(super) partial: Option<PartialData>,
    /// The highest stream the peer has opened (server role).
    pub(super) last_peer_id: u32,
    /// The next stream to open (client role).
    pub(super) next_id: u32,
    pub(super) goaway: GoAway,
    /// The peer has sent GOAWAY.
    pub(super) peer_leaves: bool,
    pub(super) failed: Option<ConnectionError>,
    pub(super) now_seconds: u32,

    /// Memory for the head being decoded.
    pub(super) request: RequestHead,
    pub(super) response: ResponseHead,
    pub(super) trailers: Headers,
}

impl Connection {
    /// Creates a server's connection. Its output begins with SETTINGS; the input must begin with the client's preface.
    pub fn server(options: Options) -> Self {
        Self::new(Role::Server, options)
    }

    /// Creates a client's connection. Its output begins with preface and SETTINGS; requests may follow without waiting.
    pub fn client(options: Options) -> Self {
        Self::new(Role::Client, options)
    }

    fn new(role: Role, mut options: Options) -> Self {
        options.clamp();
        let mut connection = Self {
            role,
            output: Output::default(),
            encoder: Encoder::new(options.hpack_table_size as usize),
            decoder: Decoder::new(),
            streams: Streams::default(),
            closed_streams: ClosedStreams::default(),
            floods: Floods::default(),
            line: VecDeque::new(),
            turn: 1,
            granted: 0,
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(options.initial_connection_window_size),
            released: 0,
            stream_window: options.initial_stream_window_size as i32,
            stream_window_announced: options.initial_stream_window_size as i32,
            peer: PeerSettings {
                max_concurrent_streams: STREAMS_BEFORE_SETTINGS,
                enable_connect_protocol: false,
                max_header_list_bytes: u32::MAX,
            },
            peer_initial_window: DEFAULT_WINDOW as i32,
            preface_received: role == Role::Client,
            settings_received: false,
            settings_unconfirmed: 0,
            block: None,
            partial: None,
            last_peer_id: 0,
            next_id: 1,
            goaway: GoAway::NotSent,
            peer_leaves: false,
            failed: None,
            now_seconds: 0,
            request: RequestHead::default(),
            response: ResponseHead::default(),
            trailers: Headers::default(),
            options,
        };
        if role == Role::Client {
            connection.output.raw(PREFACE);
        }
        connection.send_first_settings();
        connection
    }

    /// The peer's input has ended. Returns true if it ended in order: within no frame and with no open stream.
    pub fn end_of_input(&mut self) -> bool {
        self.partial.is_none() && self.block.is_none() && self.streams.is_empty()
    }

    /// Sets the time in whole seconds since any fixed moment, for limits that depend on a stream's age.
    pub fn tick(&mut self, now_seconds: u32) {
        self.now_seconds = now_seconds;
    }

    /// The bytes to write.
    pub fn output(&self) -> &[u8] {
        self.output.pending()
    }

    /// Removes bytes of [`Connection::output`] that were written (or taken over by TLS).
    pub fn written(&mut self, bytes: usize) {
        self.output.written(bytes);
        self.next_turn();
    }

    /// Takes the memory of an empty output, for use by other connections; `None` while there is output.
    pub fn take_output_buffer(&mut self) -> Option<Vec<u8>> {
        self.output.take_buffer()
    }

    /// Lends memory for output; ignored while there is some.
    pub fn lend_output_buffer(&mut self, buffer: Vec<u8>) {
        self.output.lend_buffer(buffer);
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        self.output.take_buffer();
        self.decoder.shrink();
        self.streams.shrink();
        self.line.shrink_to_fit();
        (self.request, self.response, self.trailers) = Default::default();
    }

    /// Whether so much output waits (several times what DATA may fill) that nothing more should be received until some
    /// is written. This never happens with a peer that reads, so two such connections cannot block each other.
    pub fn is_congested(&self) -> bool {
        self.output.len() >= self.options.max_output_bytes.saturating_mul(4)
    }

    /// Whether the stream is still there, in at least one direction.
    pub fn is_open(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_some()
    }

    /// Number of open streams.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Sends a PING; [`super::Sink::pong`] tells when it came back.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.output.control(kind::PING, 0, 0, &payload);
    }

    /// Begins a graceful shutdown (RFC 9113 section 6.8): a first GOAWAY asks the peer to open no more streams, and a
    /// PING follows. When its answer arrives, or at [`Connection::finish_shutdown`], a second GOAWAY names the last
    /// stream that is served. A client sends only one GOAWAY.
    pub fn shutdown(&mut self) {
        if self.goaway != GoAway::NotSent || self.failed.is_some() {
            return;
        }
        if self.role == Role::Client {
            return self.finish_shutdown();
        }
        self.goaway = GoAway::Announced;
        self.output.goaway(MAX_31_BITS, Reason::NO_ERROR, b"");
        self.ping(SHUTDOWN_PING);
    }

    /// Sends the second GOAWAY of [`Connection::shutdown`] now. Streams that come later are refused.
    pub fn finish_shutdown(&mut self) {
        self.goaway(Reason::NO_ERROR, b"");
    }

    /// Sends GOAWAY with this reason: no stream is accepted or opened any more, and existing streams can finish. A
    /// second call does nothing.
    pub fn goaway(&mut self, reason: Reason, debug: &[u8]) {
        if self.failed.is_none() && !matches!(self.goaway, GoAway::Final { .. }) {
            self.send_last_goaway(reason, debug);
        }
    }

    pub(super) fn send_last_goaway(&mut self, reason: Reason, debug: &[u8]) {
        self.goaway = GoAway::Final { last: self.last_peer_id };
        self.output.goaway(self.last_peer_id, reason, debug);
    }

    /// Whether the connection has failed, or either side has ended it and no stream is left: write the output, then
    /// close.
    pub fn is_finished(&self) -> bool {
        let leaves = self.peer_leaves || matches!(self.goaway, GoAway::Final { .. });
        self.failed.is_some() || (leaves && self.streams.is_empty())
    }

    /// Starts a turn; unused grants of the last turn expire.
    pub(super) fn next_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1).max(1);
        self.granted = 0;
    }

    /// Removes a stream that has ended in both directions or was reset.
    pub(super) fn remove(&mut self, key: StreamKey, how: ClosedBy) {
        let Some(stream) = self.streams.get(key) else { return };
        if stream.in_line {
            self.line.retain(|other| *other != key);
        }
        self.streams.remove(key);
        self.floods.stream_closed();
        if how != ClosedBy::Ended {
            self.closed_streams.record(key.id, how);
        }
    }

    /// The stream of an incomplete header block, or 0 if the beginning of the connection is incomplete; peers normally
    /// send either at once. `input` is the input that [`Connection::receive`] has not consumed.
    pub fn begun(&self, input: &[u8]) -> Option<u32> {
        if !self.settings_received {
            return (self.preface_received || !input.is_empty()).then_some(0);
        }
        if let Some(block) = &self.block {
            return Some(block.stream);
        }
        FrameHeader::parse(input).filter(|header| header.kind == kind::HEADERS).map(|header| header.stream)
    }

    /// Whether the peer's SETTINGS have arrived; before that its limits are assumed.
    pub fn is_settled(&self) -> bool {
        self.settings_received
    }

    /// The peer's SETTINGS allow no stream (`MAX_CONCURRENT_STREAMS` 0).
    pub fn takes_no_streams(&self) -> bool {
        self.peer.max_concurrent_streams == 0
    }

    /// Sends SETTINGS.
    pub(super) fn send_settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::with_capacity(settings.len() * 6);
        for (id, value) in settings {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        self.settings_unconfirmed = self.settings_unconfirmed.saturating_add(1);
        self.output.control(kind::SETTINGS, 0, 0, &payload);
    }

    pub(super) fn confirm_settings(&mut self) {
        self.output.control(kind::SETTINGS, flag::ACK, 0, &[]);
    }
}
