//! Sending on streams.

use super::connection::{Connection, GoAway, MAX_31_BITS, Role};
use super::error::{OpenError, Reason, StreamGone};
use super::frame::{FRAME_BYTES, FrameHeader, flag, kind};
use super::head;
use super::settings::INITIAL_WINDOW_SIZE;
use super::sink::StreamKey;
use super::streams::{ClosedBy, Direction, Stream};
use crate::framing::Framing;
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;

/// Least room in the output for DATA, so that it is not cut into tiny frames.
const LEAST_ROOM_BYTES: usize = 1024;

impl Connection {
    /// Sends a request. `https`: what `:scheme` says. A body of known length announces it; without body `end` is true.
    /// Hop-by-hop fields of HTTP/1 are left out. A request with [`RequestHead::protocol`] is an extended CONNECT.
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn open(
        &mut self,
        head: &RequestHead,
        https: bool,
        framing: Framing,
        end: bool,
    ) -> Result<StreamKey, OpenError> {
        self.can_open()?;
        if !head.protocol().is_empty() && !self.peer.enable_connect_protocol {
            return Err(OpenError::ExtendedConnect);
        }
        let id = self.next_id;
        self.next_id += 2;
        let mut stream = self.new_stream(id);
        stream.send = if end { Direction::Ended } else { Direction::Body };
        stream.to_head = head.method() == b"HEAD";
        stream.connect = head.method() == b"CONNECT";
        let encoder = &mut self.encoder;
        self.output.headers(id, end, FRAME_BYTES, |out| {
            head::encode_request(encoder, out, head, https, framing);
        });
        Ok(self.streams.insert(stream))
    }

    /// Whether [`Connection::open`] would work now.
    ///
    /// # Errors
    /// Why it would not.
    pub fn can_open(&self) -> Result<(), OpenError> {
        if self.role != Role::Client || self.peer_leaves || self.failed.is_some() || self.goaway != GoAway::NotSent {
            return Err(OpenError::GoingAway);
        }
        if self.next_id > MAX_31_BITS {
            return Err(OpenError::Exhausted);
        }
        if self.streams.len() >= self.peer.max_concurrent_streams as usize {
            return Err(OpenError::Concurrency);
        }
        Ok(())
    }

    pub(super) fn new_stream(&mut self, id: u32) -> Stream {
        self.floods.streams_opened += 1;
        Stream {
            id,
            send_window: self.peer_initial_window,
            recv_window: self.stream_window,
            recv_limit: self.stream_window,
            released: 0,
            expected: None,
            opened: self.now_seconds,
            granted: 0,
            recv: Direction::Head,
            send: Direction::Head,
            waiting: false,
            in_line: false,
            to_head: false,
            connect: false,
        }
    }

    /// Sends an interim (1xx) response.
    ///
    /// # Errors
    /// The stream is gone, or its response has begun.
    pub fn interim(&mut self, stream: StreamKey, head: &ResponseHead) -> Result<(), StreamGone> {
        self.streams.get(stream).filter(|stream| stream.send == Direction::Head).ok_or(StreamGone)?;
        let encoder = &mut self.encoder;
        self.output.headers(stream.id, false, FRAME_BYTES, |out| {
            head::encode_response(encoder, out, head, Framing::None, false);
        });
        Ok(())
    }

    /// Sends a response's head. A body of known length announces it. In the answer to HEAD, and in 304, `content-length` stays as
    /// `head` has it.
    ///
    /// # Errors
    /// The stream is gone, or its response has begun.
    pub fn respond(
        &mut self,
        stream: StreamKey,
        head: &ResponseHead,
        framing: Framing,
        end: bool,
    ) -> Result<(), StreamGone> {
        let key = stream;
        let stream = self.streams.get_mut(key).filter(|stream| stream.send == Direction::Head).ok_or(StreamGone)?;
        let bodiless = stream.to_head || head.status == 304;
        stream.send = Direction::Body;
        let encoder = &mut self.encoder;
        self.output.headers(key.id, end, FRAME_BYTES, |out| {
            head::encode_response(encoder, out, head, framing, bodiless);
        });
        if end {
            self.sent_end(key);
        }
        Ok(())
    }

