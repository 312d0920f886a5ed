//! Frame headers (RFC 9113 section 4.1), and the frames of fixed shape.

use super::error::Reason;

pub(super) const HEADER_BYTES: usize = 9;

/// Frame types.
pub(super) mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags.
pub(super) mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Bytes of payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    /// Stream, without the reserved bit.
    pub stream: u32,
}

impl FrameHeader {
    /// Parses the first nine bytes.
    #[inline]
    pub(super) fn parse(input: &[u8]) -> Option<Self> {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *input.first_chunk::<HEADER_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        })
    }

    /// The header as bytes.
    #[inline]
    pub(super) fn bytes(self) -> [u8; HEADER_BYTES] {
        let [_, l0, l1, l2] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The four bytes at the start of `payload` as a number.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The output buffer, which counts the frames in it that are not written yet.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// Bytes at the start that have been written.
    at: usize,
    /// Where the last frame begins.
    last: usize,
    frames: u32,
    control: u32,
}

/// Maximum payload of a sent frame: every peer accepts it (RFC 9113 section 4.2), and larger ones would make other streams
/// wait.
pub(super) const FRAME_BYTES: usize = 16 * 1024;

/// Written bytes that may stay before the unwritten ones until they are removed.
const SLACK_BYTES: usize = 64 * 1024;

