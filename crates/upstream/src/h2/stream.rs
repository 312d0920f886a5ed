//! The handle of a stream.

use std::rc::Rc;
use std::task::{Context, Poll};

use evenkeel_http::h2::{Reason, ResponseMeta};
use evenkeel_http::{Framing, Headers, ResponseHead};

use super::entry::Entry;
use super::memory::{self, Chunk};
use super::reset::{Reset, ResetBy};
use super::shared::{Core, Shared};

/// One stream, in either role, held by one task: the task that polled last is woken.
///
/// Sending never waits: what flow control holds back is queued, and [`Stream::poll_sent`] is ready when the queue is
/// empty. Dropping the handle resets the stream, except that a server's complete response is still sent.
pub struct Stream {
    shared: Rc<Shared>,
    entry: usize,
}

/// Result of [`Stream::poll_chunk`].
#[derive(Debug)]
pub enum Received {
    /// Bytes are in the chunk.
    Data,
    /// The peer's message is complete.
    End,
    /// The peer's message is complete, with trailers.
    Trailers(Headers),
}

/// Result of [`Stream::poll_head`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// An interim response; the final one is still to come.
    Interim,
    /// The final response.
    Final(ResponseMeta),
}

impl Stream {
    pub(super) fn new(shared: Rc<Shared>, entry: usize) -> Self {
        Self { shared, entry }
    }

    /// Waits for the next response head, interim or final. `head` is overwritten and its memory reused.
    pub fn poll_head(&mut self, head: &mut ResponseHead, cx: &mut Context<'_>) -> Poll<Result<Answer, Reset>> {
        let mut core = self.shared.0.borrow_mut();
        let entry = entry_of(&mut core, self.entry)?;
        let (next, answer) = match (entry.interim.pop_front(), entry.reset) {
            (Some(interim), _) => (interim, Answer::Interim),
            (None, reset) => match (entry.answer.take(), reset) {
                (Some((head, meta)), _) => (head, Answer::Final(meta)),
                (None, Some(reset)) => return Poll::Ready(Err(reset)),
                (None, None) => {
                    entry.watch(cx.waker());
                    return Poll::Pending;
                }
            },
        };
        drop(core);
        memory::give_response(std::mem::replace(head, next));
        Poll::Ready(Ok(answer))
    }

