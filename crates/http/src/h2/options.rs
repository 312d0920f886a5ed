//! Limits and settings of a connection.

use crate::underscores::Underscores;

/// Settings and limits of one connection. Names and defaults are those of Envoy's `Http2ProtocolOptions` where it has one.
#[derive(Debug, Clone)]
pub struct Options {
    /// Streams the peer may have open (server role).
    pub max_concurrent_streams: u32,
    /// Bytes of DATA the peer may send on a stream before some are released; 65,535 to 2,147,483,647.
    pub initial_stream_window_size: u32,
    /// Bytes to which a stream's window may be widened while its reader keeps up; see [`super::Connection::release_and_widen`].
    pub max_stream_window_size: u32,
    /// Bytes of DATA the peer may send on all streams before some are released; 65,535 to 2,147,483,647.
    pub initial_connection_window_size: u32,
    /// Largest frame payload accepted, 16,384 to 16,777,215 bytes. The reader's buffer must be able to hold this and 9
    /// bytes more.
    pub max_frame_size: u32,
    /// Bytes of HPACK table the peer's encoder may use (`hpack_table_size`). Our encoder uses at most as much too.
    pub hpack_table_size: u32,
    /// Maximum number of header lines in a message.
    pub max_headers: u32,
    /// Maximum size of a header list, counted as in RFC 9113 section 6.5.2 (32 bytes more for each line).
    pub max_header_list_bytes: u32,
    /// Accepts extended CONNECT (server role, RFC 8441; Envoy's `allow_connect`).
    pub enable_connect_protocol: bool,
    /// A malformed message resets its stream; otherwise it ends the connection
    /// (Envoy's `override_stream_error_on_invalid_http_message`).
    pub stream_error_on_invalid_http_message: bool,
    /// How header names with underscores are handled (server role).
    pub underscores: Underscores,
    /// Maximum number of frames in the output that the peer does not read.
    pub max_outbound_frames: u32,
    /// Maximum number of PING, SETTINGS, RST_STREAM and WINDOW_UPDATE frames in the output that the peer does not read.
    pub max_outbound_control_frames: u32,
    /// Maximum number of consecutive HEADERS, CONTINUATION and DATA frames without payload and without END_STREAM.
    pub max_consecutive_inbound_frames_with_empty_payload: u32,
    /// Maximum number of PRIORITY frames per opened stream, and as many without one.
    pub max_inbound_priority_frames_per_stream: u32,
    /// Maximum number of WINDOW_UPDATE frames per DATA frame sent, besides two per opened stream and five.
    pub max_inbound_window_update_frames_per_data_frame_sent: u32,
    /// Maximum number of closed streams, half of them prematurely, before the connection ends (server role; Envoy's runtime
    /// key `overload.premature_reset_total_stream_count`).
    pub premature_reset_total_stream_count: u32,
    /// Age in seconds below which the reset of an unanswered stream is premature
    /// (`overload.premature_reset_min_stream_lifetime_seconds`). Needs [`super::Connection::tick`].
    pub premature_reset_min_stream_lifetime_seconds: u32,
    /// Bytes of output above which no more DATA is accepted until some is written.
    pub max_output_bytes: usize,
    /// Bytes of DATA a stream may send in one turn while others wait.
    pub quantum_bytes: usize,
}

impl Options {
    /// Limits values to what the protocol allows.
    pub(super) fn clamp(&mut self) {
        const MAX_WINDOW: u32 = (1 << 31) - 1;
        self.initial_stream_window_size = self.initial_stream_window_size.clamp(65_535, MAX_WINDOW);
        self.max_stream_window_size = self.max_stream_window_size.min(MAX_WINDOW);
        self.initial_connection_window_size = self.initial_connection_window_size.clamp(65_535, MAX_WINDOW);
        self.max_frame_size = self.max_frame_size.clamp(1 << 14, (1 << 24) - 1);
        self.quantum_bytes = self.quantum_bytes.max(1);
        // A smaller buffer could never hold a frame.
        self.max_output_bytes = self.max_output_bytes.max(4 * 1024);
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 1024,
            initial_stream_window_size: 16 * 1024 * 1024,
            max_stream_window_size: 16 * 1024 * 1024,
            initial_connection_window_size: 24 * 1024 * 1024,
            max_frame_size: 16 * 1024,
            hpack_table_size: 4096,
            max_headers: 100,
            max_header_list_bytes: 60 * 1024,
            enable_connect_protocol: false,
            stream_error_on_invalid_http_message: true,
            underscores: Underscores::Allow,
            max_outbound_frames: 10_000,
            max_outbound_control_frames: 1_000,
            max_consecutive_inbound_frames_with_empty_payload: 1,
            max_inbound_priority_frames_per_stream: 100,
            max_inbound_window_update_frames_per_data_frame_sent: 10,
            premature_reset_total_stream_count: 500,
            premature_reset_min_stream_lifetime_seconds: 1,
            max_output_bytes: 256 * 1024,
            quantum_bytes: 16 * 1024,
        }
    }
}
