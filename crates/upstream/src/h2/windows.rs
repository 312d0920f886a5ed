//! Flow control: how many bytes the peer may send before they are read.
//!
//! Many requests of many clients share a connection, and any number of them may stop reading. Bytes they leave unread
//! must not starve the others, so the connection's window is released as bytes are received, for whichever stream, and
//! does not bound the bytes held. They are bounded by the streams' windows, which are released as readers take bytes:
//!
//! - A stream begins with [`WINDOW`]. While its reader keeps up, its window is doubled, up to the configured size, out
//!   of the connection's `room`; the less room is left, the smaller the share a stream can get. So a fast download gets
//!   all it can use, and one that is not read holds [`WINDOW`].
//! - When many bytes are held ([`Windows::is_pressed`]), all windows are reduced by `SETTINGS`, so that a new stream
//!   begins with [`NARROW_WINDOW`], and the connection pool uses another connection for new requests.
//! - Streams whose readers take nothing are reset after the flush timeout, which is decided elsewhere.
//!
//! At most [`most_held`] bytes are held, however many streams are not read.

use evenkeel_http::h2::{Connection as Codec, StreamKey};
use evenkeel_runtime_config::http2::Http2Options;

/// Initial window of a new stream, in bytes; also what a peer may send before it has our SETTINGS (RFC 9113 section 6.9.2).
pub(super) const WINDOW: u32 = 65_535;
/// The window while many bytes are held: one full frame.
pub(super) const NARROW_WINDOW: u32 = 16 * 1024;
/// A window is doubled if that takes at most 1 ÷ this of the remaining room.
const PART_OF_ROOM: usize = 8;

/// One connection's account of bytes received, held and released.
#[derive(Debug)]
pub(super) struct Windows {
    /// Received bytes that streams hold.
    held: usize,
    /// With more bytes held than this, the connection is pressed.
    pressed_above: usize,
    /// The connection is pressed, or was and has not fallen to half of the limit.
    pressed: bool,
    /// Whether the peer was told to use [`NARROW_WINDOW`].
    narrowed: bool,
    /// Bytes of the connection's window to release at the next call of the codec.
    due: usize,
    /// Like `due`, but held back until the peer acknowledges the smaller stream windows: a peer that never does cannot send more.
    withheld: usize,
    /// Bytes by which streams' windows may still be widened.
    room: usize,
}

/// Returns the maximum number of bytes that `streams` streams can hold if none of them is read.
#[cfg(test)]
pub(super) fn most_held(options: &Http2Options, streams: usize) -> usize {
    let connection = options.connection_window as usize;
    // The amount that makes windows shrink, what arrives until they do, and what windows were widened by.
    connection / 4 + connection + connection / 2 + streams * NARROW_WINDOW as usize
}

impl Windows {
    pub(super) fn new(options: &Http2Options) -> Self {
        let connection = options.connection_window as usize;
        Self {
            held: 0,
            pressed_above: connection / 4,
            pressed: false,
            narrowed: false,
            due: 0,
            withheld: 0,
            room: connection / 2,
        }
    }

    /// Received bytes that streams hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether so many bytes are held that new streams should use another connection.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// Records received bytes that a stream holds.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
        self.pressed |= self.held > self.pressed_above;
        self.pass(bytes);
    }

    /// Records received bytes that no stream holds.
    pub(super) fn pass(&mut self, bytes: usize) {
        if self.narrowed { self.withheld += bytes } else { self.due += bytes }
    }

    /// Records that a stream no longer holds bytes, whether its reader took them or not.
    pub(super) fn subtract_held(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        self.pressed &= self.held > self.pressed_above / 2;
    }

    /// Releases bytes that a stream's reader took; it `keeps_up` if nothing is left to read. Returns by how many bytes
    /// the stream's window was widened.
    pub(super) fn release(&mut self, codec: &mut Codec, stream: StreamKey, bytes: usize, keeps_up: bool) -> usize {
        let room = if keeps_up { self.room / PART_OF_ROOM } else { 0 };
        let wider = codec.release_and_widen(stream, bytes, room);
        self.room -= wider;
        wider
    }

    /// Returns the room of an ended stream whose window was widened by this many bytes.
    pub(super) fn narrow(&mut self, bytes: usize) {
        self.room += bytes;
    }

    /// Whether there is nothing to tell the peer.
    pub(super) fn is_settled(&self) -> bool {
        self.due == 0 && self.withheld == 0 && self.pressed == self.narrowed
    }

    /// Sends pending window updates and settings. The codec must have been lent an output buffer.
    pub(super) fn tell(&mut self, codec: &mut Codec) {
        if codec.is_stream_window_confirmed() {
            self.due += std::mem::take(&mut self.withheld);
            if self.pressed != self.narrowed {
                self.narrowed = self.pressed;
                codec.announce_stream_window(if self.narrowed { NARROW_WINDOW } else { WINDOW });
            }
        }
        codec.release_connection(std::mem::take(&mut self.due));
    }
}
