//! Why a stream is no more.

use evenkeel_http::h2::{Fault, Reason};

/// A stream was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was reset by {by}: {reason}")]
pub struct Reset {
    /// The code.
    pub reason: Reason,
    /// Who did it.
    pub by: ResetBy,
    /// The peer has not looked at the request: it may be sent again whatever it is (RFC 9113 section 8.7).
    pub unprocessed: bool,
}

/// Who cut a stream off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetBy {
    /// The peer, with RST_STREAM or GOAWAY.
    Peer,
    /// This side, for what the peer sent, or because it was asked to.
    Local,
    /// This side, for what is wrong with the peer's message.
    Fault(Fault),
    /// The connection ended: lost or closed in order (`NO_ERROR`), or because the peer broke its protocol.
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
