//! The length of a body that filters may change.

use evenkeel_http::Framing;

/// How many bytes of a body may still be sent, when filters may change its length but the head has announced one: more or fewer would be
/// taken for part of another message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AnnouncedLength(Option<u64>);

impl AnnouncedLength {
    pub(super) fn of(framing: Framing) -> Self {
        match framing {
            Framing::Length(bytes) => Self(Some(bytes)),
            _ => Self(None),
        }
    }

    /// Subtracts `bytes`; false if fewer are left.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let Some(left) = &mut self.0 else { return true };
        let rest = left.checked_sub(bytes as u64);
        // Bytes beyond the length are not sent, so the body is incomplete and must not count as complete.
        *left = rest.unwrap_or(u64::MAX);
        rest.is_some()
    }

    /// The announced length was sent.
    pub(super) fn is_over(self) -> bool {
        self.0.is_none_or(|left| left == 0)
    }
}