    /// Passes body bytes to `take`, at most `limit` at a time, and releases as much of the peer's window. All bytes
    /// received are delivered, even if the stream was reset afterwards: a complete message stays complete (RFC 9113
    /// section 8.1), and of a truncated one every byte counts. `take` must not use other streams of the same
    /// connection.
    pub fn poll_data(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8]),
        cx: &mut Context<'_>,
    ) -> Poll<Result<Received, Reset>> {
        let mut core = self.shared.0.borrow_mut();
        let entry = entry_of(&mut core, self.entry)?;
        if !entry.received.is_empty() {
            let count = entry.received.len().min(limit);
            take(entry.received.bytes().get(..count).unwrap_or_default());
            entry.received.consume(count);
            core.took(self.entry, count);
            return Poll::Ready(Ok(Received::Data));
        }
        if let Some(reset) = entry.reset
            && !entry.peer_ended
        {
            return Poll::Ready(Err(reset));
        }
        if entry.peer_ended {
            let trailers = entry.trailers.take();
            return Poll::Ready(Ok(trailers.map_or(Received::End, |trailers| Received::Trailers(*trailers))));
        }
        entry.watch(cx.waker());
        Poll::Pending
    }

    /// As [`Stream::poll_data`], for a caller that holds bytes until they are used: puts them into `chunk`, which must
    /// be empty. Usually the buffers are swapped, not copied.
    pub fn poll_chunk(
        &mut self,
        limit: usize,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Received, Reset>> {
        let mut core = self.shared.0.borrow_mut();
        let entry = entry_of(&mut core, self.entry)?;
        let held = entry.received.len();
        if (1..=limit).contains(&held) && chunk.is_empty() {
            std::mem::swap(chunk, &mut entry.received);
            core.took(self.entry, held);
            return Poll::Ready(Ok(Received::Data));
        }
        drop(core);
        self.poll_data(limit, &mut |data| chunk.push(data), cx)
    }

    /// The end of the peer's message with its trailers, if everything before it was taken. Never waits.
    pub fn take_end(&mut self) -> Option<Option<Headers>> {
        let mut core = self.shared.0.borrow_mut();
        let entry =
            entry_of(&mut core, self.entry).ok().filter(|entry| entry.peer_ended && entry.received.is_empty())?;
        Some(entry.trailers.take().map(|trailers| *trailers))
    }

    /// Sends an interim response.
    pub fn interim(&mut self, head: &ResponseHead) {
        // A closed stream sends nothing; its reset reports that. The same holds below.
        self.act(|entry, codec| _ = codec.interim(entry.key, head));
    }

    /// Sends the response's head. `framing` tells the body's length, as far as it is known.
    pub fn respond(&mut self, head: &ResponseHead, framing: Framing, end: bool) {
        self.act(|entry, codec| {
            _ = codec.respond(entry.key, head, framing, end);
            if end {
                entry.end = super::entry::End::Sent;
            }
        });
    }

    /// Sends body bytes; with `end`, also ends the message.
    pub fn send_data(&mut self, data: &[u8], end: bool) {
        self.act(|entry, codec| entry.send(codec, data, end));
    }

    /// Sends trailers, which end the message.
    pub fn send_trailers(&mut self, trailers: &Headers) {
        self.act(|entry, codec| entry.send_trailers(codec, trailers));
    }

    /// Tells the client that it may retry the request, whatever its method (REFUSED_STREAM, RFC 9113 section 8.7).
    pub fn refuse(&mut self) {
        self.shared.0.borrow_mut().cut(self.entry, Reason::REFUSED_STREAM);
    }

    /// Ready when everything sent has left the stream's queue.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reset>> {
        let result = self.poll_entry(cx, |entry| match entry.reset {
            Some(reset) => Some(Err(reset)),
            None => entry.unsent.is_empty().then_some(Ok(())),
        });
        result.map(Result::flatten)
    }

    /// Bytes still in the stream's queue.
    pub fn unsent(&self) -> usize {
        self.shared.0.borrow().streams.entries.get(self.entry).map_or(0, |entry| entry.unsent.len())
    }

    /// Resets the stream if bytes wait in its queue, because the peer has not read for too long.
    pub fn give_up(&mut self) {
        self.shared.0.borrow_mut().give_up(self.entry);
    }

    /// Ready when the stream was reset.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Reset> {
        self.poll_entry(cx, |entry| entry.reset).map(|result| result.unwrap_or_else(|reset| reset))
    }

    /// Stream identifier on the wire.
    pub fn id(&self) -> u32 {
        self.shared.0.borrow().streams.entries.get(self.entry).map_or(0, |entry| entry.key.id())
    }

    fn act(&mut self, f: impl FnOnce(&mut Entry, &mut evenkeel_http::h2::Connection)) {
        self.shared.0.borrow_mut().act(self.entry, f);
    }

    fn poll_entry<R>(
        &mut self,
        cx: &mut Context<'_>,
        ready: impl FnOnce(&Entry) -> Option<R>,
    ) -> Poll<Result<R, Reset>> {
        let mut core = self.shared.0.borrow_mut();
        let entry = entry_of(&mut core, self.entry)?;
        match ready(entry) {
            Some(result) => Poll::Ready(Ok(result)),
            None => {
                entry.watch(cx.waker());
                Poll::Pending
            }
        }
    }
}

/// The entry lives as long as the handle.
fn entry_of(core: &mut Core, index: usize) -> Result<&mut Entry, Reset> {
    let gone = Reset { reason: Reason::NO_ERROR, by: ResetBy::Connection, unprocessed: false };
    let over = core.streams.over.unwrap_or(gone);
    core.streams.entries.get_mut(index).ok_or(over)
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.0.borrow_mut().abandon(self.entry);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "h2::Stream({})", self.id())
    }
}
