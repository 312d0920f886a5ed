//! The ends of a call: where its body comes from, and where its response goes.

use std::task::{Context, Poll};

use evenkeel_http::{Headers, ResponseHead};

/// The source of a call's body.
pub(crate) trait Source {
    /// Gives the next available piece to `take`.
    fn poll_piece(&mut self, take: &mut dyn FnMut(&[u8]), cx: &mut Context<'_>) -> Poll<Sent>;

    /// All that was given so far can be given again.
    fn can_rewind(&self) -> bool;

    /// Starts again from the beginning.
    fn rewind(&mut self);
}

/// The state of a [`Source`] after a piece.
pub(crate) enum Sent {
    Piece,
    /// The body is complete; these are its trailers.
    End(Headers),
}

/// The receiver of a call's response.
pub(crate) trait Sink {
    /// The response head. Called once.
    fn head(&mut self, head: &ResponseHead);

    /// Ready when the sink accepts more of the body.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// A piece of the body.
    ///
    /// # Errors
    /// The body is longer than the sink accepts.
    fn data(&mut self, data: &[u8]) -> Result<(), TooLarge>;

    /// The body is complete.
    fn end(&mut self, trailers: &Headers);
}

/// The response body is longer than the sink accepts.
#[derive(Debug)]
pub(crate) struct TooLarge;
