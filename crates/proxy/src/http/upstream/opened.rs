//! What carries the bytes of a connection of the TCP proxy.

use evenkeel_upstream::conn::Buffer;
use evenkeel_upstream::{Connection, StreamSlot, h2};

/// A connection of its own, or a tunnel.
#[allow(clippy::large_enum_variant, reason = "one per connection, and short-lived")]
pub(crate) enum Opened {
    /// A connection, and the bytes already received on it.
    Connection(Connection, Buffer),
    /// A stream of a shared connection, and what keeps that alive.
    Stream(h2::Stream, StreamSlot),
}
