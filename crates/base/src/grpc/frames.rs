//! Messages of gRPC in a body ("Length-Prefixed-Message"): a byte of flags, four of length, the message.

const HEADER_BYTES: u8 = 5;

/// A message is longer than the reader allows, or it is compressed although compression was not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The message is longer than the limit.
    #[error("a message of {bytes} bytes, which is over the limit")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The message is compressed, or its flags are unknown.
    #[error("a message with unknown flags ({0})")]
    Flags(u8),
}

/// Appends an uncompressed message to a body. The format cannot carry messages over 4 GiB; this program makes none.
pub fn frame(message: &[u8], body: &mut Vec<u8>) {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    body.reserve(usize::from(HEADER_BYTES) + message.len());
    body.push(0);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(message.get(..length as usize).unwrap_or(message));
}

/// Reads messages, however the body is cut into pieces. It buffers one unfinished message of at most `max_bytes`, and
/// the bytes that were pushed but not yet taken.
#[derive(Debug)]
pub struct Messages {
    bytes: Vec<u8>,
    /// How many of `bytes` have been taken.
    taken: usize,
    max_bytes: usize,
}

impl Messages {
    /// Creates a reader without data.
    pub fn new(max_bytes: usize) -> Self {
        Self { bytes: Vec::new(), taken: 0, max_bytes }
    }

    /// The next piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// A message that is too long, or compressed. The error repeats on further calls, because nothing after it can be
    /// read.
    #[allow(clippy::should_implement_trait)] // Two layers of `Option` and `Result` are what an iterator would make of it.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((&[flags, a, b, c, d], rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > self.max_bytes {
            return Err(FrameError::TooLarge { bytes: length });
        }
        // An empty message cannot be compressed, whatever its flag says.
        if flags != 0 && length > 0 {
            return Err(FrameError::Flags(flags));
        }
        let message = rest.get(..length).map(<[u8]>::to_vec);
        if message.is_some() {
            self.taken += usize::from(HEADER_BYTES) + length;
        }
        Ok(message)
    }

    /// Whether no unfinished message is buffered.
    pub fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

/// Counts messages, however the body is cut into pieces. A message counts from its first byte on, as it does for Envoy.
#[derive(Debug, Default)]
pub struct Frames {
    /// Messages that have begun.
    begun: u64,
    /// Bytes of the current header that were read.
    header: u8,
    /// The current message's length as far as it was read, and then what is left of it.
    length: u32,
}
impl Frames {
    /// Messages so far.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Takes the next piece; how many messages begin in it.
    pub fn take(&mut self, mut data: &[u8]) -> u64 {
        let before = self.begun;
        while let Some((first, rest)) = data.split_first() {
            match self.header {
                HEADER_BYTES => {
                    let message = data.len().min(self.length as usize);
                    self.length -= message as u32;
                    data = data.get(message..).unwrap_or_default();
                }
                0 => {
                    self.begun += 1;
                    (self.header, self.length, data) = (1, 0, rest);
                }
                _ => {
                    self.length = self.length << 8 | u32::from(*first);
                    (self.header, data) = (self.header + 1, rest);
                }
            }
            if self.header == HEADER_BYTES && self.length == 0 {
                self.header = 0;
            }
        }
        self.begun - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Vec<u8> {
        [
            &[0, 0, 0, 0, 3][..],
            b"abc",
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 1, 1],
            &[7; 257],
            &[0, 0, 0, 0, 9],
            b"cut short",
            &[0],
        ]
        .concat()
    }

    #[test]
    fn messages_are_counted_wherever_they_are_cut() {
        let body = body();
        for size in 1..=body.len() {
            let mut frames = Frames::default();
            let sum: u64 = body.chunks(size).map(|piece| frames.take(piece)).sum();
            assert_eq!((sum, frames.begun()), (5, 5), "in pieces of {size}");
        }
    }

    #[test]
    fn messages_are_read_wherever_they_are_cut() {
        let body = body();
        for size in 1..=body.len() {
            let (mut messages, mut read) = (Messages::new(257), Vec::new());
            for piece in body.chunks(size) {
                messages.push(piece);
                while let Some(message) = messages.next().expect("good messages") {
                    read.push(message);
                }
            }
            assert_eq!(read, [b"abc".to_vec(), Vec::new(), vec![7; 257], b"cut short".to_vec()], "in pieces of {size}");
            assert!(!messages.is_empty(), "a byte of the next one is there");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut body = Vec::new();
        [&b"one"[..], b"", b"three"].iter().for_each(|message| frame(message, &mut body));
        let mut messages = Messages::new(5);
        messages.push(&body);
        let read: Vec<_> = std::iter::from_fn(|| messages.next().expect("good messages")).collect();
        assert_eq!(read, [b"one".to_vec(), Vec::new(), b"three".to_vec()]);
        assert!(messages.is_empty());
    }

    #[test]
    fn messages_that_cannot_be_read() {
        for (body, error) in [
            (&[0, 0, 0, 0, 4][..], FrameError::TooLarge { bytes: 4 }),
            (&[0, 255, 255, 255, 255], FrameError::TooLarge { bytes: u32::MAX as usize }),
            (&[1, 0, 0, 0, 1, 7], FrameError::Flags(1)),
        ] {
            let mut messages = Messages::new(3);
            messages.push(body);
            assert_eq!((messages.next(), messages.next()), (Err(error), Err(error)), "{body:?}");
        }
    }

    #[test]
    fn the_longest_message_does_not_overflow() {
        let mut frames = Frames::default();
        assert_eq!(frames.take(&[0, 255, 255, 255, 255, 0]), 1);
        assert_eq!(frames.take(&[0; 1000]), 0);
    }
}
