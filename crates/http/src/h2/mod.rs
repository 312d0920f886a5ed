//! HTTP/2 (RFC 9113) and HPACK (RFC 7541) without I/O, for both roles.
//!
//! A [`Connection`] turns bytes into calls of a [`Sink`] and calls into bytes. All streams' output goes into one buffer
//! ([`Connection::output`]) which the caller writes once per turn of its event loop. Header blocks are decoded into and
//! encoded from the proxy's own heads, so there is no intermediate form. No clock is read and nothing waits.
//!
//! One turn of a driver:
//! 1. read from the socket, [`Connection::receive`] what came (the sink notes what each stream got);
//! 2. let the streams act: [`Connection::respond`], [`Connection::send_data`], [`Connection::release_stream`], …;
//! 3. give their turn to streams that wait for room: [`Connection::next_writable`] until it says `None`;
//! 4. write [`Connection::output`] once and say how much went out with [`Connection::written`].
//!
//! [`Options`] limits everything a peer sends; what exceeds a limit ends the stream or the connection with a reason
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

/// The first bytes of a client, by which a server can tell HTTP/2 with prior knowledge from HTTP/1 (RFC 9113 section
/// 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
