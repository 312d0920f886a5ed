//! `Http2ProtocolOptions`, compiled, with every default filled in.

use std::time::Duration;

/// How HTTP/2 is spoken on one side of the proxy. Defaults are Envoy's, except for the windows, which are what a slow
/// reader can make the proxy hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Options {
    /// Streams the peer may have open at once (`max_concurrent_streams`, 1024). Towards upstreams: streams opened at once on
    /// one connection, if the peer allows as many.
    pub max_concurrent_streams: u32,
    /// What a peer may come to send on one stream before it is read, in bytes (512 KiB). It begins with 64 KiB.
    pub stream_window: u32,
    /// What a peer may have on its way on one connection, in bytes (8 MiB).
    pub connection_window: u32,
    /// Largest dynamic table used to encode heads, and offered to decode them, in bytes (4096).
    pub hpack_table_bytes: u32,
    /// Extended CONNECT (RFC 8441) is offered (`allow_connect`).
    pub allow_connect: bool,
    /// Frames that may wait for the socket (10,000); beyond it the connection is closed.
    pub max_outbound_frames: u32,
    /// PING, SETTINGS and RST_STREAM frames that may wait for the socket (1000).
    pub max_outbound_control_frames: u32,
    /// Frames in a row that carry nothing and end nothing (1).
    pub max_consecutive_empty_frames: u32,
    /// PRIORITY frames per stream opened (100).
    pub max_priority_frames_per_stream: u32,
    /// WINDOW_UPDATE frames per DATA frame sent (10).
    pub max_window_updates_per_data_frame: u32,
    /// A malformed message ends its stream and not the connection.
    pub stream_error_on_invalid_message: bool,
    /// PINGs that show whether the peer is still there (`connection_keepalive`).
    pub keepalive: Option<Http2Keepalive>,
}

/// `KeepaliveSettings`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Keepalive {
    /// Between two PINGs; `None`: none are sent at intervals.
    pub interval: Option<Duration>,
    /// The connection is closed when nothing was received for this long after a PING.
    pub timeout: Duration,
    /// The interval is lengthened by a random part of it, up to this many thousandths (150).
    pub jitter_permille: u32,
    /// A connection idle for this long is sent a PING ahead of a new stream; `None`: it is not.
    pub idle_interval: Option<Duration>,
}

impl Default for Http2Options {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 1024,
            stream_window: 512 * 1024,
            connection_window: 8 * 1024 * 1024,
            hpack_table_bytes: 4096,
            allow_connect: false,
            max_outbound_frames: 10_000,
            max_outbound_control_frames: 1000,
            max_consecutive_empty_frames: 1,
            max_priority_frames_per_stream: 100,
            max_window_updates_per_data_frame: 10,
            stream_error_on_invalid_message: false,
            keepalive: None,
        }
    }
}
