//! `Http2ProtocolOptions`, compiled, with every default filled in.

use std::time::Duration;

/// HTTP/2 options on one side of the proxy. Defaults are Envoy's, except for the windows, which bound what a slow
/// reader can make the proxy hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Options {
    /// Streams the peer may have open at once (`max_concurrent_streams`, 1024). Towards upstreams: limit of concurrent
    /// streams per connection, if the peer allows as many.
    pub max_concurrent_streams: u32,
    /// Maximum window of a stream in bytes (512 KiB): how much a peer may send on it before it is read. It begins with 64
    /// KiB.
    pub stream_window: u32,
    /// Window of a connection in bytes (8 MiB): what a peer may have in flight on it.
    pub connection_window: u32,
    /// Maximum size of the dynamic table used to encode heads, and offered to decode them, in bytes (4096).
    pub hpack_table_bytes: u32,
    /// Whether extended CONNECT (RFC 8441) is offered (`allow_connect`).
    pub allow_connect: bool,
    /// Frames that may wait for the socket (10,000); the connection is closed beyond.
    pub max_outbound_frames: u32,
    /// PING, SETTINGS and RST_STREAM frames that may wait for the socket (1000).
    pub max_outbound_control_frames: u32,
    /// Consecutive frames that carry nothing and end nothing (1).
    pub max_consecutive_empty_frames: u32,
    /// PRIORITY frames per stream opened (100).
    pub max_priority_frames_per_stream: u32,
    /// WINDOW_UPDATE frames per DATA frame sent (10).
    pub max_window_updates_per_data_frame: u32,
    /// A malformed message ends its stream instead of the connection.
    pub stream_error_on_invalid_message: bool,
    /// PINGs that check whether the peer is alive (`connection_keepalive`).
    pub keepalive: Option<Http2Keepalive>,
}

/// `KeepaliveSettings`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Keepalive {
    /// Interval between PINGs; `None`: none are sent at intervals.
    pub interval: Option<Duration>,
    /// The connection is closed if nothing is received for this long after a PING.
    pub timeout: Duration,
    /// The interval is extended by a random part of it, up to this many thousandths (150).
    pub jitter_permille: u32,
    /// On a connection idle for this long, a PING is sent ahead of a new stream; `None`: never.
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
