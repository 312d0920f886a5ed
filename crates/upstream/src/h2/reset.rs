//! Why a stream ended before its message was complete.

use evenkeel_http::h2::{Fault, Reason};

/// The stream was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was reset by {by}: {reason}")]
pub struct Reset {
    /// The error code.
    pub reason: Reason,
    /// Which side reset it.
    pub by: ResetBy,
    /// Whether the peer has not processed the request: it may be retried whatever its method (RFC 9113 section 8.7).
    pub unprocessed: bool,
}

/// Which side reset a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetBy {
    /// The peer, with RST_STREAM or GOAWAY.
    Peer,
    /// This side, because of what the peer sent, or on request.
    Local,
    /// This side, because the peer's message is malformed.
    Fault(Fault),
    /// The connection ended: it was lost or closed in order (`NO_ERROR`), or the peer violated the protocol.
    Connection,
}

impl std::fmt::Display for ResetBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peer => "the peer",
            Self::Local | Self::Fault(_) => "this side",
            Self::Connection => "the end of the connection",
        })
    }
}
