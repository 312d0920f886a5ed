//! Messages of gRPC in a body (gRPC over HTTP/2, "Length-Prefixed-Message"): a byte of flags, four of length, the message.

const HEADER_BYTES: u8 = 5;

/// Counts messages, however the body is cut into pieces. A message counts from its first byte on, as it does for Envoy.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Messages that have begun.
    begun: u64,
    /// Bytes of the current header that were read.
    header: u8,
    /// The current message's length as far as it was read, and then what is left of it.
    length: u32,
}

impl Frames {
    /// Messages so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Takes the next piece; how many messages begin in it.
    pub(super) fn take(&mut self, mut data: &[u8]) -> u64 {
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

    #[test]
    fn messages_are_counted_wherever_they_are_cut() {
        let body = [
            &[0, 0, 0, 0, 3][..],
            b"abc",
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 1, 1],
            &[7; 257],
            &[0, 0, 0, 0, 9],
            b"cut short",
            &[0],
        ]
        .concat();
        for size in 1..=body.len() {
            let mut frames = Frames::default();
            let sum: u64 = body.chunks(size).map(|piece| frames.take(piece)).sum();
            assert_eq!((sum, frames.begun()), (5, 5), "in pieces of {size}");
        }
    }

    #[test]
    fn the_longest_message_does_not_overflow() {
        let mut frames = Frames::default();
        assert_eq!(frames.take(&[0, 255, 255, 255, 255, 0]), 1);
        assert_eq!(frames.take(&[0; 1000]), 0);
    }
}
