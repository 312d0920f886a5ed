//! HTTP/2 (RFC 9113) and HPACK (RFC 7541) without I/O, for both roles.
//!
//! A [`Connection`] turns bytes into calls of a [`Sink`] and calls into bytes. All streams' output goes into one buffer
//! ([`Connection::output`]) which the caller writes once per turn of its event loop. Header blocks are decoded into and encoded
//! from the proxy's own heads, so nothing stands in between. No clock is read and nothing waits.
//!
//! A turn of a driver:
//! 1. read from the socket, [`Connection::receive`] what came (the sink notes what each stream got);
//! 2. let the streams act: [`Connection::respond`], [`Connection::send_data`], [`Connection::release_stream`], …;
//! 3. give their turn to streams that wait for room: [`Connection::next_writable`] until it says `None`;
//! 4. write [`Connection::output`] once and say how much went out with [`Connection::written`].
//!
//! Every number that arrives is bounded by [`Options`]; what crosses a bound ends the stream or the connection, and says why
//! ([`ConnectionError`], [`Reset`]).

mod blocks;
mod connection;
mod error;
mod floods;
mod frame;
mod head;
mod hpack;
mod options;
mod partial;
mod receive;
mod send;
mod settings;
mod sink;
mod streams;

pub use connection::Connection;
pub use error::{ConnectionError, OpenError, Reason, StreamGone, Violation};
pub use options::Options;
pub use sink::{Counter, Fault, PeerSettings, RequestMeta, Reset, ResponseMeta, Sink, StreamKey};

/// What a client says first; a server may tell prior-knowledge HTTP/2 from HTTP/1 by it (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