    /// Appends as much of `data` as windows, room in the output and fairness allow, and returns how many bytes that
    /// was. `end` takes effect with the last byte. If not all is taken, the stream is queued for
    /// [`Connection::next_writable`].
    ///
    /// # Errors
    /// The stream is gone, its head was not sent, or its end was.
    pub fn send_data(&mut self, stream: StreamKey, data: &[u8], end: bool) -> Result<usize, StreamGone> {
        let key = stream;
        self.streams.get(key).filter(|stream| stream.send == Direction::Body).ok_or(StreamGone)?;
        let taken = self.capacity(key).min(data.len());
        let (now, later) = data.split_at(taken);
        let all = later.is_empty();
        let ended_before = taken == 0 && all && end && self.output.end_with_last_frame(key.id);
        if taken > 0 || (all && end && !ended_before) {
            self.put_data(key, now, all && end);
        }
        if let Some(stream) = self.streams.get_mut(key) {
            if stream.granted == self.turn {
                stream.granted = 0;
                self.granted = self.granted.saturating_sub(self.options.quantum_bytes);
            }
            if !all {
                self.wait_for_capacity(key);
            }
        }
        if all && end {
            self.sent_end(key);
        }
        Ok(taken)
    }

    /// Writes DATA frames for bytes that the windows allow; one empty frame if there are none.
    fn put_data(&mut self, key: StreamKey, data: &[u8], end: bool) {
        let mut pieces = data.chunks(FRAME_BYTES).peekable();
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = pieces.peek().is_none();
            let flags = if last && end { flag::END_STREAM } else { 0 };
            let header = FrameHeader { length: piece.len(), kind: kind::DATA, flags, stream: key.id };
            self.output.frame(header, piece);
            self.floods.data_frames_sent += 1;
            if last {
                break;
            }
        }
        self.send_window -= data.len() as i64;
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send_window -= data.len() as i32;
        }
    }

    /// Bytes [`Connection::send_data`] would take now; 0 for a stream that is gone.
    pub fn capacity(&self, stream: StreamKey) -> usize {
        let Some(stream) = self.streams.get(stream).filter(|stream| stream.send == Direction::Body) else { return 0 };
        let room = self.room();
        let quantum = self.options.quantum_bytes;
        let share = if stream.in_line {
            0
        } else if stream.granted == self.turn {
            quantum
        } else if self.line.is_empty() && self.granted == 0 {
            usize::MAX
        } else if room >= self.granted + quantum * (self.line.len() + 1) {
            // There is enough for all queued streams and this one.
            quantum
        } else {
            0
        };
        share.min(room).min(usize::try_from(stream.send_window).unwrap_or(0))
    }

    /// Returns the number of DATA bytes that the connection can take, for any stream.
    fn room(&self) -> usize {
        let output = self.options.max_output_bytes.saturating_sub(self.output.len());
        let frames = self.output.frames() < self.options.max_outbound_frames / 2;
        let output = if output < LEAST_ROOM_BYTES || !frames { 0 } else { output };
        output.min(usize::try_from(self.send_window).unwrap_or(0))
    }

    /// Queues the stream for [`Connection::next_writable`] without offering data.
    pub fn wait_for_capacity(&mut self, stream: StreamKey) {
        let key = stream;
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.send == Direction::Body) else { return };
        stream.waiting = true;
        if !stream.in_line && stream.send_window > 0 {
            stream.in_line = true;
            self.line.push_back(key);
        }
    }

    /// Returns the next queued stream that can send. It leaves the queue, may send up to [`super::Options::quantum_bytes`]
    /// before the next [`Connection::receive`] or [`Connection::written`], and joins the end of the queue again if it has
    /// more. Returns `None` if no stream can send, or if the returned streams can use up the connection's window and the room
    /// in the output.
    pub fn next_writable(&mut self) -> Option<StreamKey> {
        while self.room() > self.granted {
            let key = self.line.pop_front()?;
            let Some(stream) = self.streams.get_mut(key) else { continue };
            stream.in_line = false;
            if stream.send_window <= 0 {
                // It waits outside the queue until its window opens.
                continue;
            }
            stream.waiting = false;
            stream.granted = self.turn;
            self.granted += self.options.quantum_bytes;
            return Some(key);
        }
        None
    }

    /// Sends trailers, which end the stream.
    ///
    /// # Errors
    /// The stream is gone, its head was not sent, or its end was.
    pub fn send_trailers(&mut self, stream: StreamKey, trailers: &Headers) -> Result<(), StreamGone> {
        self.streams.get(stream).filter(|stream| stream.send == Direction::Body).ok_or(StreamGone)?;
        let encoder = &mut self.encoder;
        self.output.headers(stream.id, true, FRAME_BYTES, |out| head::encode_trailers(encoder, out, trailers));
        self.sent_end(stream);
        Ok(())
    }

    fn sent_end(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.send = Direction::Ended;
        stream.waiting = false;
        if stream.recv == Direction::Ended {
            self.remove(key, ClosedBy::Ended);
        }
    }

    /// Resets the stream. Nothing more of it is reported. Does nothing if the stream is gone.
    pub fn reset(&mut self, stream: StreamKey, reason: Reason) {
        if self.streams.get(stream).is_some() {
            self.output.reset(stream.id, reason);
            self.remove(stream, ClosedBy::ResetHere);
        }
    }

    /// Releases bytes of the stream that the application has consumed; the stream's window is opened by them again, in
    /// batches.
    pub fn release_stream(&mut self, stream: StreamKey, bytes: usize) {
        self.release_and_widen(stream, bytes, 0);
    }

    /// Like [`Connection::release_stream`], for a stream whose reader keeps up: if the peer has used most of its
    /// window, the window is doubled, up to [`super::Options::max_stream_window_size`] and by at most `room` bytes.
    /// Returns by how many bytes it grew.
    pub fn release_and_widen(&mut self, stream: StreamKey, bytes: usize, room: usize) -> usize {
        let key = stream;
        let most = self.options.max_stream_window_size as i32;
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.recv != Direction::Ended) else { return 0 };
        // No more than was received can be given back.
        let outstanding = (i64::from(stream.recv_limit) - i64::from(stream.recv_window)).max(0) as u32;
        stream.released = stream.released.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)).min(outstanding);
        // Released bytes are announced after half a window at most, so the window is nearly used now.
        let used = stream.recv_window <= stream.recv_limit / 8 * 5;
        let more = stream.recv_limit.min(most.saturating_sub(stream.recv_limit)).max(0);
        let more = if used && more as usize <= room { more } else { 0 };
        if stream.released == 0 || (more == 0 && !stream.is_worth_telling()) {
            return 0;
        }
        let given = std::mem::take(&mut stream.released) as i32 + more;
        stream.recv_limit += more;
        stream.recv_window += given;
        self.output.window_update(key.id, given as u32);
        more as usize
    }

    /// Announces another window for all streams, including existing ones (RFC 9113 section 6.9.2); it takes effect when
    /// the peer has confirmed it. At most 2,147,483,647 bytes; ignored while an earlier change is unconfirmed.
    pub fn announce_stream_window(&mut self, bytes: u32) {
        let bytes = bytes.min(MAX_31_BITS) as i32;
        if self.is_stream_window_confirmed() && bytes != self.stream_window {
            self.stream_window_announced = bytes;
            self.send_settings(&[(INITIAL_WINDOW_SIZE, bytes as u32)]);
        }
    }

    /// Whether the peer has confirmed the last [`Connection::announce_stream_window`].
    pub fn is_stream_window_confirmed(&self) -> bool {
        self.stream_window_announced == self.stream_window
    }

    /// Releases consumed bytes of any stream's data; the connection's window is opened by them again, in batches.
    pub fn release_connection(&mut self, bytes: usize) {
        let most = i64::from(self.options.initial_connection_window_size);
        let outstanding = (most - self.recv_window).max(0) as u64;
        self.released = self.released.saturating_add(bytes as u64).min(outstanding);
        if self.released > 0 && self.released >= most as u64 / 2 {
            self.recv_window += self.released as i64;
            self.output.window_update(0, std::mem::take(&mut self.released) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn the_last_stream_number_is_used_and_none_after_it() {
        let mut connection = Connection::client(Options::default());
        connection.next_id = MAX_31_BITS;
        let mut head = RequestHead::default();
        head.set_method(b"GET");
        let last = connection.open(&head, true, Framing::None, true).map(StreamKey::id);
        assert_eq!(last, Ok(MAX_31_BITS));
        assert_eq!(connection.open(&head, true, Framing::None, true), Err(OpenError::Exhausted));
    }

    /// There is one for every connection, idle ones included.
    #[test]
    fn a_connection_is_small() {
        assert!(size_of::<Connection>() <= 1024, "{}", size_of::<Connection>());
    }
}
