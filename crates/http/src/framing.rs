//! The framing of a body.

/// How the end of a body is known (RFC 9112 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// A body of this many bytes.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Until the connection closes; responses only.
    UntilClose,
}

impl Framing {
    /// Whether no byte of body follows.
    pub fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Length(0))
    }
}