impl Output {
    pub(super) fn pending(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn control_frames(&self) -> u32 {
        self.control
    }

    pub(super) fn written(&mut self, bytes: usize) {
        let before = self.len();
        self.at = (self.at + bytes).min(self.bytes.len());
        let after = self.len();
        if after == 0 {
            (self.frames, self.control) = (0, 0);
            self.bytes.clear();
            (self.at, self.last) = (0, 0);
            return;
        }
        // The ends of frames are not recorded; an estimate by their share of the remaining bytes is good enough for a
        // limit.
        let share = |count: u32| (u64::from(count) * after as u64).div_ceil(before.max(1) as u64) as u32;
        (self.frames, self.control) = (share(self.frames), share(self.control));
        if self.at > SLACK_BYTES {
            self.bytes.drain(..self.at);
            self.last = self.last.saturating_sub(self.at);
            self.at = 0;
        }
    }

    pub(super) fn take_buffer(&mut self) -> Option<Vec<u8>> {
        (self.len() == 0).then(|| {
            (self.at, self.last) = (0, 0);
            let mut buffer = std::mem::take(&mut self.bytes);
            buffer.clear();
            buffer
        })
    }

    pub(super) fn lend_buffer(&mut self, buffer: Vec<u8>) {
        if self.len() == 0 && buffer.is_empty() && buffer.capacity() > self.bytes.capacity() {
            self.bytes = buffer;
            (self.at, self.last) = (0, 0);
        }
    }

    /// Bytes without frame: the preface.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a frame of a stream.
    #[inline]
    pub(super) fn frame(&mut self, header: FrameHeader, payload: &[u8]) {
        self.frames += 1;
        self.last = self.bytes.len();
        self.bytes.reserve(HEADER_BYTES + payload.len());
        self.bytes.extend_from_slice(&header.bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// Sets END_STREAM on the last frame, if it belongs to this stream and is not written yet, so that an end that is
    /// known a moment later needs no frame of its own.
    pub(super) fn end_with_last_frame(&mut self, stream: u32) -> bool {
        if self.last < self.at {
            return false;
        }
        let Some(mut header) = self.bytes.get(self.last..).and_then(FrameHeader::parse) else { return false };
        let ends_here = matches!(header.kind, kind::DATA | kind::HEADERS) && header.stream == stream;
        if ends_here {
            header.flags |= flag::END_STREAM;
            self.put_header(self.last, header);
        }
        ends_here
    }

    /// Appends a control frame.
    pub(super) fn control(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.control += 1;
        self.frame(FrameHeader { length: payload.len(), kind, flags, stream }, payload);
    }

    pub(super) fn reset(&mut self, stream: u32, reason: Reason) {
        self.control(kind::RST_STREAM, 0, stream, &reason.0.to_be_bytes());
    }

    pub(super) fn window_update(&mut self, stream: u32, increment: u32) {
        self.control(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
    }

    pub(super) fn goaway(&mut self, last: u32, reason: Reason, debug: &[u8]) {
        let mut payload = Vec::with_capacity(8 + debug.len());
        payload.extend_from_slice(&last.to_be_bytes());
        payload.extend_from_slice(&reason.0.to_be_bytes());
        payload.extend_from_slice(debug);
        self.control(kind::GOAWAY, 0, 0, &payload);
    }

    /// A header block, written by `block` and then cut into HEADERS and CONTINUATION frames of at most `max_frame` bytes.
    pub(super) fn headers(&mut self, stream: u32, end: bool, max_frame: usize, block: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.last = start;
        self.bytes.reserve(512);
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        block(&mut self.bytes);
        let length = self.bytes.len() - start - HEADER_BYTES;
        let flags = if end { flag::END_STREAM } else { 0 };
        self.frames += 1;
        if length <= max_frame {
            let header = FrameHeader { length, kind: kind::HEADERS, flags: flags | flag::END_HEADERS, stream };
            self.put_header(start, header);
            return;
        }
        self.put_header(start, FrameHeader { length: max_frame, kind: kind::HEADERS, flags, stream });
        let rest = self.bytes.split_off(start + HEADER_BYTES + max_frame);
        let mut pieces = rest.chunks(max_frame).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
            self.frame(FrameHeader { length: piece.len(), kind: kind::CONTINUATION, flags, stream }, piece);
        }
    }

    fn put_header(&mut self, at: usize, header: FrameHeader) {
        if let Some(place) = self.bytes.get_mut(at..at + HEADER_BYTES) {
            place.copy_from_slice(&header.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_cut_at_the_peers_frame_size() {
        let block: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        let mut output = Output::default();
        output.headers(5, true, 300, |out| out.extend_from_slice(&block));
        let (mut rest, mut seen, mut joined) = (output.pending(), Vec::new(), Vec::new());
        while let Some(header) = FrameHeader::parse(rest) {
            let (payload, after) = rest[HEADER_BYTES..].split_at(header.length);
            seen.push((header.kind, header.flags, header.length, header.stream));
            joined.extend_from_slice(payload);
            rest = after;
        }
        assert_eq!(seen, [(1, 1, 300, 5), (9, 0, 300, 5), (9, 0, 300, 5), (9, 4, 100, 5)]);
        assert_eq!((joined, rest.len(), output.frames()), (block, 0, 4));
    }

    #[test]
    fn an_end_goes_with_the_last_frame_if_that_is_still_there() {
        let data = |output: &mut Output, stream| {
            output.frame(FrameHeader { length: 2, kind: kind::DATA, flags: 0, stream }, b"ab");
        };
        let mut output = Output::default();
        assert!(!output.end_with_last_frame(1));
        data(&mut output, 1);
        data(&mut output, 3);
        assert!(!output.end_with_last_frame(1));
        assert!(output.end_with_last_frame(3));
        assert_eq!(output.pending()[4], 0);
        assert_eq!(output.pending()[HEADER_BYTES + 2 + 4], flag::END_STREAM);
        data(&mut output, 5);
        output.written(2 * (HEADER_BYTES + 2) + 1);
        assert!(!output.end_with_last_frame(5));
        output.window_update(5, 1);
        assert!(!output.end_with_last_frame(5));
    }

    #[test]
    fn counts_frames_that_are_not_written() {
        let mut output = Output::default();
        (0..100).for_each(|_| output.window_update(0, 1));
        output.written(13 * 50);
        assert_eq!((output.frames(), output.control_frames(), output.len()), (50, 50, 13 * 50));
        assert_eq!(output.take_buffer(), None);
        output.written(13 * 50);
        assert_eq!((output.frames(), output.control_frames(), output.len()), (0, 0, 0));
        assert!(output.take_buffer().is_some());
    }
}
