//! HTTP/2 framing (RFC 9113 section 4), reduced to what the backend and the idle streams need; both know what their peer
//! sends.

/// The client's connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
pub const DATA: u8 = 0;
/// Header block.
pub const HEADERS: u8 = 1;
/// End of a stream by error.
pub const RST_STREAM: u8 = 3;
/// Settings.
pub const SETTINGS: u8 = 4;
/// Liveness.
pub const PING: u8 = 6;
/// End of a connection.
pub const GOAWAY: u8 = 7;
/// Credit.
pub const WINDOW_UPDATE: u8 = 8;

/// Last frame of its side of the stream.
pub const FLAG_END_STREAM: u8 = 1;
/// Acknowledges SETTINGS or PING.
pub const FLAG_ACK: u8 = 1;
/// The header block is complete.
pub const FLAG_END_HEADERS: u8 = 4;

const HEAD_BYTES: usize = 9;

/// Appends a frame.
pub fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a header field as a literal without indexing (RFC 7541 section 6.2.2), so that the encoder needs no state.
/// Names and values are shorter than 127 bytes here.
pub fn put_field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        debug_assert!(text.len() < 127, "{text} needs a longer length");
        out.push(text.len() as u8);
        out.extend_from_slice(text.as_bytes());
    }
}

/// A frame's head and payload.
pub struct Frame<'a> {
    /// Type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Stream, 0 for the connection.
    pub stream: u32,
    /// Payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The flag of that name on SETTINGS and PING.
    pub fn is_ack(&self) -> bool {
        self.flags & FLAG_ACK != 0
    }

    /// The flag of that name on DATA and HEADERS.
    pub fn ends_stream(&self) -> bool {
        self.flags & FLAG_END_STREAM != 0
    }
}

/// Cuts bytes into frames.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    at: usize,
}

impl Frames {
    /// Adds received bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes this many bytes that are no frame off the front, once they are all there.
    pub fn skip(&mut self, count: usize) -> bool {
        let there = self.bytes.len() - self.at >= count;
        if there {
            self.at += count;
        }
        there
    }

    /// The next complete frame.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let (head, rest) = self.bytes.get(self.at..)?.split_first_chunk::<HEAD_BYTES>()?;
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let payload = rest.get(..u32::from_be_bytes([0, a, b, c]) as usize)?;
        self.at += HEAD_BYTES + payload.len();
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream) & (u32::MAX >> 1), payload })
    }
}

#[cfg(test)]
mod tests {
    use super::{DATA, Frames, HEADERS, put};

    #[test]
    fn what_was_put_comes_out_however_it_is_cut() {
        let mut out = b"!!".to_vec();
        put(&mut out, HEADERS, 5, 1, b"abc");
        put(&mut out, DATA, 1, 3, &[7; 300]);
        for cut in 0..out.len() {
            let (mut frames, mut seen, mut skipped) = (Frames::default(), Vec::new(), false);
            for part in [&out[..cut], &out[cut..]] {
                frames.add(part);
                skipped = skipped || frames.skip(2);
                while let Some(frame) = skipped.then(|| frames.next_frame()).flatten() {
                    seen.push((frame.kind, frame.flags, frame.stream, frame.payload.len()));
                }
            }
            assert_eq!(seen, [(HEADERS, 5, 1, 3), (DATA, 1, 3, 300)], "cut at {cut}");
        }
    }
}
