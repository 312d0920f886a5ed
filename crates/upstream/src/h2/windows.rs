//! How much a connection's peer may send before it is read.
//!
//! Many requests of many clients share a connection, and any number of them may not read. What they leave unread must not be what
//! the others are short of, so the connection's window goes back as bytes are received, whoever they are for, and does not bound
//! what is held. That is bounded by the windows of streams, which go back as readers take bytes:
//!
//! - A stream begins with [`WINDOW`]. While its reader keeps up its window is doubled, up to the configured size, out of the
//!   connection's `room`; as less is left, less of it is to be had. So a fast download gets all it has use for, and one that is not
//!   read holds [`WINDOW`].
//! - When much is held ([`Windows::is_pressed`]) all windows are made smaller by `SETTINGS`, so that a new stream begins with
//!   [`NARROW_WINDOW`], and whoever chooses connections chooses another for new requests.
//! - Readers that take nothing are reset after the flush timeout, which is not decided here.
//!
//! What is held is at most [`most_held`], however many streams are not read.

use evenkeel_http::h2::{Connection as Codec, StreamKey};
use evenkeel_runtime_config::http2::Http2Options;

/// What a peer may send on a new stream, in bytes; what it may in any case until it has our settings (RFC 9113 section 6.9.2).
pub(super) const WINDOW: u32 = 65_535;
/// The same while much is held: one full frame.
pub(super) const NARROW_WINDOW: u32 = 16 * 1024;
/// A window is doubled if that takes at most this part of the room that is left.
const PART_OF_ROOM: usize = 8;

/// One connection's account of bytes received, held and given back.
#[derive(Debug)]
pub(super) struct Windows {
    /// Received bytes that streams hold.
    held: usize,
    /// Above so many they are too many.
    pressed_above: usize,
    /// They are, or were and have not become half as many.
    pressed: bool,
    /// The peer was told to keep to [`NARROW_WINDOW`].
    narrowed: bool,
    /// Bytes of the connection's window to give back when the codec can be called again.
    due: usize,
    /// The same, once the peer has confirmed that it keeps to smaller windows: one that never does has no more to send.
    withheld: usize,
    /// Bytes by which windows of streams may still be widened.
    room: usize,
}

/// Most bytes that `streams` streams hold if none of them is read.
#[cfg(test)]
pub(super) fn most_held(options: &Http2Options, streams: usize) -> usize {
    let connection = options.connection_window as usize;
    // What brings about that windows are made smaller, what is on its way until they are, what windows were widened by.
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

    /// So much is held that new streams should go elsewhere.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// Bytes were received that a stream holds.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
        self.pressed |= self.held > self.pressed_above;
        self.pass(bytes);
    }

    /// Bytes were received that nobody holds.
    pub(super) fn pass(&mut self, bytes: usize) {
        match self.narrowed {
            true => self.withheld += bytes,
            false => self.due += bytes,
        }
    }

    /// A stream let go of bytes, its reader having taken them or not.
    pub(super) fn let_go(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        self.pressed &= self.held > self.pressed_above / 2;
    }

    /// A stream's reader took bytes, and has no more there if it `keeps_up`. Returns by how many bytes the stream's window is wider.
    pub(super) fn release(&mut self, codec: &mut Codec, stream: StreamKey, bytes: usize, keeps_up: bool) -> usize {
        let room = if keeps_up { self.room / PART_OF_ROOM } else { 0 };
        let wider = codec.release_and_widen(stream, bytes, room);
        self.room -= wider;
        wider
    }

    /// A stream whose window was wider by so many bytes is no more.
    pub(super) fn narrow(&mut self, bytes: usize) {
        self.room += bytes;
    }

    /// Nothing is to be told to the peer.
    pub(super) fn is_settled(&self) -> bool {
        self.due == 0 && self.withheld == 0 && self.pressed == self.narrowed
    }

    /// Tells the peer what it may send now. The codec has memory for it.
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
