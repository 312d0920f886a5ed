//! gRPC's messages (gRPC over HTTP/2, "Length-Prefixed-Message"), put together from a stream's DATA.

use prost::Message;
use tonic::Status as GrpcStatus;

/// Bytes of a message's prefix: a flag and the length.
const PREFIX_BYTES: usize = 5;
/// Bytes of memory an idle stream keeps for what comes next: a few answers.
const KEPT_BYTES: usize = 1024;

/// What has come of a stream and has not been taken.
#[derive(Debug, Default)]
pub(super) struct Messages {
    buffer: Vec<u8>,
    /// Where the first message begins.
    start: usize,
    /// Bytes that came and were not given back to the client's window.
    owed: usize,
}

impl Messages {
    /// Takes a piece of the stream.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
        self.owed += data.len();
    }

    /// The next message, if it is there whole.
    pub(super) fn take<M: Message + Default>(&mut self, max_bytes: usize) -> Option<Result<M, GrpcStatus>> {
        let (compressed, length) = self.prefix()?;
        if compressed {
            return Some(Err(GrpcStatus::unimplemented("a compressed message, though no compression was offered")));
        }
        if length > max_bytes {
            let text = format!("a message of {length} bytes; at most {max_bytes} are taken");
            return Some(Err(GrpcStatus::resource_exhausted(text)));
        }
        let body = self.start + PREFIX_BYTES;
        let message = M::decode(self.buffer.get(body..body + length)?);
        self.start = body + length;
        if self.start == self.buffer.len() {
            self.start = 0;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
        }
        Some(message.map_err(|error| GrpcStatus::internal(format!("malformed message: {error}"))))
    }

    /// Bytes the client may send again: all that came, but not while a message waits to be taken, or refused.
    pub(super) fn credit(&mut self, max_bytes: usize) -> usize {
        let there = self.buffer.len() - self.start;
        let waits = self.prefix().is_some_and(|(_, length)| there >= PREFIX_BYTES + length.min(max_bytes));
        if waits { 0 } else { std::mem::take(&mut self.owed) }
    }

    /// All bytes that were not given back: the stream is gone.
    pub(super) fn rest(&mut self) -> usize {
        std::mem::take(&mut self.owed)
    }

    /// Whether the first message is compressed, and its length.
    fn prefix(&self) -> Option<(bool, usize)> {
        let (&[flag, ref length @ ..], _) = self.buffer.get(self.start..)?.split_first_chunk::<PREFIX_BYTES>()?;
        Some((flag != 0, u32::from_be_bytes(*length) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(messages: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in messages {
            let message = (*text).to_owned().encode_to_vec();
            bytes.push(0);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let sent = ["one", "", "a third that is longer"];
        let bytes = framed(&sent);
        for step in 1..=bytes.len() {
            let (mut messages, mut found, mut credit) = (Messages::default(), Vec::<String>::new(), 0);
            for piece in bytes.chunks(step) {
                messages.add(piece);
                while let Some(message) = messages.take(100) {
                    found.push(message.unwrap());
                }
                credit += messages.credit(100);
            }
            assert_eq!((found, credit), (sent.map(str::to_owned).to_vec(), bytes.len()), "in steps of {step}");
        }
    }

    #[test]
    fn a_window_opens_for_what_is_cut_and_stays_shut_while_messages_wait() {
        let bytes = framed(&["first", "second"]);
        let mut messages = Messages::default();
        messages.add(&bytes[..3]);
        assert_eq!(messages.credit(100), 3);
        messages.add(&bytes[3..]);
        assert_eq!(messages.credit(100), 0, "two whole ones wait");
        assert_eq!(messages.take::<String>(100).unwrap().unwrap(), "first");
        assert_eq!(messages.credit(100), 0, "one waits");
        assert_eq!(messages.take::<String>(100).unwrap().unwrap(), "second");
        assert_eq!(messages.credit(100), bytes.len() - 3);
    }

    #[test]
    fn what_is_not_a_message_is_refused_with_its_reason() {
        let check = |bytes: &[u8], expected: &str| {
            let mut messages = Messages::default();
            messages.add(bytes);
            let error = messages.take::<String>(100).unwrap().unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        };
        // Nor does a window open for more of it, however long nobody asks.
        let mut endless = Messages::default();
        endless.add(&[0, 255, 255, 255, 255]);
        assert_eq!(endless.credit(100), 5);
        endless.add(&[0; 100]);
        assert_eq!(endless.credit(100), 0);
        check(&[1, 0, 0, 0, 0], "compressed");
        check(&[0, 0, 0, 0, 101], "of 101 bytes; at most 100");
        check(&[0, 0, 0, 0, 2, 255, 255], "malformed message");
    }
}
