//! The events that a connection reports.

use super::error::Reason;
use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;

/// Identifies an open stream by its id on the wire and by its index in a dense table, so that a driver can keep a
/// stream's state in a `Vec` indexed by [`StreamKey::slot`]. A slot is reused when its stream is gone; keys of closed
/// streams are recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    pub(crate) id: u32,
    pub(crate) slot: u32,
}

impl StreamKey {
    /// Stream identifier on the wire.
    pub fn id(self) -> u32 {
        self.id
    }

    /// Place in the table of open streams: below the largest number of streams that were open at the same time.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Properties of a request's header block besides the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestMeta {
    /// The body: `None` when the stream ended with the head, `Length` by `content-length` (which is checked against DATA),
    /// else `Chunked`, which here means: until the end of the stream.
    pub framing: Framing,
    /// The stream ended with the head.
    pub end: bool,
    /// `:scheme` is `https`.
    pub https: bool,
}

/// Properties of a response's header block besides the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseMeta {
    /// The body, as in [`RequestMeta::framing`].
    pub framing: Framing,
    /// The stream ended with the head.
    pub end: bool,
}

/// The error of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A field is not allowed, or not in this position, or not twice.
    Field,
    /// Its fields do not make a message together, or its body is not as long as they say (RFC 9113 section 8.1.1).
    Message,
    /// More lines or bytes than the limits.
    TooLarge,
    /// A name with an underscore where those are refused.
    Underscore,
    /// Its header block cannot be decoded, and the connection ends.
    Block,
}

/// How a stream was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// Code in the RST_STREAM that was received or sent.
    pub reason: Reason,
    /// The peer did it; otherwise this side did, because of what the peer sent.
    pub by_peer: bool,
    /// Whether the peer has not processed the request (REFUSED_STREAM, or above the last stream of its GOAWAY), so that it
    /// may be sent again whatever its method (RFC 9113 section 8.7).
    pub unprocessed: bool,
    /// The error of the peer's message, if that is the reason.
    pub fault: Option<Fault>,
}

/// The peer's limits (RFC 9113 section 6.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    /// Streams this side may have open (client role).
    pub max_concurrent_streams: u32,
    /// Whether the peer accepts extended CONNECT.
    pub enable_connect_protocol: bool,
    /// Maximum size of a header list that the peer accepts, in bytes; `u32::MAX` if it has set no limit.
    pub max_header_list_bytes: u32,
}

/// Events worth a statistic that have no other effect on the caller. The names are those of Envoy's `http2.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counter {
    /// RST_STREAM received: `rx_reset`.
    RxReset,
    /// RST_STREAM sent: `tx_reset`.
    TxReset,
    /// A malformed message received: `rx_messaging_error`.
    RxMessagingError,
    /// A header block over its limits: `header_overflow`.
    HeaderOverflow,
    /// Trailers received: `trailers`.
    Trailers,
    /// A field left out for its name: `dropped_headers_with_underscores`.
    DroppedUnderscore,
    /// A request refused for the name of a field: `requests_rejected_with_underscores_in_headers`.
    RejectedUnderscore,
}

/// Receives the events of [`super::Connection::receive`] in the order of the wire. The connection cannot be called from
/// inside; record what to do, and do it after `receive` has returned.
///
/// For each stream: a head (a client may get interim heads before), pieces of data, then the end — which comes with the head, with
/// data or with trailers — or instead, at any time, a reset, after which nothing more comes.
#[allow(unused_variables)]
pub trait Sink {
    /// A request (server role). Swap or copy `head`; the memory left in its place is used for the next one.
    fn request(&mut self, stream: StreamKey, head: &mut RequestHead, meta: RequestMeta) {}

    /// A request was refused for this reason, and answered if that was possible (server role).
    fn refused(&mut self, fault: Fault) {}

    /// An interim (1xx) response (client role).
    fn interim(&mut self, stream: StreamKey, head: &mut ResponseHead) {}

    /// A response (client role).
    fn response(&mut self, stream: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {}

    /// A piece of body, maybe an empty last one. Its bytes count against the windows of stream and connection until
    /// [`super::Connection::release_stream`] and [`super::Connection::release_connection`] give them back; the latter is due for
    /// every byte, also when the stream is gone by then.
    fn data(&mut self, stream: StreamKey, data: &[u8], end: bool);

    /// Trailers, which end the stream.
    fn trailers(&mut self, stream: StreamKey, trailers: &mut Headers) {}

    /// The stream was reset, by the peer or because of what the peer sent on it.
    fn reset(&mut self, stream: StreamKey, reset: Reset);

    /// The peer sent GOAWAY. Streams that it will not process were reported by [`Sink::reset`] before; other streams go
    /// on, and no new ones can be opened.
    fn goaway(&mut self, last_stream_id: u32, reason: Reason, debug: &[u8]) {}

    /// The answer to one of our PINGs.
    fn pong(&mut self, payload: [u8; 8]) {}

    /// The peer's settings, the first time and whenever they change.
    fn settings(&mut self, settings: PeerSettings) {}

    /// Counts an event.
    fn count(&mut self, counter: Counter) {}
}
