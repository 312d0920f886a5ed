//! Error codes and errors.

use std::fmt;

/// An error code of RST_STREAM and GOAWAY (RFC 9113 section 7). Unknown codes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

#[allow(missing_docs)]
impl Reason {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const CONNECT_ERROR: Self = Self(10);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
    pub const INADEQUATE_SECURITY: Self = Self(12);
    pub const HTTP_1_1_REQUIRED: Self = Self(13);
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The peer broke the protocol or a limit and the connection is over. GOAWAY is already in the output: write it and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({reason})")]
pub struct ConnectionError {
    /// Code in the GOAWAY.
    pub reason: Reason,
    /// A description, for logs; also GOAWAY's debug data.
    pub text: &'static str,
    /// The kind of violation.
    pub violation: Violation,
}

/// The connection is over, with PROTOCOL_ERROR.
pub(super) fn protocol_error(text: &'static str) -> ConnectionError {
    ConnectionError { reason: Reason::PROTOCOL_ERROR, text, violation: Violation::Protocol }
}

/// Kinds of breach, which map to Envoy's `http2.*` statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A frame or a sequence of frames that RFC 9113 forbids.
    Protocol,
    /// A message that is malformed (RFC 9113 section 8.1.1): `http2.rx_messaging_error`, which was counted when it came.
    Messaging,
    /// HPACK could not be decoded.
    Compression,
    /// A header block over its limits, or a CONTINUATION flood: `http2.header_overflow`.
    HeaderOverflow,
    /// `http2.outbound_flood`: more frames in the output than `max_outbound_frames`.
    OutboundFlood,
    /// `http2.outbound_control_flood`: more control frames in the output than `max_outbound_control_frames`.
    OutboundControlFlood,
    /// `http2.inbound_empty_frames_flood`.
    InboundEmptyFramesFlood,
    /// `http2.inbound_priority_frames_flood`.
    InboundPriorityFramesFlood,
    /// `http2.inbound_window_update_frames_flood`.
    InboundWindowUpdateFramesFlood,
    /// Too many streams were reset before they were answered: `http.*.downstream_rq_too_many_premature_resets`.
    PrematureResets,
}

/// Why a request could not be opened. It was not sent, so it may be sent elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The peer's limit of open streams is reached; wait until one of them ends.
    #[error("the peer's limit of concurrent streams is reached")]
    Concurrency,
    /// No stream id is left; use another connection.
    #[error("stream ids are used up")]
    Exhausted,
    /// GOAWAY was received or sent, or the connection failed; use another connection.
    #[error("the connection is going away")]
    GoingAway,
    /// Extended CONNECT, which the peer has not allowed (RFC 8441 section 3).
    #[error("the peer does not take extended CONNECT")]
    ExtendedConnect,
}

/// The stream is over in this direction, or altogether: it was reset, or its end was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct StreamGone;
