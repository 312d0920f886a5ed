//! Assembles gRPC messages (gRPC over HTTP/2, "Length-Prefixed-Message") from a stream's DATA.

use prost::Message;
use tonic::Status as GrpcStatus;

use super::budget::BudgetShare;
use super::shape;

/// Bytes of a message's prefix: a flag and the length.
const PREFIX_BYTES: usize = 5;
/// Bytes of memory an idle stream keeps for the next messages: a few answers.
const KEPT_BYTES: usize = 1024;

/// Bytes a stream may buffer without taking them from its client's budget: enough for nearly all messages.
const FREE_BYTES: usize = 16 * 1024;

/// The buffered input of a stream.
#[derive(Debug)]
pub(super) struct Messages {
    buffer: Vec<u8>,
    /// Where the first message begins.
    start: usize,
    /// Bytes that arrived and for which the window was not opened yet.
    owed: usize,
    share: BudgetShare,
    /// Whether the budget was exceeded; nothing more is buffered then.
    refused: bool,
}

impl Messages {
    /// An empty buffer; larger amounts of memory are taken from `share`.
    pub(super) fn new(share: BudgetShare) -> Self {
        Self { buffer: Vec::new(), start: 0, owed: 0, share, refused: false }
    }

    /// Adds a piece of the stream.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.owed += data.len();
        if self.refused {
            return;
        }
        self.buffer.extend_from_slice(data);
        if !self.share.set(self.buffer.capacity().saturating_sub(FREE_BYTES)) {
            self.refused = true;
            self.empty();
        }
    }

    /// The next message, if it is complete.
    pub(super) fn take<M: Message + Default>(&mut self, max_bytes: usize) -> Option<Result<M, GrpcStatus>> {
        if self.refused {
            return Some(Err(GrpcStatus::resource_exhausted(
                "unfinished messages of this client hold too much memory",
            )));
        }
        let (compressed, length) = self.prefix()?;
        if compressed {
            return Some(Err(GrpcStatus::unimplemented("a compressed message, though no compression was offered")));
        }
        if length > max_bytes {
            let text = format!("a message of {length} bytes; at most {max_bytes} are accepted");
            return Some(Err(GrpcStatus::resource_exhausted(text)));
        }
        let body = self.start + PREFIX_BYTES;
        let message = self.buffer.get(body..body + length)?;
        if let Err(reason) = shape::check(message) {
            return Some(Err(GrpcStatus::resource_exhausted(reason)));
        }
        let message = M::decode(message);
        self.start = body + length;
        if self.start == self.buffer.len() {
            self.empty();
        } else if self.start >= self.buffer.len() - self.start {
            // Otherwise all messages of a client that never ends DATA at a message boundary would be kept.
            self.buffer.drain(..std::mem::take(&mut self.start));
        }
        Some(message.map_err(|error| GrpcStatus::internal(format!("malformed message: {error}"))))
    }

    fn empty(&mut self) {
        self.start = 0;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES);
        self.share.set(0);
    }

    /// Whether a message is incomplete.
    pub(super) fn is_unfinished(&self) -> bool {
        let there = self.buffer.len() - self.start;
        there > 0 && self.prefix().is_none_or(|(_, length)| there < PREFIX_BYTES + length)
    }

    /// Bytes by which to open the window: all that arrived, but none while a message waits to be taken or was refused.
    pub(super) fn credit(&mut self, max_bytes: usize) -> usize {
        let there = self.buffer.len() - self.start;
        let waits =
            self.refused || self.prefix().is_some_and(|(_, length)| there >= PREFIX_BYTES + length.min(max_bytes));
        if waits { 0 } else { std::mem::take(&mut self.owed) }
    }

    /// All bytes for which the window was not opened; for a stream that is gone.
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
    use crate::server::grpc::Budget;

    fn messages() -> Messages {
        Messages::new(BudgetShare::of(Budget::new(1024 * 1024)))
    }

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
            let (mut messages, mut found, mut credit) = (messages(), Vec::<String>::new(), 0);
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
        let mut messages = messages();
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
            let mut messages = messages();
            messages.add(bytes);
            let error = messages.take::<String>(100).unwrap().unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        };
        // Nor does a window open for more of it, however long nobody asks.
        let mut endless = messages();
        endless.add(&[0, 255, 255, 255, 255]);
        assert_eq!(endless.credit(100), 5);
        endless.add(&[0; 100]);
        assert_eq!(endless.credit(100), 0);
        check(&[1, 0, 0, 0, 0], "compressed");
        check(&[0, 0, 0, 0, 101], "of 101 bytes; at most 100");
        check(&[0, 0, 0, 0, 2, 255, 255], "malformed message");
    }

    #[test]
    fn unfinished_messages_hold_no_more_than_the_budget() {
        const MAX: usize = 16 * 1024 * 1024;
        let budget = Budget::new(256 * 1024);
        let stream = || Messages::new(BudgetShare::of(budget.clone()));
        let begin = [&[0][..], &15_000_000_u32.to_be_bytes(), &[7; 16 * 1024 - 5]].concat();
        let mut streams: Vec<Messages> = (0..100).map(|_| stream()).collect();
        // The guaranteed memory of each stream is not counted. Memory beyond it is counted, and refused when the budget
        // is used up.
        for stream in &mut streams {
            stream.add(&begin);
            assert!(stream.is_unfinished());
        }
        for _ in 0..100 {
            streams.iter_mut().for_each(|stream| stream.add(&[7; 16 * 1024]));
        }
        assert!(budget.taken() <= 256 * 1024, "{}", budget.taken());
        assert!(streams.iter().map(|stream| stream.buffer.capacity()).sum::<usize>() <= 256 * 1024 + 100 * FREE_BYTES);
        let last = streams.last_mut().expect("a stream");
        let refused = last.take::<String>(MAX).expect("an answer").expect_err("a refusal");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
        assert_eq!(last.credit(MAX), 0, "no window for what is thrown away");
        drop(streams);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_was_taken_is_not_kept_although_the_next_has_begun() {
        let (mut messages, text) = (messages(), "x".repeat(1000));
        let bytes = framed(&[&text]);
        messages.add(&bytes[..10]);
        for _ in 0..10_000 {
            messages.add(&bytes[10..]);
            messages.add(&bytes[..10]);
            assert_eq!(messages.take::<String>(2000).expect("a message").expect("text"), text);
        }
        assert!(messages.buffer.capacity() <= FREE_BYTES, "{}", messages.buffer.capacity());
        assert!(messages.is_unfinished());
    }
}
