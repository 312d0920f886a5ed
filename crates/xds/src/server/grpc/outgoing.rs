//! Outgoing responses, cut into pieces as the connection takes them.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::server::response::{Pieces, Response};

/// The responses to send.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Responses that have not been sent yet.
    pub responses: VecDeque<Response>,
    current: Option<Pieces>,
    /// The rest of the current piece.
    pub piece: Bytes,
}

impl Outgoing {
    /// Makes the next piece; false if there is none. Sent data is not kept.
    pub fn next_piece(&mut self) -> bool {
        loop {
            if let Some(piece) = self.current.as_mut().and_then(Iterator::next) {
                self.piece = piece;
                return true;
            }
            self.current = self.responses.pop_front().map(Response::into_pieces);
            if self.current.is_none() {
                // Even an empty slice would keep the bytes it was cut from alive as long as the client is connected.
                self.piece = Bytes::new();
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;

    use super::*;
    use crate::ResourceType;

    #[test]
    fn what_has_been_sent_is_not_kept() {
        let mut outgoing = Outgoing::default();
        outgoing.responses.push_back(Response::listing_request(ResourceType::ALL.into_iter()));
        assert!(outgoing.next_piece() && !outgoing.piece.is_empty());
        outgoing.piece.advance(outgoing.piece.len());
        assert!(!outgoing.next_piece() && outgoing.current.is_none());
        assert!(!outgoing.piece.is_unique(), "it is the only owner of bytes that are gone");
    }
}
